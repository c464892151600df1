"""A bag as a source of frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.bag_files import header_stamp, read_messages, topics
from hydranet_ros.datasets.bag_messages import (
    CAMERA_INFO,
    COMPRESSED_IMAGE,
    IMAGE,
    ODOMETRY,
    Message,
    pose_of,
    unpack,
)
from hydranet_ros.datasets.sensor_messages import (
    check_shape,
    grey_of_compressed,
    grey_of_raw,
    is_distorted,
    stereo_camera,
)
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.geometry.camera import Frame, Image, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import read_trajectory


class Bag:
    """A rosbag2 with a stereo camera: frames are the pairs of images with the same header stamp.

    The true poses are those of `poses`, else of the bag's odometry whose name has `ground_truth`
    in it, as poses of the left camera.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        poses: str | PathLike[str] | None = None,
        max_frames: int | None = None,
        left_topic: str | None = None,
        right_topic: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.topics = find_stereo_topics(self.path, topics(self.path), left_topic, right_topic)
        survey = _survey(self.path, self.topics)
        self.camera = _camera(self.path, self.topics, survey)
        self._infos = survey.infos_of(self.topics)
        self.stamps_ns = _paired_stamps(self.path, self.topics, survey)[:max_frames]
        self.T_w_c = self._given(poses) if poses is not None else self._recorded(survey)

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def __iter__(self) -> Iterator[Frame]:
        waiting: dict[int, dict[str, Message]] = {}
        wanted = set(self.stamps_ns.tolist())
        for message in read_messages(self.path, {self.topics.left, self.topics.right}):
            stamp = header_stamp(message.data)
            if stamp in wanted:
                waiting.setdefault(stamp, {})[message.topic] = message
                if len(waiting[stamp]) == 2:
                    wanted.remove(stamp)
                    yield self._frame(stamp, waiting.pop(stamp))
            if not wanted:
                return

    def _frame(self, stamp: int, pair: dict[str, Message]) -> Frame:
        left, right = (self._pixels(pair[t]) for t in (self.topics.left, self.topics.right))
        if left.shape != right.shape:
            sizes = " and ".join(f"{image.shape[1]}x{image.shape[0]}" for image in (left, right))
            raise FileError(self.path, f"left and right at {stamp} ns have {sizes} pixels")
        return Frame(stamp, left, right)

    def _pixels(self, message: Message) -> Image:
        decode = grey_of_compressed if message.type == COMPRESSED_IMAGE else grey_of_raw
        try:
            image = decode(unpack(message))
            check_shape(self._infos[message.topic], image.shape)
        except HydraNetError as error:
            raise FileError(self.path, f"{message.topic}: {error}") from None
        return image

    def _given(self, poses: str | PathLike[str]) -> Array:
        truth = read_trajectory(poses).T_w_c
        if len(truth) < len(self):
            raise FileError(poses, f"has {len(truth)} poses for {len(self)} frames")
        return truth[: len(self)]

    def _recorded(self, survey: _Survey) -> Array | None:
        if self.topics.ground_truth is None:
            return None
        missing = [s for s in self.stamps_ns.tolist() if s not in survey.truth]
        if missing:
            raise FileError(
                self.path,
                f"{self.topics.ground_truth} has no pose at {missing[0]} ns and {len(missing) - 1}"
                " other images: give --poses",
            )
        return np.array([survey.truth[stamp] for stamp in self.stamps_ns.tolist()])


@dataclass
class _Survey:
    """What one walk through a bag finds, without decoding an image."""

    infos: dict[str, Any] = field(default_factory=dict)
    truth: dict[int, Array] = field(default_factory=dict)
    stamps: dict[str, list[int]] = field(default_factory=dict)

    def infos_of(self, names: StereoTopics) -> dict[str, Any]:
        """The calibration of each image topic."""
        pairs = (names.left, names.left_info), (names.right, names.right_info)
        return {image: self.infos[info] for image, info in pairs}


def _survey(path: Path, names: StereoTopics) -> _Survey:
    found = _Survey(stamps={names.left: [], names.right: []})
    infos = {names.left_info, names.right_info}
    wanted = {names.left, names.right, *infos, *filter(None, [names.ground_truth])}
    for message in read_messages(path, wanted):
        if message.topic in found.stamps:
            found.stamps[message.topic].append(header_stamp(message.data))
        elif message.topic in infos:
            if message.topic not in found.infos:
                found.infos[message.topic] = unpack(message)
        else:
            found.truth[header_stamp(message.data)] = _pose(path, names, message, found)
    return found


def _pose(path: Path, names: StereoTopics, message: Message, found: _Survey) -> Array:
    """A true pose; one of another frame than the left camera's would need its extrinsics."""
    odometry, info = unpack(message), found.infos.get(names.left_info)
    if info is not None and odometry.child_frame_id != info.header.frame_id:
        raise FileError(
            path,
            f"{message.topic} is the pose of '{odometry.child_frame_id}', the left camera is "
            f"'{info.header.frame_id}': give --poses",
        )
    return pose_of(odometry.pose.pose)


def _camera(path: Path, names: StereoTopics, survey: _Survey) -> StereoCamera:
    infos = survey.infos_of(names)
    for topic, info in infos.items():
        if "rect" not in topic and is_distorted(info):
            raise FileError(path, f"{topic} is distorted: rectify it, e.g. with image_proc")
    try:
        return stereo_camera(infos[names.left], infos[names.right])
    except HydraNetError as error:
        raise FileError(path, f"{names.left_info}, {names.right_info}: {error}") from None


def _paired_stamps(path: Path, names: StereoTopics, survey: _Survey) -> NDArray[np.int64]:
    for topic, stamps in survey.stamps.items():
        steps = np.diff(np.array(stamps, dtype=np.int64))
        if (steps <= 0).any():
            at = int(np.argmax(steps <= 0)) + 1
            raise FileError(path, f"{topic}: the stamp of image {at} does not increase")
    right = set(survey.stamps[names.right])
    paired = [stamp for stamp in survey.stamps[names.left] if stamp in right]
    if not paired:
        raise FileError(path, f"{names.left} and {names.right} have no header stamp in common")
    return np.array(paired, dtype=np.int64)


# --- topics of a stereo camera, by type and by name ----------------------------------------------

# What distinguishes the two cameras of a pair in the names of drivers and data sets.
PAIRS = (
    ("left", "right"),
    ("infra1", "infra2"),
    ("cam0", "cam1"),
    ("camera_0", "camera_1"),
    ("image_00", "image_01"),
    ("image_0", "image_1"),
)
COMPRESSED = "/compressed"


@dataclass(frozen=True)
class StereoTopics:
    """Names in a bag; `ground_truth` where there is one."""

    left: str
    right: str
    left_info: str
    right_info: str
    ground_truth: str | None


def find_stereo_topics(
    path: str | PathLike[str],
    topics: dict[str, str],
    left: str | None = None,
    right: str | None = None,
) -> StereoTopics:
    """Those of the given image topics, or of the only pair there is."""
    images = {name for name, kind in topics.items() if kind in (IMAGE, COMPRESSED_IMAGE)}
    for name in (left, right):
        if name is not None and name not in images:
            raise FileError(path, f"has no images on {name}: it has {_listed(images)}")
    pairs = [p for p in candidates(images) if left in (None, p[0]) and right in (None, p[1])]
    if left is not None and right is not None:
        pairs = [(left, right)]
    best = [pair for pair in pairs if rank(pair) == min(map(rank, pairs))]
    if len(best) != 1:
        found = "no stereo pair" if not best else "several stereo pairs"
        raise FileError(
            path, f"has {found}: choose a left and a right topic out of {_listed(images)}"
        )
    infos = [_camera_info(path, name, topics) for name in best[0]]
    return StereoTopics(*best[0], infos[0], infos[1], _ground_truth(path, topics))


def candidates(images: set[str]) -> list[tuple[str, str]]:
    """Every pair of names that differ as the names of a left and a right camera do."""
    pairs = [
        (name, name.replace(one, other))
        for one, other in PAIRS
        for name in sorted(images)
        if one in name and name.replace(one, other) in images
    ]
    return list(dict.fromkeys(pairs))


def rank(pair: tuple[str, str]) -> int:
    """Rectified before raw, and of the same images plain before compressed."""
    return 2 * ("rect" not in pair[0]) + pair[0].endswith(COMPRESSED)


def _camera_info(path: str | PathLike[str], image: str, topics: dict[str, str]) -> str:
    name = image.removesuffix(COMPRESSED).rpartition("/")[0] + "/camera_info"
    if topics.get(name) != CAMERA_INFO:
        raise FileError(path, f"has no calibration of {image}: {name} is missing")
    return name


def _ground_truth(path: str | PathLike[str], topics: dict[str, str]) -> str | None:
    named = [n for n, kind in topics.items() if kind == ODOMETRY and "ground_truth" in n]
    if len(named) > 1:
        raise FileError(path, f"has several ground truths, {_listed(set(named))}: give --poses")
    return named[0] if named else None


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
