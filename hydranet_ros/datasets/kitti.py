"""Folders in the layout of the KITTI odometry benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import FileError
from hydranet_ros.files import LARGEST_IMAGE_FILE, image_size, read_bytes, read_lines
from hydranet_ros.geometry.camera import Camera, Frame, Image, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import read_trajectory

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
LONGEST_FOCAL_PX, LONGEST_BASELINE_M = 1e6, 1e3
LATEST_S = 9e9  # 64 bits hold so many seconds in nanoseconds


class KittiFolder:
    """A sequence of the KITTI odometry benchmark: image_0, image_1, calib.txt, times.txt.

    With `cameras` "mono" image_1 may be missing. The true poses are those of `poses`, else
    `poses.txt` in the folder, else `../../poses/NN.txt` with the folder's own name, else unknown.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        poses: str | PathLike[str] | None = None,
        max_frames: int | None = None,
        cameras: str = "stereo",
    ) -> None:
        self.folder = Path(folder)
        self.name, self.unmatched = self.folder.resolve().name, 0
        calibration = self.folder / "calib.txt"
        self.camera: Camera | StereoCamera
        if cameras == "mono" and not (self.folder / "image_1").is_dir():
            self.camera = read_kitti_camera(calibration)
            self._images = _left_images(self.folder)
        else:
            self.camera = read_kitti_calibration(calibration)
            self._images = _image_pairs(self.folder)
        self._images = self._images[:max_frames]
        self.stamps_ns = _read_times(self.folder / "times.txt", len(self._images))
        self.T_w_c = self._truth(poses)

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Frame]:
        size: tuple[int, int] | None = None
        for stamp, paths in zip(self.stamps_ns, self._images, strict=True):
            images = []
            for path in paths:
                images.append(read_grey(path, size))
                if size is None:
                    height, width = size = images[0].shape
                    self._check_centre(width, height)
            yield Frame(int(stamp), images[0], images[1] if len(images) > 1 else None)

    def _check_centre(self, width: int, height: int) -> None:
        camera = self.camera.left if isinstance(self.camera, StereoCamera) else self.camera
        if not (0.0 <= camera.cx <= width and 0.0 <= camera.cy <= height):
            raise FileError(
                self.folder / "calib.txt",
                f"has its principal point at {camera.cx:g}, {camera.cy:g}, outside of the images "
                f"of {width}x{height} pixels: is it of other images?",
            )

    def _truth(self, poses: str | PathLike[str] | None) -> Array | None:
        path = Path(poses) if poses is not None else self._known_poses()
        if path is None:
            return None
        truth = read_trajectory(path).T_w_c
        if len(truth) < len(self):
            raise FileError(path, f"has {len(truth)} poses for {len(self)} frames")
        return truth[: len(self)]

    def _known_poses(self) -> Path | None:
        beside = self.folder.resolve().parent.parent / "poses" / f"{self.name}.txt"
        return next((p for p in (self.folder / "poses.txt", beside) if p.is_file()), None)


def _left_images(folder: Path) -> list[tuple[Path, ...]]:
    images = _images(folder / "image_0")
    return [(images[stem],) for stem in sorted(images)]


def _image_pairs(folder: Path) -> list[tuple[Path, ...]]:
    left, right = (_images(folder / name) for name in ("image_0", "image_1"))
    for stem in sorted(left.keys() ^ right.keys()):
        missing = folder / ("image_1" if stem in left else "image_0") / stem
        raise FileError(missing, "is missing: every left image needs its right one")
    return [(left[stem], right[stem]) for stem in sorted(left)]


def _images(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise FileError(folder, "is missing: a KITTI folder has image_0 and image_1")
    images = {p.stem: p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES}
    if not images:
        raise FileError(folder, f"has no images ({', '.join(IMAGE_SUFFIXES)})")
    return images


def _read_times(path: Path, count: int) -> NDArray[np.int64]:
    stamps: list[int] = []
    for line, text in read_lines(path):
        for word in text.split():
            try:
                seconds = float(word)
            except ValueError as error:
                raise FileError(path, str(error), line) from None
            if len(stamps) == count:
                continue
            if not abs(seconds) < LATEST_S:
                raise FileError(path, "times must be finite seconds, of at most 9e9", line)
            stamps.append(round(seconds * 1e9))
            if len(stamps) > 1 and stamps[-1] <= stamps[-2]:
                raise FileError(path, "times must increase, by a nanosecond at least", line)
    if len(stamps) < count:
        raise FileError(path, f"has {len(stamps)} times for {count} frames")
    return np.array(stamps, dtype=np.int64)


def read_grey(path: Path, size: tuple[int, int] | None = None) -> Image:
    """Read a whole grey image; one of another (height, width) is refused before it is decoded."""
    data = read_bytes(path, LARGEST_IMAGE_FILE)
    try:
        width, height = image_size(data)
    except ValueError as error:
        raise FileError(path, str(error)) from None
    image = None
    if size is None or size in ((height, width), (width, height)):  # a camera may turn its images
        image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_GRAYSCALE)
        if image is None:
            raise FileError(path, "cannot be read as an image: copy it again")
        height, width = image.shape
    if size is not None and size != (height, width):
        before = f"{size[1]}x{size[0]}"
        raise FileError(path, f"has {width}x{height} pixels, the images before it {before}")
    return np.asarray(image, dtype=np.uint8)


def read_kitti_camera(path: str | PathLike[str], name: str = "P0") -> Camera:
    """Read one 3x4 projection matrix of a KITTI `calib.txt` as a camera."""
    return _camera(Path(path), name, _projections(Path(path), (name,))[0])


def read_kitti_calibration(
    path: str | PathLike[str], left: str = "P0", right: str = "P1"
) -> StereoCamera:
    """Read two 3x4 projection matrices of a KITTI `calib.txt`: P0 and P1 grey, P2 and P3 colour.

    P = K [I | t], and the baseline is left.t_x - right.t_x with t = K^-1 P[:, 3]: Tx/fx alone is
    off by cx t_z/fx, half a percent for the colour pair.
    """
    path = Path(path)
    left_p, right_p = _projections(path, (left, right))
    if not np.allclose(left_p[:, :3], right_p[:, :3]):
        raise FileError(path, f"{left} and {right} differ in more than Tx: not a rectified pair")
    camera = _camera(path, left, left_p)
    offset = left_p[:, 3] - right_p[:, 3]
    baseline = float((offset[0] - camera.cx * offset[2]) / camera.fx)
    if not 0.0 < baseline < LONGEST_BASELINE_M:
        raise FileError(
            path, f"{left} and {right} give a baseline of {baseline:.4g} m: are they swapped?"
        )
    return StereoCamera(camera, baseline)


def _camera(path: Path, name: str, matrix: Array) -> Camera:
    fx, fy, cx, cy = (float(matrix[at]) for at in ((0, 0), (1, 1), (0, 2), (1, 2)))
    if not min(fx, fy) > 0.0 or max(fx, fy) > LONGEST_FOCAL_PX:
        raise FileError(path, f"{name} has focal lengths {fx} and {fy}: not a calibrated camera")
    if not np.allclose(matrix[:, :3], [[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]]):
        raise FileError(path, f"{name} is not 'fx 0 cx Tx 0 fy cy Ty 0 0 1 Tz', a pinhole camera")
    return Camera(fx, fy, cx, cy)


def _projections(path: Path, names: tuple[str, ...]) -> list[Array]:
    found = {}
    for number, line in read_lines(path):
        name, _, values = line.partition(":")
        if name.strip() in names:
            found[name.strip()] = _projection(path, number, name.strip(), values)
    missing = [name for name in names if name not in found]
    if missing:
        raise FileError(path, f"has no line '{missing[0]}:' with a 3x4 projection matrix")
    return [found[name] for name in names]


def _projection(path: Path, line: int, name: str, values: str) -> Array:
    try:
        matrix = np.array([float(value) for value in values.split()])
    except ValueError as error:
        raise FileError(path, f"{name}: {error}", line) from None
    if matrix.size != 12:
        raise FileError(path, f"{name} must have 12 numbers, got {matrix.size}", line)
    if not (np.abs(matrix) < 1e12).all():
        raise FileError(path, f"{name} has numbers that are not finite, or too large", line)
    return matrix.reshape(3, 4)
