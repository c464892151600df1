"""A picture of flow: the direction is the hue, the speed is the brightness."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.flow import GridFlow

PIXELS_PER_CELL = 4
# Flow of this length (x/z, 1 = 45 deg per frame) is as bright as can be.
BRIGHTEST = 0.05


def flow_picture(flow: GridFlow) -> NDArray[np.uint8]:
    """(rows, columns, 3) bgr8, some pixels to a cell; black where nothing is seen."""
    length, angle = cv2.cartToPolar(flow.flow[0], flow.flow[1], angleInDegrees=True)
    hsv = np.zeros((*flow.mask.shape, 3), dtype=np.uint8)
    hsv[..., 0] = angle / 2.0  # OpenCV's hues end at 180
    hsv[..., 1] = 255
    hsv[..., 2] = np.where(flow.mask, 255.0 * np.sqrt(np.clip(length / BRIGHTEST, 0.0, 1.0)), 0.0)
    size = flow.mask.shape[1] * PIXELS_PER_CELL, flow.mask.shape[0] * PIXELS_PER_CELL
    bgr = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)
    return np.asarray(cv2.resize(bgr, size, interpolation=cv2.INTER_NEAREST), dtype=np.uint8)
