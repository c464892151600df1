"""Subscriptions that several nodes of one process share: a message is received and decoded once.

DDS would give each node its own copy of an image, and Python would unpack each of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

Decoded = TypeVar("Decoded")
_KEPT = 8  # decoded images: a few pairs
_QUALITIES = ("reliability", "durability", "history", "depth")


class SharedSubscription:
    """The part of one node in a subscription."""

    def __init__(self, channel: _Channel, callback: Callable[[Any], None]) -> None:
        self._channel, self.callback = channel, callback
        self.topic_name: str = channel.subscription.topic_name
        self.qos_profile: QoSProfile = channel.subscription.qos_profile

    def close(self) -> None:
        """Hear no more; the last one closes the subscription."""
        self._channel.leave(self)


class _Channel:
    """One subscription, and who hears it, in the order in which they came."""

    def __init__(self, node: Node, kind: type[Any], topic: str, profile: QoSProfile) -> None:
        self._node = node
        self.members: list[SharedSubscription] = []
        self.subscription: Subscription[Any] = node.create_subscription(
            kind, topic, self._receive, profile
        )

    def _receive(self, message: Any) -> None:
        for member in tuple(self.members):
            member.callback(message)

    def leave(self, member: SharedSubscription) -> None:
        if member in self.members:
            self.members.remove(member)
            if not self.members:
                self._node.destroy_subscription(self.subscription)

    @property
    def is_open(self) -> bool:
        return bool(self.members)


class SharedSubscriptions:
    """The subscriptions of a process, by topic, type and quality of service.

    A subscription belongs to `owner`, who lives as long as all of them, or to the first node that
    asks for it: without an owner, or where remaps of that node alone apply.
    """

    def __init__(self, owner: Node | None = None) -> None:
        self._owner = owner
        self._channels: dict[tuple[Any, ...], _Channel] = {}
        self._lock = threading.Lock()
        self._decoded: deque[tuple[Any, Any]] = deque(maxlen=_KEPT)

    def subscribe(
        self,
        node: Node,
        kind: type[Any],
        topic: str,
        callback: Callable[[Any], None],
        profile: QoSProfile,
    ) -> SharedSubscription:
        """Hear a topic, by a subscription that is there or by a new one."""
        name = node.resolve_topic_name(topic)
        key = kind, name, *(str(getattr(profile, each)) for each in _QUALITIES)
        channel = self._channels.get(key)
        if channel is None or not channel.is_open:
            holder, known_as = self._holder(node, topic, name)
            channel = self._channels[key] = _Channel(holder, kind, known_as, profile)
        member = SharedSubscription(channel, callback)
        channel.members.append(member)
        return member

    def _holder(self, node: Node, topic: str, name: str) -> tuple[Node, str]:
        """Who subscribes, and by which name: a full name is remapped once more."""
        if self._owner is not None:
            for each in (topic, name):
                if self._owner.resolve_topic_name(each) == name:
                    return self._owner, each
        return node, topic

    def decoded(self, message: Any, decode: Callable[[], Decoded]) -> Decoded:
        """`decode()`, or what it gave when another node asked for this very message."""
        with self._lock:
            for known, result in self._decoded:
                if known is message:
                    return cast("Decoded", result)
            made = decode()
            self._decoded.append((message, made))
            return made
