"""The stereo camera behind two sensor_msgs/CameraInfo."""

from __future__ import annotations

from typing import Any

import numpy as np

from hydranet_ros.camera import Camera, StereoCamera
from hydranet_ros.errors import HydraNetError
from hydranet_ros.lie import Array


def stereo_camera(left: Any, right: Any) -> StereoCamera:
    """Of a rectified pair: the baseline is left.Tx/left.fx - right.Tx/right.fx."""
    left_p, right_p = projection(left), projection(right)
    if not np.allclose(left_p[:, :3], right_p[:, :3]):
        raise HydraNetError("left and right P differ in more than Tx: not a rectified pair")
    baseline = float(left_p[0, 3] / left_p[0, 0] - right_p[0, 3] / right_p[0, 0])
    if not baseline > 0.0:
        raise HydraNetError(f"P gives a baseline of {baseline:.4g} m: are the cameras swapped?")
    c = left_p[:, :3]
    return StereoCamera(
        Camera(float(c[0, 0]), float(c[1, 1]), float(c[0, 2]), float(c[1, 2])), baseline
    )


def projection(info: Any) -> Array:
    """P (3, 4) for the pixels that are sent: after region of interest and binning."""
    P = np.array(info.p, dtype=np.float64).reshape(3, 4)
    if info.k[0] == 0.0 or P[0, 0] == 0.0:
        raise HydraNetError(f"camera_info of '{info.header.frame_id}' says: not calibrated")
    if not np.isfinite(P).all() or P[0, 0] < 0.0 or P[1, 1] <= 0.0:
        raise HydraNetError(f"camera_info of '{info.header.frame_id}' has no usable P")
    P[0, 2] -= info.roi.x_offset
    P[1, 2] -= info.roi.y_offset
    P[0] /= max(info.binning_x, 1)
    P[1] /= max(info.binning_y, 1)
    return P


def is_distorted(info: Any) -> bool:
    """Whether the raw image of this camera is not a pinhole's."""
    return bool(np.any(np.asarray(info.d, dtype=np.float64) != 0.0))
