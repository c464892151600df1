"""The loops of `corners` and `windows`, and what others share, compiled by numba.

Sums over blocks are of integers, so they are exact, and rows leave them again as new ones come.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import Array

_fast = numba.njit(cache=True, fastmath=True, error_model="numpy", nogil=True)


@_fast
def corner_strength(
    image: NDArray[np.uint8], block: int, border: int, out: NDArray[np.float32]
) -> None:
    """The smaller eigenvalue of the gradients around every pixel.

    For odd blocks, and border > block // 2.
    """
    height, width = image.shape
    half, inner = block // 2, width - 2
    products = np.zeros((block, 3, inner), dtype=np.int32)
    total = np.zeros((3, inner), dtype=np.int32)
    wide = width - 2 * border
    sums = np.zeros((3, wide), dtype=np.int32)
    unit = 1.0 / (4.0 * block * 255.0)
    scale = 0.5 * unit * unit
    first, last = border - half, height - border + half  # the rows of gradients
    for y in range(first, last):
        new = products[(y - first) % block]
        total -= new
        _products(image[y - 1], image[y], image[y + 1], new[0], new[1], new[2])
        total += new
        if y < first + block - 1:
            continue
        sums[:] = 0
        for j in range(block):
            start = border - half + j - 1
            for part in range(3):
                _add(sums[part], total[part, start : start + wide])
        _eigenvalues(sums[0], sums[1], sums[2], scale, out[y - half, border : width - border])


# Loops over slices that begin at 0: an index that might be negative is no vector's.


@_fast
def _products(
    above: NDArray[np.uint8],
    here: NDArray[np.uint8],
    below: NDArray[np.uint8],
    xx: NDArray[np.int32],
    xy: NDArray[np.int32],
    yy: NDArray[np.int32],
) -> None:
    """Of Sobel's derivatives, of all pixels of a row but the first and the last."""
    a, b, c = above[:-2], above[1:-1], above[2:]
    d, f = here[:-2], here[2:]
    g, h, i = below[:-2], below[1:-1], below[2:]
    for x in range(len(xx)):
        down = np.int32(i[x]) - np.int32(a[x])
        up = np.int32(c[x]) - np.int32(g[x])
        gx = down + up + 2 * (np.int32(f[x]) - np.int32(d[x]))
        gy = down - up + 2 * (np.int32(h[x]) - np.int32(b[x]))
        xx[x], xy[x], yy[x] = gx * gx, gx * gy, gy * gy


@_fast
def _add(to: NDArray[np.int32], what: NDArray[np.int32]) -> None:
    for x in range(len(to)):
        to[x] += what[x]


@_fast
def _eigenvalues(
    xx: NDArray[np.int32],
    xy: NDArray[np.int32],
    yy: NDArray[np.int32],
    scale: float,
    out: NDArray[np.float32],
) -> None:
    for x in range(len(out)):
        one, other, both = np.float32(xx[x]), np.float32(yy[x]), np.float32(xy[x])
        apart = one - other
        out[x] = np.float32(scale) * (
            one + other - np.sqrt(apart * apart + np.float32(4.0) * both * both)
        )


@_fast
def strongest(
    strength: NDArray[np.float32], first: int, side: int, rows: int, columns: int, peaks: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The strongest pixel of each square, the first of equals, and how strong it is."""
    at = np.empty((rows * columns, 2), dtype=np.int64)
    best = np.empty(rows * columns, dtype=np.float32)
    for r in range(rows):
        for c in range(columns):
            top, left = first + r * side, first + c * side
            place_x, place_y, most = left, top, np.float32(0.0 if peaks else -math.inf)
            for y in range(top, top + side):
                for x in range(left, left + side):
                    value = strength[y, x]
                    if value <= most:
                        continue
                    if peaks and _is_exceeded(strength, y, x, value):
                        continue
                    place_x, place_y, most = x, y, value
            at[r * columns + c, 0], at[r * columns + c, 1] = place_x, place_y
            best[r * columns + c] = most
    return at, best


@_fast
def _is_exceeded(strength: NDArray[np.float32], y: int, x: int, value: float) -> bool:
    """Whether one of the eight neighbours is stronger."""
    height, width = strength.shape
    for i in range(max(y - 1, 0), min(y + 2, height)):
        for j in range(max(x - 1, 0), min(x + 2, width)):
            if strength[i, j] > value:
                return True
    return False


@_fast
def window_centroids(image: NDArray[np.uint8], pixels: Array, half: int) -> Array:
    """Where the texture of windows of 2 half + 1 pixels is, relative to their centres, (n, 2)."""
    height, width = image.shape
    found = np.empty((len(pixels), 2))
    for k in range(len(pixels)):
        u, v = int(np.rint(pixels[k, 0])), int(np.rint(pixels[k, 1]))
        across = across_x = down = down_y = 0.0
        for i in range(-half, half + 1):
            y = min(max(v + i, 0), height - 1)
            above, below = max(min(v + i - 1, height - 1), 0), max(min(v + i + 1, height - 1), 0)
            for j in range(-half, half + 1):
                x = min(max(u + j, 0), width - 1)
                left, right = max(min(u + j - 1, width - 1), 0), max(min(u + j + 1, width - 1), 0)
                gx = float(image[y, right]) - float(image[y, left])
                gy = float(image[below, x]) - float(image[above, x])
                across += gx * gx
                across_x += j * gx * gx
                down += gy * gy
                down_y += i * gy * gy
        found[k, 0], found[k, 1] = across_x / max(across, 1.0), down_y / max(down, 1.0)
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True)
def solve_in_place(A: Array, b: Array) -> None:
    """Put A^-1 b into b, for a symmetric positive definite A given by its lower half.

    A holds its Cholesky factor afterwards.
    """
    n = len(b)
    for i in range(n):
        for j in range(i + 1):
            total = A[i, j]
            for k in range(j):
                total -= A[i, k] * A[j, k]
            A[i, j] = math.sqrt(total) if i == j else total / A[j, j]
        total = b[i]
        for k in range(i):
            total -= A[i, k] * b[k]
        b[i] = total / A[i, i]
    for i in range(n - 1, -1, -1):
        total = b[i]
        for k in range(i + 1, n):
            total -= A[k, i] * b[k]
        b[i] = total / A[i, i]
