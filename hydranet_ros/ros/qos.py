"""Quality of service: of inputs by parameter, of outputs reliable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from hydranet_ros.settings import Configuration, setting

RELIABILITIES = {
    "best_effort": ReliabilityPolicy.BEST_EFFORT,
    "reliable": ReliabilityPolicy.RELIABLE,
}
OUTPUT = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)


@dataclass(frozen=True)
class QualityConfig(Configuration):
    """How a node subscribes to sensors."""

    reliability: Literal["best_effort", "reliable"] = setting(
        "best_effort",
        "best_effort matches any publisher; reliable loses nothing, for replays",
        live=False,
    )
    depth: int = setting(5, "messages that the middleware keeps", 1, 10000, live=False)
    silence_s: float = setting(5.0, "warn when no message came for so long", 0.1, live=False)

    @property
    def profile(self) -> QoSProfile:
        """As rclpy takes it."""
        return QoSProfile(depth=self.depth, reliability=RELIABILITIES[self.reliability])

    def __str__(self) -> str:
        return f"{self.reliability}, depth {self.depth}"


@dataclass(frozen=True)
class ReliableConfig(QualityConfig):
    """How a node subscribes to other nodes, of which it should miss nothing."""

    reliability: Literal["best_effort", "reliable"] = setting(
        "reliable", "best_effort matches any publisher; reliable loses nothing", live=False
    )
    depth: int = setting(100, "messages that the middleware keeps", 1, 10000, live=False)


def publishers_of(node: Node, topic: str) -> str:
    """Who publishes on a topic, and how: for a subscription that receives nothing."""
    found: Sequence[object] = node.get_publishers_info_by_topic(topic)
    if not found:
        return "no publisher"
    names = [
        f"{each.node_name} ({each.qos_profile.reliability.name.lower()})"  # type: ignore[attr-defined]
        for each in found
    ]
    return f"published by {', '.join(sorted(names))}"
