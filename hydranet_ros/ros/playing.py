"""Publish a playlist at the pace at which it was recorded, and keep count of how well."""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import Event
from typing import Any

from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from hydranet_ros.bags.playlist import Playlist
from hydranet_ros.datasets.bag_messages import TRANSFORMS, Message
from hydranet_ros.errors import HydraNetError
from hydranet_ros.ros.conversions import time_message
from hydranet_ros.ros.ground_truth import TruthPath
from hydranet_ros.ros.message_types import message_class

# So deep that a slow listener does not make a fast one lose the end.
DEPTH = 1000
ACKNOWLEDGE_S = 10.0
RCLError = rclpy_implementation.RCLError
# A full send buffer is no reason to stop, a middleware that stays full is.
RETRY_S, GIVE_UP_S = 0.005, 5.0


class Tally:
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


class Outlet:
    """A publisher for each topic of a playlist, and the clock."""

    def __init__(self, node: Node, playlist: Playlist) -> None:
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
        """Tell the time."""
        self._clock.publish(Clock(clock=time_message(nanoseconds)))

    def listeners(self, topic: str) -> int:
        """How many subscribe to a topic."""
        return int(self.publishers[topic].get_subscription_count())

    def unheard(self) -> list[str]:
        """Wait until everything has arrived; the topics of which something has not."""
        until = time.monotonic() + ACKNOWLEDGE_S
        return [
            topic
            for topic, publisher in self.publishers.items()
            if not publisher.wait_for_all_acked(
                Duration(seconds=max(0.0, until - time.monotonic()))
            )
        ]


class Pace:
    """Wait until a message is due; the clock goes on meanwhile."""

    def __init__(self, outlet: Outlet, rate: float, clock_hz: float, stop: Event) -> None:
        self._outlet, self._rate, self._period_s, self._stop = outlet, rate, 1.0 / clock_hz, stop
        self._began, self._first_ns = 0.0, -1

    def wait_for(self, stamp_ns: int) -> float:
        """Seconds by which the message is late; the first one defines the beginning."""
        if self._first_ns < 0:
            self._began, self._first_ns = time.monotonic(), stamp_ns
        due = self._began + (stamp_ns - self._first_ns) * 1e-9 / self._rate
        while (ahead := due - time.monotonic()) > 0.0 and not self._stop.is_set():
            self._outlet.tick(stamp_ns - int(ahead * self._rate * 1e9))
            self._stop.wait(min(ahead, self._period_s))
        self._outlet.tick(stamp_ns)
        return max(0.0, -ahead)


def play(
    messages: Iterable[Message], frame_topic: str | None, outlet: Outlet, pace: Pace, stop: Event
) -> Tally:
    """Publish every message when it is due, until `stop`."""
    tally = Tally()
    for message in messages:
        late = pace.wait_for(message.stamp_ns)
        if stop.is_set():
            break
        outlet.publish(message)
        tally.worst_late_s = max(tally.worst_late_s, late)
        if message.topic == frame_topic:
            tally.add(message.stamp_ns)
    return tally


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
