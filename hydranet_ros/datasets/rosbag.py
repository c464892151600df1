"""A rosbag2 as a source of frames: a stereo pair, or one camera."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

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
    PixelRange,
    RawCamera,
    check_shape,
    grey_of_compressed,
    grey_of_raw,
    is_distorted,
    raw_camera,
    rectified_camera,
    stereo_camera,
)
from hydranet_ros.errors import BadInput, FileError, HydraNetError
from hydranet_ros.files import image_size
from hydranet_ros.geometry.camera import Camera, Frame, Image, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import PAIR_TOLERANCE_S, StampMatcher, Stamps
from hydranet_ros.geometry.trajectory import read_trajectory


class Bag:
    """A rosbag2 with a camera. Images of a pair are matched by stamp, as the nodes match them.

    With `cameras` "mono" one camera is read, and a raw image is undistorted. The true poses are
    those of `poses`, else of the bag's odometry whose name has `ground_truth` in it, as poses of
    the (left) camera. `unmatched` images have no other half within the tolerance.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        poses: str | PathLike[str] | None = None,
        max_frames: int | None = None,
        left_topic: str | None = None,
        right_topic: str | None = None,
        cameras: str = "stereo",
    ) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.topics = find_topics(self.path, topics(self.path), left_topic, right_topic, cameras)
        survey = _survey(self.path, self.topics)
        self._infos = dict(zip(self.topics.images, survey.calibrations, strict=True))
        self._white: dict[str, PixelRange] = {}
        self._raw: RawCamera | None = None
        self.camera = self._camera()
        pairs, self.unmatched = survey.matched(self.path, self.topics)
        self.stamps_ns: Stamps = np.array([each[0] for each in pairs[:max_frames]], np.int64)
        self.T_w_c = self._given(poses) if poses is not None else self._recorded(survey)

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def __iter__(self) -> Iterator[Frame]:
        matcher = _matcher(self.topics)
        self._white = {topic: PixelRange() for topic in self.topics.images}
        left = len(self)
        for message in read_messages(self.path, set(self.topics.images)):
            side = self.topics.images.index(message.topic)
            match = matcher.add(side, header_stamp(message.data), message)
            if match is not None:
                yield self._frame(match)
                left -= 1
            if not left:
                return

    def _frame(self, match: tuple[Message, ...]) -> Frame:
        stamp, images = header_stamp(match[0].data), [self._pixels(each) for each in match]
        if len({image.shape for image in images}) > 1:
            sizes = " and ".join(f"{image.shape[1]}x{image.shape[0]}" for image in images)
            raise FileError(self.path, f"left and right at {stamp} ns have {sizes} pixels")
        return Frame(stamp, images[0], images[1] if len(images) > 1 else None)

    def _pixels(self, message: Message) -> Image:
        info = self._infos[message.topic]
        try:
            content = unpack(message)
            if message.type == COMPRESSED_IMAGE:
                width, height = image_size(content.data)
                check_shape(info, (height, width))  # before it is decoded
                image = grey_of_compressed(content, self._white[message.topic])
            else:
                image = grey_of_raw(content, self._white[message.topic])
            check_shape(info, image.shape)
        except (HydraNetError, ValueError) as error:
            raise FileError(self.path, f"{message.topic}: {error}") from None
        return image if self._raw is None else self._raw.undistort(image)

    def _camera(self) -> Camera | StereoCamera:
        infos = list(self._infos.values())
        raw = [t for t, info in self._infos.items() if "rect" not in t and is_distorted(info)]
        if raw and len(infos) > 1:
            raise FileError(self.path, f"{raw[0]} is distorted: rectify it, e.g. with image_proc")
        try:
            if len(infos) > 1:
                return stereo_camera(*infos)
            if "rect" in self.topics.images[0]:
                return rectified_camera(infos[0])
            self._raw = raw_camera(infos[0])
            return self._raw.camera
        except HydraNetError as error:
            raise FileError(self.path, f"{', '.join(self.topics.infos)}: {error}") from None

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

    calibrations: list[Any] = field(default_factory=list)
    truth: dict[int, Array] = field(default_factory=dict)
    stamps: list[tuple[int, int]] = field(default_factory=list)  # side and stamp, as they come

    def matched(self, path: Path, names: CameraTopics) -> tuple[list[tuple[int, ...]], int]:
        """The stamps of each frame's images, and how many images have no other half."""
        matcher: StampMatcher[int] = _matcher(names)
        last: dict[int, int] = {}
        pairs = []
        for side, stamp in self.stamps:
            if stamp <= last.get(side, -1):
                topic = names.images[side]
                raise FileError(path, f"{topic}: stamp {stamp} ns does not increase")
            last[side] = stamp
            match = matcher.add(side, stamp, stamp)
            if match is not None:
                pairs.append(match)
        if not pairs:
            raise FileError(path, f"{' and '.join(names.images)} have no stamps near each other")
        return pairs, len(self.stamps) - len(pairs) * len(names.images)


def _matcher(names: CameraTopics) -> StampMatcher[Any]:
    return StampMatcher(len(names.images), round(PAIR_TOLERANCE_S * 1e9), len(names.images) > 1)


def _survey(path: Path, names: CameraTopics) -> _Survey:
    found, infos = _Survey(), dict[str, Any]()
    wanted = {*names.images, *names.infos, *filter(None, [names.ground_truth])}
    for message in read_messages(path, wanted):
        try:
            if message.topic in names.images:
                side = names.images.index(message.topic)
                found.stamps.append((side, header_stamp(message.data)))
            elif message.topic in names.infos:
                if message.topic not in infos:
                    infos[message.topic] = unpack(message)
            else:
                info = infos.get(names.infos[0])
                found.truth[header_stamp(message.data)] = _pose(path, message, info)
        except BadInput as error:
            raise FileError(path, f"{message.topic}: {error}") from None
    missing = [name for name in names.infos if name not in infos]
    if missing:
        raise FileError(path, f"has no message of {missing[0]}: record the calibration as well")
    found.calibrations = [infos[name] for name in names.infos]
    return found


def _pose(path: Path, message: Message, info: Any) -> Array:
    """A true pose; one of another frame than the left camera's would need its extrinsics."""
    odometry = unpack(message)
    if info is not None and odometry.child_frame_id != info.header.frame_id:
        raise FileError(
            path,
            f"{message.topic} is the pose of '{odometry.child_frame_id}', the left camera is "
            f"'{info.header.frame_id}': give --poses",
        )
    return pose_of(odometry.pose.pose)


# --- topics of a camera, by type and by name ----------------------------------------------

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
class CameraTopics:
    """Names in a bag, left before right; `ground_truth` where there is one."""

    images: tuple[str, ...]
    infos: tuple[str, ...]
    ground_truth: str | None


def find_topics(
    path: str | PathLike[str],
    topics: dict[str, str],
    left: str | None = None,
    right: str | None = None,
    cameras: str = "stereo",
) -> CameraTopics:
    """Those of the given image topics, or of the only camera or pair there is."""
    images = {name for name, kind in topics.items() if kind in (IMAGE, COMPRESSED_IMAGE)}
    for name in (left, right):
        if name is not None and name not in images:
            raise FileError(path, f"has no images on {name}: it has {_listed(images)}")
    found = _mono(images, left) if cameras == "mono" else _stereo(images, left, right)
    best = [each for each in found if rank(each) == min(map(rank, found))]
    if len(best) != 1:
        what = "camera" if cameras == "mono" else "stereo pair"
        remedy = "an image topic" if cameras == "mono" else "a left and a right topic"
        amount = f"no {what}" if not best else f"several {what}s"
        raise FileError(path, f"has {amount}: choose {remedy} out of {_listed(images)}")
    infos = tuple(_camera_info(path, name, topics) for name in best[0])
    return CameraTopics(best[0], infos, _ground_truth(path, topics))


def _mono(images: set[str], image: str | None) -> list[tuple[str, ...]]:
    """The given topic, else the left one of a pair, else any."""
    if image is not None:
        return [(image,)]
    left = sorted({pair[0] for pair in candidates(images)})
    return [(name,) for name in left or sorted(images)]


def _stereo(images: set[str], left: str | None, right: str | None) -> list[tuple[str, ...]]:
    if left is not None and right is not None:
        return [(left, right)]
    pairs = candidates(images)
    return [p for p in pairs if left in (None, p[0]) and right in (None, p[1])]


def candidates(images: set[str]) -> list[tuple[str, str]]:
    """Every pair of names that differ as the names of a left and a right camera do."""
    pairs = [
        (name, name.replace(one, other))
        for one, other in PAIRS
        for name in sorted(images)
        if one in name and name.replace(one, other) in images
    ]
    return list(dict.fromkeys(pairs))


def rank(pair: tuple[str, ...]) -> int:
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
