"""Images as networks take them: read, scaled, cropped to a square."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import FileError

Image = NDArray[np.uint8]


def read_square(path: Path, size: int, colour: bool) -> Image:
    """The centre of an image, its shorter edge scaled to `size`: (size, size[, 3]), RGB."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR if colour else cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise FileError(path, "cannot be read as an image")
    height, width = image.shape[:2]
    scale = size / min(height, width)
    shape = max(size, round(width * scale)), max(size, round(height * scale))
    image = cv2.resize(image, shape, interpolation=cv2.INTER_AREA)
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    square = image[top : top + size, left : left + size]
    if colour:
        square = cv2.cvtColor(square, cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(square, dtype=np.uint8)
