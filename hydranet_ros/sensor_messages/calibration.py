"""sensor_msgs/CameraInfo to cameras.

P belongs to rectified images, K and D to raw ones. Both are of the full sensor: what a region of
interest cuts off and what binning merges is taken out here.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.sensor_messages.fields import CameraInfo
from hydranet_ros.sensor_messages.pixels import Grey

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
