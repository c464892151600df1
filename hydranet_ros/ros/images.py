"""Image messages to grey images and back; `cv_bridge` converts what it can, where installed."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from hydranet_ros.datasets.sensor_messages import (
    Grey,
    check_layout,
    grey_of_compressed,
    grey_of_raw,
)

try:
    from cv_bridge import CvBridge
except ImportError:  # not with the wheels
    CvBridge = None

ImageMessage: TypeAlias = Image | CompressedImage

# What cv_bridge takes for colours; the others have no colour to it, and it refuses them.
_BRIDGED = {"mono8", "mono16", "bgr8", "rgb8", "bgra8", "rgba8"}


def grey(message: ImageMessage) -> Grey:
    """A grey image, or a BadInput that says what is wrong with the message."""
    if isinstance(message, CompressedImage):
        return grey_of_compressed(message)
    if CvBridge is not None and message.encoding in _BRIDGED:
        check_layout(message)
        return np.asarray(CvBridge().imgmsg_to_cv2(message, "mono8"), dtype=np.uint8)
    return grey_of_raw(message)


def image_message(pixels: NDArray[np.uint8], encoding: str = "mono8") -> Image:
    """(h, w) or (h, w, channels) uint8 to a message, without its header."""
    height, width = pixels.shape[:2]
    step = width * (1 if pixels.ndim == 2 else pixels.shape[2])
    # As bytes: the setter checks any other sequence number by number.
    data = np.ascontiguousarray(pixels).tobytes()
    return Image(height=height, width=width, encoding=encoding, step=step, data=data)
