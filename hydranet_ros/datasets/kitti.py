"""Folders in the layout of the KITTI odometry benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import FileError
from hydranet_ros.files import read_text
from hydranet_ros.geometry.camera import Camera, Frame, Image, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import read_trajectory

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")


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
        size: tuple[int, ...] | None = None
        for stamp, paths in zip(self.stamps_ns, self._images, strict=True):
            images = [_read_grey(path) for path in paths]
            for path, image in zip(paths, images, strict=True):
                size = size or image.shape
                if image.shape != size:
                    raise FileError(
                        path,
                        f"has {_size(image.shape)} pixels, the images before it {_size(size)}",
                    )
            yield Frame(int(stamp), *images)

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
    try:
        seconds = np.array([float(value) for value in read_text(path).split()])
    except ValueError as error:
        raise FileError(path, str(error)) from None
    if len(seconds) < count:
        raise FileError(path, f"has {len(seconds)} times for {count} frames")
    stamps = seconds[:count]
    if not np.isfinite(stamps).all() or not (np.diff(stamps) > 0.0).all():
        line = 2 + int(np.argmax(~(np.diff(stamps) > 0.0)))
        raise FileError(path, "times must be finite and increase", line)
    return np.round(stamps * 1e9).astype(np.int64)


def _read_grey(path: Path) -> Image:
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise FileError(path, "cannot be read as an image")
    return np.asarray(image, dtype=np.uint8)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"


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
    if not baseline > 0.0:
        raise FileError(
            path, f"{left} and {right} give a baseline of {baseline:.4g} m: are they swapped?"
        )
    return StereoCamera(camera, baseline)


def _camera(path: Path, name: str, matrix: Array) -> Camera:
    fx, fy, cx, cy = (float(matrix[at]) for at in ((0, 0), (1, 1), (0, 2), (1, 2)))
    if not min(fx, fy) > 0.0:
        raise FileError(path, f"{name} has focal lengths {fx} and {fy}: not a calibrated camera")
    if not np.allclose(matrix[:, :3], [[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]]):
        raise FileError(path, f"{name} is not 'fx 0 cx Tx 0 fy cy Ty 0 0 1 Tz', a pinhole camera")
    return Camera(fx, fy, cx, cy)


def _projections(path: Path, names: tuple[str, ...]) -> list[Array]:
    found = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
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
    if not np.isfinite(matrix).all():
        raise FileError(path, f"{name} has numbers that are not finite", line)
    return matrix.reshape(3, 4)
