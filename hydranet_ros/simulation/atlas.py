"""Anti-aliased look-up in many textures at once.

Every texture wraps around and is stored at every pair of power-of-two reductions in u and in v (a
rip-map), so that a surface seen at a grazing angle is filtered as much as it must be in one
direction without losing the other. Grey levels 0..255 are kept as 16-bit fixed point.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

FloatImage = NDArray[np.float32]

_FIXED_POINT = 256.0  # 16-bit units per grey level
_ATLAS_WIDTH = 8192  # cv2.remap takes at most 32767
_REMAP_WIDTH = 2048  # of the table of points that cv2.remap is given; rows are limited too
_LOW_PASS = np.array([1, 4, 6, 4, 1], dtype=np.float32) / 16.0
# Subtracted from the level whose texels are as large as a pixel: the lens blur and the mean over
# the pixel's samples filter as well, and a little sharpness keeps corners.
_SHARPER_LEVELS = np.float32(0.35)
_HALVINGS = np.exp2(-np.arange(32)).astype(np.float32)


class Atlas:
    """All textures at all reductions in one image; `size` and `mean` are by texture index."""

    def __init__(self, textures: list[FloatImage], levels: list[int]) -> None:
        most = max(levels) + 1
        self.size = np.array([t.shape[::-1] for t in textures], dtype=np.float64)  # (n, 2) u, v
        self._size = np.ascontiguousarray(self.size.T.astype(np.float32))
        self.mean = np.array([t.mean() for t in textures], dtype=np.float32)
        self._last_level = np.array(levels, dtype=np.float32)
        # Where level k starts, in u and in v.
        self._offset = np.zeros((2, len(textures), most), dtype=np.float32)
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

    def sample(
        self, texture: NDArray[np.intp], uv: list[FloatImage], spans: list[FloatImage]
    ) -> FloatImage:
        """Grey levels at (n,) texels u, v; spans: squares of the texels a pixel spans in each."""
        (u0, u1, fu), (v0, v1, fv) = (
            self._levels(axis, texture, uv[axis], spans[axis]) for axis in (0, 1)
        )
        fine, coarse = (
            (1.0 - fu) * self._remap(u0, v) + fu * self._remap(u1, v) for v in (v0, v1)
        )
        return np.asarray(fine + fv * (coarse - fine))

    def sample_pair(
        self, texture: NDArray[np.intp], uv: list[FloatImage], spans: list[FloatImage]
    ) -> FloatImage:
        """As `sample`, twice as fast: two reductions are mixed instead of four.

        Their levels differ by a whole number k between u and v, so that one fraction does for
        both: at most half a level is wrong where k changes.
        """
        last = self._last_level[texture]
        levels = [np.clip(_level(span), np.float32(0.0), last) for span in spans]
        apart = np.rint(levels[0] - levels[1])
        np.clip(apart, np.float32(1.0) - last, last - np.float32(1.0), out=apart)
        middle = np.float32(0.5) * (levels[0] + levels[1] - apart)  # of v
        least = np.maximum(-apart, np.float32(0.0))
        lower = np.clip(np.floor(middle), least, last - np.float32(1.0) - apart - least)
        share = np.clip(middle - lower, np.float32(0.0), np.float32(1.0))
        level_v = lower.astype(np.intp)
        starts = texture * self._offset.shape[-1]
        maps = []
        for axis, level in ((0, level_v + apart.astype(np.intp)), (1, level_v)):
            size = self._size[axis][texture]
            tiles = uv[axis] / size
            near = (tiles - np.floor(tiles)) * size * _HALVINGS[level]
            offset, index = self._offset[axis].reshape(-1), starts + level
            maps.append((offset[index] + near, offset[index + 1] + np.float32(0.5) * near))
        fine, coarse = (self._remap(maps[0][k], maps[1][k]) for k in (0, 1))
        return np.asarray(fine + share * (coarse - fine))

    def _levels(
        self, axis: int, texture: NDArray[np.intp], texel: FloatImage, span: FloatImage
    ) -> tuple[FloatImage, FloatImage, FloatImage]:
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

    def _remap(self, u: FloatImage, v: FloatImage) -> FloatImage:
        """Bilinear look-up of (n,) atlas coordinates."""
        rows = -(-u.size // _REMAP_WIDTH)
        maps = np.zeros((2, rows * _REMAP_WIDTH), dtype=np.float32)
        maps[0, : u.size], maps[1, : u.size] = u, v
        map_u, map_v = maps.reshape(2, rows, _REMAP_WIDTH)
        out = cv2.remap(self._pixels, map_u, map_v, cv2.INTER_LINEAR)
        return np.asarray(out.reshape(-1)[: u.size] * np.float32(1.0 / _FIXED_POINT))


def _level(span: FloatImage) -> FloatImage:
    """log2(sqrt(span)), from the bits of the number: the mantissa stands for its logarithm."""
    bits = np.maximum(span, np.float32(1e-6)).view(np.int32)
    scale, zero = np.float32(0.5 / (1 << 23)), np.float32(63.5 - 0.02) + _SHARPER_LEVELS
    return np.asarray(bits * scale - zero, dtype=np.float32)


def _rip_map(texture: FloatImage, levels: int) -> tuple[NDArray[np.uint16], list[int], list[int]]:
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


def _halve(image: FloatImage) -> FloatImage:
    """Half as many columns, low-passed; column k of the result is over column 2 k."""
    if image.shape[1] == 1:
        return image
    padded = np.pad(image, ((0, 0), (2, 2)), mode="wrap")
    width = image.shape[1]
    taps = (padded[:, k : k + width : 2] * _LOW_PASS[k] for k in range(5))
    return np.asarray(sum(taps), dtype=np.float32)
