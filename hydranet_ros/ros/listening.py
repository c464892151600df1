"""Listening to a topic, and noticing its silence."""

from __future__ import annotations

import time

from hydranet_ros.ros.quality import QualityConfig


class Ear:
    """One subscription: when it last heard something, and whether its silence was told."""

    def __init__(self, topic: str, quality: QualityConfig) -> None:
        self.topic, self.quality = topic, quality
        self.heard = time.monotonic()
        self.count = 0
        self.told = False

    def hear(self) -> None:
        """Note a message."""
        self.heard, self.told = time.monotonic(), False
        self.count += 1

    @property
    def silent(self) -> bool:
        """Whether nothing was heard for too long."""
        return time.monotonic() - self.heard > self.quality.silence_s
