"""Quality of service: of inputs by parameter, of outputs reliable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from hydranet_ros.settings import about, check

RELIABILITIES = {
    "best_effort": ReliabilityPolicy.BEST_EFFORT,
    "reliable": ReliabilityPolicy.RELIABLE,
}
OUTPUT = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)


def _reliability(default: str) -> Any:
    text = "best_effort hears any publisher; reliable loses nothing, for replays"
    metadata = about(text, choices=tuple(RELIABILITIES), read_only=True)
    return field(default=default, metadata=metadata)


def _depth(default: int) -> Any:
    metadata = about("messages that the middleware keeps", 1, 10000, read_only=True)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class QualityConfig:
    """How a node listens to sensors."""

    reliability: str = _reliability("best_effort")
    depth: int = _depth(5)
    silence_s: float = field(
        default=5.0,
        metadata=about("say so when a topic is silent for so long", 0.1, read_only=True),
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def profile(self) -> QoSProfile:
        """As rclpy takes it."""
        return QoSProfile(depth=self.depth, reliability=RELIABILITIES[self.reliability])

    def __str__(self) -> str:
        return f"{self.reliability}, depth {self.depth}"


@dataclass(frozen=True)
class ReliableConfig(QualityConfig):
    """How a node listens to other nodes, of which it should miss nothing."""

    reliability: str = _reliability("reliable")
    depth: int = _depth(100)


def publishers_of(node: Node, topic: str) -> str:
    """Who publishes on a topic, and how: for somebody who hears nothing."""
    found: Sequence[object] = node.get_publishers_info_by_topic(topic)
    if not found:
        return "nobody publishes there"
    names = [
        f"{each.node_name} ({each.qos_profile.reliability.name.lower()})"  # type: ignore[attr-defined]
        for each in found
    ]
    return f"published by {', '.join(sorted(names))}"
