"""A faster shader for scenes without an endless ground and sky: rooms, halls, desks.

A pixel is looked at once, in its centre. Only those on an outline are looked at again at the
points of `SAMPLES`, and only for the facets of their neighbours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.atlas import Atlas, FloatImage
from hydranet_ros.simulation.raster import CENTRE, LEFT, RIGHT, SAMPLES, Ids, Index, View, visible
from hydranet_ros.simulation.scene import GROUND, SKY, StreetScene

_LEAST_INVERSE_DEPTH = np.float32(1e-4)  # 10 km
_BLOCK = 1 << 14  # pixels shaded at a time: as many as the cache holds


class PlaneShader:
    """Grey levels of a scene that facets close on all sides."""

    def __init__(self, scene: StreetScene, textures: Atlas, contrast: float) -> None:
        self._textures = textures
        self._texture = scene.texture
        gain = scene.gain.astype(np.float32)
        self._factor = gain * np.float32(contrast)
        self._offset = gain * textures.mean[scene.texture] * np.float32(1.0 - contrast)

    def image(self, seen: View, size: tuple[int, int], focal: float) -> FloatImage:
        """(height, width) grey levels 0..255 and beyond, before lens and sensor."""
        width, height = size
        ids = visible(seen, size, CENTRE)[0][0]
        homography = np.ascontiguousarray(seen.homography.reshape(-1, 9).T, dtype=np.float32)
        homography[:, [GROUND, SKY]] = 0.0  # where nothing is: the first texel
        out = np.empty(width * height, dtype=np.float32)
        facet = ids.reshape(-1).astype(np.intp)
        y, x = (a.reshape(-1).astype(np.float32) for a in np.indices((height, width)))
        for start in range(0, out.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            out[part] = self._grey(homography, facet[part], x[part], y[part])
        pixel, around, share = _outline_shares(seen, ids)
        mixed = out[pixel] * share[:, 0]
        for k in range(1, around.shape[1]):
            there = np.flatnonzero(share[:, k])
            if there.size == 0:
                continue
            at = pixel[there]
            grey = self._grey(homography, around[there, k], x[at], y[at])
            mixed[there] += share[there, k] * grey
        out[pixel] = mixed
        return out.reshape(height, width)

    def _grey(
        self, homography: FloatImage, facet: Index, x: FloatImage, y: FloatImage
    ) -> FloatImage:
        h = [row[facet] for row in homography]
        u, v, w = (h[k] * x + h[k + 1] * y + h[k + 2] for k in (0, 3, 6))
        z = np.reciprocal(np.maximum(w, _LEAST_INVERSE_DEPTH))
        uv = [u * z, v * z]
        spans = []
        for k in (0, 1):  # squares of the texels from this pixel to the next in x and in y
            by_x, by_y = h[3 * k] - uv[k] * h[6], h[3 * k + 1] - uv[k] * h[7]
            spans.append((by_x * by_x + by_y * by_y) * z * z)
        grey = self._textures.sample_pair(self._texture[facet], uv, spans)
        return np.asarray(self._factor[facet] * grey + self._offset[facet])


def _outline_shares(seen: View, ids: Ids) -> tuple[Index, Index, FloatImage]:
    """(n,) pixels on outlines, (n, 3) facets there and (n, 3) the share of the pixel they have.

    The facets are that of the centre and up to two others of the neighbours.
    """
    pixel, facets = _candidates(ids)
    y, x = (a.astype(np.float32) for a in np.divmod(pixel, ids.shape[1]))
    polygons = _half_planes(seen)
    nearest = np.full((len(SAMPLES), len(pixel)), -1.0, dtype=np.float32)
    winner = np.zeros(nearest.shape, dtype=np.int8)
    for k in range(facets.shape[1]):
        there = np.flatnonzero(facets[:, k] != facets[:, 0]) if k else np.arange(len(pixel))
        near = _inverse_depths(polygons, facets[there, k], x[there], y[there])
        wins = near > nearest[:, there]
        nearest[:, there] = np.where(wins, near, nearest[:, there])
        winner[:, there] = np.where(wins, np.int8(k), winner[:, there])
    share = np.stack([(winner == k).mean(axis=0) for k in range(facets.shape[1])], axis=-1)
    return pixel, facets, share.astype(np.float32)


def _inverse_depths(
    polygons: tuple[FloatImage, FloatImage, Index], facet: Index, x: FloatImage, y: FloatImage
) -> FloatImage:
    """(samples, n) inverse depth of one facet per pixel at its samples; -1 outside the facet."""
    lines, plane, polygon = polygons
    k = polygon[facet]
    right, down = SAMPLES.astype(np.float32).T[:, :, None]
    reach = np.full((len(SAMPLES), len(k)), np.inf, dtype=np.float32)
    # Line by line: the few lines of a polygon would be a slow innermost axis.
    for line in range(lines.shape[1]):
        a, b, c = lines[:, line].T
        slope_x, slope_y = a[k], b[k]
        at_centre = slope_x * x + slope_y * y + c[k]
        np.minimum(reach, at_centre + slope_x * right + slope_y * down, out=reach)
    a, b, c = plane.T
    near = (a[k] * x + b[k] * y + c[k]) + a[k] * right + b[k] * down
    return np.asarray(np.where(reach >= 0.0, near, np.float32(-1.0)))


def _candidates(ids: Ids) -> tuple[Index, Index]:
    """Flat indices of the pixels that differ from a neighbour, and up to three facets there."""
    padded = np.pad(ids, 1, mode="edge")
    around = [padded[:-2, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:], padded[2:, 1:-1]]
    differs = np.zeros(ids.shape, dtype=bool)
    for each in around:
        differs |= each != ids
    pixel = np.flatnonzero(differs)
    centre = ids[differs].astype(np.intp)
    beside = [each[differs].astype(np.intp) for each in around]
    second, third = centre.copy(), centre.copy()
    for other in beside:
        np.copyto(second, other, where=second == centre)
    for other in beside:
        np.copyto(third, other, where=(third == centre) & (other != second))
    return pixel, np.stack([centre, second, third], axis=-1)


def _half_planes(seen: View) -> tuple[FloatImage, FloatImage, NDArray[np.intp]]:
    """Lines (a, b, c) with a x + b y + c >= 0 inside, inverse depths, and which a facet has.

    Shapes (polygons + 1, lines, 3), (polygons + 1, 3), (facets,). The last polygon is everywhere
    and infinitely far: it stands for what has no outline.
    """
    outlines = seen.outlines
    starts = np.array(outlines.starts)
    count = len(outlines.facet)
    most = int(np.diff(starts).max(initial=0)) + 2
    lines = np.zeros((count + 1, most, 3), dtype=np.float32)
    lines[..., 2] = 1.0
    owner = np.repeat(np.arange(count), np.diff(starts))
    place = np.arange(len(owner)) - starts[owner]
    slope, intercept = outlines.edges[:, :, 0, 0].T
    for side, sign in ((LEFT, 1.0), (RIGHT, -1.0)):
        on = outlines.side == side
        value = np.stack([np.ones(on.sum()), -slope[on], -intercept[on]], axis=-1)
        lines[owner[on], place[on]] = sign * value
    if count:
        top, bottom = np.array(outlines.y_span).T
        lines[:count, -2] = np.stack([np.zeros(count), np.ones(count), -top], axis=-1)
        lines[:count, -1] = np.stack([np.zeros(count), -np.ones(count), bottom], axis=-1)
    plane: Array = np.zeros((count + 1, 3))
    plane[:count] = seen.homography[outlines.facet, 2]
    polygon = np.full(len(seen.homography), count)
    polygon[outlines.facet] = np.arange(count)
    return lines, plane.astype(np.float32), polygon
