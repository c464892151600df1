"""Images as they arrive, matched by stamp, in a queue that is never longer than asked for.

When frames come faster than they are worked on, the oldest that waits is dropped and counted: the
newest is always next. A stamp that goes back clears everything, so a bag may loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from hydranet_ros.ros.conversions import stamp_ns
from hydranet_ros.ros.images import ImageMessage
from hydranet_ros.ros.managed import ManagedNode
from hydranet_ros.ros.quality import QualityConfig
from hydranet_ros.settings import about, check

# Halves of pairs that are kept for their other half.
MOST_UNMATCHED = 10


@dataclass(frozen=True)
class InputConfig(QualityConfig):
    """How a node takes in images."""

    transport: str = field(
        default="raw",
        metadata=about(
            "raw, or compressed for TOPIC/compressed",
            choices=("raw", "compressed"),
            read_only=True,
        ),
    )
    queue: int = field(
        default=1,
        metadata=about(
            "frames that may wait: 1 is always the newest, more for replays",
            1,
            10000,
            read_only=True,
        ),
    )
    sync_tolerance_s: float = field(
        default=1e-3, metadata=about("left and right stamps may differ by so much", read_only=True)
    )
    max_interval_s: float = field(
        default=1.0, metadata=about("frames further apart than this begin anew", 1e-3)
    )

    def __post_init__(self) -> None:
        check(self)


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
