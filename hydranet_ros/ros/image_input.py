"""A node that works on images, in a thread of its own: topics are heard while it computes."""

from __future__ import annotations

import threading
import time
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import cv2
import numpy as np
from rclpy.utilities import get_rmw_implementation_identifier
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from hydranet_ros.datasets.sensor_messages import Grey, check_shape
from hydranet_ros.errors import BadInput, HydraNetError
from hydranet_ros.ros.conversions import ImageMessage, grey, stamp_ns
from hydranet_ros.ros.environment import missing_profile
from hydranet_ros.ros.lifecycle import ManagedNode, NodeConfig
from hydranet_ros.ros.qos import QualityConfig
from hydranet_ros.settings import section, setting

# Halves of pairs that are kept for their other half.
MOST_UNMATCHED = 10


@dataclass(frozen=True)
class InputConfig(QualityConfig):
    """How a node takes in images."""

    transport: Literal["raw", "compressed"] = setting(
        "raw", "raw, or compressed for TOPIC/compressed", live=False
    )
    queue: int = setting(
        1, "frames that may wait: 1 is always the newest, more for replays", 1, 10000, live=False
    )
    sync_tolerance_s: float = setting(
        0.001, "left and right stamps may differ by so much", live=False
    )
    max_interval_s: float = setting(1.0, "frames further apart than this begin anew", 0.001)


@dataclass(frozen=True, eq=False)
class Arrival:
    """One frame: an image, or a pair of them."""

    stamp_ns: int
    frame_id: str
    images: tuple[ImageMessage, ...]
    infos: tuple[CameraInfo, ...]
    arrived: float  # time.monotonic


class Matcher:
    """Match the messages of several sides by stamp; what is older than a match is let go."""

    def __init__(self, sides: int, tolerance_ns: int) -> None:
        self.sides, self.tolerance_ns = sides, tolerance_ns
        self._waiting: list[dict[int, Any]] = [{} for _ in range(sides)]
        self.unmatched = 0

    def clear(self) -> None:
        """Forget what waits."""
        for waiting in self._waiting:
            waiting.clear()

    def add(self, side: int, stamp: int, message: Any) -> tuple[Any, ...] | None:
        """All sides of this stamp, once the last of them is here."""
        self._waiting[side][stamp] = message
        found = [self._near(waiting, stamp) for waiting in self._waiting]
        if None in found:
            if len(self._waiting[side]) > MOST_UNMATCHED:
                self._let_go(self._waiting[side], min(self._waiting[side]))
            return None
        match = tuple(w.pop(s) for w, s in zip(self._waiting, found, strict=True) if s is not None)
        for waiting in self._waiting:
            self._let_go(waiting, stamp)
        return match

    def _near(self, waiting: dict[int, Any], stamp: int) -> int | None:
        nearest = min(waiting, key=lambda other: abs(other - stamp), default=None)
        if nearest is None or abs(nearest - stamp) > self.tolerance_ns:
            return None
        return nearest

    def _let_go(self, waiting: dict[int, Any], until: int) -> None:
        for stamp in [each for each in waiting if each <= until]:
            del waiting[stamp]
            self.unmatched += 1


class Intake:
    """The image and camera_info topics of one camera or of a pair."""

    def __init__(
        self,
        node: ManagedNode[Any],
        config: InputConfig,
        topics: tuple[tuple[str, str], ...],
        went_back: Callable[[], None],
    ) -> None:
        self._node, self._went_back = node, went_back
        self._ready = threading.Condition()
        self._frames: deque[tuple[int, str, tuple[ImageMessage, ...], float]] = deque()
        self._queue = config.queue
        self._infos: list[CameraInfo | None] = [None] * len(topics)
        self._last: list[int | None] = [None] * len(topics)
        self._matcher = Matcher(len(topics), round(config.sync_tolerance_s * 1e9))
        self.dropped = 0
        kind, suffix = (
            (Image, "") if config.transport == "raw" else (CompressedImage, "/compressed")
        )
        for side, (image, info) in enumerate(topics):
            node.listen(kind, image + suffix, self._hear_image(side), config)
            node.listen(CameraInfo, info, self._hear_info(side), config)

    def clear(self) -> None:
        """Forget what waits."""
        with self._ready:
            self._frames.clear()
            self._matcher.clear()
            self._last = [None] * len(self._last)

    def take(self, timeout_s: float) -> Arrival | None:
        """The next frame, once its calibration is known too; None after the timeout."""
        with self._ready:
            self._ready.wait_for(self._complete, timeout_s)
            if not self._complete():
                return None
            stamp, frame_id, images, arrived = self._frames.popleft()
            infos = tuple(info for info in self._infos if info is not None)
            return Arrival(stamp, frame_id, images, infos, arrived)

    @property
    def unmatched(self) -> int:
        """Images without their other half."""
        return self._matcher.unmatched

    def _complete(self) -> bool:
        return bool(self._frames) and all(info is not None for info in self._infos)

    def _hear_info(self, side: int) -> Callable[[CameraInfo], None]:
        def heard(message: CameraInfo) -> None:
            with self._ready:
                self._infos[side] = message
                self._ready.notify()

        return heard

    def _hear_image(self, side: int) -> Callable[[ImageMessage], None]:
        def heard(message: ImageMessage) -> None:
            with self._ready:
                if self._in_order(side, stamp_ns(message.header.stamp)):
                    self._put(side, message)

        return heard

    def _in_order(self, side: int, stamp: int) -> bool:
        last, self._last[side] = self._last[side], stamp
        if last is None or stamp > last:
            return True
        if stamp == last:
            self._node.complain("equal stamps", f"two images have stamp {stamp} ns")
            return False
        self._node.complain(
            "stamps went back", f"stamps went back from {last} to {stamp} ns: state is cleared"
        )
        self.clear()
        self._last[side] = stamp
        self._went_back()
        return True

    def _put(self, side: int, message: ImageMessage) -> None:
        stamp = stamp_ns(message.header.stamp)
        images = self._matcher.add(side, stamp, message)
        if images is None:
            return
        first = images[0].header
        self._frames.append((stamp_ns(first.stamp), first.frame_id, images, time.monotonic()))
        while len(self._frames) > self._queue:
            self._frames.popleft()
            self.dropped += 1
            self._node.complain("dropped frames", "frames come faster than they are worked on")
        self._ready.notify()


MONO = (("image", "camera_info"),)
STEREO = (
    ("left/image_rect", "left/camera_info"),
    ("right/image_rect", "right/camera_info"),
)
# What data can do to the core: anything else is a fault of ours, and ends the node.
DATA_ERRORS = (HydraNetError, ValueError, ArithmeticError, RuntimeError, cv2.error)
_WAIT_S = 0.2
LONGEST_END_S = 1.0  # for the frame that is worked on when the node is stopped


@dataclass(frozen=True)
class ImageNodeConfig(NodeConfig):
    """What every node with images has."""

    input: InputConfig = section(InputConfig)
    threads: int = setting(
        1,
        "threads that compute, in OpenCV and torch; more than free cores stall each other",
        1,
        256,
        live=False,
    )


Config = TypeVar("Config", bound=ImageNodeConfig)


class ImageNode(ManagedNode[Config], Generic[Config]):
    """Take the newest frame, check it, and hand it on."""

    def __init__(self, name: str, kind: type[Config], **options: Any) -> None:
        super().__init__(name, kind, **options)
        self.intake: Intake | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._outdated = False
        self._forgetting: str | None = None
        self._calibrated: tuple[Any, ...] | None = None
        self._last_ns: int | None = None
        self._advised = False

    # --- for the node to fill in -----------------------------------------------------------------

    @abstractmethod
    def calibrate(self, infos: tuple[CameraInfo, ...], shape: tuple[int, int]) -> None:
        """Begin with a new camera."""

    @abstractmethod
    def restart(self) -> None:
        """Forget the frames before: the next one begins anew."""

    def start_over(self) -> None:
        """Forget everything: time went back."""
        self.restart()

    @abstractmethod
    def work(self, arrival: Arrival, images: tuple[Grey, ...]) -> None:
        """Work on a frame and publish."""

    # --- life cycle ------------------------------------------------------------------------------

    def take_in(self, topics: tuple[tuple[str, str], ...]) -> None:
        """Open the topics."""
        cv2.setNumThreads(self.config.threads)
        self.intake = Intake(
            self, self.config.input, topics, lambda: self._ask("stamps went back")
        )

    def begin(self) -> None:
        """Start the thread."""
        # One of its own for each thread: an old one that is late must not go on.
        self._stopping = threading.Event()
        self._calibrated, self._last_ns = None, None
        self._thread = threading.Thread(
            target=self._loop, args=(self._stopping,), name="worker", daemon=True
        )
        self._thread.start()

    def pause(self) -> None:
        """End the thread after the frame that it is at."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=LONGEST_END_S)
        if self.intake is not None:
            self.intake.clear()

    def forget(self, reason: str) -> None:
        """Begin anew with the next frame."""
        if self.intake is not None:
            self.intake.clear()
        self._ask(reason)

    def changed(self, config: Config) -> None:
        """Build the estimator again with the new settings, at the next frame."""
        self._outdated = True

    def figures(self) -> dict[str, str]:
        """How many frames were lost, and where."""
        if self.intake is None:
            return {}
        return {"dropped": str(self.intake.dropped), "unmatched": str(self.intake.unmatched)}

    # --- the thread ------------------------------------------------------------------------------

    def _ask(self, reason: str) -> None:
        self._forgetting = reason

    def _loop(self, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set() and self.intake is not None:
                arrival = self.intake.take(_WAIT_S)
                if arrival is not None:
                    self._work_on(arrival)
        except Exception:
            # A node that hears and does not work is worse than one that ends.
            self.get_logger().fatal(f"the worker failed, the node ends: {traceback.format_exc()}")
            self.failed = True
            self.context.try_shutdown()
            raise

    def _work_on(self, arrival: Arrival) -> None:
        if self._forgetting is not None:
            self._forgetting, self._last_ns = None, None
            self.start_over()
        try:
            images = self._images(arrival)
            self._calibrate(arrival, images[0].shape)
            self._check_interval(arrival.stamp_ns)
            self.work(arrival, images)
        except DATA_ERRORS as error:
            kind = error.kind if isinstance(error, BadInput) else "not computed"
            self.complain(kind, f"frame {arrival.stamp_ns} ns is not used: {_one_line(error)}")
        else:
            self.pace.add(arrival.arrived)

    def _images(self, arrival: Arrival) -> tuple[Grey, ...]:
        self._advise(arrival)
        images = tuple(grey(message) for message in arrival.images)
        for info, image in zip(arrival.infos, images, strict=True):
            check_shape(info, image.shape)
        if len({image.shape for image in images}) > 1:
            raise BadInput(
                "image size",
                f"left and right images differ in size: {[image.shape for image in images]}",
            )
        return images

    def _advise(self, arrival: Arrival) -> None:
        """Say once that shared memory is too small for such images."""
        if not self._advised:
            self._advised = True
            middleware = get_rmw_implementation_identifier()
            advice = missing_profile(len(arrival.images[0].data), middleware)
            if advice is not None:
                self.get_logger().warning(advice)

    def _calibrate(self, arrival: Arrival, shape: tuple[int, ...]) -> None:
        key = (*(_fingerprint(info) for info in arrival.infos), shape)
        outdated, self._outdated = self._outdated, False
        if key == self._calibrated and not outdated:
            return
        if self._calibrated not in (None, key):
            self.complain("camera changed", "the camera changed: begin anew with it")
        self._calibrated, self._last_ns = None, None
        self.calibrate(arrival.infos, (shape[0], shape[1]))
        self._calibrated = key

    def _check_interval(self, stamp: int) -> None:
        last, self._last_ns = self._last_ns, stamp
        if last is not None and stamp - last > self.config.input.max_interval_s * 1e9:
            gap = (stamp - last) * 1e-9
            self.complain("far apart", f"frames are {gap:.3f} s apart: begin anew")
            self.restart()


def _fingerprint(info: CameraInfo) -> tuple[Any, ...]:
    """What a camera depends on; the stamp is not part of it."""
    roi = info.roi
    return (
        *(np.asarray(each, dtype=np.float64).tobytes() for each in (info.k, info.d, info.p)),
        *(info.width, info.height, info.binning_x, info.binning_y, info.distortion_model),
        *(roi.x_offset, roi.y_offset, roi.width, roi.height),
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
