"""Image messages to grey images (h, w) uint8.

`cv_bridge` converts where it is installed; otherwise `grey_by_hand` does, with the same result.
"""

from __future__ import annotations

from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from hydranet_ros.ros.faults import BadInput

try:
    from cv_bridge import CvBridge
except ImportError:  # not with the wheels
    CvBridge = None

Grey = NDArray[np.uint8]
ImageMessage: TypeAlias = Image | CompressedImage

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
# What cv_bridge takes for colours; the others have no colour to it, and it refuses them.
_BRIDGED = {"mono8", "mono16", "bgr8", "rgb8", "bgra8", "rgba8"}


def grey(message: ImageMessage) -> Grey:
    """A grey image, or a BadInput that says what is wrong with the message."""
    if isinstance(message, CompressedImage):
        return _decoded(message)
    check_layout(message)
    if CvBridge is not None and message.encoding in _BRIDGED:
        return np.asarray(CvBridge().imgmsg_to_cv2(message, "mono8"), dtype=np.uint8)
    return grey_by_hand(message)


def check_layout(message: Image) -> None:
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


def grey_by_hand(message: Image) -> Grey:
    """Rows may be padded, and 16 bits of either byte order; 65535 becomes 255."""
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


def _decoded(message: CompressedImage) -> Grey:
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


def image_message(pixels: NDArray[np.uint8], encoding: str = "mono8") -> Image:
    """(h, w) or (h, w, channels) uint8 to a message, without its header."""
    height, width = pixels.shape[:2]
    step = width * (1 if pixels.ndim == 2 else pixels.shape[2])
    # As bytes: the setter checks any other sequence number by number.
    data = np.ascontiguousarray(pixels).tobytes()
    return Image(height=height, width=width, encoding=encoding, step=step, data=data)
