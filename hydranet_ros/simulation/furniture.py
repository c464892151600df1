"""Things that stand in buildings, made of boxes and faces."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.drive import rotation_of
from hydranet_ros.simulation.indoor_textures import PAPERS, PER_M, POSTERS
from hydranet_ros.simulation.scene import UP, Builder, Facet, Skin, texel_map
from hydranet_ros.simulation.street_scene import car

SIDES = ("right", "left", "front", "back")
_WHOLE = {  # texels of pictures that are shown whole
    "poster": (256.0, 256.0),
    "paper": (256.0, 256.0),
    "screen": (256.0, 160.0),
    "keys": (128.0, 64.0),
    "door": (128.0, 256.0),
    "books": (512.0, 512.0),
    "carton": (256.0, 256.0),
    "machine": (256.0, 256.0),
    "glass": (128.0, 128.0),
    "outside": (512.0, 256.0),
}


class Free:
    """Tells whether a box is clear of where the camera and the people go."""

    def __init__(self, points: Array, clear_m: float) -> None:
        self._points = points.reshape(-1, 3)
        self._clear = clear_m
        self._taken: list[tuple[Array, Array]] = []

    def __call__(self, low: Array, high: Array) -> bool:
        """Whether a box, by its least and greatest x, y, z, is out of the way."""
        gap = np.maximum(np.maximum(low - self._points, self._points - high), 0.0)
        return bool((np.sum(gap**2, axis=-1) > self._clear**2).all())

    def take(self, low: Array, high: Array) -> bool:
        """Reserve a box for a thing, where no other thing stands."""
        if not self(low, high):
            return False
        for other_low, other_high in self._taken:
            if (low < other_high - 1e-3).all() and (high > other_low + 1e-3).all():
                return False
        self._taken.append((low, high))
        return True


class Kit:
    """Builds things, with skins drawn at random; `blank` is the share that has no pattern."""

    def __init__(
        self, builder: Builder, free: Free, rng: np.random.Generator, blank: float
    ) -> None:
        self.builder, self.free, self.rng, self.blank = builder, free, rng, blank

    def skin(self, *names: str, per_m: float = PER_M, gain: float | None = None) -> Skin:
        """One of the named textures at its own scale, somewhere in it."""
        name = str(self.rng.choice(names))
        shift = self.rng.uniform(0.0, 1024.0, 2)
        bright = self.rng.uniform(0.75, 1.2) if gain is None else gain
        index = self.builder.textures[name]
        return Skin(index, per_m=per_m, shift=(float(shift[0]), float(shift[1])), gain=bright)

    def surface(self, *names: str, per_m: float = PER_M) -> Skin:
        """As `skin`, or plain, as often as the building is blank."""
        return self.skin(*(("plain",) if self.rng.random() < self.blank else names), per_m=per_m)

    def whole(self, name: str, gain: float | None = None) -> Skin:
        """A picture that fills a face."""
        bright = self.rng.uniform(0.75, 1.2) if gain is None else gain
        kind = name.rstrip("0123456789")
        return Skin(self.builder.textures[name], texels=_WHOLE[kind], gain=bright)

    def picture(self) -> Skin:
        """A poster or a sheet of paper."""
        if self.rng.random() < 0.7:
            return self.whole(f"poster{self.rng.integers(POSTERS)}")
        return self.whole(f"paper{self.rng.integers(PAPERS)}")

    def box(self, foot: ArrayLike, heading: float, size: ArrayLike, skin: Skin) -> None:
        """A closed box of one skin; size is (across, up, along)."""
        skins = dict.fromkeys((*SIDES, "top"), skin)
        self.builder.box(np.asarray(foot, float), heading, np.asarray(size, float), skins)

    def place(self, foot: Array, heading: float, size: Array) -> bool:
        """Whether a thing of this size may stand here; if so, the place is taken."""
        turn = np.abs(rotation_of(np.asarray(heading))[np.ix_([0, 2], [0, 2])])
        half = 0.5 * turn @ size[[0, 2]]
        low = foot - np.array([half[0], size[1], half[1]])
        return self.free.take(low, foot + np.array([half[0], 0.0, half[1]]))

    # --- things, each if there is room for it --------------------------------------------------

    def shelf(self, foot: Array, heading: float) -> None:
        """Books, or files, towards the front."""
        rng = self.rng
        size = np.array([rng.uniform(0.8, 2.0), rng.uniform(0.9, 2.1), rng.uniform(0.28, 0.4)])
        if self.place(foot, heading, size):
            wood = self.skin("grain", "plain", "metal")
            front = self.whole("books")
            skins = {"right": wood, "left": wood, "top": wood, "back": wood, "front": front}
            self.builder.box(foot, heading, size, skins)

    def cabinet(self, foot: Array, heading: float) -> None:
        """A cupboard of any size."""
        size = self.rng.uniform([0.4, 0.5, 0.35], [1.4, 2.0, 0.7])
        if self.place(foot, heading, size):
            self.box(foot, heading, size, self.surface("grain", "metal", "machine"))

    def table(self, foot: Array, heading: float) -> None:
        """Four legs, a top, and some things on it."""
        rng = self.rng
        size = np.array([rng.uniform(0.8, 1.8), rng.uniform(0.68, 0.78), rng.uniform(0.6, 0.9)])
        if self.place(foot, heading, size):
            self.table_of(foot, heading, size)
            top = foot - [0.0, size[1], 0.0]
            self.clutter(top, heading, size[[0, 2]], int(rng.integers(0, 6)))

    def table_of(self, foot: Array, heading: float, size: Array) -> None:
        """A table of a size."""
        turn, skin = rotation_of(np.asarray(heading)), self.surface("grain", "metal")
        lift = np.array([0.0, size[1] - 0.04, 0.0])
        self.box(foot - lift, heading, [size[0], 0.04, size[2]], skin)
        across, along = turn[:, 0] * size[0], turn[:, 2] * size[2]
        # The underside, for cameras below it.
        corner = foot - lift - 0.5 * (across + along)
        self.builder.face(corner, across, along, skin, 0, -UP)
        leg = self.skin("metal", "grain")
        for a in (-0.46, 0.46):
            for b in (-0.45, 0.45):
                self.box(foot + a * across + b * along, heading, [0.05, size[1] - 0.04, 0.05], leg)

    def chair(self, foot: Array, heading: float) -> None:
        """A seat, a back, and a stem."""
        if not self.place(foot, heading, np.array([0.5, 0.95, 0.5])):
            return
        cloth = self.surface("cloth", "grain")
        self.box(foot, heading, [0.08, 0.42, 0.08], self.skin("metal"))
        self.box(foot - [0.0, 0.42, 0.0], heading, [0.46, 0.07, 0.46], cloth)
        behind = rotation_of(np.asarray(heading))[:, 2] * -0.2
        self.box(foot - [0.0, 0.49, 0.0] + behind, heading, [0.44, 0.45, 0.05], cloth)

    def sofa(self, foot: Array, heading: float) -> None:
        """Or a bed: low and wide."""
        size = self.rng.uniform([1.4, 0.38, 0.8], [2.1, 0.5, 1.6])
        if self.place(foot, heading, size + np.array([0.0, 0.35, 0.0])):
            cloth = self.surface("cloth", "carpet")
            self.box(foot, heading, size, cloth)
            behind = rotation_of(np.asarray(heading))[:, 2] * (0.1 - 0.5 * size[2])
            lifted = foot - [0.0, size[1], 0.0] + behind
            self.box(lifted, heading, [size[0], 0.33, 0.2], cloth)

    def carton(self, foot: Array, heading: float) -> None:
        """A cardboard box, perhaps with another on it."""
        size = self.rng.uniform(0.2, 0.6, 3)
        if self.place(foot, heading, size * [1.0, 2.0, 1.0]):
            self.box(foot, heading, size, self.whole("carton"))
            if self.rng.random() < 0.4:
                upper = foot - [0.0, size[1], 0.0]
                self.box(upper, heading + 0.3, 0.7 * size, self.whole("carton"))

    def machine(self, foot: Array, heading: float) -> None:
        """Something large of sheet metal, with a smaller part on top."""
        size = self.rng.uniform([0.8, 0.9, 0.8], [2.5, 2.4, 3.0])
        if self.place(foot, heading, size * [1.0, 1.4, 1.0]):
            self.box(foot, heading, size, self.whole("machine"))
            upper = foot - [0.0, size[1], 0.0]
            self.box(upper, heading, size * [0.5, 0.35, 0.4], self.skin("metal", "stripes"))

    def rack(self, foot: Array, heading: float, size: Array) -> None:
        """Uprights, boards, and cartons on them."""
        if not self.place(foot, heading, size):
            return
        turn, rng = rotation_of(np.asarray(heading)), self.rng
        across, along = turn[:, 0] * size[0], turn[:, 2] * size[2]
        post = self.skin("stripes", "metal", per_m=200.0)
        for b in (-0.5, 0.0, 0.5):
            self.box(foot + b * along, heading, [0.1, size[1], 0.1], post)
        board = self.skin("metal", "grain")
        for level in np.arange(0.1, size[1] - 0.5, 1.3):
            lift = np.array([0.0, level, 0.0])
            self.box(foot - lift, heading, [size[0], 0.08, size[2]], board)
            for b in np.arange(-0.5 * size[2] + 0.5, 0.5 * size[2], 1.25):
                if rng.random() < 0.75:
                    load = rng.uniform([0.6, 0.4, 0.6], [0.9, 1.0, 1.1]) * [size[0], 1.0, 1.0]
                    at = foot - lift - [0.0, 0.08, 0.0] + turn[:, 2] * b
                    skin = self.whole(str(rng.choice(["carton", "machine"])))
                    self.box(at + 0.03 * across, heading, load, skin)

    def parked_car(self, foot: Array, heading: float) -> None:
        """A car as on the street."""
        if self.place(foot, heading, np.array([1.95, 1.5, 4.8])):
            car(self.builder, foot, heading, self.rng)

    def plant(self, foot: Array, heading: float) -> None:
        """A pot and two crossed ovals of leaves."""
        tall = self.rng.uniform(0.4, 1.2)
        if self.place(foot, heading, np.array([0.6, tall + 0.4, 0.6])):
            self.box(foot, heading, [0.3, 0.35, 0.3], self.skin("plain", "metal"))
            leaves = self.skin("leaves", per_m=200.0, gain=float(self.rng.uniform(1.0, 1.8)))
            middle = foot + UP * (0.3 + 0.5 * tall)
            angles = np.arange(8) * 0.25 * np.pi
            for turn in (0.3, 0.3 + 0.5 * np.pi):
                across = rotation_of(np.asarray(heading + turn))[:, 0]
                ring = np.outer(np.cos(angles), 0.3 * across) - np.outer(
                    np.sin(angles), 0.5 * tall * UP
                )
                mapping = texel_map(
                    middle, across * leaves.per_m, -UP * leaves.per_m, leaves.shift
                )
                facet = Facet(middle + ring, mapping, leaves.texture, leaves.gain, None)
                self.builder.facets.append(facet)

    def clutter(self, middle: Array, heading: float, extent: Array, count: int) -> None:
        """Things on a table top: papers, books, boxes, a monitor and a keyboard."""
        turn, rng = rotation_of(np.asarray(heading)), self.rng
        for k in range(int(count)):
            a, b = rng.uniform(-0.42, 0.42, 2) * extent
            foot = middle + turn[:, 0] * a + turn[:, 2] * b
            skew = heading + rng.normal(0.0, 0.4)
            kind = rng.integers(5)
            if kind == 0:
                self._lying(foot - [0.0, 0.003 + 0.001 * k, 0.0], skew, [0.21, 0.297])
            elif kind == 1:
                size = rng.uniform([0.14, 0.02, 0.18], [0.24, 0.1, 0.3])
                if self.place(foot, skew, size):
                    self.box(foot, skew, size, self.picture())
            elif kind == 2:
                size = rng.uniform([0.04, 0.06, 0.04], [0.25, 0.25, 0.25])
                if self.place(foot, skew, size):
                    self.box(foot, skew, size, self.skin("carton", "plain", "cloth", "machine"))
            elif kind == 3:
                self.monitor(foot, heading + np.pi + rng.normal(0.0, 0.3))
            elif self.place(foot, skew, np.array([0.44, 0.03, 0.15])):
                dark = self.skin("dark")
                skins = {**dict.fromkeys(SIDES, dark), "top": self.whole("keys")}
                self.builder.box(foot, skew + 0.5 * np.pi, np.array([0.15, 0.03, 0.44]), skins)

    def monitor(self, foot: Array, heading: float) -> None:
        """A screen on a foot, its picture to the front."""
        wide = float(self.rng.uniform(0.4, 0.65))
        if not self.place(foot, heading, np.array([wide, 0.12 + 0.62 * wide, 0.2])):
            return
        dark = self.skin("dark", "metal")
        self.box(foot, heading, [0.06, 0.14, 0.06], dark)
        skins = dict.fromkeys(("right", "left", "back", "top"), dark)
        skins["front"] = self.whole("screen")
        self.builder.box(
            foot - [0.0, 0.12, 0.0], heading, np.array([wide, 0.6 * wide, 0.04]), skins
        )

    def _lying(self, middle: Array, heading: float, size: ArrayLike) -> None:
        """A sheet of paper."""
        turn, (wide, tall) = rotation_of(np.asarray(heading)), np.asarray(size, float)
        across, along = turn[:, 0] * wide, -turn[:, 2] * tall
        low = middle - [0.5 * wide, 0.0, 0.5 * tall]
        if self.free(low, low + np.array([wide, 0.0, tall])):
            corner = middle - 0.5 * (across + along)
            self.builder.face(corner, across, along, self.picture(), 0, UP)
