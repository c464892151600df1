"""Topics: their names, their quality of service, and who publishes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node, NodeNameNonExistentError
from rclpy.qos import (
    DurabilityPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)

from hydranet_ros.settings import Configuration, setting

RELIABILITIES = {
    "best_effort": ReliabilityPolicy.BEST_EFFORT,
    "reliable": ReliabilityPolicy.RELIABLE,
}
OUTPUT = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
# Of what is published once and kept for those who come later.
LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
COMPRESSED, COMPRESSED_DEPTH = "/compressed", "/compressedDepth"
NEVER_S = 1e9  # as silence_s: of topics whose silence is no fault


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

    expected_from_start: ClassVar[bool] = True
    """Whether silence before the first message is a fault, too."""

    @property
    def streams(self) -> bool:
        """Whether messages come all the time, so that silence is a fault."""
        return self.silence_s < NEVER_S

    @property
    def is_work(self) -> bool:
        """Whether estimates must come out while such messages come in."""
        return self.expected_from_start and self.streams

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


# Of topics that somebody uses once in a while: their silence is no fault.
REQUESTS = ReliableConfig(depth=10, silence_s=NEVER_S)


def greeting(greet: Callable[[], None]) -> PublisherEventCallbacks:
    """Call back when a subscriber has come."""

    def matched(event: Any) -> None:
        if event.current_count_change > 0:
            greet()

    return PublisherEventCallbacks(matched=matched)


# --- who publishes -------------------------------------------------------------------------------


def publishers_of(node: Node, topic: str, profile: QoSProfile) -> str:
    """Who publishes on a topic, and how: for a subscription that receives nothing."""
    found: Sequence[Any] = node.get_publishers_info_by_topic(topic)
    if not found:
        return "no publisher"
    return f"published by {', '.join(sorted(_described(each, profile) for each in found))}"


def _described(publisher: Any, profile: QoSProfile) -> str:
    """Name and policies; where these do not match ours, what is wrong."""
    offered: QoSProfile = publisher.qos_profile
    policies = f"{offered.reliability.name.lower()}, {offered.durability.name.lower()}"
    compatible, reason = qos_check_compatible(offered, profile)
    if compatible == QoSCompatibility.ERROR:
        words = " ".join(reason.removeprefix("ERROR: ").split()).rstrip(";")
        policies += f", does not match: {words}"
    return f"{publisher.node_name} ({policies})"


def is_published(node: Node, topic: str) -> bool:
    """Whether anybody publishes on a topic."""
    return bool(node.get_publishers_info_by_topic(topic))


def is_latched(node: Node, topic: str) -> bool:
    """Whether somebody publishes on a topic for those who come later."""
    return any(
        qos_check_compatible(each.qos_profile, LATCHED)[0] != QoSCompatibility.ERROR
        for each in node.get_publishers_info_by_topic(topic)
    )


# --- names ---------------------------------------------------------------------------------------


def is_remapped(node: Node, topic: str) -> bool:
    """Whether somebody has given another name to a topic."""
    return bool(node.resolve_topic_name(topic) != node.resolve_topic_name(topic, only_expand=True))


def compressed_topic(node: Node, image: str, suffix: str = COMPRESSED) -> str:
    """Where the compressed images of a topic are: beside it, wherever that is remapped to."""
    if is_remapped(node, image + suffix):
        return image + suffix
    return raw_topic(node, image) + suffix


def raw_topic(node: Node, image: str) -> str:
    """The full name of an image topic; that of its compressed images means the same camera."""
    name = str(node.resolve_topic_name(image))
    return name.removesuffix(COMPRESSED).removesuffix(COMPRESSED_DEPTH)


def camera_info_topic(node: Node, image: str, info: str) -> str:
    """Beside the image, as image_pipeline has it, unless `info` itself is remapped.

    /camera/image_raw has /camera/camera_info.
    """
    if is_remapped(node, info):
        return info
    return raw_topic(node, image).rpartition("/")[0] + "/camera_info"


def subscribed(node: Node, name: str, kind: str) -> list[str]:
    """The topics of a type that a node of this namespace subscribes to."""
    try:
        known = node.get_subscriber_names_and_types_by_node(name, node.get_namespace())
    except NodeNameNonExistentError:
        return []
    return [topic for topic, kinds in known if kind in kinds]
