"""What a node can say of itself: counts, rates, latencies, complaints; as diagnostics."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.impl.rcutils_logger import RcutilsLogger

from hydranet_ros.ros.qos import QualityConfig

RECENT = 200


class Complaints:
    """Log the first of each kind, count the rest."""

    def __init__(self, logger: RcutilsLogger) -> None:
        self._logger = logger
        self.counts: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()

    def __call__(self, kind: str, text: str) -> None:
        """Complain about `kind`; `text` has the details of this one."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            self._logger.warning(f"{text} [{kind}; further ones are counted in /diagnostics]")

    def news(self) -> Counter[str]:
        """What came since the last call."""
        new = self.counts - self._reported
        self._reported = Counter(self.counts)
        return new


class Pace:
    """The rate and the latency of what was done lately."""

    def __init__(self) -> None:
        self.count = 0
        self._moments: deque[float] = deque(maxlen=RECENT)
        self._latencies: deque[float] = deque(maxlen=RECENT)

    def add(self, began: float) -> None:
        """Note that what arrived at `began` (time.monotonic) is done now."""
        now = time.monotonic()
        self.count += 1
        self._moments.append(now)
        self._latencies.append(now - began)

    @property
    def rate(self) -> float:
        """Per second, over the last few seconds; 0 in silence."""
        now = time.monotonic()
        recent = [moment for moment in self._moments if now - moment < 5.0]
        if len(recent) < 2:
            return 0.0
        return (len(recent) - 1) / (recent[-1] - recent[0] + 1e-9)

    def latency_ms(self, percentile: float) -> float:
        """Of the last few hundred; NaN without any."""
        if not self._latencies:
            return float("nan")
        return 1e3 * float(np.percentile(np.array(self._latencies), percentile))

    def values(self) -> dict[str, str]:
        """For diagnostics."""
        values = {"rate (Hz)": f"{self.rate:.2f}", "done": str(self.count)}
        if self._latencies:
            values["latency p50 (ms)"] = f"{self.latency_ms(50):.1f}"
            values["latency p95 (ms)"] = f"{self.latency_ms(95):.1f}"
        return values


def resident_mb() -> float | None:
    """The memory that this process has in use; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def status(name: str, values: Mapping[str, str], worries: list[str]) -> DiagnosticStatus:
    """One status: OK, or WARN with what worries."""
    level = DiagnosticStatus.WARN if worries else DiagnosticStatus.OK
    message = "; ".join(worries) or "running"
    pairs = [KeyValue(key=key, value=value) for key, value in values.items()]
    return DiagnosticStatus(level=level, name=name, message=message, hardware_id="", values=pairs)


def diagnostic_array(stamp: object, each: DiagnosticStatus) -> DiagnosticArray:
    """The message for /diagnostics."""
    array = DiagnosticArray(status=[each])
    array.header.stamp = stamp
    return array


# --- ros.listening -----------------------------------------------------------------------------
# Listening to a topic, and noticing its silence.


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
