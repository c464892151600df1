"""Folders in the ASL layout of the EuRoC flights: raw cameras on the body of an IMU.

mav0/cam0/data.csv          lines `stamp in ns, file`, the images in mav0/cam0/data
mav0/cam0/sensor.yaml       intrinsics, distortion, and T_BS, the camera in the body
mav0/cam1/...               the same of the right camera
mav0/state_groundtruth_estimate0/data.csv, or groundtruth.txt (TUM rows): the body in the world
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from hydranet_ros.datasets.camera_files import CameraFile, read_camera, read_sensor, rectify
from hydranet_ros.datasets.image_folder import ImageFolder, Listed, matched, read_list
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

LEFT, RIGHT = "cam0", "cam1"
TRUTHS = ("state_groundtruth_estimate0/data.csv", "groundtruth.txt", "../groundtruth.txt")


def is_euroc(folder: Path) -> bool:
    """Whether a folder, or mav0 in it, has a camera in this layout."""
    return (_root(folder) / LEFT / "data.csv").is_file()


def _root(folder: Path) -> Path:
    return folder / "mav0" if (folder / "mav0").is_dir() else folder


def open_euroc(
    folder: str | PathLike[str],
    poses: str | PathLike[str] | None = None,
    max_frames: int | None = None,
    cameras: str = "stereo",
    camera: str | PathLike[str] | None = None,
) -> ImageFolder:
    """Read the left camera, undistorted, or both, rectified.

    `camera` replaces the intrinsics of the one camera; `poses` are of the (rectified) left camera.
    """
    folder = Path(folder)
    root = _root(folder)
    if cameras == "mono":
        return _mono(folder, root, poses, max_frames, camera)
    if camera is not None:
        raise HydraNetError("--camera is the calibration of one camera: use --cameras mono")
    if not (root / RIGHT).is_dir():
        raise FileError(root / RIGHT, "is missing: a stereo pair has cam0 and cam1")
    frames, unmatched = matched([_listed(root / name) for name in (LEFT, RIGHT)])
    if not frames:
        raise FileError(root / RIGHT / "data.csv", "has no stamp near one of cam0")
    (left, T_body_left), (right, T_body_right) = (
        read_sensor(root / name / "sensor.yaml") for name in (LEFT, RIGHT)
    )
    pair, images, R = rectify(left, right, lie.se3_inverse(T_body_right) @ T_body_left)
    lenses = list(zip((left, right), images, strict=True))
    source = ImageFolder(folder, frames[:max_frames], pair, lenses, unmatched)
    if poses is not None:
        source.set_truth(poses)
    elif (truth := _truth(root)) is not None:
        source.set_truth(truth, T_body_left)
        source.turn(R)
    return source


def _mono(
    folder: Path,
    root: Path,
    poses: str | PathLike[str] | None,
    max_frames: int | None,
    camera: str | PathLike[str] | None,
) -> ImageFolder:
    file, T_body_camera = _camera(root / LEFT / "sensor.yaml", camera)
    lens = file.raw_camera()
    frames = [(each,) for each in _listed(root / LEFT)[:max_frames]]
    source = ImageFolder(folder, frames, lens.camera, [(file, lens)])
    truth = _truth(root)
    if poses is not None:
        source.set_truth(poses)
    elif truth is not None and T_body_camera is not None:
        source.set_truth(truth, T_body_camera)
    return source


def _camera(sensor: Path, given: str | PathLike[str] | None) -> tuple[CameraFile, Array | None]:
    """The intrinsics, and where the camera is on the body: not known without sensor.yaml."""
    if given is None:
        return read_sensor(sensor)
    return read_camera(given), read_sensor(sensor)[1] if sensor.is_file() else None


def _listed(camera: Path) -> list[Listed]:
    return read_list(camera / "data.csv", camera / "data", nanoseconds=True)


def _truth(root: Path) -> Path | None:
    return next((root / name for name in TRUTHS if (root / name).is_file()), None)
