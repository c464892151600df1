"""Publish a playlist at the pace at which it was recorded, and keep count of how well."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, TypeVar

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry, Path
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rosgraph_msgs.msg import Clock

from hydranet_ros.datasets.bag_files import read_messages, topics
from hydranet_ros.datasets.bag_messages import (
    COMPRESSED_IMAGE,
    IMAGE,
    ODOMETRY,
    TRANSFORMS,
    Message,
    recorded,
    topic_types,
)
from hydranet_ros.datasets.source import STREET, has_one_camera, is_bag, open_source
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.ros.conversions import message_class, stamp_ns, time_message
from hydranet_ros.ros.qos import LATCHED, greeting

# So deep that a slow subscriber does not make a fast one lose the end.
DEPTH = 1000
ACKNOWLEDGE_S = 10.0
RCLError = rclpy_implementation.RCLError
# A full send buffer is no reason to stop, a middleware that stays full is.
RETRY_S, GIVE_UP_S = 0.005, 5.0


class PlaybackStatistics:
    """How well the recorded pace was held."""

    def __init__(self) -> None:
        self.frames = 0
        self.worst_late_s = 0.0
        self._began = self._ended = 0.0
        self._first_ns = self._last_ns = 0

    def add(self, stamp_ns: int) -> None:
        """Count a frame that was just published."""
        self._ended, self._last_ns = time.monotonic(), stamp_ns
        if self.frames == 0:
            self._began, self._first_ns = self._ended, stamp_ns
        self.frames += 1

    def summary(self, rate: float) -> str:
        """For the log: the rate that was asked for and the one that was held."""
        steps, took = self.frames - 1, self._ended - self._began
        asked_s = (self._last_ns - self._first_ns) * 1e-9 / rate
        if steps < 1 or took <= 0.0 or asked_s <= 0.0:
            return f"played {self.frames} frames"
        return (
            f"played {self.frames} frames in {took:.1f} s: held {steps / took:.2f} Hz of "
            f"{steps / asked_s:.2f} Hz asked, at most {1e3 * self.worst_late_s:.0f} ms late"
        )


class ReplayPublishers:
    """A publisher for each topic of a playlist, and the clock."""

    def __init__(self, node: Node, playlist: Playlist) -> None:
        self._node = node
        self.publishers: dict[str, Publisher[Any]] = {}
        for topic, kind in playlist.types.items():
            message = message_class(kind)
            if message is None:
                node.get_logger().warning(f"{topic} is not played: no {kind} is installed here")
                continue
            self.publishers[topic] = node.create_publisher(message, _name(topic), _quality(kind))
        self._clock = node.create_publisher(Clock, "/clock", 10)
        self._truth = TruthPath(node, playlist)

    def publish(self, message: Message) -> None:
        """Send a message as the bytes that it is."""
        publisher = self.publishers.get(message.topic)
        if publisher is not None:
            _publish(publisher, message)
            self._truth.add(message)

    def tick(self, nanoseconds: int) -> None:
        """Publish the time."""
        self._clock.publish(Clock(clock=time_message(nanoseconds)))

    def subscribers(self, topic: str) -> int:
        """How many subscribe to a topic."""
        return int(self.publishers[topic].get_subscription_count())

    def wanted(self, frames: str | None, count: int, listeners: Iterable[str]) -> dict[str, int]:
        """How many subscribers to wait for, by topic; `listeners` are texts like 'odom 2'."""
        wanted = {} if frames is None else {frames: count}
        for entry in listeners:
            name, _, number = entry.partition(" ")
            topic = self.published_as(name)
            if topic is None or not number.isdecimal():
                raise HydraNetError(
                    f"parameter listeners: '{entry}' is not a topic that is played and a number"
                )
            wanted[topic] = int(number)
        return wanted

    def published_as(self, image: str) -> str | None:
        """The topic of the playlist that is published by this name, raw or compressed."""
        name = self._node.resolve_topic_name(image)
        wanted = (name, f"{name}/compressed")
        return next((t for t, p in self.publishers.items() if p.topic_name in wanted), None)

    def unacknowledged(self) -> list[str]:
        """Wait until everything has arrived; the topics of which something has not."""
        until = time.monotonic() + ACKNOWLEDGE_S
        return [
            topic
            for topic, publisher in self.publishers.items()
            if not publisher.wait_for_all_acked(
                Duration(seconds=max(0.0, until - time.monotonic()))
            )
        ]


class ReplayClock:
    """Wait until a message is due; the clock goes on meanwhile."""

    def __init__(
        self, publishers: ReplayPublishers, rate: float, clock_hz: float, stop: Event
    ) -> None:
        self._publishers, self._rate, self._stop = publishers, rate, stop
        self._period_s = 1.0 / clock_hz
        self._began, self._first_ns = 0.0, -1

    def wait_for(self, stamp_ns: int) -> float:
        """Seconds by which the message is late; the first one defines the beginning."""
        if self._first_ns < 0:
            self._began, self._first_ns = time.monotonic(), stamp_ns
        due = self._began + (stamp_ns - self._first_ns) * 1e-9 / self._rate
        while (ahead := due - time.monotonic()) > 0.0 and not self._stop.is_set():
            self._publishers.tick(stamp_ns - int(ahead * self._rate * 1e9))
            self._stop.wait(min(ahead, self._period_s))
        self._publishers.tick(stamp_ns)
        return max(0.0, -ahead)


def play(
    messages: Iterable[Message],
    frame_topic: str | None,
    publishers: ReplayPublishers,
    clock: ReplayClock,
    stop: Event,
) -> PlaybackStatistics:
    """Publish every message when it is due, until `stop`."""
    statistics = PlaybackStatistics()
    for message in messages:
        late = clock.wait_for(message.stamp_ns)
        if stop.is_set():
            break
        publishers.publish(message)
        statistics.worst_late_s = max(statistics.worst_late_s, late)
        if message.topic == frame_topic:
            statistics.add(message.stamp_ns)
    return statistics


def _publish(publisher: Publisher[Any], message: Message) -> None:
    """Send, and again where the middleware has no room yet."""
    until = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return publisher.publish(message.data)
        except RCLError as error:
            if time.monotonic() > until:
                reason = " ".join(str(error).split())
                raise HydraNetError(f"{message.topic}: cannot be published: {reason}") from None
            time.sleep(RETRY_S)


def _name(topic: str) -> str:
    """Relative, so that a namespace applies; transforms and such are everybody's."""
    return topic if topic.startswith("/tf") else topic.lstrip("/")


def _quality(kind: str) -> QoSProfile:
    latched = kind == TRANSFORMS
    return QoSProfile(
        depth=1 if latched else DEPTH,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


# --- the end -------------------------------------------------------------------------------------

# Nodes report once a second. Without progress for so long nothing more is to be expected.
FIRST_REPORT_S, PATIENCE_S = 3.0, 15.0


class Backlog:
    """What nodes have still to work on, by their diagnostics."""

    def __init__(self, node: Node) -> None:
        self._progress = 0.0  # when a node was last heard to have done more
        self._done: dict[str, int] = {}
        self._idle: dict[str, int] = {}  # how often in a row a node had nothing waiting
        node.create_subscription(DiagnosticArray, "/diagnostics", self._note, 100)

    def _note(self, message: DiagnosticArray) -> None:
        for status in message.status:
            values = {each.key: each.value for each in status.values}
            if "waiting" not in values:
                continue
            idle, done = values["waiting"] == "0", int(values.get("done", "0"))
            self._idle[status.name] = self._idle.get(status.name, 0) + 1 if idle else 0
            if done > self._done.get(status.name, -1):
                self._progress = time.monotonic()
                self._done[status.name] = done

    def wait(self, stop: Event) -> list[str]:
        """Until every node has said twice that nothing waits; those of which it never comes."""
        began = self._progress = time.monotonic()
        self._idle = dict.fromkeys(self._idle, 0)
        while not stop.is_set():
            now = time.monotonic()
            busy = [name for name, count in list(self._idle.items()) if count < 2]
            if not busy and now - began > FIRST_REPORT_S:
                break
            if now - self._progress > PATIENCE_S:
                return busy
            stop.wait(0.1)
        return []


@contextmanager
def answering(node: Node) -> Iterator[None]:
    """Answer to `ros2 param` and the like from a thread, while the main one plays."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = Thread(target=executor.spin, name="answer")
    thread.start()
    try:
        yield
    finally:
        executor.shutdown()
        thread.join()
        node.destroy_node()


# --- the true path, for RViz ---------------------------------------------------------------------

# A path is sent whole each time: not with every pose, and not all the time.
EVERY, PERIOD_S, MOST_POSES = 10, 0.2, 5000


class TruthPath:
    """Publish `ground_truth/path` where a playlist has an odometry called ground truth."""

    def __init__(self, node: Node, playlist: Playlist) -> None:
        named = (t for t, k in playlist.types.items() if k == ODOMETRY and "ground_truth" in t)
        self._topic = next(named, None)
        self._poses: list[PoseStamped] = []
        self._begin(0)
        self._publisher: Publisher[Path] | None = None
        if self._topic is not None:
            self._publisher = node.create_publisher(
                Path, "ground_truth/path", LATCHED, event_callbacks=greeting(self._publish)
            )

    def _begin(self, stamp: int) -> None:
        self._poses.clear()
        self._count, self._stride, self._newest_ns, self._published = 0, 1, stamp, -PERIOD_S

    def add(self, message: Message) -> None:
        """Take a pose in, if the message is one; a new path when time goes back."""
        if self._publisher is None or message.topic != self._topic:
            return
        truth: Odometry = deserialize_message(message.data, Odometry)
        stamp = stamp_ns(truth.header.stamp)
        if stamp <= self._newest_ns:
            self._begin(stamp)
        self._newest_ns = stamp
        if self._count % self._stride == 0:
            self._poses.append(PoseStamped(header=truth.header, pose=truth.pose.pose))
        if len(self._poses) > MOST_POSES:  # every other one: as long, half as dense
            self._poses, self._stride = self._poses[::2], 2 * self._stride
        self._count += 1
        now = time.monotonic()
        due = self._count % EVERY == 1 and now - self._published >= PERIOD_S
        if due and self._publisher.get_subscription_count():
            self._published = now
            self._publish()

    def _publish(self) -> None:
        poses = list(self._poses)  # another thread may add to it
        if poses and self._publisher is not None:
            with suppress(RCLError):  # the next one is as good
                self._publisher.publish(Path(header=poses[-1].header, poses=poses))


# --- what is played: the messages of a bag as they are, or those made of other sources -----------

T = TypeVar("T")

# Some seconds of images.
READ_AHEAD = 200
_POLL_S = 0.2


@dataclass(frozen=True)
class Playlist:
    """Messages in order of time. `slow`: they take longer to make than to play."""

    name: str
    types: dict[str, str]
    messages: Callable[[], Iterator[Message]]
    slow: bool = False

    @property
    def frame_topic(self) -> str | None:
        """The topic whose messages count as frames: the first with images, by name."""
        images = [t for t, kind in self.types.items() if kind in (IMAGE, COMPRESSED_IMAGE)]
        return min(images, default=None)


def open_playlist(name: str) -> Playlist:
    """A rosbag2, a folder of images, or the simulated street."""
    if is_bag(name):
        types = topics(name)
        if not types:
            raise FileError(name, "has no messages to play")
        return Playlist(name, types, lambda: read_messages(name))
    source = open_source(name, cameras="mono" if has_one_camera(name) else "stereo")
    return Playlist(name, topic_types(source), lambda: recorded(source), slow=name == STREET)


def read_ahead(items: Iterator[T], size: int = READ_AHEAD) -> Iterator[T]:
    """The same items, made by a thread, so that a late one does not hold up the one before."""
    ready: Queue[tuple[T | None, BaseException | None]] = Queue(size)
    given_up = Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not given_up.is_set():
            with suppress(Full):
                ready.put((item, error), timeout=_POLL_S)
                return

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if given_up.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # noqa: BLE001 (handed to the one who reads)
            put(None, error)

    thread = Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        given_up.set()
        thread.join()


def from_second(messages: Iterable[Message], start_s: float) -> Iterator[Message]:
    """Leave out what comes before, except for transforms that hold all the time."""
    iterator = iter(messages)
    first = next(iterator, None)
    if first is None:
        return
    begin = first.stamp_ns + round(start_s * 1e9)
    for message in chain([first], iterator):
        if message.stamp_ns >= begin:
            yield message
        elif message.type == TRANSFORMS:
            yield replace(message, stamp_ns=begin)
