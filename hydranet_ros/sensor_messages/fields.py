"""The fields of sensor_msgs that are read here: those of rclpy and of rosbags have them alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class RawImage(Protocol):
    """sensor_msgs/Image."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any  # bytes, or an array of them


class CompressedImage(Protocol):
    """sensor_msgs/CompressedImage."""

    format: str
    data: Any  # bytes, or an array of them


class Header(Protocol):
    """std_msgs/Header."""

    frame_id: str


class RegionOfInterest(Protocol):
    """sensor_msgs/RegionOfInterest."""

    x_offset: int
    y_offset: int
    height: int
    width: int


class CameraInfo(Protocol):
    """sensor_msgs/CameraInfo."""

    header: Header
    height: int
    width: int
    distortion_model: str
    d: Sequence[float]
    k: Sequence[float]
    p: Sequence[float]
    binning_x: int
    binning_y: int
    roi: RegionOfInterest
