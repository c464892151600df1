"""Corners of an image: how strong every pixel is, and the strongest pixel of every square."""

from __future__ import annotations

from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import compiled_loops
from hydranet_ros.geometry.camera import Image

Strength = NDArray[np.float32]


compiled = partial(compiled_loops, "hydranet_ros.geometry.loops_numba")
"""The loops over pixels; None where numba is not installed."""


def corner_strength(image: Image, block: int, border: int, out: Strength) -> None:
    """Put the smaller eigenvalue of the gradients around every pixel into `out`.

    In units of OpenCV's cornerMinEigenVal, over blocks of so many pixels. `out` is left as it is
    within `border` of the edge.
    """
    fast = compiled()
    inner = slice(border, -border), slice(border, -border)
    if fast is not None and block % 2 and border > block // 2:
        fast.corner_strength(image, block, border, out)
    else:
        out[inner] = cv2.cornerMinEigenVal(image, block)[inner]


def strongest(
    strength: Strength, first: int, side: int, shape: tuple[int, int], peaks: bool
) -> tuple[NDArray[np.int64], Strength]:
    """The strongest pixel of each square, (n, 2) x, y, and how strong it is.

    There are `shape` rows and columns of squares; the first begins at pixel (first, first). With
    `peaks` only pixels count that no neighbour exceeds, in the next square perhaps; a square
    without any has strength 0.
    """
    fast = compiled()
    if fast is not None:
        at, best = fast.strongest(strength, first, side, *shape, peaks)
        return at, best
    rows, columns = shape
    inner = strength
    if peaks:
        # Beside the edge of a square the largest may be the slope of a corner of the next one.
        dilated = cv2.dilate(strength, None)  # type: ignore[call-overload]
        inner = np.where(strength >= dilated, strength, np.float32(0.0))
    inner = inner[first : first + rows * side, first : first + columns * side]
    squares = inner.reshape(rows, side, columns, side).swapaxes(1, 2).reshape(-1, side * side)
    each = squares.argmax(axis=1)
    row, column = np.divmod(np.arange(rows * columns), columns)
    x, y = column * side + each % side, row * side + each // side
    return first + np.stack([x, y], axis=1), squares[np.arange(len(squares)), each]
