"""A path of poses, for RViz: bounded, and not sent more often than anybody looks."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry, Path

from hydranet_ros.ros.managed import ManagedNode
from hydranet_ros.settings import about, check


@dataclass(frozen=True)
class TrailConfig:
    """How long a path is, and how often it is told."""

    poses: int = field(
        default=5000, metadata=about("poses that the path keeps", 1, 1000000, read_only=True)
    )
    period_s: float = field(
        default=1.0, metadata=about("the path is told this often at most", 0.0, 3600.0)
    )

    def __post_init__(self) -> None:
        check(self)


class Trail:
    """Collect the poses of odometry, and publish them as a path."""

    def __init__(self, node: ManagedNode[Any], topic: str, config: TrailConfig) -> None:
        self._node, self._config = node, config
        self._publisher = node.speak(Path, topic)
        self._poses: deque[PoseStamped] = deque(maxlen=config.poses)
        self._told = 0.0

    def clear(self) -> None:
        """Begin a new path."""
        self._poses.clear()

    def add(self, message: Odometry) -> None:
        """Take a pose in; tell the path when it is due and somebody listens."""
        self._poses.append(PoseStamped(header=message.header, pose=message.pose.pose))
        now = time.monotonic()
        due = now - self._told >= self._config.period_s
        if due and self._publisher.get_subscription_count():
            self._told = now
            self._node.publish(
                self._publisher, Path(header=message.header, poses=list(self._poses))
            )
