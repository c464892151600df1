"""Folders of images with stamps: the frames of EuRoC, TUM RGB-D, 7-Scenes and robots alike.

What a layout means is read by a function of its own; all of them end in an `ImageFolder`. Raw
images are undistorted as they are read. The truth is interpolated at the stamps of the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path, PurePosixPath

import numpy as np

from hydranet_ros.datasets.camera_files import CameraFile
from hydranet_ros.datasets.kitti import IMAGE_SUFFIXES, LATEST_S, read_grey
from hydranet_ros.datasets.sensor_messages import RawCamera
from hydranet_ros.errors import FileError
from hydranet_ros.files import read_lines
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import PAIR_TOLERANCE_S, StampMatcher, Stamps
from hydranet_ros.geometry.trajectory import read_trajectory

Listed = tuple[int, Path]
"""The stamp of an image in ns, and its file."""


class ImageFolder:
    """Frames of listed files: one image or two per stamp, each with its camera.

    `T_w_c` has NaN where the truth is not known.
    """

    def __init__(
        self,
        folder: Path,
        frames: Sequence[tuple[Listed, ...]],
        camera: Camera | StereoCamera,
        lenses: Sequence[tuple[CameraFile, RawCamera]],
        unmatched: int = 0,
    ) -> None:
        self.folder, self.camera, self.unmatched = folder, camera, unmatched
        self.name = folder.resolve().name
        self.stamps_ns: Stamps = np.array([each[0][0] for each in frames], dtype=np.int64)
        self.T_w_c: Array | None = None
        self._images = [tuple(path for _, path in each) for each in frames]
        self._lenses = lenses
        for path in (path for paths in self._images for path in paths):
            if not path.is_file():
                raise FileError(path, "is missing, but listed: unpack all images of the folder")

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Frame]:
        size: tuple[int, int] | None = None
        for stamp, paths in zip(self.stamps_ns, self._images, strict=True):
            images = []
            for path, (_, lens) in zip(paths, self._lenses, strict=True):
                image = read_grey(path, size)
                if size is None:
                    size = image.shape[0], image.shape[1]
                    for each, other in self._lenses:
                        each.check(other.camera, size)
                images.append(lens.undistort(image))
            yield Frame(int(stamp), images[0], images[1] if len(images) > 1 else None)

    def set_truth(self, path: str | PathLike[str], T_body_camera: Array | None = None) -> None:
        """Take the truth from a file: by stamp where it has stamps, else by row.

        It has poses of the camera, or of a body that the camera is mounted on.
        """
        truth = read_trajectory(path)
        if truth.stamps_ns is None:
            if len(truth) < len(self):
                raise FileError(path, f"has {len(truth)} poses for {len(self)} frames")
            T = truth.T_w_c[: len(self)]
        else:
            T = truth.at(self.stamps_ns)
            if np.isnan(T).all():
                raise FileError(path, f"has no pose at the time of an image of {self.folder}")
        self.T_w_c = T if T_body_camera is None else T @ T_body_camera

    def turn(self, R: Array) -> None:
        """Let the truth be that of a camera turned by rectification: p_rectified = R p_camera."""
        if self.T_w_c is not None:
            self.T_w_c = self.T_w_c @ lie.se3_from(R.T, np.zeros(3))


def refuse_stereo(folder: Path, cameras: str) -> None:
    """Refuse a pair of a data set that has one camera."""
    if cameras == "stereo":
        raise FileError(folder, "has one camera, no stereo pair")


# --- lists ---------------------------------------------------------------------------------------


def read_list(path: Path, folder: Path, nanoseconds: bool = False) -> list[Listed]:
    """Read lines `stamp file`, with commas or blanks between; files are relative to `folder`."""
    found: list[Listed] = []
    for number, line in read_lines(path):
        words = line.split("#", 1)[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) < 2:
            raise FileError(path, "expected a stamp and the name of an image", number)
        name = PurePosixPath(words[1])
        if name.is_absolute() or ".." in name.parts or "\0" in words[1]:
            raise FileError(path, "names an image outside of its folder", number)
        stamp = _stamp(path, number, words[0], nanoseconds)
        if found and stamp <= found[-1][0]:
            raise FileError(path, "stamps must increase, by a nanosecond at least", number)
        found.append((stamp, folder / name))
    if not found:
        raise FileError(path, "names no image: expected lines of a stamp and a file")
    return found


def listed_by_name(folder: Path) -> list[Listed]:
    """The images of a folder that are named by their stamps in seconds, in order."""
    images = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise FileError(folder, f"has no images ({', '.join(IMAGE_SUFFIXES)})")
    found = sorted((_stamp(path, None, path.stem, False), path) for path in images)
    for (stamp, _), (later, path) in pairwise(found):
        if stamp == later:
            raise FileError(path, "is there twice: keep one image of each stamp")
    return found


def matched(lists: Sequence[Sequence[Listed]]) -> tuple[list[tuple[Listed, ...]], int]:
    """Match files of several lists by the nearest stamps, as nodes do; and how many are alone."""
    matcher: StampMatcher[Listed] = StampMatcher(
        len(lists), round(PAIR_TOLERANCE_S * 1e9), learn=len(lists) > 1
    )
    ordered = sorted((item[0], side, item) for side, each in enumerate(lists) for item in each)
    matches = (matcher.add(side, stamp, item) for stamp, side, item in ordered)
    frames = [match for match in matches if match is not None]
    return frames, sum(map(len, lists)) - len(frames) * len(lists)


def _stamp(path: Path, line: int | None, word: str, nanoseconds: bool) -> int:
    try:
        seconds = int(word) * 1e-9 if nanoseconds else float(word)
    except (ValueError, OverflowError):
        what = "nanoseconds, a whole number" if nanoseconds else "seconds"
        raise FileError(path, f"expected a stamp in {what}, got '{word[:40]}'", line) from None
    if not abs(seconds) < LATEST_S:
        raise FileError(path, "stamps must be finite seconds, of at most 9e9", line)
    return int(word) if nanoseconds else round(seconds * 1e9)
