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
    STATIC_TRANSFORMS,
    TRANSFORMS,
    Message,
    make,
    pose_of,
    unpack,
)
from hydranet_ros.datasets.depth_images import (
    COMPRESSED_DEPTH,
    Depth,
    depth_of_compressed,
    depth_of_raw,
)
from hydranet_ros.datasets.rigs import Rig, is_raw_pair, mono_rig, rgbd_rig, stereo_rig
from hydranet_ros.datasets.sensor_messages import (
    PixelRange,
    check_shape,
    grey_of_compressed,
    grey_of_raw,
)
from hydranet_ros.errors import BadInput, FileError, HydraNetError
from hydranet_ros.files import image_size
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame, Image
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import PAIR_TOLERANCE_S, StampMatcher, Stamps
from hydranet_ros.geometry.trajectory import read_trajectory


class Bag:
    """A rosbag2 with a camera. Images of a pair are matched by stamp, as the nodes match them.

    With `cameras` "mono" one camera is read, with "rgbd" one and its depth. A raw image is
    undistorted, and a raw pair rectified, as camera_info says. The true poses are
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
        self._infos: dict[str, Any] = dict(
            zip(self.topics.images, survey.calibrations, strict=True)
        )
        self._white: dict[str, PixelRange] = {}
        self._rgbd = cameras == "rgbd"
        self._rig = self._make_rig(survey)
        self.camera = self._rig.camera
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
        stamp, (first, *others) = header_stamp(match[0].data), match
        try:
            if self._rgbd:
                return self._rig.frame(stamp, [self._pixels(first)], _depth(others[0]))
            return self._rig.frame(stamp, [self._pixels(each) for each in match])
        except FileError:
            raise
        except HydraNetError as error:
            raise FileError(self.path, f"frame at {stamp} ns: {error}") from None

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
        return image

    def _make_rig(self, survey: _Survey) -> Rig:
        infos, topics = survey.calibrations, self.topics.images
        rectified = "rect" in topics[0]
        try:
            if self._rgbd:
                return rgbd_rig(infos[0], rectified, *self._own_depth(survey))
            if len(infos) > 1:
                return stereo_rig(infos[0], infos[1], is_raw_pair(infos, topics))
            return mono_rig(infos[0], rectified)
        except FileError:
            raise
        except HydraNetError as error:
            names = ", ".join(filter(None, self.topics.infos))
            raise FileError(self.path, f"{names}: {error}") from None

    def _own_depth(self, survey: _Survey) -> tuple[Any, Array | None]:
        """The calibration of the depth camera and where it is, unless depth is of the image."""
        image, depth = survey.frames[0], survey.frames[1]
        if image == depth:
            return None, None
        if survey.calibrations[1] is None:
            raise FileError(
                self.path,
                f"{self.topics.images[1]} is depth of '{depth}', not of the image's '{image}', "
                "and has no camera_info: record it, or register depth",
            )
        T_image_depth = survey.transforms.between(image, depth)
        if T_image_depth is None:
            raise FileError(
                self.path, f"/tf_static does not tell where '{depth}' is from '{image}': record it"
            )
        return survey.calibrations[1], T_image_depth

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

    calibrations: list[Any] = field(default_factory=list)  # None: of registered depth
    frames: dict[int, str] = field(default_factory=dict)  # frame_id of each side
    transforms: StaticTransforms = field(default_factory=lambda: StaticTransforms())
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
    wanted = {*names.images, *filter(None, [*names.infos, names.ground_truth, names.transforms])}
    for message in read_messages(path, wanted):
        try:
            if message.topic in names.images:
                side = names.images.index(message.topic)
                found.stamps.append((side, header_stamp(message.data)))
                if side not in found.frames:
                    found.frames[side] = unpack(message).header.frame_id
            elif message.topic == names.transforms:
                found.transforms.add(unpack(message).transforms)
            elif message.topic in names.infos:
                if message.topic not in infos:
                    infos[message.topic] = unpack(message)
            else:
                info = infos.get(names.infos[0] or "")
                found.truth[header_stamp(message.data)] = _pose(path, message, info)
        except BadInput as error:
            raise FileError(path, f"{message.topic}: {error}") from None
    missing = [name for name in names.infos if name is not None and name not in infos]
    if missing:
        raise FileError(path, f"has no message of {missing[0]}: record the calibration as well")
    found.calibrations = [None if name is None else infos[name] for name in names.infos]
    return found


class StaticTransforms:
    """Where frames are that never move against one another, as /tf_static tells."""

    def __init__(self) -> None:
        self._parents: dict[str, tuple[str, Array]] = {}

    def add(self, transforms: Any) -> None:
        """Take in geometry_msgs/TransformStamped."""
        for each in transforms:
            p, q = each.transform.translation, each.transform.rotation
            pose = make(
                "geometry_msgs/msg/Pose", position=p, orientation=q
            )  # the same numbers by other names
            self._parents[each.child_frame_id] = each.header.frame_id, pose_of(pose)

    def between(self, target: str, source: str) -> Array | None:
        """T_target_source; None where nothing joins them."""
        above_target, above_source = self._up(target), self._up(source)
        for name, T_name_source in above_source.items():
            if name in above_target:
                return np.asarray(lie.se3_inverse(above_target[name]) @ T_name_source)
        return None

    def _up(self, frame: str) -> dict[str, Array]:
        """The poses of a frame in itself, in its parent, in that one's parent and so on."""
        found, T = {frame: np.eye(4)}, np.eye(4)
        while frame in self._parents:
            frame, step = self._parents[frame]
            if frame in found:
                break
            T = step @ T
            found[frame] = T
        return found


def _depth(message: Message) -> Depth:
    try:
        content = unpack(message)
        if message.type == COMPRESSED_IMAGE:
            return depth_of_compressed(content)
        return depth_of_raw(content)
    except HydraNetError as error:
        raise HydraNetError(f"{message.topic}: {error}") from None


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
    """Names in a bag, left before right, or the image before its depth.

    `infos` has None for depth that has no calibration of its own. `ground_truth` and `transforms`
    are there where the bag has them.
    """

    images: tuple[str, ...]
    infos: tuple[str | None, ...]
    ground_truth: str | None
    transforms: str | None = None


def find_topics(
    path: str | PathLike[str],
    topics: dict[str, str],
    left: str | None = None,
    right: str | None = None,
    cameras: str = "stereo",
) -> CameraTopics:
    """Those of the given image topics, or of the only camera or pair there is.

    With `cameras` "rgbd" the second one is depth.
    """
    images = {name for name, kind in topics.items() if kind in (IMAGE, COMPRESSED_IMAGE)}
    for name in (left, right):
        if name is not None and name not in images:
            raise FileError(path, f"has no images on {name}: it has {_listed(images)}")
    what, remedy = _WORDS[cameras]
    if cameras == "rgbd":
        found = _with_depth(images, left, right)
    else:
        found = _mono(images, left) if cameras == "mono" else _stereo(images, left, right)
    ranks = [_rank_of_depth(each) if cameras == "rgbd" else (rank(each),) for each in found]
    best = [each for each, place in zip(found, ranks, strict=True) if place == min(ranks)]
    if len(best) != 1:
        amount = f"no {what}" if not best else f"several {what}s"
        raise FileError(path, f"has {amount}: choose {remedy} out of {_listed(images)}")
    infos: tuple[str | None, ...] = (_camera_info(path, best[0][0], topics),)
    if cameras == "rgbd":
        beside = _info_name(best[0][1])
        infos += (beside if topics.get(beside) == CAMERA_INFO else None,)
    else:
        infos += tuple(_camera_info(path, name, topics) for name in best[0][1:])
    transforms = STATIC_TRANSFORMS if topics.get(STATIC_TRANSFORMS) == TRANSFORMS else None
    return CameraTopics(best[0], infos, _ground_truth(path, topics), transforms)


_WORDS = {
    "mono": ("camera", "an image topic"),
    "stereo": ("stereo pair", "a left and a right topic"),
    "rgbd": ("camera with depth", "--left-topic for the image and --depth-topic"),
}
# What drivers call depth of the image's pixels, and images that are not in colour.
_REGISTERED, _INFRARED = ("aligned", "registered"), ("infra", "/ir/", "/ir_")


def _with_depth(images: set[str], image: str | None, depth: str | None) -> list[tuple[str, ...]]:
    """Every image with every depth there is, or the given ones."""
    deep = {name for name in images if "depth" in name.lower()}
    plain = {
        name for name in images - deep if not any(word in name for word in _INFRARED)
    } or images - deep
    firsts = [image] if image is not None else sorted(plain)
    seconds = [depth] if depth is not None else sorted(deep)
    return [(one, other) for one in firsts for other in seconds if one != other]


def _rank_of_depth(pair: tuple[str, ...]) -> tuple[int, ...]:
    """The image as `rank` has it; depth of its pixels before depth of its own camera."""
    depth = pair[1]
    registered = any(word in depth for word in _REGISTERED)
    return rank(pair), not registered, rank((depth,))


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
    return 2 * ("rect" not in pair[0]) + pair[0].endswith((COMPRESSED, COMPRESSED_DEPTH))


def _info_name(image: str) -> str:
    bare = image.removesuffix(COMPRESSED).removesuffix(f"/{COMPRESSED_DEPTH}")
    return bare.rpartition("/")[0] + "/camera_info"


def _camera_info(path: str | PathLike[str], image: str, topics: dict[str, str]) -> str:
    name = _info_name(image)
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
