"""The images of one camera or of a pair: found, matched, decoded, calibrated, handed on.

An image topic may be raw or compressed; its camera_info is beside it. Left and right belong
together where their stamps are nearest to one another, within half of the time between frames.

A thread works on the frames. When they come faster than they are processed, the oldest that waits
is dropped and counted: the newest is always next. Stamps that go back reset the node, so a bag may
loop.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
from rclpy.subscription import Subscription
from rclpy.utilities import get_rmw_implementation_identifier
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from hydranet_ros.datasets.sensor_messages import (
    Grey,
    PixelRange,
    RawCamera,
    check_principal_point,
    check_shape,
    raw_camera,
    rectified_camera,
    stereo_camera,
)
from hydranet_ros.errors import BadInput, HydraNetError
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.stamps import PAIR_TOLERANCE_S, StampMatcher, StampOrder
from hydranet_ros.ros.conversions import ImageMessage, grey, stamp_ns
from hydranet_ros.ros.diagnostics import PairHealth
from hydranet_ros.ros.environment import missing_profile
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.ros.qos import (
    QualityConfig,
    camera_info_topic,
    compressed_topic,
    is_latched,
    is_published,
)
from hydranet_ros.settings import setting

TOPICS = {
    "mono": (("image", "camera_info"),),
    "stereo": (
        ("left/image_rect", "left/camera_info"),
        ("right/image_rect", "right/camera_info"),
    ),
}
# What bad data raises in the core; anything else is a fault of ours, and ends the node.
DATA_ERRORS = (HydraNetError, ValueError, ArithmeticError, RuntimeError, cv2.error)
WAIT_S = 0.2
STOP_TIMEOUT_S = 1.0  # for the frame that is processed when the node is stopped


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


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The messages of one frame, left before right, with their calibrations."""

    images: tuple[ImageMessage, ...]
    infos: tuple[CameraInfo, ...]
    arrived: float  # time.monotonic

    @property
    def stamp_ns(self) -> int:
        """Of the left image."""
        return stamp_ns(self.images[0].header.stamp)


@dataclass(frozen=True, eq=False)
class CameraFrame:
    """A frame as the core takes it, its camera, and the name of its coordinate frame."""

    frame: Frame
    camera: Camera | StereoCamera
    frame_id: str


class ImageInput:
    """Deliver the frames of a camera, or of a pair, to `on_frame` in a thread of its own."""

    def __init__(
        self,
        node: ManagedNode[Any],
        config: InputConfig,
        cameras: Literal["mono", "stereo"],
        on_frame: Callable[[CameraFrame], None],
    ) -> None:
        self._node, self._config, self._on_frame = node, config, on_frame
        topics = TOPICS[cameras]
        self._ready = threading.Condition()
        self._frames: deque[tuple[tuple[ImageMessage, ...], float]] = deque()
        self._infos: list[CameraInfo | None] = [None] * len(topics)
        self._order: StampOrder[ImageMessage] = StampOrder()
        self._pairs = PairMatcher(len(topics), config.sync_tolerance_s, node.warn)
        self._pair_health = PairHealth()
        self._white = [PixelRange() for _ in topics]
        self._calibration = CameraCalibration(config.rectified)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._reset_reason: str | None = None
        self._advised = False
        self.dropped = self._busy = 0
        self._topics: list[ImageTopic | InfoTopic] = []
        # Calibrations first: of what has come, rclpy takes it in this order.
        for side, (image, info) in enumerate(topics):
            name = camera_info_topic(node, image, info)
            self._topics.append(InfoTopic(node, config, name, self._info_callback(side)))
        for side, (image, _) in enumerate(topics):
            self._topics.append(ImageTopic(node, config, image, self._image_callback(side)))
        node.workers.append(self)

    # --- worker ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        # One event for each thread: an old one that is late must not go on.
        self._stopping = threading.Event()
        self._calibration.clear()
        self._thread = threading.Thread(
            target=self._loop, args=(self._stopping,), name="worker", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the frame that it is at, and forget what waits."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=STOP_TIMEOUT_S)
        self._clear()

    def request_reset(self, reason: str) -> None:
        """Forget what waits, and reset the node before the next frame."""
        self._clear()
        self._reset_reason = reason

    def diagnostics(self) -> dict[str, str]:
        """How many frames wait, how many were lost, and where."""
        values = {"waiting": str(len(self._frames) + self._busy), "dropped": str(self.dropped)}
        return {**values, **self._pairs.values()} if len(self._infos) > 1 else values

    def look_after_topics(self) -> list[str]:
        """Find the topics that are published; what is wrong with the input."""
        for topic in self._topics:
            topic.look()
        problem = self._pair_health.problem(self._pairs.matched, self._pairs.unmatched)
        return [] if problem is None else [f"{problem}: {self._pairs.apart}"]

    def _clear(self) -> None:
        with self._ready:
            self._frames.clear()
            self._pairs.clear()
            self._order.clear()

    # --- callbacks -------------------------------------------------------------------------------

    def _info_callback(self, side: int) -> Callable[[CameraInfo], None]:
        def callback(message: CameraInfo) -> None:
            with self._ready:
                self._infos[side] = message
                self._ready.notify()

        return callback

    def _image_callback(self, side: int) -> Callable[[ImageMessage], None]:
        def callback(message: ImageMessage) -> None:
            with self._ready:
                arrival = self._order.add(side, stamp_ns(message.header.stamp), message)
                for stamp in arrival.outliers:
                    self._node.warn("stamp outlier", f"a lone image at {stamp} ns is not used")
                if arrival.went_back:
                    self._node.warn("stamps went back", "stamps went back: estimator restarted")
                    self._frames.clear()
                    self._pairs.clear()
                    self._reset_reason = "stamps went back"
                for _, item in arrival.items:
                    self._put(side, stamp_ns(item.header.stamp), item)

        return callback

    def _put(self, side: int, stamp: int, message: ImageMessage) -> None:
        images = self._pairs.add(side, stamp, message)
        if images is None:
            return
        self._frames.append((images, time.monotonic()))
        while len(self._frames) > self._config.queue:
            self._frames.popleft()
            self.dropped += 1
            self._node.warn("dropped frames", "input rate exceeds processing rate")
        self._ready.notify()

    # --- the thread ------------------------------------------------------------------------------

    def _loop(self, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                images = self._take(WAIT_S)
                if images is not None:
                    self._process(images)
                    self._busy = 0
        except Exception:
            # A dead worker must stop the process.
            self._node.get_logger().fatal(f"the worker failed: {traceback.format_exc()}")
            self._node.failed = True
            self._node.publish_diagnostics()
            self._node.context.try_shutdown()
            raise

    def _take(self, timeout_s: float) -> ImageSet | None:
        """The next frame, once its calibration is known too; None after the timeout."""
        with self._ready:
            if not self._ready.wait_for(self._complete, timeout_s):
                return None
            images, arrived = self._frames.popleft()
            self._busy = 1
            infos = tuple(info for info in self._infos if info is not None)
            return ImageSet(images, infos, arrived)

    def _complete(self) -> bool:
        return bool(self._frames) and all(info is not None for info in self._infos)

    def _process(self, images: ImageSet) -> None:
        if self._reset_reason is not None:
            reason, self._reset_reason = self._reset_reason, None
            self._node.reset(reason)
        try:
            self._on_frame(self._frame(images))
        except DATA_ERRORS as error:
            kind = error.kind if isinstance(error, BadInput) else "not computed"
            text = " ".join(str(error).split())
            self._node.warn(kind, f"frame {images.stamp_ns} ns is not used: {text}")
            self._node.productivity.note(kind)
        else:
            self._node.throughput.add(time.monotonic() - images.arrived)

    def _frame(self, images: ImageSet) -> CameraFrame:
        self._advise(images)
        pixels = [grey(*each) for each in zip(images.images, self._white, strict=True)]
        for info, image in zip(images.infos, pixels, strict=True):
            check_shape(info, image.shape)
        if len({image.shape for image in pixels}) > 1:
            raise BadInput(
                "image size",
                f"left and right images differ in size: {[image.shape for image in pixels]}",
            )
        if self._calibration.changed(images.infos, pixels[0].shape):
            self._node.warn("camera changed", "camera_info changed: estimator restarted")
        frame = Frame(images.stamp_ns, *map(self._calibration.undistort, pixels))
        return CameraFrame(frame, self._calibration.camera, images.images[0].header.frame_id)

    def _advise(self, images: ImageSet) -> None:
        """Warn once where shared memory is too small for such images."""
        if not self._advised:
            self._advised = True
            middleware = get_rmw_implementation_identifier()
            advice = missing_profile(len(images.images[0].data), middleware)
            if advice is not None:
                self._node.get_logger().warning(advice)


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

    def _subscribe(self) -> Subscription[Any]:
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
