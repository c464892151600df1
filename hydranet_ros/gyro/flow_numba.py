"""What `flow` makes of the pixels of the canonical image, compiled by numba where it is installed.

The same means over the cells without images in between.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.gyro.grid import Field

_fast = numba.njit(cache=True, fastmath=True, error_model="numpy", nogil=True)


@_fast
def checked_means(
    flow: Field,
    back: Field,
    first: tuple[int, int],
    shape: tuple[int, int],
    side: int,
    tolerance_px: float,
    tolerance_share: float,
) -> tuple[Field, Field]:
    """Mean flow of each cell (2, rows, columns), and the share of it that the flow back confirms.

    `flow` and `back` are (h, w, 2). Pixel (0, 0) is pixel `first`, x then y, of the grid, whose
    `shape` is rows and columns of cells, of `side` x `side` pixels. Where there is no pixel, flow
    counts as 0.
    """
    height, width = flow.shape[:2]
    rows, columns = shape
    mean = np.zeros((2, rows, columns), dtype=np.float32)
    agreeing = np.zeros((rows, columns), dtype=np.float32)
    each = np.float32(1.0 / (side * side))
    for r in range(rows):
        top = r * side - first[1]
        for y in range(max(top, 0), min(top + side, height)):
            for c in range(columns):
                begin = c * side - first[0]
                for x in range(max(begin, 0), min(begin + side, width)):
                    u, v = flow[y, x, 0], flow[y, x, 1]
                    mean[0, r, c] += u
                    mean[1, r, c] += v
                    at_x, at_y = x + u, y + v
                    if not (0.0 <= at_x <= width - 1.0 and 0.0 <= at_y <= height - 1.0):
                        continue
                    i, j = min(int(at_y), height - 2), min(int(at_x), width - 2)
                    b, a = at_y - i, at_x - j
                    low, high = back[i], back[i + 1]
                    across = (1.0 - b) * ((1.0 - a) * low[j, 0] + a * low[j + 1, 0]) + b * (
                        (1.0 - a) * high[j, 0] + a * high[j + 1, 0]
                    )
                    down = (1.0 - b) * ((1.0 - a) * low[j, 1] + a * low[j + 1, 1]) + b * (
                        (1.0 - a) * high[j, 1] + a * high[j + 1, 1]
                    )
                    allowed = tolerance_px + tolerance_share * math.sqrt(u * u + v * v)
                    if (u + across) ** 2 + (v + down) ** 2 < allowed * allowed:
                        agreeing[r, c] += each
        for c in range(columns):
            mean[0, r, c] *= each
            mean[1, r, c] *= each
    return mean, agreeing


@_fast
def _reflected(i: int, length: int) -> int:
    """The pixel that stands for one beyond the edge: the edge itself is not repeated."""
    if i < 0:
        return -i
    return 2 * length - 2 - i if i >= length else i


@_fast
def _windows(
    cells: int, side: int, first: int, length: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Along one axis the pixels of each cell (cells, 3 side), and what they count in it.

    The mean over the pixels of a cell of means over windows of 2 side + 1 pixels.
    """
    place = np.zeros((cells, 3 * side), dtype=np.int64)
    share = np.zeros((cells, 3 * side), dtype=np.float32)
    for cell in range(cells):
        begin = cell * side - first
        for j in range(3 * side):
            place[cell, j] = min(max(_reflected(begin - side + j, length), 0), length - 1)
        for i in range(side):
            if 0 <= begin + i < length:
                for j in range(i, i + 2 * side + 1):
                    share[cell, j] += np.float32(1.0 / ((2 * side + 1) * side))
    return place, share


@_fast
def structure(
    image: NDArray[np.uint8], first: tuple[int, int], shape: tuple[int, int], side: int
) -> Field:
    """(3, rows, columns): the structure tensor xx, xy, yy of cells, as means over windows.

    `first`, `shape` and `side` are those of `checked_means`.
    """
    height, width = image.shape
    rows, columns = shape
    products = np.empty((3, height, width), dtype=np.float32)
    for y in range(height):
        above, here = image[_reflected(y - 1, height)], image[y]
        below = image[_reflected(y + 1, height)]
        for x in range(width):
            left, right = _reflected(x - 1, width), _reflected(x + 1, width)
            # Sobel's derivatives, an eighth of them: grey levels per pixel.
            gx = np.float32(0.125) * np.float32(
                np.int32(above[right]) + 2 * np.int32(here[right]) + np.int32(below[right])
                - np.int32(above[left]) - 2 * np.int32(here[left]) - np.int32(below[left])
            )  # fmt: skip
            gy = np.float32(0.125) * np.float32(
                np.int32(below[left]) + 2 * np.int32(below[x]) + np.int32(below[right])
                - np.int32(above[left]) - 2 * np.int32(above[x]) - np.int32(above[right])
            )  # fmt: skip
            products[0, y, x], products[1, y, x], products[2, y, x] = gx * gx, gx * gy, gy * gy
    down, weight_down = _windows(rows, side, first[1], height)
    across, weight_across = _windows(columns, side, first[0], width)
    found = np.zeros((3, rows, columns), dtype=np.float32)
    total = np.empty(width, dtype=np.float32)
    for r in range(rows):
        for part in range(3):
            total[:] = 0.0
            for i in range(3 * side):
                weight, line = weight_down[r, i], products[part, down[r, i]]
                if weight > 0.0:
                    for x in range(width):
                        total[x] += weight * line[x]
            for c in range(columns):
                mean = np.float32(0.0)
                for j in range(3 * side):
                    mean += weight_across[c, j] * total[across[c, j]]
                found[part, r, c] = mean
    return found
