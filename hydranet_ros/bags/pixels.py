"""Grey pixels of image messages, raw and compressed, with the results of ROS's cv_bridge."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import HydraNetError

Image = NDArray[np.uint8]

# Encoding: bytes per channel, channels, how OpenCV makes grey of them.
ENCODINGS: dict[str, tuple[int, int, int | None]] = {
    "mono8": (1, 1, None),
    "8UC1": (1, 1, None),
    "mono16": (2, 1, None),
    "16UC1": (2, 1, None),
    "bgr8": (1, 3, cv2.COLOR_BGR2GRAY),
    "8UC3": (1, 3, cv2.COLOR_BGR2GRAY),
    "rgb8": (1, 3, cv2.COLOR_RGB2GRAY),
    "bgra8": (1, 4, cv2.COLOR_BGRA2GRAY),
    "rgba8": (1, 4, cv2.COLOR_RGBA2GRAY),
}


def grey(message: Any) -> Image:
    """(h, w) grey pixels of a sensor_msgs/Image: rows may be padded, 16 bits are scaled to 8."""
    if message.encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise HydraNetError(f"encoding '{message.encoding}' is not known: use one of {known}")
    width, channels, code = ENCODINGS[message.encoding]
    row = message.width * channels * width
    if message.step < row or len(message.data) < message.step * message.height or not row:
        raise HydraNetError(
            f"{message.width}x{message.height} pixels of {message.encoding} do not fit into "
            f"{len(message.data)} bytes with rows of {message.step}"
        )
    data = np.frombuffer(message.data, dtype=np.uint8)[: message.step * message.height]
    rows = np.ascontiguousarray(data.reshape(message.height, message.step)[:, :row])
    if width == 2:
        deep = rows.view(">u2" if message.is_bigendian else "<u2").astype(np.uint16)
        return np.asarray(cv2.convertScaleAbs(deep, alpha=255.0 / 65535.0), dtype=np.uint8)
    if code is None:
        return rows
    colour = rows.reshape(message.height, message.width, channels)
    return np.asarray(cv2.cvtColor(colour, code), dtype=np.uint8)


def grey_compressed(message: Any) -> Image:
    """(h, w) grey pixels of a sensor_msgs/CompressedImage (JPEG, PNG)."""
    data = np.frombuffer(message.data, dtype=np.uint8)
    flags = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(data, flags) if len(data) else None
    if image is None:
        raise HydraNetError(f"{len(data)} bytes of '{message.format}' are not an image")
    return np.asarray(image, dtype=np.uint8)
