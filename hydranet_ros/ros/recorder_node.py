"""recorder_node: records topics into a bag, where rosbag2 is not installed.

    python -m hydranet_ros.ros.recorder_node --ros-args -p out:=recorded \
      -p "topics:=['vo/odometry nav_msgs/msg/Odometry']"

Messages are written as they are, at the time of their arrival. Says `ready` on its standard output
when every topic of `awaited` has a publisher, and ends by a signal or after `idle_s` of silence.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, Literal

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile

from hydranet_ros.datasets.bag_files import BagWriter, new_bag
from hydranet_ros.datasets.bag_messages import STORE, Message
from hydranet_ros.errors import HydraNetError
from hydranet_ros.ros.conversions import message_class
from hydranet_ros.ros.parameters import Parameters
from hydranet_ros.ros.spin import run_until_stopped
from hydranet_ros.settings import Configuration, setting

DEPTH = 1000
POLL_S = 0.05
# After a signal to end, what waits is taken until it was silent for so long; topics may go on.
QUIET_S, REST_S = 0.2, 1.0
# Told by the clock and not by what happens: no sign of life.
BACKGROUND = "/diagnostics"


@dataclass(frozen=True)
class RecorderConfig(Configuration):
    """What is recorded, and where to."""

    out: str = setting("recorded", "the new bag", live=False)
    storage: Literal["mcap", "sqlite3"] = setting("mcap", "format", live=False)
    topics: tuple[str, ...] = setting(
        ("vo/odometry nav_msgs/msg/Odometry", "fused/odometry nav_msgs/msg/Odometry"),
        "name and type of each topic",
        live=False,
    )
    awaited: tuple[str, ...] = setting(
        ("",), "names that need a publisher to be ready", live=False
    )
    idle_s: float = setting(
        0.0, "end when it was silent for so long; 0 never ends", 0.0, live=False
    )


class RecorderNode(Node):
    """Writes down what it hears."""

    def __init__(self, stop: Event) -> None:
        super().__init__("recorder_node")
        self.config = Parameters(self, RecorderConfig).config
        self._stop = stop
        self._subscribed: dict[str, Any] = {}
        self._ready = False
        self._heard: float | None = None

    def record(self, bag: BagWriter) -> None:
        """Listen until it is stopped, or until it has become silent."""
        for entry in self.config.topics:
            self._listen(entry, bag)
        awaited = [self.resolve_topic_name(n) for n in self.config.awaited if n]
        if missing := set(awaited) - set(self._subscribed):
            raise HydraNetError(f"parameter awaited: {min(missing)} is not one of topics")
        executor = SingleThreadedExecutor()
        executor.add_node(self)
        try:
            while not self._stop.is_set() and not self._idle():
                executor.spin_once(timeout_sec=POLL_S)
                self._tell_when_ready(awaited)
            self._take_the_rest(executor, bag)
        finally:
            executor.shutdown()

    def _take_the_rest(self, executor: SingleThreadedExecutor, bag: BagWriter) -> None:
        """What had arrived before the end is written, too."""
        written = bag.count
        began = last = time.monotonic()
        while (now := time.monotonic()) < min(last + QUIET_S, began + REST_S):
            executor.spin_once(timeout_sec=POLL_S)
            if bag.count > written:
                written, last = bag.count, now

    def _listen(self, entry: str, bag: BagWriter) -> None:
        name, _, kind = entry.partition(" ")
        message = message_class(kind) if kind.count("/") == 2 else None
        if message is None or kind not in STORE.fielddefs:
            raise HydraNetError(f"parameter topics: '{entry}' is not a topic and a known type")
        topic = self.resolve_topic_name(name)
        heard = partial(self._hear, topic, kind, bag)
        self._subscribed[topic] = self.create_subscription(
            message, name, heard, QoSProfile(depth=DEPTH), raw=True
        )

    def _hear(
        self, topic: str, kind: str, bag: BagWriter, data: bytes, about_it: dict[str, int]
    ) -> None:
        # When the middleware had it: we may have been busy with others meanwhile.
        bag.write(Message(topic, kind, about_it["received_timestamp"], data))
        if topic != BACKGROUND:
            self._heard = time.monotonic()

    def _idle(self) -> bool:
        if self._heard is None or self.config.idle_s == 0.0:
            return False
        return time.monotonic() - self._heard > self.config.idle_s

    def _tell_when_ready(self, awaited: list[str]) -> None:
        # Matched, and not only known: until then what is published goes by.
        if not self._ready and all(self._subscribed[n].get_publisher_count() for n in awaited):
            self._ready = True
            print("ready", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Record as a process, and give its exit code."""
    return run_until_stopped("recorder_node", _record, arguments)


def _record(stop: Event) -> None:
    node = RecorderNode(stop)
    with new_bag(node.config.out, node.config.storage) as bag:
        node.record(bag)
    node.get_logger().info(f"{bag.count} messages written to {node.config.out}")
    node.destroy_node()


if __name__ == "__main__":
    sys.exit(main())
