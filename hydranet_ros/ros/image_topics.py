"""Where images come from: topics that are found, pairs that are matched, their calibration.

An image topic may be raw or compressed; its camera_info is beside it. Left and right, or an image
and its depth, belong together where their stamps are nearest to one another, within half of the
time between frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from hydranet_ros.datasets.rigs import Rig, is_raw_pair, mono_rig, rgbd_rig, stereo_rig
from hydranet_ros.datasets.sensor_messages import check_principal_point
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import PAIR_TOLERANCE_S, StampMatcher
from hydranet_ros.ros.conversions import ImageMessage, stamp_ns
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.ros.qos import (
    COMPRESSED,
    COMPRESSED_DEPTH,
    QualityConfig,
    compressed_topic,
    is_latched,
    is_published,
)
from hydranet_ros.ros.sharing import SharedSubscription
from hydranet_ros.settings import Configuration, setting

TOPICS = {
    "mono": (("image", "camera_info"),),
    "stereo": (
        ("left/image_rect", "left/camera_info"),
        ("right/image_rect", "right/camera_info"),
    ),
    "rgbd": (("image", "camera_info"), ("depth/image", "depth/camera_info")),
}
Cameras = Literal["mono", "stereo", "rgbd"]


@dataclass(frozen=True)
class InputConfig(QualityConfig):
    """How a node takes in images."""

    transport: Literal["auto", "raw", "compressed"] = setting(
        "auto", "raw, compressed for TOPIC/compressed, or whichever is published", live=False
    )
    rectified: bool = setting(
        False, "the mono image is rectified: use P of camera_info, not K and D", live=False
    )
    pair: Literal["auto", "rectified", "raw"] = setting(
        "auto",
        "raw: undistort and rectify left and right here, by K, D, R and P of camera_info; auto: "
        "where the topic has no 'rect' in its name and camera_info asks for it",
        live=False,
    )
    queue: int = setting(
        1, "frames that may wait: 1 is always the newest, more for replays", 1, 10000, live=False
    )
    sync_tolerance_s: float = setting(
        PAIR_TOLERANCE_S, "warn where left and right stamps differ by more", live=False
    )


@dataclass(frozen=True)
class RgbdConfig(Configuration):
    """How depth belongs to its image."""

    pixels: Literal["auto", "image", "own"] = setting(
        "auto",
        "whose pixels depth has: the image's (registered, aligned), those of a camera of its own "
        "(depth/camera_info), or auto: the image's where both have one frame_id",
        live=False,
    )
    image_from_depth: tuple[float, ...] = setting(
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        "pose of depth's optical frame in the image's, x y z qx qy qz qw; zeros: not known",
        None,
        live=False,
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        numbers = np.array(self.image_from_depth, dtype=np.float64)
        if numbers.shape != (7,) or not np.isfinite(numbers).all():
            raise ValueError("image_from_depth must be seven numbers, x y z qx qy qz qw")
        if numbers.any() and abs(float(np.linalg.norm(numbers[3:])) - 1.0) > 1e-3:
            raise ValueError("image_from_depth must end in a quaternion qx qy qz qw of length 1")

    def registered(self, image: str, depth: str) -> bool:
        """Whether depth of this frame_id has the pixels of the image of that one."""
        return self.pixels == "image" or (self.pixels == "auto" and image == depth)


# --- topics --------------------------------------------------------------------------------------


class ImageTopic:
    """A subscription to an image topic, raw or compressed. It may change while the node runs."""

    def __init__(
        self,
        node: ManagedNode[Any],
        config: InputConfig,
        name: str,
        callback: Callable[[ImageMessage], None],
    ) -> None:
        self._node, self._config, self._callback = node, config, callback
        deep = name == TOPICS["rgbd"][1][0]
        compressed = compressed_topic(node, name, COMPRESSED_DEPTH if deep else COMPRESSED)
        self._choices: dict[str, tuple[type[Any], str]] = {
            "raw": (Image, name),
            "compressed": (CompressedImage, compressed),
        }
        auto = config.transport == "auto"
        # Whoever remaps to TOPIC/compressed means it.
        remapped = node.resolve_topic_name(name) == node.resolve_topic_name(compressed)
        self.transport: str = ("compressed" if remapped else "raw") if auto else config.transport
        self._fixed = not auto or remapped
        self._seconds = 0
        self._subscription = self._subscribe()

    def _subscribe(self) -> SharedSubscription:
        kind, topic = self._choices[self.transport]
        return self._node.subscribe(kind, topic, self._callback, self._config)

    def look(self) -> None:
        """Change to the other transport where that alone has been published for two seconds."""
        if self._fixed:
            return
        other = "compressed" if self.transport == "raw" else "raw"
        here, there = (
            is_published(self._node, self._node.resolve_topic_name(self._choices[each][1]))
            for each in (self.transport, other)
        )
        self._seconds = self._seconds + 1 if there and not here else 0
        if self._seconds >= 2:
            self._node.unsubscribe(self._subscription)
            self.transport, self._seconds = other, 0
            self._subscription = self._subscribe()
            topic = self._subscription.topic_name
            self._node.get_logger().info(f"transport auto: {other} images of {topic}")


class InfoTopic:
    """A subscription to a calibration; where that is latched, a second one for it."""

    def __init__(
        self,
        node: ManagedNode[Any],
        config: InputConfig,
        name: str,
        callback: Callable[[CameraInfo], None],
    ) -> None:
        self._node, self._config, self._callback = node, config, callback
        self._topic = node.subscribe(CameraInfo, name, callback, config).topic_name
        self._name, self._latched = name, False
        self.look()

    def look(self) -> None:
        """Subscribe to what was published before, where a publisher keeps it."""
        if not self._latched and is_latched(self._node, self._topic):
            self._latched = True
            self._node.subscribe(CameraInfo, self._name, self._callback, self._config, True)


class PairMatcher:
    """Match two sides by the nearest stamps, within half of the time between frames.

    That time is learnt from the stream. Until it is known, and of pairs that are used, stamps
    may differ by `limit_s`; beyond it there is a warning with the offset that was measured.
    """

    def __init__(self, cameras: Cameras, limit_s: float, warn: Callable[[str, str], None]) -> None:
        sides, self._depth = len(TOPICS[cameras]), cameras == "rgbd"
        self._limit_ns, self._warn = round(limit_s * 1e9), warn
        self._matcher: StampMatcher[ImageMessage] = StampMatcher(sides, self._limit_ns, sides > 1)
        self._newest: list[deque[int]] = [deque(maxlen=5) for _ in range(sides)]
        self.matched, self._offset_ns = 0, 0

    def clear(self) -> None:
        """Forget what waits; counts stay."""
        self._matcher.clear()
        for newest in self._newest:
            newest.clear()

    @property
    def unmatched(self) -> int:
        """Images that were let go without their other half."""
        return self._matcher.unmatched

    @property
    def apart(self) -> str:
        """In words, how far both sides are apart."""
        sides = "image and depth" if self._depth else "left and right"
        return f"{sides} stamps are {1e-6 * self._offset_ns:.3f} ms apart"

    def values(self) -> dict[str, str]:
        """For diagnostics."""
        sides = "image to depth" if self._depth else "left to right"
        return {
            "unmatched": str(self.unmatched),
            f"{sides} (ms)": f"{1e-6 * self._offset_ns:.3f}",
        }

    def add(self, side: int, stamp: int, message: ImageMessage) -> tuple[ImageMessage, ...] | None:
        """The images of all sides, once the last of them is here."""
        if len(self._newest) > 1:
            self._measure(side, stamp)
        before = self.unmatched
        images = self._matcher.add(side, stamp, message)
        if images is not None:
            self.matched += 1
        if len(self._newest) > 1 and (images is not None or self.unmatched > before):
            self._judge(images)
        return images

    def _measure(self, side: int, stamp: int) -> None:
        """How far the newest images of both sides are apart."""
        self._newest[side].append(stamp)
        others = self._newest[1 - side]
        if others:
            self._offset_ns = min(abs(other - stamp) for other in others)

    def _judge(self, images: tuple[ImageMessage, ...] | None) -> None:
        if images is not None:
            left, right = (stamp_ns(each.header.stamp) for each in images)
            self._offset_ns = abs(left - right)
        if self._offset_ns > self._limit_ns:
            remedy = "" if self._depth else ": trigger the cameras together"
            limit = f"more than input.sync_tolerance_s {1e-9 * self._limit_ns:g} s"
            self._warn("stereo sync", f"{self.apart}, {limit}{remedy}")


class CameraCalibration:
    """The rig that the newest calibration messages describe.

    `depth_in` tells T_image_depth of two frames: depth is taken from where they are.
    """

    def __init__(
        self,
        cameras: Cameras,
        config: InputConfig,
        topics: Sequence[str],
        rgbd: RgbdConfig | None = None,
        depth_in: Callable[[str, str], Array] | None = None,
    ) -> None:
        self._cameras, self._config, self._topics = cameras, config, topics
        self._rgbd, self._depth_in = rgbd or RgbdConfig(), depth_in
        self.clear()

    def clear(self) -> None:
        """Forget the camera."""
        self._key: tuple[Any, ...] | None = None

    def needs(self, images: Sequence[ImageMessage]) -> int:
        """How many calibrations these images need: depth of the image's pixels needs none."""
        if self._cameras != "rgbd":
            return len(images)
        return 1 if self._rgbd.registered(*(each.header.frame_id for each in images)) else 2

    def changed(
        self, infos: tuple[CameraInfo, ...], shape: tuple[int, ...], frames: tuple[str, ...]
    ) -> bool:
        """Take calibrations in; whether they replace others."""
        key = (*(_fingerprint(info) for info in infos), shape, frames)
        if key == self._key:
            return False
        before, self._key = self._key, None
        self.rig = self._make_rig(infos, frames)
        lens = self.rig.lenses[0]
        if lens is not None:
            check_principal_point(infos[0], lens.camera, shape)
        elif not self.rig.turned:
            camera = self.rig.camera
            left = camera.left if isinstance(camera, StereoCamera) else camera
            check_principal_point(infos[0], left, shape)
        self._key = key
        return before is not None

    def _make_rig(self, infos: tuple[CameraInfo, ...], frames: tuple[str, ...]) -> Rig:
        rectified = self._config.rectified
        if self._cameras == "mono":
            return mono_rig(infos[0], rectified)
        if self._cameras == "stereo":
            asked = self._config.pair
            raw = asked == "raw" or (asked == "auto" and is_raw_pair(infos, self._topics))
            return stereo_rig(infos[0], infos[1], raw)
        if len(infos) == 1:
            return rgbd_rig(infos[0], rectified)
        assert self._depth_in is not None
        return rgbd_rig(infos[0], rectified, infos[1], self._depth_in(*frames))


def _fingerprint(info: CameraInfo) -> tuple[Any, ...]:
    """What a camera depends on; the stamp is not part of it."""
    roi = info.roi
    return (
        *(np.asarray(x, dtype=np.float64).tobytes() for x in (info.k, info.d, info.r, info.p)),
        *(info.width, info.height, info.binning_x, info.binning_y, info.distortion_model),
        *(roi.x_offset, roi.y_offset, roi.width, roi.height),
    )
