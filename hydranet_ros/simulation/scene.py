"""What stands along the street: flat convex facets on rigid bodies, each with a texture.

Body 0 is the world; every moving car is a body of its own, with x to its right, y down, z ahead
and its origin on the ground. Facets 0 and 1 are the ground and the sky, which have no outline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.drive import Line, rotation_of
from hydranet_ros.simulation.textures import TEXTURES

GROUND, SKY = 0, 1
UP = np.array([0.0, -1.0, 0.0])
_SUN = np.array([0.5, -0.75, -0.45])  # the direction to it, in the world

BodyPose = Callable[[float], Array]  # time in seconds -> T_w_body


@dataclass(frozen=True, eq=False)
class Facet:
    """A flat convex polygon: texels (u, v) = mapping @ (x, y, z, 1) in its body's frame."""

    corners: Array  # (n, 3), in order around the outline
    mapping: Array  # (2, 4)
    texture: int
    gain: float  # brightness relative to the texture
    outward: Array | None  # normal of the visible side; None is visible from both
    body: int = 0


@dataclass(eq=False)
class StreetScene:
    """All facets in flat arrays, and how the bodies move."""

    facets: list[Facet]
    motions: list[BodyPose]
    near_m: float = 0.2  # what is nearer along the optical axis is not drawn
    corners: Array = field(init=False)  # (sum n, 3)
    starts: NDArray[np.intp] = field(init=False)  # (facets + 1,) into corners
    corner_body: NDArray[np.intp] = field(init=False)
    body: NDArray[np.intp] = field(init=False)
    plane: Array = field(init=False)  # (facets, 4): n . p = offset as (n, offset)
    mapping: Array = field(init=False)  # (facets, 2, 4)
    texture: NDArray[np.intp] = field(init=False)
    gain: Array = field(init=False)
    one_sided: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        counts = [len(f.corners) for f in self.facets]
        self.corners = np.concatenate([f.corners for f in self.facets])
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        self.body = np.array([f.body for f in self.facets], dtype=np.intp)
        self.corner_body = np.repeat(self.body, counts)
        self.plane = np.array([_plane(f) for f in self.facets])
        self.mapping = np.array([f.mapping for f in self.facets])
        self.texture = np.array([f.texture for f in self.facets], dtype=np.intp)
        self.gain = np.array([f.gain for f in self.facets])
        self.one_sided = np.array([f.outward is not None for f in self.facets])

    def poses(self, time_s: float) -> Array:
        """T_w_body of all bodies: (bodies, 4, 4)."""
        return np.stack([motion(time_s) for motion in self.motions])


def _plane(facet: Facet) -> Array:
    a, b, c = facet.corners[:3]
    normal = np.cross(b - a, c - a) if facet.outward is None else facet.outward
    normal = normal / np.linalg.norm(normal)
    return np.append(normal, normal @ a)


def texel_map(origin: Array, u_axis: Array, v_axis: Array, shift: ArrayLike) -> Array:
    """(2, 4): texels at p are axis . (p - origin) + shift; the axes in texels per metre."""
    axes = np.stack([u_axis, v_axis])
    return np.column_stack([axes, np.asarray(shift, dtype=np.float64) - axes @ origin])


@dataclass(frozen=True)
class Skin:
    """A texture for a face: `texels` spans the face, None keeps the texture's own scale."""

    texture: int
    texels: tuple[float, float] | None = None
    per_m: float = 40.0
    shift: tuple[float, float] = (0.0, 0.0)
    gain: float = 1.0


class Builder:
    """Collects facets, the ground and the sky first."""

    def __init__(self, ground_y: float, textures: Mapping[str, int] = TEXTURES) -> None:
        self.ground_y = ground_y
        self.textures = textures  # indices by name
        flat = np.array([[0.0, ground_y, 0.0], [0.0, ground_y, 1.0], [1.0, ground_y, 0.0]])
        to_xz = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
        self.facets = [Facet(flat, to_xz, index, 1.0, UP) for index in (GROUND, SKY)]

    def face(
        self,
        corner: Array,
        u: Array,
        v: Array,
        skin: Skin,
        body: int = 0,
        outward: Array | None = None,
    ) -> None:
        """A rectangle from its upper left corner along u and down along v, in metres."""
        corners = np.stack([corner, corner + u, corner + u + v, corner + v])
        length = np.array([np.linalg.norm(u), np.linalg.norm(v)])
        scale = skin.per_m if skin.texels is None else np.array(skin.texels) / length
        per_m = np.broadcast_to(scale, 2)
        mapping = texel_map(corner, u / length[0] * per_m[0], v / length[1] * per_m[1], skin.shift)
        normal = np.cross(u, v)
        light = skin.gain * _light(outward if outward is not None else normal, outward is None)
        self.facets.append(Facet(corners, mapping, skin.texture, light, outward, body))

    def box(
        self, centre: Array, heading: float, size: Array, skins: dict[str, Skin], body: int = 0
    ) -> None:
        """A box standing at `centre` (of its base); size is (across, up, along)."""
        rotation = rotation_of(np.asarray(heading))
        right, down, ahead = rotation.T * size[:, None]
        lid = centre - down  # centre of the top
        sides = (
            ("right", lid + 0.5 * (right - ahead), ahead, right),
            ("left", lid + 0.5 * (ahead - right), -ahead, -right),
            ("front", lid + 0.5 * (ahead + right), -right, ahead),
            ("back", lid - 0.5 * (ahead + right), right, -ahead),
        )
        for name, corner, along, outward in sides:
            if name in skins:
                outward = outward / np.linalg.norm(outward)
                self.face(corner, along, down, skins[name], body, outward)
        if "top" in skins:
            corner = lid - 0.5 * (ahead + right)
            self.face(corner, ahead, right, skins["top"], body, UP)

    def on_ground(self, line: Line, s: float, d: float) -> tuple[Array, float]:
        """The ground point at (s, d), and the heading of the line there."""
        x, z, heading = line.locate(s, d)
        return np.array([float(x), self.ground_y, float(z)]), float(heading)


def _light(normal: Array, both_sides: bool) -> float:
    """A dim sky and a sun: fixed in the world, so that a face keeps its grey from every view."""
    cosine = float(normal @ _SUN) / float(np.linalg.norm(normal) * np.linalg.norm(_SUN))
    return 0.8 + 0.4 * (0.3 if both_sides else max(cosine, 0.0))
