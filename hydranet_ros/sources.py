"""Where frames come from: a folder in KITTI's layout, a rosbag2, or the simulated street.

A source knows its camera, how many frames it has, and the true poses where there are any;
iterating gives the frames. What can be checked without reading images is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import FileError, HydraNetError, read_text
from hydranet_ros.geometry.camera import StereoCamera, read_kitti_calibration
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import read_trajectory

Image = NDArray[np.uint8]

STREET = "street"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
BAG_METADATA = "metadata.yaml"
BAG_SUFFIXES = (".mcap", ".db3")


@dataclass(frozen=True, eq=False)
class Frame:
    """A rectified stereo pair of grey images (h, w)."""

    stamp_ns: int
    left: Image
    right: Image


class Source(Protocol):
    """Frames in order, their camera, and the truth where it is known."""

    name: str
    camera: StereoCamera
    stamps_ns: NDArray[np.int64]
    T_w_c: Array | None

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Frame]: ...


def open_source(
    name: str,
    poses: str | PathLike[str] | None = None,
    max_frames: int | None = None,
    left_topic: str | None = None,
    right_topic: str | None = None,
) -> Source:
    """A KITTI folder or a rosbag2 by its path, or the simulated street by the name `street`.

    The image topics of a bag are found by type and name where they are not given.
    """
    if name == STREET:
        if poses is not None:
            raise HydraNetError("--poses: the simulated street knows its own poses")
        return SimulatedStreet(max_frames)
    if is_bag(name):
        from hydranet_ros.bags.source import Bag

        return Bag(name, poses, max_frames, left_topic, right_topic)
    if Path(name).is_dir():
        return KittiFolder(name, poses, max_frames)
    raise HydraNetError(
        f"{name}: is not a folder with image_0, image_1, calib.txt, times.txt, nor a rosbag2, "
        f"nor '{STREET}'"
    )


def is_bag(name: str | PathLike[str]) -> bool:
    """Whether a path is that of a rosbag2: a folder with its metadata, or a storage file."""
    path = Path(name)
    return (path.is_file() and path.suffix in BAG_SUFFIXES) or (path / BAG_METADATA).is_file()


class SimulatedStreet:
    """The built-in street, rendered as it is read; `size` is (width, height) of its images."""

    def __init__(self, max_frames: int | None = None, size: tuple[int, int] | None = None) -> None:
        from hydranet_ros.simulation.config import StreetConfig
        from hydranet_ros.simulation.street import Street

        config = StreetConfig() if max_frames is None else StreetConfig(frames=max_frames)
        if size is not None:
            config = replace(config, width=size[0], height=size[1])
        self._street = Street(config)
        self.name = STREET
        self.camera = self._street.camera
        self.stamps_ns = np.asarray(self._street.stamps_ns, dtype=np.int64)
        self.T_w_c: Array | None = self._street.T_w_c

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._street:
            yield Frame(frame.stamp_ns, frame.left, frame.right)


class KittiFolder:
    """A sequence of the KITTI odometry benchmark: image_0, image_1, calib.txt, times.txt.

    The true poses are those of `poses`, else `poses.txt` in the folder, else `../../poses/NN.txt`
    with the folder's own name, else unknown.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        poses: str | PathLike[str] | None = None,
        max_frames: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.name = self.folder.resolve().name
        self.camera = read_kitti_calibration(self.folder / "calib.txt")
        self._pairs = _image_pairs(self.folder)[:max_frames]
        self.stamps_ns = _read_times(self.folder / "times.txt", len(self._pairs))
        self.T_w_c = self._truth(poses)

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Frame]:
        size: tuple[int, ...] | None = None
        for stamp, (left_path, right_path) in zip(self.stamps_ns, self._pairs, strict=True):
            left, right = _read_grey(left_path), _read_grey(right_path)
            for path, image in ((left_path, left), (right_path, right)):
                size = size or image.shape
                if image.shape != size:
                    raise FileError(
                        path,
                        f"has {_size(image.shape)} pixels, the images before it {_size(size)}",
                    )
            yield Frame(int(stamp), left, right)

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


def _image_pairs(folder: Path) -> list[tuple[Path, Path]]:
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
