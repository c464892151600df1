"""sensor_msgs to pixels and cameras. Messages of rclpy and of rosbags have the same fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.lie import Array


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


# --- pixels --------------------------------------------------------------------------------------
# To grey images (h, w) uint8, with the results of ROS 2's cv_bridge.

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


# --- cameras -------------------------------------------------------------------------------------
# P belongs to rectified images, K and D to raw ones. Both are of the full sensor: what a region of
# interest cuts off and what binning merges is taken out here.

FISHEYE = "equidistant"
OPENCV_MODELS = ("", "plumb_bob", "rational_polynomial", "thin_prism_fisheye")
# Left and right of a rectified pair share their intrinsics to what drivers and text files round.
PAIR_TOLERANCE = 1e-3


def rectified_camera(info: CameraInfo) -> Camera:
    """The camera of a rectified image, from P."""
    return _camera(info, _projection(info))


def stereo_camera(left: CameraInfo, right: CameraInfo) -> StereoCamera:
    """A rectified pair; baseline = left.Tx / left.fx - right.Tx / right.fx."""
    left_p, right_p = _projection(left), _projection(right)
    camera, other = _camera(left, left_p), _camera(right, right_p)
    if np.abs(left_p[:, :3] - right_p[:, :3]).max() > PAIR_TOLERANCE * camera.fx:
        raise BadInput(
            "camera_info",
            "left and right camera_info are not of one rectified pair, P differs in more than Tx: "
            f"{camera} and {other}",
        )
    baseline = float(left_p[0, 3] / left_p[0, 0] - right_p[0, 3] / right_p[0, 0])
    if not np.isfinite(baseline) or baseline <= 0.0:
        raise BadInput(
            "baseline",
            f"left and right camera_info give a baseline of {baseline:.4g} m (from P[3]): are "
            "left and right swapped, or P of an unrectified pair?",
        )
    return StereoCamera(camera, baseline)


@dataclass(frozen=True, eq=False)
class RawCamera:
    """A raw image's camera: `camera` is that of the undistorted image."""

    camera: Camera
    maps: tuple[NDArray[np.float32], NDArray[np.float32]] | None

    def undistort(self, image: Grey) -> Grey:
        """Resample to what a pinhole camera would see."""
        if self.maps is None:
            return image
        warped = cv2.remap(image, *self.maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(warped, dtype=np.uint8)


def raw_camera(info: CameraInfo) -> RawCamera:
    """The camera of a raw image, from K and D."""
    camera = _camera(info, _sent(info, "K", np.array(info.k, dtype=np.float64).reshape(3, 3)))
    D = np.array(info.d, dtype=np.float64)
    if not np.isfinite(D).all():
        raise _refused(info, "has a D that is not finite: calibrate again")
    if not is_distorted(info):
        return RawCamera(camera, None)
    K = np.array([[camera.fx, 0.0, camera.cx], [0.0, camera.fy, camera.cy], [0.0, 0.0, 1.0]])
    return RawCamera(camera, _maps(info, K, D))


def is_distorted(info: CameraInfo) -> bool:
    """Whether the raw image of this camera is not a pinhole's."""
    return bool(np.any(np.array(info.d, dtype=np.float64)))


def image_shape(info: CameraInfo) -> tuple[int, int]:
    """(height, width) of the images that belong to it; (0, 0) where it does not say."""
    roi = info.roi
    height, width = (roi.height or info.height), (roi.width or info.width)
    return height // max(info.binning_y, 1), width // max(info.binning_x, 1)


def check_shape(info: CameraInfo, shape: tuple[int, ...]) -> None:
    """Refuse an image of another size than its calibration's."""
    expected = image_shape(info)
    if expected != (0, 0) and expected != shape:
        raise BadInput(
            "image size",
            f"image has {shape[1]}x{shape[0]} pixels, its camera_info says "
            f"{expected[1]}x{expected[0]}",
        )


def _projection(info: CameraInfo) -> Array:
    P = _sent(info, "P", np.array(info.p, dtype=np.float64).reshape(3, 4))
    if info.k[0] == 0.0:  # by its definition, that of an uncalibrated camera
        raise _refused(info, "has K[0] = 0, an uncalibrated camera: calibrate it")
    return P


def _sent(info: CameraInfo, name: str, matrix: Array) -> Array:
    """K or P of the pixels that are sent: after region of interest and binning."""
    if not np.isfinite(matrix).all():
        raise _refused(info, f"has a {name} that is not finite: calibrate again")
    if matrix[0, 0] == 0.0:
        remedy = "calibrate it, or rectify the image" if name == "P" else "calibrate it"
        raise _refused(info, f"has {name}[0] = 0, an uncalibrated camera: {remedy}")
    matrix[0, 2] -= info.roi.x_offset
    matrix[1, 2] -= info.roi.y_offset
    matrix[0] /= max(info.binning_x, 1)
    matrix[1] /= max(info.binning_y, 1)
    return matrix


def _camera(info: CameraInfo, matrix: Array) -> Camera:
    fx, fy, cx, cy = (float(matrix[at]) for at in ((0, 0), (1, 1), (0, 2), (1, 2)))
    try:
        return Camera(fx, fy, cx, cy)
    except ValueError as error:
        raise _refused(info, f"cannot be used: {error}") from None


def _maps(info: CameraInfo, K: Array, D: Array) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    height, width = image_shape(info)
    size = (width, height)
    if info.distortion_model == FISHEYE:
        first, second = cv2.fisheye.initUndistortRectifyMap(
            K, D[:4], np.eye(3), K, size, cv2.CV_32FC1
        )
    elif info.distortion_model in OPENCV_MODELS:
        first, second = cv2.initUndistortRectifyMap(K, D, np.eye(3), K, size, cv2.CV_32FC1)
    else:
        raise _refused(
            info,
            f"has distortion model {info.distortion_model!r}: rectify the image before, or use "
            "plumb_bob, rational_polynomial or equidistant",
        )
    return first.astype(np.float32), second.astype(np.float32)


def _refused(info: CameraInfo, reason: str) -> BadInput:
    return BadInput("camera_info", f"camera_info of {info.header.frame_id!r} {reason}")
