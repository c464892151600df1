"""player_node: plays a rosbag2, a folder of images or the simulated street, with /clock.

    python -m hydranet_ros.ros.player_node --ros-args -p source:=BAG -p rate:=1.0

For replays where rosbag2 is not installed; a bag's messages are published as they are.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from threading import Event

from rclpy.node import Node

from hydranet_ros.datasets.bag_messages import Message
from hydranet_ros.errors import HydraNetError
from hydranet_ros.ros import environment
from hydranet_ros.ros.parameters import Parameters
from hydranet_ros.ros.player import (
    Backlog,
    ReplayClock,
    ReplayPublishers,
    answering,
    from_second,
    open_playlist,
    play,
    read_ahead,
)
from hydranet_ros.ros.spin import run_until_stopped
from hydranet_ros.settings import Configuration, setting

# After the last subscriber was found, discovery of the others may still be under way.
SETTLE_S = 1.0


@dataclass(frozen=True)
class PlayerConfig(Configuration):
    """What is played, and how."""

    source: str = setting("street", "a rosbag2, a folder of images, or 'street'", live=False)
    rate: float = setting(1.0, "times the recorded speed", 0.001, 1000.0, live=False)
    start: float = setting(0.0, "begin so many seconds in", 0.0, live=False)
    loop: bool = setting(False, "begin again at the end", None, live=False)
    image: str = setting("", "the image topic that counts; empty: the first", live=False)
    subscribers: int = setting(0, "wait for so many subscribers of images", 0, 1000, live=False)
    listeners: tuple[str, ...] = setting(
        (), "other topics with how many subscribers to wait for: 'odom 2'", live=False
    )
    timeout: float = setting(
        30.0, "give up waiting for them after so many seconds", 0.0, live=False
    )
    drain: bool = setting(
        False, "at the end, wait until the nodes have worked on all of it", None, live=False
    )
    clock_hz: float = setting(100.0, "how often /clock is published", 1.0, 10000.0, live=False)


class PlayerNode(Node):
    """Publishes what is recorded."""

    def __init__(self, stop: Event) -> None:
        super().__init__("player_node")
        self.config = Parameters(self, PlayerConfig).config
        self._stop = stop
        self.playlist = open_playlist(self.config.source)
        self._replay = ReplayPublishers(self, self.playlist)
        self._frames = self.playlist.frame_topic
        if self.config.image:
            self._frames = self._replay.published_as(self.config.image)
            if self._frames is None:
                raise HydraNetError(f"{self.config.source}: has no images for {self.config.image}")
        self._backlog = Backlog(self) if self.config.drain else None

    def run(self) -> None:
        """Play once, or in a loop, until it is stopped; then wait until all has arrived."""
        config, log = self.config, self.get_logger()
        kept = self._rendered() if self.playlist.slow else None
        self._wait_for_subscribers()
        while not self._stop.is_set():
            clock = ReplayClock(self._replay, config.rate, config.clock_hz, self._stop)
            messages = read_ahead(self.playlist.messages()) if kept is None else iter(kept)
            chosen = from_second(messages, config.start)
            statistics = play(chosen, self._frames, self._replay, clock, self._stop)
            log.info(statistics.summary(config.rate))
            if statistics.frames == 0 and self._frames and not self._stop.is_set():
                raise HydraNetError(f"{config.source}: has nothing after start {config.start} s")
            if not config.loop:
                break
        self._finish()

    def _rendered(self) -> list[Message]:
        """Everything at once, before the first is played: it is slower to make than to play."""
        self.get_logger().info(f"rendering {self.playlist.name}")
        messages = []
        for message in self.playlist.messages():
            messages.append(message)
            if self._stop.is_set():
                break
        return messages

    def _wait_for_subscribers(self) -> None:
        config = self.config
        wanted = self._replay.wanted(self._frames, config.subscribers, config.listeners)
        if not any(wanted.values()):
            return
        until = time.monotonic() + config.timeout
        for topic, count in wanted.items():
            while not self._stop.is_set() and self._replay.subscribers(topic) < count:
                if time.monotonic() > until:
                    raise HydraNetError(
                        f"{topic}: {self._replay.subscribers(topic)} of {count} subscribers after "
                        f"{config.timeout:g} s: are the nodes running, in this ROS_DOMAIN_ID?"
                    )
                self._stop.wait(0.02)
        self._stop.wait(SETTLE_S)

    def _finish(self) -> None:
        if not self._stop.is_set() and (missing := self._replay.unacknowledged()):
            self.get_logger().warning(f"not all has arrived of {', '.join(missing)}")
        if self._backlog is not None and (late := self._backlog.wait(self._stop)):
            self.get_logger().warning(f"not done with all of it: {', '.join(late)}")


def main(arguments: list[str] | None = None) -> int:
    """Play as a process, and give its exit code."""
    os.environ.update(environment.fast_dds_profile())
    return run_until_stopped("player_node", _play, arguments)


def _play(stop: Event) -> None:
    node = PlayerNode(stop)
    with answering(node):
        node.run()


if __name__ == "__main__":
    sys.exit(main())
