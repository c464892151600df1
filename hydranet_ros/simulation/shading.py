"""The grey level of every pixel of a view, before lens and sensor."""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.atlas import Atlas, FloatImage
from hydranet_ros.simulation.drive import GroundMap
from hydranet_ros.simulation.raster import SAMPLES, Ids, Index, View, visible
from hydranet_ros.simulation.scene import GROUND, SKY, StreetScene
from hydranet_ros.simulation.textures import (
    GROUND_LENGTH_M,
    GROUND_WIDTH_M,
    ROAD_CENTRE_M,
    SKY_BOTTOM_RAD,
    SKY_TOP_RAD,
)

_LEAST_INVERSE_DEPTH = np.float32(1e-5)  # 100 km: keeps texels finite at the horizon


def fragments(ids: Ids) -> tuple[Index, Index, Array]:
    """(flat index of the pixel, facet, share of the pixel) of every facet in every pixel."""
    count = len(ids)
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

    def __init__(
        self, scene: StreetScene, ground: GroundMap, textures: Atlas, contrast: float
    ) -> None:
        self._scene, self._ground, self._textures = scene, ground, textures
        self._contrast = contrast

    def image(self, seen: View, size: tuple[int, int], focal: float) -> FloatImage:
        """(height, width) grey levels 0..255 and beyond, before lens and sensor."""
        width, height = size
        ids, _ = visible(seen, size, SAMPLES)
        pixel, facet, share = fragments(ids)
        y, x = np.divmod(pixel, width)
        grey = self._grey(seen, facet, x.astype(np.float32), y.astype(np.float32), focal)
        total = np.bincount(pixel, weights=grey * share, minlength=width * height)
        return total.reshape(height, width).astype(np.float32)

    def _grey(
        self, seen: View, facet: Index, x: FloatImage, y: FloatImage, focal: float
    ) -> FloatImage:
        h = [column[facet] for column in seen.homography.reshape(-1, 9).T.astype(np.float32)]
        a, b, w = (np.asarray(h[k] * x + h[k + 1] * y + h[k + 2]) for k in (0, 3, 6))
        sky, ground = np.flatnonzero(facet == SKY), np.flatnonzero(facet == GROUND)
        direction = a[sky], b[sky], w[sky]
        z = np.reciprocal(np.maximum(w, _LEAST_INVERSE_DEPTH))
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
        self,
        seen: View,
        uv: list[FloatImage],
        by_x: list[FloatImage],
        by_y: list[FloatImage],
        at: Index,
    ) -> None:
        """From metres from the camera to texels along and across the street, in place."""
        x, z = (uv[0][at] + seen.T_w_c[0, 3], uv[1][at] + seen.T_w_c[2, 3])
        (s, d), d_x, d_z = self._ground(x, z)
        across = d - ROAD_CENTRE_M
        # Past half a tile, fold back and forth over the pavement instead of repeating the road.
        half, fold = 0.5 * GROUND_WIDTH_M, 0.25 * GROUND_WIDTH_M
        beyond = np.abs(np.mod(np.abs(across), 2.0 * fold) - fold)
        across = np.where(np.abs(across) > half, np.sign(across) * (fold + beyond), across)
        texels, slopes = self._textures.size[GROUND], []
        for k, (value, tile) in enumerate(((s, GROUND_LENGTH_M), (across + half, GROUND_WIDTH_M))):
            scale = texels[k] / tile
            uv[k][at] = np.mod(value * scale, texels[k])
            by = [(d_x[k] * by[0][at] + d_z[k] * by[1][at]) * scale for by in (by_x, by_y)]
            slopes.append(by)
        for k in (0, 1):
            by_x[k][at], by_y[k][at] = slopes[k]

    def _sky(
        self,
        direction: tuple[FloatImage, FloatImage, FloatImage],
        focal: float,
        uv: list[FloatImage],
        spans: list[FloatImage],
        at: Index,
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
