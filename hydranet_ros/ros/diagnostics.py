"""What a node reports of itself: rates, latencies, warnings, silent topics; as diagnostics."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.impl.rcutils_logger import RcutilsLogger

from hydranet_ros.fusion.sliding_window import FusedState
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.ros.qos import QualityConfig

RECENT = 200
RECENT_NIS = 100


class WarningCounter:
    """Bad input is warned about once per reason, and counted."""

    def __init__(self, logger: RcutilsLogger) -> None:
        self._logger = logger
        self.counts: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()

    def __call__(self, kind: str, text: str) -> None:
        """Count `kind`; `text` has the details of this one."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            self._logger.warning(f"{text} [{kind}; further ones are counted in /diagnostics]")

    def news(self) -> Counter[str]:
        """What came since the last call."""
        new = self.counts - self._reported
        self._reported = Counter(self.counts)
        return new


class Throughput:
    """The rate and the latency of what was processed lately."""

    def __init__(self) -> None:
        self.count = 0
        self._moments: deque[float] = deque(maxlen=RECENT)
        self._latencies: deque[float] = deque(maxlen=RECENT)

    def add(self, latency_s: float) -> None:
        """Note that something is done now, so long after it arrived."""
        self.count += 1
        self._moments.append(time.monotonic())
        self._latencies.append(latency_s)

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


class SubscriptionMonitor:
    """When a subscription last received something, and whether its silence was warned about."""

    def __init__(self, topic: str, quality: QualityConfig) -> None:
        self.topic, self.quality = topic, quality
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._received = time.monotonic()
        self.warned = False

    def receive(self) -> None:
        """Note a message."""
        self.restart()

    @property
    def silent(self) -> bool:
        """Whether nothing was received for too long."""
        return time.monotonic() - self._received > self.quality.silence_s


# --- what estimates tell of themselves -----------------------------------------------------------


class FusionHealth:
    """Consistency, bias, and how sure the pose is, of the fused states lately."""

    def __init__(self) -> None:
        self._nis: dict[str, deque[float]] = {}

    def clear(self) -> None:
        """Forget the states so far."""
        self._nis.clear()

    def add(self, state: FusedState) -> None:
        """Take a state in."""
        for source, value in state.nis.items():
            self._nis.setdefault(source, deque(maxlen=RECENT_NIS)).append(value)

    def values(self, state: FusedState) -> dict[str, str]:
        """For diagnostics: NIS per source (about its degrees of freedom), sigmas, bias."""
        sigma = np.sqrt(np.diag(state.Sigma_c_w))
        values = {
            "sigma position (m)": f"{sigma[:3].max():.3f}",
            "sigma orientation (deg)": f"{np.rad2deg(sigma[3:].max()):.3f}",
            "bias (deg/s)": " ".join(f"{v:.3f}" for v in np.rad2deg(state.bias)),
        }
        for source, recent in self._nis.items():
            values[f"NIS {source}"] = f"{np.mean(recent):.2f} over {len(recent)}"
        return values


def rotation_health(rotation: RelativeRotation) -> dict[str, str]:
    """Standard deviations, and how much of the variance is epistemic."""
    sigma = np.rad2deg(np.sqrt(np.linalg.eigvalsh(rotation.Sigma_2_1)))
    values = {"sigma (deg)": f"{sigma[0]:.4f} to {sigma[-1]:.4f}"}
    if rotation.epistemic is not None:
        share = np.trace(rotation.epistemic) / np.trace(rotation.Sigma_2_1)
        values["epistemic share"] = f"{share:.3f}"
    return values


# --- messages ------------------------------------------------------------------------------------


def resident_mb() -> float | None:
    """The memory that this process has in use; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def diagnostic_array(
    stamp: object, name: str, values: Mapping[str, str], warnings: list[str]
) -> DiagnosticArray:
    """The message for /diagnostics with one status: OK, or WARN with the warnings."""
    level = DiagnosticStatus.WARN if warnings else DiagnosticStatus.OK
    status = DiagnosticStatus(
        level=level,
        name=name,
        message="; ".join(warnings) or "running",
        hardware_id="",
        values=[KeyValue(key=key, value=value) for key, value in values.items()],
    )
    array = DiagnosticArray(status=[status])
    array.header.stamp = stamp
    return array
