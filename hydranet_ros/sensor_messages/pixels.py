"""Image messages to grey images (h, w) uint8, with the results of ROS's cv_bridge."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import BadInput
from hydranet_ros.sensor_messages.fields import CompressedImage, RawImage

Grey = NDArray[np.uint8]

# Channels, bytes per channel, and how OpenCV makes grey of it; None where it is grey.
ENCODINGS: dict[str, tuple[int, int, int | None]] = {
    "mono8": (1, 1, None),
    "8UC1": (1, 1, None),
    "mono16": (1, 2, None),
    "16UC1": (1, 2, None),
    "bgr8": (3, 1, cv2.COLOR_BGR2GRAY),
    "8UC3": (3, 1, cv2.COLOR_BGR2GRAY),
    "rgb8": (3, 1, cv2.COLOR_RGB2GRAY),
    "bgra8": (4, 1, cv2.COLOR_BGRA2GRAY),
    "8UC4": (4, 1, cv2.COLOR_BGRA2GRAY),
    "rgba8": (4, 1, cv2.COLOR_RGBA2GRAY),
    # OpenCV names a Bayer pattern by its second row, ROS by its first.
    "bayer_rggb8": (1, 1, cv2.COLOR_BayerBG2GRAY),
    "bayer_bggr8": (1, 1, cv2.COLOR_BayerRG2GRAY),
    "bayer_gbrg8": (1, 1, cv2.COLOR_BayerGR2GRAY),
    "bayer_grbg8": (1, 1, cv2.COLOR_BayerGB2GRAY),
}


def grey_of_raw(message: RawImage) -> Grey:
    """Rows may be padded, and 16 bits of either byte order; 65535 becomes 255."""
    check_layout(message)
    channels, size, code = ENCODINGS[message.encoding]
    rows = np.frombuffer(message.data, dtype=np.uint8).reshape(message.height, message.step)
    rows = rows[:, : message.width * channels * size]
    if size == 2:
        kind = ">u2" if message.is_bigendian else "<u2"
        wide = np.ascontiguousarray(rows).view(kind).astype(np.uint16)
        return np.asarray(cv2.convertScaleAbs(wide, alpha=255.0 / 65535.0), dtype=np.uint8)
    if code is None:
        return np.ascontiguousarray(rows)
    pixels = np.ascontiguousarray(rows).reshape(message.height, message.width, channels)
    return np.asarray(cv2.cvtColor(pixels, code), dtype=np.uint8)


def check_layout(message: RawImage) -> None:
    """Refuse an unknown encoding, and rows or data too short for what they should hold."""
    if message.encoding not in ENCODINGS:
        raise BadInput(
            "encoding",
            f"encoding {message.encoding!r} is not known: use one of {', '.join(ENCODINGS)}",
        )
    if message.height < 1 or message.width < 1:
        raise BadInput("empty image", f"image is empty: {message.width}x{message.height} pixels")
    channels, size, _ = ENCODINGS[message.encoding]
    least = message.width * channels * size
    if message.step < least:
        raise BadInput(
            "image step",
            f"step {message.step} is too short: {message.width} pixels of {message.encoding} "
            f"need {least} bytes",
        )
    if len(message.data) != message.step * message.height:
        raise BadInput(
            "image data",
            f"data has {len(message.data)} bytes instead of step {message.step} times height "
            f"{message.height}",
        )


def grey_of_compressed(message: CompressedImage) -> Grey:
    """JPEG, PNG, or whatever else OpenCV reads, with the rows as they were sent."""
    data = np.frombuffer(message.data, dtype=np.uint8)
    flags = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(data, flags) if data.size else None
    if image is None:
        raise BadInput(
            "compressed data",
            f"compressed data ({data.size} bytes, format {message.format!r}) is not an image "
            "that OpenCV can read",
        )
    return np.asarray(image, dtype=np.uint8)
