"""Calibrations in files, as the camera_info that a driver of that camera would publish.

Three kinds are read: the YAML of ROS (camera_calibration, camera_calibration_parsers), sensor.yaml
of EuRoC, and rows of plain numbers: a 3x3 matrix, or `fx fy cx cy` and the distortion after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from hydranet_ros.datasets.sensor_messages import (
    FISHEYE,
    Header,
    RawCamera,
    RegionOfInterest,
    check_principal_point,
    check_shape,
    coefficients,
    raw_camera,
)
from hydranet_ros.errors import BadInput, FileError
from hydranet_ros.files import read_lines
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.estimates import ROTATION_TOLERANCE
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import read_yaml

# What the calibration of a folder's camera may be called.
NAMES = ("camera.yaml", "camera_info.yaml", "camera.txt", "calibration.txt", "intrinsics.txt")
MATRIX = "camera-intrinsics.txt"
# Names of distortion models in EuRoC's and Kalibr's files, as camera_info has them.
MODELS = {"radial-tangential": "plumb_bob", "radtan": "plumb_bob", "none": "plumb_bob"}
LARGEST_SIDE = 1 << 15
LONGEST_BASELINE_M = 1e3
# A pair stands side by side: its right camera is this much more to the side than up or down.
SIDEWAYS = 2.0


@dataclass
class _Header:
    frame_id: str


@dataclass
class _WholeImage:
    """A region of interest that cuts nothing off."""

    x_offset: int = 0
    y_offset: int = 0
    height: int = 0
    width: int = 0


# Where K stands in P.
_K_OF_P = (0, 1, 2, 4, 5, 6, 8, 9, 10)


@dataclass
class CameraFile:
    """The fields of sensor_msgs/CameraInfo, and the file they are from; size 0: it has none."""

    path: Path
    k: Sequence[float]
    d: Sequence[float]
    distortion_model: str = "plumb_bob"
    width: int = 0
    height: int = 0
    r: Sequence[float] = ()
    p: Sequence[float] = ()
    binning_x: int = 0
    binning_y: int = 0
    roi: RegionOfInterest = field(default_factory=_WholeImage)

    def __post_init__(self) -> None:
        if self.distortion_model == "plumb_bob" and len(self.d) > 5:
            self.distortion_model = "rational_polynomial"
        self.header: Header = _Header(self.path.stem)

    @property
    def calibrated(self) -> bool:
        """Whether anybody measured it: one focal length and no distortion are nominal figures."""
        rectified = len(self.p) == 12 and list(self.k) != [self.p[i] for i in _K_OF_P]
        return any(self.d) or self.k[0] != self.k[4] or rectified

    def raw_camera(self) -> RawCamera:
        """The camera that undistorts its images."""
        try:
            return raw_camera(self)
        except BadInput as error:
            raise FileError(self.path, str(error)) from None

    def check(self, camera: Camera, shape: tuple[int, ...]) -> None:
        """Refuse it for images of another size."""
        try:
            check_shape(self, shape)
            check_principal_point(self, camera, shape)
        except BadInput as error:
            raise FileError(self.path, f"is of other images: {error}") from None


# --- reading -------------------------------------------------------------------------------------


def find_camera(folder: Path, given: str | PathLike[str] | None) -> CameraFile | None:
    """The calibration that was given, else the one in the folder, if any."""
    if given is not None:
        return read_camera(given)
    found = next((folder / name for name in (*NAMES, MATRIX) if (folder / name).is_file()), None)
    return None if found is None else read_camera(found)


def read_camera(path: str | PathLike[str]) -> CameraFile:
    """Read a camera_info YAML, or rows of numbers."""
    path = Path(path)
    if path.suffix.lower() not in (".yaml", ".yml"):
        return _from_numbers(path)
    values = read_yaml(path)
    if "camera_matrix" not in values:
        raise FileError(path, "has no camera_matrix: a camera_info YAML of ROS is expected")
    D = _data(path, values, "distortion_coefficients", (0, 1, 4, 5, 8, 12, 14))
    model = values.get("distortion_model", "plumb_bob")
    size = [values.get(name, 0) for name in ("image_width", "image_height")]
    return CameraFile(
        path, _data(path, values, "camera_matrix", (9,)), D, str(model), *_size(path, size)
    )


def read_sensor(path: Path) -> tuple[CameraFile, Array]:
    """Read a sensor.yaml of EuRoC: the camera, and its pose T_BS in the body."""
    values = read_yaml(path)
    fx, fy, cx, cy = _numbers(path, values.get("intrinsics"), "intrinsics", (4,))
    model = str(values.get("distortion_model", "radial-tangential"))
    D = _numbers(
        path, values.get("distortion_coefficients", []), "distortion_coefficients", (0, 4, 5, 8)
    )
    size = values.get("resolution", [0, 0])
    if not isinstance(size, list) or len(size) != 2:
        raise FileError(path, "resolution must be [width, height]")
    K = [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0]
    camera = CameraFile(path, K, D, MODELS.get(model, model), *_size(path, size))
    return camera, _pose(path, values)


def _from_numbers(path: Path) -> CameraFile:
    words = [w for _, line in read_lines(path) for w in line.split("#")[0].split()]
    numbers = _numbers(path, words, "the calibration", (9, 4, 8, 9, 12))
    if len(numbers) == 9 and numbers[6:] == [0.0, 0.0, 1.0]:
        return CameraFile(path, numbers, [])
    fx, fy, cx, cy, *D = numbers
    return CameraFile(path, [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0], D)


def _data(path: Path, values: dict[str, Any], name: str, counts: Sequence[int]) -> list[float]:
    """The numbers of a matrix, `{rows: 3, cols: 3, data: [...]}`."""
    matrix = values.get(name, {"data": []})
    inner = matrix.get("data") if isinstance(matrix, dict) else matrix
    return _numbers(path, inner, name, counts)


def _numbers(path: Path, values: Any, name: str, counts: Sequence[int]) -> list[float]:
    if not isinstance(values, list) or len(values) not in counts:
        got = len(values) if isinstance(values, list) else "none"
        wanted = " or ".join(map(str, dict.fromkeys(counts)))
        raise FileError(path, f"{name} must be {wanted} numbers, got {got}")
    try:  # YAML takes 1e-5 for a word
        found = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        raise FileError(path, f"{name} has something else than numbers in it") from None
    if not np.isfinite(found).all():
        raise FileError(path, f"{name} has numbers that are not finite")
    return found


def _size(path: Path, values: Sequence[Any]) -> tuple[int, int]:
    if not all(type(value) is int and 0 <= value <= LARGEST_SIDE for value in values):
        raise FileError(path, f"the image size must be whole numbers up to {LARGEST_SIDE}")
    return values[0], values[1]


def _pose(path: Path, values: dict[str, Any]) -> Array:
    T = np.array(_data(path, values, "T_BS", (16,))).reshape(4, 4)
    C = T[:3, :3]
    defect = float(np.abs(C @ C.T - np.eye(3)).max())
    if not defect < ROTATION_TOLERANCE or np.linalg.det(C) < 0.0 or np.any(T[3] != [0, 0, 0, 1]):
        raise FileError(path, "T_BS is not a rigid-body pose: its rotation is not orthonormal")
    return lie.se3_from(lie.project_to_so3(C), T[:3, 3])


# --- a pair --------------------------------------------------------------------------------------


def rectify(
    left: CameraFile, right: CameraFile, T_right_left: Array
) -> tuple[StereoCamera, tuple[RawCamera, RawCamera], Array]:
    """Rectify a raw pair: its camera, how each image is resampled, and R: p_rectified = R p_left.

    The whole of both rectified images is seen by both cameras (alpha 0).
    """
    lenses = [each.raw_camera().camera for each in (left, right)]
    size = left.width, left.height
    if not all(size) or size != (right.width, right.height):
        raise FileError(right.path, f"and {left.path} need the same resolution, to be rectified")
    if (left.distortion_model == FISHEYE) != (right.distortion_model == FISHEYE):
        raise FileError(right.path, f"has another distortion model than {left.path}")
    t = T_right_left[:3, 3]
    if not -LONGEST_BASELINE_M < t[0] < -SIDEWAYS * abs(t[1]):
        raise FileError(
            right.path,
            f"has its camera at {np.round(-t, 3).tolist()} m from the left one: a pair stands "
            "side by side, left before right",
        )
    module = cv2.fisheye if left.distortion_model == FISHEYE else cv2
    options: dict[str, float] = {"balance": 0.0} if module is cv2.fisheye else {"alpha": 0.0}
    K, D = [each.matrix for each in lenses], [coefficients(each) for each in (left, right)]
    try:
        R_left, R_right, P_left, P_right, *_ = module.stereoRectify(
            K[0], D[0], K[1], D[1], size, T_right_left[:3, :3].copy(), t.copy(),
            flags=cv2.CALIB_ZERO_DISPARITY, **options,
        )  # fmt: skip
        fx, fy, cx, cy = (float(P_left[at]) for at in ((0, 0), (1, 1), (0, 2), (1, 2)))
        camera = StereoCamera(Camera(fx, fy, cx, cy), float(-P_right[0, 3] / P_right[0, 0]))
    except (cv2.error, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileError(right.path, f"cannot be rectified with {left.path}: {reason}") from None
    images = (
        RawCamera(lenses[0], left, camera.left, np.asarray(R_left)),
        RawCamera(lenses[1], right, camera.left, np.asarray(R_right)),
    )
    return camera, images, np.asarray(R_left)
