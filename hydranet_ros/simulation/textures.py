"""Procedural textures with detail at every scale, and their anti-aliased look-up.

Every texture wraps around and is stored at every pair of power-of-two reductions in u and in v (a
rip-map), so that a surface seen at a grazing angle is filtered as much as it must be in one
direction without losing the other. Values are grey levels 0..255, kept as 16-bit fixed point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.lie import Array

Image = NDArray[np.float32]

_FIXED_POINT = 256.0  # 16-bit units per grey level
_ATLAS_WIDTH = 8192  # cv2.remap takes at most 32767
_REMAP_WIDTH = 512
_LOW_PASS = np.array([1, 4, 6, 4, 1], dtype=np.float32) / 16.0
# Subtracted from the level whose texels are as large as a pixel: the lens blur and the mean over
# the pixel's samples filter as well, and a little sharpness keeps corners.
_SHARPER_LEVELS = np.float32(0.35)

GROUND_LENGTH_M, GROUND_WIDTH_M = 48.0, 24.0  # one tile of the ground, along and across
ROAD_CENTRE_M = -1.7  # d of the line between the lanes: we drive on the right
LANE_M, KERB_M = 3.4, 5.6  # width of a lane; distance of either kerb from the road's centre
FACADE_TILE_M = 12.0
SKY_BOTTOM_RAD, SKY_TOP_RAD = np.radians(-7.5), np.radians(37.5)


def noise(rng: np.random.Generator, width: int, height: int, power: float = 1.0) -> Image:
    """Unit-variance noise that wraps around, of amplitude 1/frequency^power: equal in octaves."""
    fy, fx = np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width
    radius = np.hypot(fx / width, fy / height) * min(width, height)
    amplitude = np.where(radius < 1.0, 0.0, 1.0 / np.maximum(radius, 1.0) ** power)
    phase = rng.standard_normal((*amplitude.shape, 2)).view(np.complex128)[..., 0]
    field = np.fft.irfft2(amplitude * phase, s=(height, width))
    return np.asarray(field / field.std(), dtype=np.float32)


def _fill(image: Image, x: float, y: float, width: float, height: float, grey: float) -> None:
    """Fill a rectangle in texels; what is outside the image is left out."""
    image[max(round(y), 0) : max(round(y + height), 0), max(round(x), 0) : round(x + width)] = grey


def _ground(rng: np.random.Generator) -> Image:
    """One tile of the ground: u along the street, v across it, centred on the road's centre."""
    width, height = 2048, 1024
    per_m = width / GROUND_LENGTH_M
    middle = height / 2
    image = np.full((height, width), 92.0, dtype=np.float32)
    _pavement(rng, image, per_m)
    for side in (-1.0, 1.0):
        kerb = middle + side * KERB_M * per_m
        _fill(image, 0, kerb - 0.12 * per_m, width, 0.24 * per_m, 150.0)
        _fill(image, 0, kerb - side * 0.35 * per_m - 0.1 * per_m, width, 0.2 * per_m, 62.0)
        _fill(image, 0, middle + side * LANE_M * per_m - 0.07 * per_m, width, 0.14 * per_m, 190.0)
    for dash in np.arange(0.0, GROUND_LENGTH_M, 6.0):
        _fill(image, dash * per_m, middle - 0.07 * per_m, 3.0 * per_m, 0.14 * per_m, 205.0)
    _repairs(rng, image, per_m)
    texture = noise(rng, width, height, 0.9)
    return image * (1.0 + 0.16 * texture) + 4.0 * noise(rng, width, height, 0.5)


def _pavement(rng: np.random.Generator, image: Image, per_m: float) -> None:
    """Slabs of slightly different greys with dark joints, on both sides of the road."""
    slab = per_m * 0.75
    rows = [y for y in np.arange(0, image.shape[0], slab)]
    for y in rows:
        if abs(y + slab / 2 - image.shape[0] / 2) < (KERB_M - 0.3) * per_m:
            continue
        for x in np.arange(0, image.shape[1], slab):
            _fill(image, x, y, slab, slab, 95.0)
            _fill(image, x + 1, y + 1, slab - 1, slab - 1, rng.normal(128.0, 10.0))


def _repairs(rng: np.random.Generator, image: Image, per_m: float) -> None:
    """Patches, manholes and cracks on the road."""
    height, width = image.shape
    for _ in range(14):
        x, y = rng.uniform(0, width), height / 2 + rng.uniform(-5.0, 5.0) * per_m
        size = rng.uniform(0.3, 2.5, 2) * per_m
        region = np.s_[int(y) : int(y + size[1]), int(x) : int(x + size[0])]
        image[region] *= rng.choice([0.72, 0.85, 1.15])
    for _ in range(6):
        x, y = rng.uniform(20, width - 20), height / 2 + rng.uniform(-5.0, 5.0) * per_m
        cv2.circle(image, (int(x), int(y)), int(0.35 * per_m), 45.0, -1, cv2.LINE_AA)
        cv2.circle(image, (int(x), int(y)), int(0.27 * per_m), 78.0, -1, cv2.LINE_AA)
    for _ in range(26):
        start = np.array([rng.uniform(0, width), height / 2 + rng.uniform(-5.3, 5.3) * per_m])
        steps = rng.normal(0.0, 0.35 * per_m, (9, 2)) + rng.normal(0.0, 0.25 * per_m, 2)
        points = np.round(start + np.cumsum(steps, axis=0)).astype(np.int32)
        cv2.polylines(image, [points], False, 50.0, 2, cv2.LINE_AA)


def _facade(rng: np.random.Generator) -> Image:
    """12 m x 12 m of wall: v = 0 is 12 m above the pavement."""
    size = 512
    per_m = size / FACADE_TILE_M
    wall = rng.uniform(95.0, 185.0)
    image = wall * (1.0 + 0.12 * noise(rng, size, size, 1.0))
    if rng.random() < 0.5:
        _bricks(rng, image, per_m)
    columns = int(rng.integers(3, 6))
    for floor in range(4):
        base = (12.0 - 3.0 * floor) * per_m
        _fill(image, 0, base - 0.25 * per_m, size, 0.18 * per_m, wall * rng.uniform(0.6, 1.3))
        _openings(rng, image, base, columns, floor == 0)
    for _ in range(2):
        x = rng.uniform(0, size)
        _fill(image, x, 0, 0.12 * per_m, size, wall * 0.5)
    return np.asarray(image + 4.0 * noise(rng, size, size, 0.5), dtype=np.float32)


def _bricks(rng: np.random.Generator, image: Image, per_m: float) -> None:
    """Courses 0.25 m high with staggered joints."""
    course = per_m * 0.25
    for k, y in enumerate(np.arange(0.0, image.shape[0], course)):
        for x in np.arange(-(k % 2) * course, image.shape[1], 2.0 * course):
            region = np.s_[int(y) : int(y + course), max(int(x), 0) : max(int(x + 2 * course), 0)]
            image[region] *= rng.uniform(0.86, 1.12)


def _openings(
    rng: np.random.Generator, image: Image, base: float, columns: int, ground_floor: bool
) -> None:
    """A row of windows, or of doors and shop windows, above the line `base`."""
    per_m, pitch = image.shape[1] / FACADE_TILE_M, image.shape[1] / columns
    for column in range(columns):
        wide = rng.uniform(1.0, 1.5) if not ground_floor else rng.uniform(1.0, 2.0)
        tall, sill = (2.2, 0.05) if ground_floor and rng.random() < 0.5 else (1.6, 0.85)
        x = (column + 0.5) * pitch - 0.5 * wide * per_m
        y = base - (sill + tall) * per_m
        frame = rng.uniform(120.0, 235.0)
        _fill(image, x - 4, y - 4, wide * per_m + 8, tall * per_m + 8, frame)
        _fill(image, x, y, wide * per_m, tall * per_m, rng.uniform(25.0, 70.0))
        blind = rng.uniform(0.0, 0.6) * tall * per_m
        _fill(image, x, y, wide * per_m, blind, rng.uniform(60.0, 190.0))
        _fill(image, x + 0.5 * wide * per_m - 1, y, 3, tall * per_m, frame)


def _car_side(rng: np.random.Generator) -> Image:
    image = 150.0 * (1.0 + 0.06 * noise(rng, 256, 64))
    for x in (85, 150):
        _fill(image, x, 4, 2, 50, 70.0)
    _fill(image, 0, 26, 256, 3, 105.0)
    _fill(image, 0, 56, 256, 8, 55.0)
    for x in (48, 208):
        cv2.circle(image, (x, 48), 19, 30.0, -1, cv2.LINE_AA)
        cv2.circle(image, (x, 48), 10, 140.0, -1, cv2.LINE_AA)
        cv2.circle(image, (x, 48), 4, 40.0, -1, cv2.LINE_AA)
    return np.asarray(image, dtype=np.float32)


def _car_end(rng: np.random.Generator) -> Image:
    image = 150.0 * (1.0 + 0.06 * noise(rng, 128, 64))
    for x in (6, 98):
        _fill(image, x, 10, 24, 14, 235.0)
        _fill(image, x + 6, 14, 10, 6, 120.0)
    _fill(image, 36, 10, 56, 12, 50.0)
    _fill(image, 46, 34, 36, 10, 220.0)
    _fill(image, 0, 50, 128, 14, 45.0)
    return np.asarray(image, dtype=np.float32)


def _car_glass(rng: np.random.Generator) -> Image:
    image = 60.0 * (1.0 + 0.25 * noise(rng, 128, 32, 1.2))
    for x in (0, 60, 122):
        _fill(image, x, 0, 6, 32, 140.0)
    _fill(image, 0, 0, 128, 3, 140.0)
    return np.asarray(image, dtype=np.float32)


def _leaves(rng: np.random.Generator) -> Image:
    return 78.0 * (1.0 + 0.35 * noise(rng, 256, 256, 0.75))


def _bark(rng: np.random.Generator) -> Image:
    streaks = cv2.resize(noise(rng, 64, 64, 0.7), (64, 256), interpolation=cv2.INTER_CUBIC)
    return np.asarray(75.0 * (1.0 + 0.22 * streaks), dtype=np.float32)


def _shade(rng: np.random.Generator) -> Image:
    return 40.0 * (1.0 + 0.12 * noise(rng, 64, 64))


def _sky(rng: np.random.Generator) -> Image:
    """Azimuth by elevation: weak clouds, and far hills, houses and trees on the horizon."""
    width, height = 4096, 512
    horizon = height * SKY_TOP_RAD / (SKY_TOP_RAD - SKY_BOTTOM_RAD)
    image = np.linspace(192.0, 226.0, height, dtype=np.float32)[:, None] + 7.0 * noise(
        rng, width, height, 1.3
    )
    texture = noise(rng, width, height, 0.8)
    columns = np.arange(width)
    for rise, grey, rough in ((30.0, 150.0, 1.6), (14.0, 112.0, 1.1)):
        ridge = rise * (1.0 + 0.35 * noise(rng, width, 2, rough)[0])
        rows = np.arange(height, dtype=np.float32)[:, None]
        cover = np.clip(rows - (horizon - ridge[columns]) + 0.5, 0.0, 1.0)
        image = image * (1.0 - cover) + cover * grey * (1.0 + 0.10 * texture)
    x = 0.0
    while x < width - 60:
        wide, tall = rng.uniform(8, 45), rng.uniform(10, 60)
        grey = rng.uniform(95.0, 175.0)
        region = np.s_[int(horizon - tall) :, int(x) : int(x + wide)]
        image[region] = grey * (1.0 + 0.08 * texture[region])
        for y in np.arange(horizon - tall + 3, horizon, 6.0):
            image[int(y) : int(y) + 3, int(x) + 2 : int(x + wide) - 2 : 5] *= 0.75
        x += wide + rng.exponential(40.0)
    return np.asarray(image, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Recipe:
    paint: Callable[[np.random.Generator], Image]
    levels: int  # how many times a texture may be halved in each direction


FACADES = 6
_RECIPES = {
    "ground": _Recipe(_ground, 9),
    "sky": _Recipe(_sky, 2),
    **{f"facade{k}": _Recipe(_facade, 8) for k in range(FACADES)},
    "car side": _Recipe(_car_side, 6),
    "car end": _Recipe(_car_end, 6),
    "car glass": _Recipe(_car_glass, 5),
    "leaves": _Recipe(_leaves, 8),
    "bark": _Recipe(_bark, 6),
    "shade": _Recipe(_shade, 6),
}
TEXTURES = {name: index for index, name in enumerate(_RECIPES)}


class Atlas:
    """All textures at all reductions in one image; `size` and `mean` are by texture index."""

    def __init__(self, textures: list[Image], levels: list[int]) -> None:
        most = max(levels) + 1
        self.size = np.array([t.shape[::-1] for t in textures], dtype=np.float64)  # (n, 2) u, v
        self.mean = np.array([t.mean() for t in textures], dtype=np.float32)
        self._last_level = np.array(levels, dtype=np.float32)
        self._offset = np.zeros((2, len(textures), most), dtype=np.float32)  # of level k in u and in v
        blocks = [_rip_map(t, k) for t, k in zip(textures, levels, strict=True)]
        x = y = shelf = 0
        places = []
        for index, (block, starts_u, starts_v) in enumerate(blocks):
            if x + block.shape[1] > _ATLAS_WIDTH:
                x, y, shelf = 0, y + shelf, 0
            self._offset[0, index, : len(starts_u)] = np.array(starts_u) + x
            self._offset[1, index, : len(starts_v)] = np.array(starts_v) + y
            places.append((x, y))
            x, shelf = x + block.shape[1], max(shelf, block.shape[0])
        self._pixels = np.zeros((y + shelf, _ATLAS_WIDTH), dtype=np.uint16)
        for (block, _, _), (left, top) in zip(blocks, places, strict=True):
            self._pixels[top : top + block.shape[0], left : left + block.shape[1]] = block

    def sample(self, texture: NDArray[np.intp], uv: list[Image], spans: list[Image]) -> Image:
        """Grey levels at (n,) texels u and v; spans: squares of the texels a pixel spans in each."""
        (u0, u1, fu), (v0, v1, fv) = (
            self._levels(axis, texture, uv[axis], spans[axis]) for axis in (0, 1)
        )
        fine, coarse = (
            (1.0 - fu) * self._remap(u0, v) + fu * self._remap(u1, v) for v in (v0, v1)
        )
        return np.asarray(fine + fv * (coarse - fine))

    def _levels(
        self, axis: int, texture: NDArray[np.intp], texel: Image, span: Image
    ) -> tuple[Image, Image, Image]:
        """Atlas coordinates in the two nearest reductions, and the share of the coarser one."""
        last = self._last_level[texture]
        level = np.float32(0.5) * np.log2(np.maximum(span, np.float32(1e-6))) - _SHARPER_LEVELS
        level = np.clip(level, np.float32(0.0), last)
        lower = np.minimum(np.floor(level), last - np.float32(1.0))
        size = self.size.astype(np.float32)[:, axis][texture]
        wrapped = texel - size * np.floor(texel / size)
        near = wrapped * np.exp2(-lower)
        index = texture * self._offset.shape[-1] + lower.astype(np.intp)
        offset = self._offset[axis].reshape(-1)
        return offset[index] + near, offset[index + 1] + np.float32(0.5) * near, level - lower

    def _remap(self, u: Image, v: Image) -> Image:
        """Bilinear look-up of (n,) atlas coordinates."""
        rows = -(-u.size // _REMAP_WIDTH)
        maps = np.zeros((2, rows * _REMAP_WIDTH), dtype=np.float32)
        maps[0, : u.size], maps[1, : u.size] = u, v
        map_u, map_v = maps.reshape(2, rows, _REMAP_WIDTH)
        out = cv2.remap(self._pixels, map_u, map_v, cv2.INTER_LINEAR)
        return np.asarray(out.reshape(-1)[: u.size] * np.float32(1.0 / _FIXED_POINT))


def _rip_map(texture: Image, levels: int) -> tuple[NDArray[np.uint16], list[int], list[int]]:
    """One block of all reductions, and where they start in u and in v.

    Reduction (i, j) is the texture halved i times in u and j times in v, and is followed by its
    own first column and row, so that bilinear interpolation wraps around.
    """
    columns, starts_u, starts_v = [], [0], [0]
    across = texture
    for i in range(levels + 1):
        rows, down = [], across
        for _ in range(levels + 1):
            rows.append(np.pad(down, ((0, 1), (0, 1)), mode="wrap"))
            down = _halve(down.T).T
        if i == 0:
            starts_v = list(np.cumsum([0] + [r.shape[0] for r in rows])[:-1])
        columns.append(np.concatenate(rows, axis=0))
        starts_u.append(starts_u[-1] + columns[-1].shape[1])
        across = _halve(across)
    block = np.concatenate(columns, axis=1)
    fixed = np.round(np.clip(block, 0.0, 255.0) * _FIXED_POINT).astype(np.uint16)
    return fixed, starts_u[:-1], starts_v


def _halve(image: Image) -> Image:
    """Half as many columns, low-passed; column k of the result is over column 2 k."""
    if image.shape[1] == 1:
        return image
    padded = np.pad(image, ((0, 0), (2, 2)), mode="wrap")
    width = image.shape[1]
    taps = (padded[:, k : k + width : 2] * _LOW_PASS[k] for k in range(5))
    return np.asarray(sum(taps), dtype=np.float32)


@lru_cache(maxsize=2)
def atlas(seed: int) -> Atlas:
    """The textures of a seed; the last two are kept, since they take the longest to make."""
    children = np.random.SeedSequence([seed, 1]).spawn(len(_RECIPES))
    recipes = list(_RECIPES.values())
    textures = [
        recipe.paint(np.random.default_rng(child))
        for recipe, child in zip(recipes, children, strict=True)
    ]
    return Atlas(textures, [recipe.levels for recipe in recipes])
