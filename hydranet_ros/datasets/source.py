"""Where frames come from: a folder in KITTI's layout, a rosbag2, or the simulated street.

A source knows its camera, how many frames it has, and the true poses where there are any;
iterating gives the frames. What can be checked without reading images is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.errors import HydraNetError, require
from hydranet_ros.files import unreadable
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.lie import Array

STREET = "street"
BAG_METADATA = "metadata.yaml"
BAG_SUFFIXES = (".mcap", ".db3")


class Source(Protocol):
    """Frames in order, their camera, and the truth where it is known."""

    name: str
    unmatched: int  # images without the other half of their pair
    stamps_ns: NDArray[np.int64]
    T_w_c: Array | None

    @property
    def camera(self) -> Camera | StereoCamera:
        """Of the frames: a pair has both images."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Frame]: ...


def open_source(
    name: str,
    poses: str | PathLike[str] | None = None,
    max_frames: int | None = None,
    left_topic: str | None = None,
    right_topic: str | None = None,
    cameras: str = "stereo",
) -> Source:
    """A KITTI folder or a rosbag2 by its path, or the simulated street by the name `street`.

    The image topics of a bag are found by type and name where they are not given. With `cameras`
    "mono" one camera is enough.
    """
    if name == STREET:
        if poses is not None:
            raise HydraNetError("--poses: the simulated street knows its own poses")
        return SimulatedStreet(max_frames)
    if is_bag(name):
        require("a rosbag2", "rosbags")
        from hydranet_ros.datasets.rosbag import Bag

        return Bag(name, poses, max_frames, left_topic, right_topic, cameras)
    try:
        folder = Path(name).is_dir()
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from None
    if folder:
        return KittiFolder(name, poses, max_frames, cameras)
    raise HydraNetError(
        f"{name}: is not a folder with image_0, image_1, calib.txt, times.txt, nor a rosbag2, "
        f"nor '{STREET}'"
    )


def is_bag(name: str | PathLike[str]) -> bool:
    """Whether a path is that of a rosbag2: a folder with its metadata, or a storage file."""
    path = Path(name)
    try:
        return (path.is_file() and path.suffix in BAG_SUFFIXES) or (path / BAG_METADATA).is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


class SimulatedStreet:
    """The built-in street, rendered as it is read; `size` is (width, height) of its images."""

    def __init__(self, max_frames: int | None = None, size: tuple[int, int] | None = None) -> None:
        from hydranet_ros.simulation.config import StreetConfig
        from hydranet_ros.simulation.street import Street

        try:
            config = StreetConfig() if max_frames is None else StreetConfig(frames=max_frames)
        except ValueError as error:
            raise HydraNetError(f"{STREET}: {error}") from None
        if size is not None:
            config = replace(config, width=size[0], height=size[1])
        self._street = Street(config)
        self.name, self.unmatched = STREET, 0
        self.camera = self._street.camera
        self.stamps_ns = np.asarray(self._street.stamps_ns, dtype=np.int64)
        self.T_w_c: Array | None = self._street.T_w_c

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._street:
            yield Frame(frame.stamp_ns, frame.left, frame.right)
