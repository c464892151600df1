"""Which facet every pixel sees.

For a camera at a pose, everything about a facet that a pixel p = (u, v, 1) needs is a 3x3 matrix:
H p = (a, b, 1/z), with texels a z, b z. Visibility is a z-buffer of inverse depth, which is affine
in the image, evaluated at several points in every pixel, so that outlines are anti-aliased and
are where they belong to within a sixteenth of a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.atlas import FloatImage
from hydranet_ros.simulation.scene import GROUND, SKY, StreetScene

Ids = NDArray[np.int16]
Index = NDArray[np.intp]
Columns = NDArray[np.uint16]

# Eight points in the unit pixel, no two in the same row or column of sixteenths, mean zero.
SAMPLES = (
    np.array(
        [(1, -3), (-1, 3), (5, 1), (-3, -5), (-5, 5), (-7, -1), (3, 7), (7, -7)], dtype=np.float64
    )
    / 16.0
)
CENTRE = np.zeros((1, 2))
LEFT, RIGHT = 1, 2
_LEVEL_PX = 1e-6  # an edge that rises less is level


@dataclass(frozen=True, eq=False)
class Outlines:
    """Polygons in the image, front to back; polygon k has edges starts[k] to starts[k + 1]."""

    facet: list[int]
    starts: list[int]
    box: list[list[int]]  # x0, y0, x1, y1: the pixels that a polygon may touch
    y_span: list[list[float]]
    nearest: list[float]  # largest inverse depth
    edges: Array  # (n, 2, 1, 1): slope m and intercept c of x = m y + c
    side: NDArray[np.int8]  # of an edge: LEFT or RIGHT of the inside, 0 if it is level


@dataclass(frozen=True, eq=False)
class View:
    """The scene as one camera sees it at one time."""

    T_w_c: Array
    T_c_b: Array  # (bodies, 4, 4)
    # (facets, 3, 3). Of the ground: metres from the camera in x and z of the world, so that
    # nothing is lost far from the origin. Of the sky: the direction in the world.
    homography: Array
    outlines: Outlines  # of the facets that may be seen


def view(
    scene: StreetScene, camera: Camera, size: tuple[int, int], T_w_c: Array, T_w_b: Array
) -> View:
    """Set a camera up; size is (width, height), T_w_b the poses of the bodies."""
    T_c_b = lie.se3_inverse(T_w_c) @ T_w_b
    k = np.array([[camera.fx, 0.0, camera.cx], [0.0, camera.fy, camera.cy], [0.0, 0.0, 1.0]])
    k_inv = np.linalg.inv(k)
    pose = T_c_b[scene.body]
    normal = (pose[:, :3, :3] @ scene.plane[:, :3, None])[..., 0]
    offset = scene.plane[:, 3] + np.sum(normal * pose[:, :3, 3], axis=-1)
    safe = np.where(np.abs(offset) < 1e-6, 1e-6, offset)
    inverse_depth = normal / safe[:, None]  # 1/z = (n / offset) . (x/z, y/z, 1)
    to_body = lie.se3_inverse(pose)
    mapping = scene.mapping @ to_body  # texels from camera coordinates
    rows = mapping[:, :, :3] + mapping[:, :, 3:] * inverse_depth[:, None, :]
    homography = np.concatenate([rows, inverse_depth[:, None, :]], axis=1) @ k_inv
    homography[GROUND, :2] -= np.outer(T_w_c[[0, 2], 3], homography[GROUND, 2])
    homography[SKY] = T_w_c[:3, :3] @ k_inv
    facing = ~scene.one_sided | (offset < 0.0)
    facing &= np.abs(offset) > 1e-6
    outlines = _outlines(scene, camera, size, T_c_b, facing)
    return View(T_w_c, T_c_b, homography, outlines)


def _outlines(
    scene: StreetScene,
    camera: Camera,
    size: tuple[int, int],
    T_c_b: Array,
    facing: NDArray[np.bool_],
) -> Outlines:
    """Every facet that faces the camera and meets the image."""
    points = scene.corners @ T_c_b[0, :3, :3].T + T_c_b[0, :3, 3]
    moving = np.flatnonzero(scene.corner_body)
    pose = T_c_b[scene.corner_body[moving]]
    points[moving] = (pose[:, :3, :3] @ scene.corners[moving, :, None])[..., 0] + pose[:, :3, 3]
    nearest = np.minimum.reduceat(points[:, 2], scene.starts[:-1])
    farthest = np.maximum.reduceat(points[:, 2], scene.starts[:-1])
    drawn = facing & (farthest > scene.near_m)
    drawn[[GROUND, SKY]] = False
    drawn &= _may_meet(camera, points, scene, size) | (nearest <= scene.near_m)
    order = np.argsort(nearest, kind="stable")
    order = order[drawn[order]]
    polygons = []
    for facet in order:
        corners = points[scene.starts[facet] : scene.starts[facet + 1]]
        polygons.append(corners if nearest[facet] > scene.near_m else _clip(corners, scene.near_m))
    starts = np.cumsum([0] + [len(p) for p in polygons])
    if not polygons:
        return Outlines([], [0], [], [], [], np.zeros((0, 2, 1, 1)), np.zeros(0, dtype=np.int8))
    pixels = camera.project(np.concatenate(polygons))
    low, high = (f.reduceat(pixels, starts[:-1]) for f in (np.minimum, np.maximum))
    # Clamped before rounding: a facet just ahead of the near plane reaches very far out.
    box = np.hstack([np.maximum(low, 0.0), np.minimum(high + 2.0, size)]).clip(0.0).astype(int)
    near = 1.0 / np.maximum(nearest[order], scene.near_m)
    spans = np.stack([low[:, 1], high[:, 1]], axis=-1)
    return Outlines(
        order.tolist(),
        starts.tolist(),
        box.tolist(),
        spans.tolist(),
        near.tolist(),
        *_edges(pixels, starts),
    )


def _may_meet(
    camera: Camera, points: Array, scene: StreetScene, size: tuple[int, int]
) -> NDArray[np.bool_]:
    """Whether the bounds of facets reach into the image; right for those wholly ahead of us."""
    pixels = camera.project(np.where(points[:, 2:] > scene.near_m, points, 1.0))
    low, high = (f.reduceat(pixels, scene.starts[:-1]) for f in (np.minimum, np.maximum))
    return np.asarray(((high > -1.0) & (low < size)).all(axis=-1))


def _clip(corners: Array, near_m: float) -> Array:
    """The part of an outline in front of the near plane."""
    after = np.roll(corners, -1, axis=0)
    out = []
    for a, b in zip(corners, after, strict=True):
        if a[2] >= near_m:
            out.append(a)
        if (a[2] >= near_m) != (b[2] >= near_m):
            out.append(a + (b - a) * (near_m - a[2]) / (b[2] - a[2]))
    return np.array(out)


def _edges(pixels: Array, starts: Index) -> tuple[Array, NDArray[np.int8]]:
    """Slopes and intercepts of the edges of convex polygons, and on which side they are."""
    following = np.arange(1, len(pixels) + 1)
    following[starts[1:] - 1] = starts[:-1]
    (x, y), (run, rise) = pixels.T, (pixels[following] - pixels).T
    level = np.abs(rise) < _LEVEL_PX  # bounds the rows only
    slope = run / np.where(level, 1.0, rise)
    edges = np.stack([slope, x - slope * y], axis=-1)[:, :, None, None]
    # Going around, the edges of one side rise and those of the other fall.
    twice_area = np.add.reduceat(x * rise - y * run, starts[:-1])
    clockwise = np.repeat(twice_area > 0.0, np.diff(starts))
    side = np.where((rise < 0.0) == clockwise, LEFT, RIGHT)
    return edges, np.where(level, 0, side).astype(np.int8)


def visible(seen: View, size: tuple[int, int], samples: Array) -> tuple[Ids, FloatImage]:
    """(n, height, width) facet and inverse depth at n sample points of every pixel."""
    width, height = size
    columns, rows = np.arange(width), np.arange(height)
    a, b, c = seen.homography[GROUND, 2]
    down = b * (rows[None, :] + samples[:, 1:]) + c + a * samples[:, :1]  # (n, height)
    depth = down.astype(np.float32)[..., None] + (a * columns).astype(np.float32)
    ids = np.where(depth > 0.0, np.int16(GROUND), np.int16(SKY))
    np.maximum(depth, 0.0, out=depth)
    for k, facet in enumerate(seen.outlines.facet):
        _draw(ids, depth, samples, seen.outlines, k, seen.homography[facet, 2])
    return ids, depth


def _draw(
    ids: Ids, depth: FloatImage, samples: Array, outlines: Outlines, k: int, plane: Array
) -> None:
    """Write polygon k where it is nearer than what is there; plane is its inverse depth."""
    x0, y0, x1, y1 = outlines.box[k]
    window = np.s_[:, y0:y1, x0:x1]
    before = depth[window]
    if before.size == 0 or outlines.nearest[k] <= before.min():
        return
    y = np.arange(y0, y1) + samples[:, 1:]  # (n, rows)
    shift = samples[:, :1] + x0
    begin, count = _spans(outlines, k, y, shift)
    columns = np.arange(x1 - x0, dtype=np.uint16)
    start = (plane[0] * shift + plane[1] * y + plane[2]).astype(np.float32)
    value = start[..., None] + (plane[0] * columns).astype(np.float32)
    # Unsigned subtraction wraps around left of `begin`: one comparison checks both ends.
    wins = (columns - begin[..., None]) < count[..., None]
    wins &= value > before
    np.copyto(before, value, where=wins)
    np.copyto(ids[window], np.int16(outlines.facet[k]), where=wins)


def _spans(outlines: Outlines, k: int, y: Array, shift: Array) -> tuple[Columns, Columns]:
    """First column of the box inside polygon k, and how many there are, on every sample row y."""
    part = slice(outlines.starts[k], outlines.starts[k + 1])
    edges, side = outlines.edges[part], outlines.side[part]
    x = edges[:, 0] * y + edges[:, 1]
    first = x[side == LEFT].max(axis=0, initial=-1e9)
    last = x[side == RIGHT].min(axis=0, initial=1e9)
    width, (top, bottom) = outlines.box[k][2] - outlines.box[k][0], outlines.y_span[k]
    begin = np.minimum(np.maximum(np.ceil(first - shift), 0.0), width)
    count = np.minimum(np.floor(last - shift) + 1.0, width) - begin
    count *= (y >= top) & (y <= bottom)
    return begin.astype(np.uint16), np.maximum(count, 0.0).astype(np.uint16)
