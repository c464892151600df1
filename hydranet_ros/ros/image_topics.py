"""Where images come from: topics that are found, pairs that are matched, their calibration.

An image topic may be raw or compressed; its camera_info is beside it. Left and right belong
together where their stamps are nearest to one another, within half of the time between frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from hydranet_ros.datasets.sensor_messages import (
    Grey,
    RawCamera,
    check_principal_point,
    raw_camera,
    rectified_camera,
    stereo_camera,
)
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.stamps import PAIR_TOLERANCE_S, StampMatcher
from hydranet_ros.ros.conversions import ImageMessage, stamp_ns
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.ros.qos import QualityConfig, compressed_topic, is_latched, is_published
from hydranet_ros.ros.sharing import SharedSubscription
from hydranet_ros.settings import setting

TOPICS = {
    "mono": (("image", "camera_info"),),
    "stereo": (
        ("left/image_rect", "left/camera_info"),
        ("right/image_rect", "right/camera_info"),
    ),
}


@dataclass(frozen=True)
class InputConfig(QualityConfig):
    """How a node takes in images."""

    transport: Literal["auto", "raw", "compressed"] = setting(
        "auto", "raw, compressed for TOPIC/compressed, or whichever is published", live=False
    )
    rectified: bool = setting(
        False, "the mono image is rectified: use P of camera_info, not K and D", live=False
    )
    queue: int = setting(
        1, "frames that may wait: 1 is always the newest, more for replays", 1, 10000, live=False
    )
    sync_tolerance_s: float = setting(
        PAIR_TOLERANCE_S, "warn where left and right stamps differ by more", live=False
    )


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
        compressed = compressed_topic(node, name)
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
    """Match left and right by the nearest stamps, within half of the time between frames.

    That time is learnt from the stream. Until it is known, and of pairs that are used, stamps
    may differ by `limit_s`; beyond it there is a warning with the offset that was measured.
    """

    def __init__(self, sides: int, limit_s: float, warn: Callable[[str, str], None]) -> None:
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
        """In words, how far left and right are apart."""
        return f"left and right stamps are {1e-6 * self._offset_ns:.3f} ms apart"

    def values(self) -> dict[str, str]:
        """For diagnostics."""
        return {
            "unmatched": str(self.unmatched),
            "left to right (ms)": f"{1e-6 * self._offset_ns:.3f}",
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
            limit = f"more than input.sync_tolerance_s {1e-9 * self._limit_ns:g} s"
            self._warn("stereo sync", f"{self.apart}, {limit}: trigger the cameras together")


class CameraCalibration:
    """The camera that the newest calibration messages describe."""

    def __init__(self, rectified: bool) -> None:
        self._rectified = rectified
        self._raw: RawCamera | None = None
        self.clear()

    def clear(self) -> None:
        """Forget the camera."""
        self._key: tuple[Any, ...] | None = None

    def changed(self, infos: tuple[CameraInfo, ...], shape: tuple[int, ...]) -> bool:
        """Take calibrations in; whether they replace others."""
        key = (*(_fingerprint(info) for info in infos), shape)
        if key == self._key:
            return False
        before, self._key = self._key, None
        self.camera = self._camera(infos)
        camera = self.camera.left if isinstance(self.camera, StereoCamera) else self.camera
        check_principal_point(infos[0], camera, shape)
        self._key = key
        return before is not None

    def _camera(self, infos: tuple[CameraInfo, ...]) -> Camera | StereoCamera:
        self._raw = None
        if len(infos) > 1:
            return stereo_camera(*infos)
        if self._rectified:
            return rectified_camera(infos[0])
        self._raw = raw_camera(infos[0])
        return self._raw.camera

    def undistort(self, image: Grey) -> Grey:
        """As the camera sees it."""
        return image if self._raw is None else self._raw.undistort(image)


def _fingerprint(info: CameraInfo) -> tuple[Any, ...]:
    """What a camera depends on; the stamp is not part of it."""
    roi = info.roi
    return (
        *(np.asarray(each, dtype=np.float64).tobytes() for each in (info.k, info.d, info.p)),
        *(info.width, info.height, info.binning_x, info.binning_y, info.distortion_model),
        *(roi.x_offset, roi.y_offset, roi.width, roi.height),
    )
