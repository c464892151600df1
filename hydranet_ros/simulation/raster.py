"""Which facet every pixel sees, and its grey level.

For a camera at a pose, everything about a facet that a pixel p = (u, v, 1) needs is a 3x3 matrix:
H p = (a, b, 1/z), with texels a z, b z. Visibility is a z-buffer of inverse depth, which is affine
in the image, evaluated at several points in every pixel, so that outlines are anti-aliased and
where they are is exact to a fraction of a pixel's sixteenth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydranet_ros import lie
from hydranet_ros.camera import Camera
from hydranet_ros.lie import Array
from hydranet_ros.simulation.path import GroundMap
from hydranet_ros.simulation.scene import GROUND, SKY, Scene
from hydranet_ros.simulation.textures import (
    GROUND_LENGTH_M,
    GROUND_WIDTH_M,
    ROAD_CENTRE_M,
    SKY_BOTTOM_RAD,
    SKY_TOP_RAD,
    Atlas,
    Image,
)

Ids = NDArray[np.int16]
Index = NDArray[np.intp]

# Eight points in the unit pixel, no two in the same row or column of sixteenths, mean zero.
SAMPLES = np.array(
    [(1, -3), (-1, 3), (5, 1), (-3, -5), (-5, 5), (-7, -1), (3, 7), (7, -7)], dtype=np.float64
) / 16.0
CENTRE = np.zeros((1, 2))
_NEAR_M = 0.2
_LEAST_INVERSE_DEPTH = 1e-5  # 100 km: keeps texels finite at the horizon


@dataclass(frozen=True, eq=False)
class View:
    """The scene as one camera sees it at one time."""

    T_w_c: Array
    T_c_b: Array  # (bodies, 4, 4)
    # (facets, 3, 3). Of the ground: metres from the camera in x and z of the world, so that
    # nothing is lost far from the origin. Of the sky: the direction in the world.
    homography: Array
    outlines: list[tuple[int, Array]]  # facets that may be seen, with their corners in pixels


def view(scene: Scene, camera: Camera, size: tuple[int, int], T_w_c: Array, T_w_b: Array) -> View:
    """Set a camera up; size is (width, height), T_w_b the poses of the bodies."""
    T_c_b = lie.se3_inverse(T_w_c) @ T_w_b
    k_inv = np.linalg.inv(np.array([[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]]))
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
    scene: Scene, camera: Camera, size: tuple[int, int], T_c_b: Array, facing: NDArray[np.bool_]
) -> list[tuple[int, Array]]:
    """Corners in pixels of every facet that faces the camera and meets the image."""
    pose = T_c_b[scene.corner_body]
    points = (pose[:, :3, :3] @ scene.corners[..., None])[..., 0] + pose[:, :3, 3]
    starts = scene.starts
    nearest = np.minimum.reduceat(points[:, 2], starts[:-1])
    farthest = np.maximum.reduceat(points[:, 2], starts[:-1])
    pixels = camera.project(np.where(points[:, 2:] < _NEAR_M, np.nan, points))
    low = np.fmin.reduceat(pixels, starts[:-1])
    high = np.fmax.reduceat(pixels, starts[:-1])
    # The bounds of a facet that is cut by the near plane are not known before it is clipped.
    meets = (nearest < _NEAR_M) | ((high > -1.0) & (low < size)).all(axis=-1)
    drawn = facing & (farthest > _NEAR_M) & meets
    drawn[[GROUND, SKY]] = False
    order = np.argsort(nearest, kind="stable")  # front to back, so that hidden ones are cheap
    out = []
    for facet in order[drawn[order]]:
        corners = slice(starts[facet], starts[facet + 1])
        outline = pixels[corners]
        if nearest[facet] < _NEAR_M:
            outline = camera.project(_clip(points[corners]))
            if (outline.max(axis=0) <= -1.0).any() or (outline.min(axis=0) >= size).any():
                continue
        out.append((int(facet), outline))
    return out


def _clip(corners: Array) -> Array:
    """The part of an outline in front of the near plane."""
    after = np.roll(corners, -1, axis=0)
    out = []
    for a, b in zip(corners, after, strict=True):
        if a[2] >= _NEAR_M:
            out.append(a)
        if (a[2] >= _NEAR_M) != (b[2] >= _NEAR_M):
            out.append(a + (b - a) * (_NEAR_M - a[2]) / (b[2] - a[2]))
    return np.array(out)


def visible(seen: View, size: tuple[int, int], samples: Array) -> tuple[Ids, Image]:
    """(n, height, width) facet and inverse depth at n sample points of every pixel."""
    width, height = size
    columns, rows = np.arange(width), np.arange(height)
    a, b, c = seen.homography[GROUND, 2]
    down = b * (rows[None, :] + samples[:, 1:]) + c + a * samples[:, :1]  # (n, height)
    depth = (down[..., None] + a * columns).astype(np.float32)
    ids = np.where(depth > 0.0, np.int16(GROUND), np.int16(SKY))
    np.maximum(depth, 0.0, out=depth)
    for facet, outline in seen.outlines:
        _draw(ids, depth, samples, facet, outline, seen.homography[facet, 2])
    return ids, depth


def _draw(
    ids: Ids, depth: Image, samples: Array, facet: int, outline: Array, plane: Array
) -> None:
    """Write a facet where it is inside its outline and nearer than what is there."""
    _, height, width = ids.shape
    (x0, y0), (x1, y1) = np.floor(outline.min(axis=0)), np.ceil(outline.max(axis=0)) + 1.0
    x0, y0 = max(int(x0), 0), max(int(y0), 0)
    x1, y1 = min(int(x1), width), min(int(y1), height)
    window = np.s_[:, y0:y1, x0:x1]
    # 1/z is affine in the image, so no pixel of the facet is nearer than its nearest corner.
    if (outline @ plane[:2]).max() + plane[2] <= depth[window].min():
        return
    y = np.arange(y0, y1) + samples[:, 1:]  # (n, rows)
    shift = samples[:, :1] + x0
    first, last = _spans(outline, y)
    begin = np.clip(np.ceil(first - shift), 0.0, x1 - x0).astype(np.uint16)
    end = np.clip(np.floor(last - shift) + 1.0, begin, x1 - x0).astype(np.uint16)
    columns = np.arange(x1 - x0, dtype=np.uint16)
    start = (plane[0] * shift + plane[1] * y + plane[2]).astype(np.float32)
    value = start[..., None] + (plane[0] * columns).astype(np.float32)
    # Unsigned subtraction wraps around left of `begin`: one comparison checks both ends.
    wins = (columns - begin[..., None]) < (end - begin)[..., None]
    wins &= value > depth[window]
    np.copyto(depth[window], value, where=wins)
    np.copyto(ids[window], np.int16(facet), where=wins)


def _spans(outline: Array, y: Array) -> tuple[Array, Array]:
    """First and last x inside a convex outline on every row y; first > last where there is none."""
    after = np.concatenate([outline[1:], outline[:1]])
    rise = after[:, 1] - outline[:, 1]
    slanted = np.abs(rise) > 1e-9  # level edges only bound the rows
    p, run, rise = outline[slanted], (after - outline)[slanted, 0], rise[slanted]
    x = p[:, 0, None, None] + (run / rise)[:, None, None] * (y - p[:, 1, None, None])
    # Going around, the edges of one side rise and those of the other fall.
    clockwise = np.sum(outline[:, 0] * after[:, 1] - outline[:, 1] * after[:, 0]) > 0.0
    left = (rise < 0.0) == clockwise
    first = x[left].max(axis=0, initial=-1e9)
    last = x[~left].min(axis=0, initial=1e9)
    outside = (y < outline[:, 1].min()) | (y > outline[:, 1].max())
    last[outside] = -1e9
    return first, last


def fragments(ids: Ids) -> tuple[Index, Index, Array]:
    """(pixel, facet, share of the pixel) of every facet in every pixel; pixels are flat indices."""
    count, height, width = ids.shape
    flat = ids.reshape(count, -1)
    whole = (flat == flat[0]).all(axis=0)
    inner, outer = np.flatnonzero(whole), np.flatnonzero(~whole)
    mixed = np.sort(flat[:, outer], axis=0)
    starts = np.ones(mixed.shape, dtype=bool)
    starts[1:] = mixed[1:] != mixed[:-1]
    # Column by column, so that a run of equal facets never reaches into the next pixel.
    at = np.flatnonzero(starts.T)
    share = np.diff(np.append(at, mixed.size)) / count
    pixel = np.concatenate([inner, outer[at // count]])
    facet = np.concatenate([flat[0, inner], mixed.T.reshape(-1)[at]]).astype(np.intp)
    return pixel, facet, np.concatenate([np.ones(inner.size), share])


class Shader:
    """Grey levels of fragments at their pixel's centre, filtered over the pixel."""

    def __init__(self, scene: Scene, ground: GroundMap, textures: Atlas, contrast: float) -> None:
        self._scene, self._ground, self._textures = scene, ground, textures
        self._contrast = contrast

    def image(self, seen: View, size: tuple[int, int], focal: float) -> Image:
        """(height, width) grey levels 0..255 and beyond, before lens and sensor."""
        width, height = size
        ids, _ = visible(seen, size, SAMPLES)
        pixel, facet, share = fragments(ids)
        y, x = np.divmod(pixel, width)
        grey = self._grey(seen, facet, x.astype(np.float32), y.astype(np.float32), focal)
        total = np.bincount(pixel, weights=grey * share, minlength=width * height)
        return total.reshape(height, width).astype(np.float32)

    def _grey(self, seen: View, facet: Index, x: Image, y: Image, focal: float) -> Image:
        h = [column[facet] for column in seen.homography.reshape(-1, 9).T.astype(np.float32)]
        a, b, w = (h[k] * x + h[k + 1] * y + h[k + 2] for k in (0, 3, 6))
        sky, ground = np.flatnonzero(facet == SKY), np.flatnonzero(facet == GROUND)
        direction = a[sky], b[sky], w[sky]
        z = 1.0 / np.maximum(w, _LEAST_INVERSE_DEPTH)
        uv = [a * z, b * z]
        by_x = [(h[0] - uv[0] * h[6]) * z, (h[3] - uv[1] * h[6]) * z]
        by_y = [(h[1] - uv[0] * h[7]) * z, (h[4] - uv[1] * h[7]) * z]
        self._follow_street(seen, uv, by_x, by_y, ground)
        spans = [by_x[k] * by_x[k] + by_y[k] * by_y[k] for k in (0, 1)]
        self._sky(direction, focal, uv, spans, sky)
        texture = self._scene.texture[facet]
        grey = self._textures.sample(texture, uv, spans)
        mean = self._textures.mean[texture]
        gain = self._scene.gain.astype(np.float32)[facet]
        return gain * (mean + np.float32(self._contrast) * (grey - mean))

    def _follow_street(
        self, seen: View, uv: list[Image], by_x: list[Image], by_y: list[Image], at: Index
    ) -> None:
        """From metres from the camera to texels along and across the street, in place."""
        x, z = (uv[0][at] + seen.T_w_c[0, 3], uv[1][at] + seen.T_w_c[2, 3])
        (s, d), d_x, d_z = self._ground(x, z)
        across = d - ROAD_CENTRE_M
        # Past half a tile, fold back and forth over the pavement instead of repeating the road.
        half, fold = 0.5 * GROUND_WIDTH_M, 0.25 * GROUND_WIDTH_M
        beyond = np.abs(np.mod(np.abs(across), 2.0 * fold) - fold)
        across = np.where(np.abs(across) > half, np.sign(across) * (half - beyond), across)
        texels, slopes = self._textures.size[GROUND], []
        for k, (value, tile) in enumerate(((s, GROUND_LENGTH_M), (across + half, GROUND_WIDTH_M))):
            scale = texels[k] / tile
            uv[k][at] = np.mod(value * scale, texels[k])
            by = [(d_x[k] * by[0][at] + d_z[k] * by[1][at]) * scale for by in (by_x, by_y)]
            slopes.append(by)
        for k in (0, 1):
            by_x[k][at], by_y[k][at] = slopes[k]

    def _sky(
        self, direction: tuple[Image, Image, Image], focal: float, uv: list[Image],
        spans: list[Image], at: Index
    ) -> None:
        """Texels of directions at infinity, in place."""
        right, down, ahead = direction
        width, height = self._textures.size[SKY]
        azimuth = np.arctan2(right, ahead)
        elevation = np.arctan2(-down, np.hypot(right, ahead))
        per_rad = width / (2.0 * np.pi), height / (SKY_TOP_RAD - SKY_BOTTOM_RAD)
        uv[0][at] = azimuth * per_rad[0]
        uv[1][at] = np.clip((SKY_TOP_RAD - elevation) * per_rad[1], 0.0, height - 1.0)
        for k in (0, 1):
            spans[k][at] = (per_rad[k] / focal) ** 2
