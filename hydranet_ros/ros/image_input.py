"""The images of a camera, with depth, or of a pair: in order, decoded, calibrated, handed on.

A thread works on the frames, and a second one beside it. When they come faster than they are
processed, the oldest that waits is dropped and counted: the newest is always next. Stamps that go
back reset the node, so a bag may loop.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cv2
from rclpy.utilities import get_rmw_implementation_identifier
from sensor_msgs.msg import CameraInfo

from hydranet_ros.datasets.sensor_messages import PixelRange, check_shape
from hydranet_ros.errors import BadInput, HydraNetError
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import StampOrder
from hydranet_ros.ros.conversions import ImageMessage, depth, grey, stamp_ns
from hydranet_ros.ros.diagnostics import PairHealth
from hydranet_ros.ros.environment import missing_profile
from hydranet_ros.ros.extrinsics import SteadyName
from hydranet_ros.ros.image_topics import (
    TOPICS,
    CameraCalibration,
    Cameras,
    ImageTopic,
    InfoTopic,
    InputConfig,
    PairMatcher,
    RgbdConfig,
)
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.ros.qos import NEVER_S, camera_info_topic

Rest = Callable[[], None]  # of the work on a frame

# What bad data raises in the core; anything else is a fault of ours, and ends the node.
DATA_ERRORS = (HydraNetError, ValueError, ArithmeticError, RuntimeError, cv2.error)
WAIT_S = 0.2
# A thread wakes within a millisecond: a frame that waits for longer was waiting for another.
BEHIND_S = 0.002
STOP_TIMEOUT_S = 1.0  # for the frame that is processed when the node is stopped


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The messages of one frame, left before right, or the image before depth.

    With their calibrations; depth of the image's own pixels needs none.
    """

    images: tuple[ImageMessage, ...]
    infos: tuple[CameraInfo, ...]
    arrived: float  # time.monotonic

    @property
    def stamp_ns(self) -> int:
        """Of the left image."""
        return stamp_ns(self.images[0].header.stamp)


@dataclass(frozen=True, eq=False)
class CameraFrame:
    """A frame as the core takes it, its camera, and the name of its coordinate frame.

    The camera is in that frame, turned by `T_image_camera`: of a vertical pair (see rigs.py).
    """

    frame: Frame
    camera: Camera | StereoCamera
    frame_id: str
    T_image_camera: Array


class ImageInput:
    """Deliver the frames of a camera, or of a pair, to `on_frame` in a thread of its own.

    What `on_frame` returns is called afterwards, where frames wait in a second thread, beside
    `on_frame` of the next; of one frame after the other.

    `rgbd` and `depth_in` are for depth, see `CameraCalibration`. Where `turns` is not set, a
    vertical pair is refused: who takes it must allow for the turn of its camera.
    """

    def __init__(
        self,
        node: ManagedNode[Any],
        config: InputConfig,
        cameras: Cameras,
        on_frame: Callable[[CameraFrame], Rest | None],
        rgbd: RgbdConfig | None = None,
        depth_in: Callable[[str, str], Array] | None = None,
        turns: bool = False,
    ) -> None:
        self._node, self._config, self._on_frame = node, config, on_frame
        self._turns, self._has_depth = turns, cameras == "rgbd"
        topics = TOPICS[cameras]
        self._ready = threading.Condition()
        self._frames: deque[tuple[tuple[ImageMessage, ...], float]] = deque()
        self._infos: list[CameraInfo | None] = [None] * len(topics)
        self._order: StampOrder[ImageMessage] = StampOrder()
        self._pairs = PairMatcher(cameras, config.sync_tolerance_s, node.warn)
        self._pair_health = PairHealth()
        self._white = [PixelRange() for _ in topics]
        names = [node.resolve_topic_name(image) for image, _ in topics]
        self._calibration = CameraCalibration(cameras, config, names, rgbd, depth_in)
        self._frame_id = SteadyName()
        self._thread: threading.Thread | None = None
        self._second = ThreadPoolExecutor(1, "second_worker")
        self._finishing: Future[None] | None = None  # in the second thread
        node.when_closed(partial(self._second.shutdown, wait=False))
        self._stopping = threading.Event()
        self._reset_reason: str | None = None
        self._advised = False
        self.dropped = self._busy = 0
        self._topics: list[ImageTopic | InfoTopic] = []
        # Calibrations first: of what has come, rclpy takes it in this order.
        for side, (image, info) in enumerate(topics):
            name = camera_info_topic(node, image, info)
            # Depth of the image's pixels comes without a calibration: its silence is no fault.
            quality = replace(config, silence_s=NEVER_S) if self._has_depth and side else config
            self._topics.append(InfoTopic(node, quality, name, self._info_callback(side)))
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
        waiting = len(self._frames) + self._busy + self._unfinished
        values = {"waiting": str(waiting), "dropped": str(self.dropped)}
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
            self._frame_id.clear()

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
            if self._complete():
                self._node.warn("dropped frames", "input rate exceeds processing rate")
            else:
                self._node.warn("no calibration", "images wait for a camera_info that never came")
        self._ready.notify()

    # --- the thread ------------------------------------------------------------------------------

    def _loop(self, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                images = self._take(WAIT_S)
                if images is not None:
                    self._process(images)
                    self._busy = 0
                else:
                    self._finish()
            if self._stopping is stopping:
                self._finish()
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
            infos = tuple(info for info in self._infos[: self._calibration.needs(images)] if info)
            return ImageSet(images, infos, arrived)

    def _complete(self) -> bool:
        if not self._frames:
            return False
        needed = self._infos[: self._calibration.needs(self._frames[0][0])]
        return all(info is not None for info in needed)

    def _process(self, images: ImageSet) -> None:
        if self._reset_reason is not None:
            self._finish()
            reason, self._reset_reason = self._reset_reason, None
            self._node.reset(reason)
        waited = time.monotonic() - images.arrived > BEHIND_S
        with self._guarded(images):
            rest = self._on_frame(self._frame(images))
            behind = waited or self._frames or self._unfinished
            self._finish()
            if rest is not None and behind:
                self._finishing = self._second.submit(self._end, rest, images)
            else:  # where no frame waits, a change of threads would only take time
                self._end(rest, images)

    def _end(self, rest: Rest | None, images: ImageSet) -> None:
        with self._guarded(images):
            if rest is not None:
                rest()
            self._node.throughput.add(time.monotonic() - images.arrived)

    @property
    def _unfinished(self) -> bool:
        finishing = self._finishing
        return finishing is not None and not finishing.done()

    def _finish(self) -> None:
        """Wait for the second thread; what failed there fails here."""
        if self._finishing is not None:
            self._finishing.result()

    @contextmanager
    def _guarded(self, images: ImageSet) -> Iterator[None]:
        """Warn where a frame cannot be used."""
        try:
            yield
        except DATA_ERRORS as error:
            kind = error.kind if isinstance(error, BadInput) else "not computed"
            text = " ".join(str(error).split())
            self._node.warn(kind, f"frame {images.stamp_ns} ns is not used: {text}")
            self._node.productivity.note(kind)

    def _frame(self, images: ImageSet) -> CameraFrame:
        self._advise(images)
        frame_id = self._frame_id.take(images.images[0].header.frame_id)
        frames = tuple(each.header.frame_id for each in images.images)
        seen, *others = images.images
        shown = [seen] if self._has_depth else images.images
        pixels = [
            self._node.shared.decoded(image, partial(grey, image, white))
            for image, white in zip(shown, self._white, strict=False)
        ]
        for info, image in zip(images.infos, pixels, strict=False):
            check_shape(info, image.shape)
        metres = depth(others[0]) if self._has_depth else None
        if self._calibration.changed(images.infos, pixels[0].shape, frames):
            self._node.warn("camera changed", "camera_info changed: estimator restarted")
        rig = self._calibration.rig
        if rig.turned and not self._turns:
            raise BadInput("camera_info", "a pair one above the other: use one image of it here")
        frame = rig.frame(images.stamp_ns, pixels, metres)
        return CameraFrame(frame, rig.camera, frame_id, rig.T_image_camera)

    def _advise(self, images: ImageSet) -> None:
        """Warn once where shared memory is too small for such images."""
        if not self._advised:
            self._advised = True
            middleware = get_rmw_implementation_identifier()
            advice = missing_profile(len(images.images[0].data), middleware)
            if advice is not None:
                self._node.get_logger().warning(advice)
