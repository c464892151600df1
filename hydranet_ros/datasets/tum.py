"""Folders with a list of images: TUM RGB-D (rgb.txt) and recordings of robots (images.txt).

    depth.txt                   with --cameras rgbd, likewise: 16-bit PNG, 5000 is 1 m, 0 a hole,
                                of the same pixels as the colour image
    rgb.txt or images.txt       lines `stamp in s  file`; TUM's rgb/ alone will do as well
    groundtruth.txt             TUM rows, the camera in the world; may be missing
    camera.yaml, ...            the calibration; TUM's own three cameras are known by name

A robot's folder has wheel.csv and imu.csv beside it, on the same clock.
"""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

import numpy as np

from hydranet_ros.datasets.camera_files import NAMES, CameraFile, find_camera
from hydranet_ros.datasets.depth_images import DEPTH_BASELINE_M, RgbdFolder
from hydranet_ros.datasets.image_folder import (
    ImageFolder,
    Listed,
    listed_by_name,
    read_list,
    refuse_stereo,
)
from hydranet_ros.datasets.kitti import LATEST_S
from hydranet_ros.errors import FileError
from hydranet_ros.files import read_lines
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps

LISTS = ("rgb.txt", "images.txt")
DEPTH = "depth.txt"
TRUTH = "groundtruth.txt"
# Depth is taken with the colour image nearest in time, if they are not further apart than this.
DEPTH_APART_NS = 20_000_000
DEPTH_PER_M = 5000.0
# fx fy cx cy and distortion of the Kinects, as published with the set; the third is rectified.
FREIBURG = {
    "1": ((517.306408, 516.469215, 318.643040, 255.313989),
          (0.262383, -0.953104, -0.005358, 0.002628, 1.163314)),
    "2": ((520.908620, 521.007327, 325.141442, 249.701764),
          (0.231222, -0.784899, -0.003257, -0.000105, 0.917205)),
    "3": ((535.4, 539.2, 320.1, 247.6), ()),
}  # fmt: skip
FREIBURG_SIZE = 640, 480
FREIBURG_NAME = re.compile(r"(?:^|[^a-z])(?:freiburg|fr)([123])(?![0-9])", re.IGNORECASE)


def is_listed(folder: Path) -> bool:
    """Whether a folder has a list of images, or TUM's rgb/."""
    return any((folder / name).is_file() for name in LISTS) or (folder / "rgb").is_dir()


def open_listed(
    folder: str | PathLike[str],
    poses: str | PathLike[str] | None = None,
    max_frames: int | None = None,
    cameras: str = "mono",
    camera: str | PathLike[str] | None = None,
) -> ImageFolder:
    """Read the colour images as grey ones, undistorted; and the depth of each, if "rgbd"."""
    folder = Path(folder)
    refuse_stereo(folder, cameras)
    images = _images(folder)
    file = find_camera(folder, camera) or _known(folder)
    lens = file.raw_camera()
    source: ImageFolder
    if cameras == "rgbd":
        frames = _with_depth(folder, images)
        pair, alone = StereoCamera(lens.camera, DEPTH_BASELINE_M), len(images) - len(frames)
        source = RgbdFolder(folder, frames[:max_frames], pair, [(file, lens)], alone)
        source.per_m = DEPTH_PER_M
    else:
        single = [(each,) for each in images[:max_frames]]
        source = ImageFolder(folder, single, lens.camera, [(file, lens)])
    truth = poses if poses is not None else folder / TRUTH
    if poses is not None or Path(truth).is_file():
        source.set_truth(truth)
    return source


def _with_depth(folder: Path, images: list[Listed]) -> list[tuple[Listed, ...]]:
    """The images that have a depth image near in time, with it."""
    if not (folder / DEPTH).is_file():
        raise FileError(folder / DEPTH, "is missing: without depth use --cameras mono")
    depths = read_list(folder / DEPTH, folder)
    stamps = np.array([stamp for stamp, _ in depths], dtype=np.int64)
    frames: list[tuple[Listed, ...]] = []
    for each in images:
        nearest = int(np.argmin(np.abs(stamps - each[0])))
        if abs(int(stamps[nearest]) - each[0]) <= DEPTH_APART_NS:
            frames.append((each, depths[nearest]))
    if not frames:
        raise FileError(folder / DEPTH, "has no stamp near one of the images")
    return frames


def _images(folder: Path) -> list[Listed]:
    for name in LISTS:
        if (folder / name).is_file():
            return read_list(folder / name, folder)
    return listed_by_name(folder / "rgb")


def _known(folder: Path) -> CameraFile:
    match = FREIBURG_NAME.search(folder.resolve().name)
    if match is None:
        raise FileError(
            folder / NAMES[0],
            "is missing: put the calibration there (camera_info YAML), or use hydranet run with "
            "--camera FILE",
        )
    (fx, fy, cx, cy), D = FREIBURG[match[1]]
    K = [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0]
    name = folder / f"freiburg{match[1]}"
    return CameraFile(name, K, list(D), "plumb_bob", *FREIBURG_SIZE)


def read_samples(path: str | PathLike[str], columns: int) -> tuple[Stamps, Array]:
    """Read imu.csv or wheel.csv: lines `t in s, value, ...`, of which `columns` values are taken.

    Returns stamps (N,), which do not decrease, and values (N, columns).
    """
    stamps: list[int] = []
    rows: list[list[float]] = []
    for number, line in read_lines(path):
        words = line.split("#", 1)[0].replace(",", " ").split()
        if not words:
            continue
        try:
            seconds, *values = (float(word) for word in words[: 1 + columns])
        except ValueError as error:
            raise FileError(path, str(error), number) from None
        if len(values) < columns or not np.isfinite(values).all() or not abs(seconds) < LATEST_S:
            raise FileError(path, f"expected a time in s and {columns} finite numbers", number)
        stamps.append(round(seconds * 1e9))
        rows.append(values)
        if len(stamps) > 1 and stamps[-1] < stamps[-2]:
            raise FileError(path, "times must not go back", number)
    if not rows:
        raise FileError(path, "is empty: no samples in it")
    return np.array(stamps, dtype=np.int64), np.array(rows)
