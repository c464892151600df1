"""Where frames come from: a folder of images, a rosbag2, or the simulated street.

A source knows its camera, how many frames it has, and the true poses where there are any;
iterating gives the frames. What can be checked without reading images is checked when it is made.
Which data set a folder is from is told by its layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.euroc import is_euroc, open_euroc
from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.datasets.seven_scenes import find_sequence, open_sequence
from hydranet_ros.datasets.tum import is_listed, open_listed
from hydranet_ros.errors import FileError, HydraNetError, require
from hydranet_ros.files import unreadable
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import Trajectory

if TYPE_CHECKING:
    from hydranet_ros.simulation.world import World

STREET = "street"
BAG_METADATA = "metadata.yaml"
BAG_SUFFIXES = (".mcap", ".db3")
KITTI_PARTS = ("image_0", "image_1", "calib.txt", "times.txt")
LAYOUTS = (
    "image_0, calib.txt, times.txt (KITTI), mav0/cam0/data.csv (EuRoC), rgb.txt (TUM), "
    "frame-NNNNNN.color.png (7-Scenes) or images.txt"
)


class Source(Protocol):
    """Frames in order, their camera, and the truth where it is known.

    `T_w_c` is None where no truth is known, and has NaN for the frames that it is not known of:
    `true_trajectory` leaves those out.
    """

    name: str
    unmatched: int  # images without the other half of their pair
    stamps_ns: NDArray[np.int64]
    T_w_c: Array | None

    @property
    def camera(self) -> Camera | StereoCamera:
        """Of the frames: a pair has both images."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Frame]: ...


OpenFolder = Callable[..., Source]  # (folder, poses, max_frames, cameras, camera)


def open_source(
    name: str,
    poses: str | PathLike[str] | None = None,
    max_frames: int | None = None,
    left_topic: str | None = None,
    right_topic: str | None = None,
    cameras: str = "stereo",
    camera: str | PathLike[str] | None = None,
    depth_topic: str | None = None,
) -> Source:
    """A folder of images or a rosbag2 by its path, or the simulated street by the name `street`.

    The image topics of a bag are found by type and name where they are not given. With `cameras`
    "mono" one camera is enough. `camera` is a calibration (camera_info YAML) for a folder that has
    none, or a better one. "rgbd" are images with depth: of a TUM or 7-Scenes folder, or a bag,
    whose depth is on `depth_topic`.
    """
    if name == STREET:
        if cameras == "rgbd":
            raise HydraNetError(f"{STREET}: is seen by a stereo pair, without depth")
        if poses is not None:
            raise HydraNetError("--poses: the simulated street knows its own poses")
        _refuse(camera, "the simulated street knows its own camera")
        return SimulatedStreet(max_frames)
    if is_bag(name):
        _refuse(camera, "a rosbag2 has camera_info")
        require("a rosbag2", "rosbags")
        from hydranet_ros.datasets.rosbag import Bag

        second = depth_topic if cameras == "rgbd" else right_topic
        return Bag(name, poses, max_frames, left_topic, second, cameras)
    try:
        folder = Path(name).is_dir()
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from None
    if not folder:
        raise HydraNetError(
            f"{name}: is not a folder of images, nor a rosbag2, nor '{STREET}'; a folder has "
            f"{LAYOUTS}"
        )
    try:
        opens = _opener(Path(name), cameras)
        return opens(Path(name), poses, max_frames, cameras, camera)
    except OSError as error:
        raise unreadable(name, error) from None


def _opener(folder: Path, cameras: str) -> OpenFolder:
    """What opens a folder; an error names what it lacks."""
    if cameras == "rgbd" and not (is_listed(folder) or find_sequence(folder)):
        raise FileError(
            folder, "has no depth: --cameras rgbd reads TUM and 7-Scenes folders, and bags"
        )
    layout = _layout(folder)
    if layout is None:
        raise FileError(folder, f"has no images in a known layout: {LAYOUTS}")
    return layout


def _layout(folder: Path) -> OpenFolder | None:
    """What opens a folder of this layout; None where it is none."""
    layouts: tuple[tuple[Callable[[Path], object], OpenFolder], ...] = (
        (_is_kitti, _open_kitti),
        (is_euroc, open_euroc),
        (is_listed, open_listed),
        (find_sequence, open_sequence),
    )
    return next((opens for found, opens in layouts if found(folder)), None)


def _is_kitti(folder: Path) -> bool:
    return any((folder / part).exists() for part in KITTI_PARTS)


def _open_kitti(
    folder: Path,
    poses: str | PathLike[str] | None,
    max_frames: int | None,
    cameras: str,
    camera: str | PathLike[str] | None,
) -> Source:
    _refuse(camera, "a KITTI folder has calib.txt")
    return KittiFolder(folder, poses, max_frames, cameras)


def has_one_camera(name: str) -> bool:
    """Whether a folder of images has a layout of one camera: TUM, 7-Scenes."""
    if name == STREET or is_bag(name) or not Path(name).is_dir():
        return False
    return _layout(Path(name)) in (open_listed, open_sequence)


def _refuse(camera: str | PathLike[str] | None, why: str) -> None:
    if camera is not None:
        raise HydraNetError(f"--camera: {why}")


def true_trajectory(source: Source, count: int | None = None) -> Trajectory | None:
    """The true poses that are known of the first `count` frames; None where there are none."""
    if source.T_w_c is None:
        return None
    rows = np.flatnonzero(np.isfinite(source.T_w_c[:count]).all(axis=(1, 2)))
    if not len(rows):
        return None
    return Trajectory(source.T_w_c[rows], source.stamps_ns[rows], "the truth")


def is_bag(name: str | PathLike[str]) -> bool:
    """Whether a path is that of a rosbag2: a folder with its metadata, or a storage file."""
    path = Path(name)
    try:
        return (path.is_file() and path.suffix in BAG_SUFFIXES) or (path / BAG_METADATA).is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


class SimulatedWorld:
    """A simulated world, rendered as it is read."""

    def __init__(self, name: str, world: World) -> None:
        self._world = world
        self.name, self.unmatched = name, 0
        self.camera = world.camera
        self.stamps_ns = np.asarray(world.stamps_ns, dtype=np.int64)
        self.T_w_c: Array | None = world.T_w_c

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._world:
            yield Frame(frame.stamp_ns, frame.left, frame.right)


class SimulatedStreet(SimulatedWorld):
    """The built-in street; `size` is (width, height) of its images."""

    def __init__(self, max_frames: int | None = None, size: tuple[int, int] | None = None) -> None:
        from hydranet_ros.simulation.config import StreetConfig
        from hydranet_ros.simulation.street import Street

        try:
            config = StreetConfig() if max_frames is None else StreetConfig(frames=max_frames)
        except ValueError as error:
            raise HydraNetError(f"{STREET}: {error}") from None
        if size is not None:
            config = replace(config, width=size[0], height=size[1])
        super().__init__(STREET, Street(config))
