"""What a node reports of itself: rates, latencies, warnings, silent topics; as diagnostics."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.impl.rcutils_logger import RcutilsLogger

from hydranet_ros.fusion.arrival import DEGREES_OF_FREEDOM
from hydranet_ros.fusion.edges import FusedState, scales
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.stamps import Leftovers
from hydranet_ros.ros.qos import QualityConfig

if TYPE_CHECKING:
    from hydranet_ros.stereo_vo.result import VOResult

RECENT = 200
RECENT_NIS = 100
REPEAT_S = 10.0  # a warning of one kind is logged this often at most
NEWS_S = 5.0  # so long a warning raises the level
MANY_UNMATCHED = 0.1  # of the images


class WarningCounter:
    """Bad input is counted by its kind, and logged: the first at once, then with the count."""

    def __init__(self, logger: RcutilsLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self.counts: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}  # when, and the count then
        self._recent: deque[tuple[float, str]] = deque(maxlen=10_000)

    def __call__(self, kind: str, text: str) -> None:
        """Count `kind`; `text` has the details of this one."""
        self.counts[kind] += 1
        now, count = self._clock(), self.counts[kind]
        self._recent.append((now, kind))
        moment, before = self._logged.get(kind, (-REPEAT_S, 0))
        if now - moment >= REPEAT_S or before == 0:
            self._logged[kind] = now, count
            since = f"; {count - before} since the last such line" if before else ""
            self._logger.warning(f"{text} [{kind}{since}]")

    def news(self) -> Counter[str]:
        """What came lately."""
        while self._recent and self._clock() - self._recent[0][0] > NEWS_S:
            self._recent.popleft()
        return Counter(kind for _, kind in tuple(self._recent))  # a worker may add to it


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
        moments = tuple(self._moments)  # a worker may add to it
        recent = [moment for moment in moments if now - moment < 5.0]
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
    """When a subscription last received something, and when its silence was warned about."""

    def __init__(self, topic: str, quality: QualityConfig, latched: bool = False) -> None:
        self.topic, self.quality, self._latched = topic, quality, latched
        self.leftovers = Leftovers()
        self.received = 0
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._since = time.monotonic()
        self._warned = -REPEAT_S

    def receive(self) -> None:
        """Note a message."""
        self.received += 1
        self.restart()

    @property
    def silent(self) -> bool:
        """Whether nothing was received for too long. What is latched is sent once."""
        if self._latched and self.received:
            return False
        if not (self.received or self.quality.expected_from_start):
            return False
        return time.monotonic() - self._since > self.quality.silence_s

    @property
    def is_due(self) -> bool:
        """Whether its silence should be logged now: it was not for a while."""
        due = time.monotonic() - self._warned >= REPEAT_S
        if due:
            self._warned = time.monotonic()
        return due


class Productivity:
    """Whether estimates come out while messages come in."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._estimated = self._heard = time.monotonic()
        self._reason = ""

    def note(self, reason: str | None) -> None:
        """Take the outcome of a frame in: None for an estimate, else why there is none."""
        if reason is None:
            self._estimated, self._reason = time.monotonic(), ""
        else:
            self._reason = reason

    def hear(self) -> None:
        """Note that a message came in."""
        self._heard = time.monotonic()

    def problem(self, patience_s: float) -> tuple[bytes, str] | None:
        """After too long without an estimate: an error where there was something to work on."""
        now = time.monotonic()
        if now - self._estimated <= patience_s:
            return None
        if now - self._heard > patience_s:
            return DiagnosticStatus.WARN, "rate 0: no input"
        why = f", lost: {self._reason}" if self._reason else " although there is input"
        return DiagnosticStatus.ERROR, f"no output for {now - self._estimated:.0f} s{why}"


class PairHealth:
    """How many images find their other half lately."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, int]] = deque(maxlen=int(NEWS_S) + 1)

    def problem(self, matched: int, unmatched: int) -> str | None:
        """Take the counts in, once a second; what is wrong with their growth."""
        self._counts.append((matched, unmatched))
        new = [now - then for now, then in zip(self._counts[-1], self._counts[0], strict=True)]
        images = 2 * new[0] + new[1]
        if new[1] < 2 or new[1] <= MANY_UNMATCHED * images:
            return None
        return f"{new[1]} of {images} images without their other half"


# --- what estimates tell of themselves -----------------------------------------------------------


# Where the mean NIS of a source is as it should be, as a share of its degrees of freedom.
LEAST_NIS, MOST_NIS = 0.7, 1.4


class FusionHealth:
    """Consistency, bias, and how sure the pose is, of the fused states lately."""

    def __init__(self) -> None:
        self._nis: dict[str, deque[float]] = {}

    def clear(self) -> None:
        """Forget the states so far."""
        self._nis.clear()

    def add(self, state: FusedState, warn: Callable[[str, str], None]) -> None:
        """Take a state in, and warn of what was rejected."""
        for each in state.rejected:
            warn(f"{each.source} rejected", f"{each.source}: {each.reason}")
        for source, value in state.nis.items():
            self._nis.setdefault(source, deque(maxlen=RECENT_NIS)).append(value)

    def values(self, state: FusedState | None) -> dict[str, str]:
        """For diagnostics: NIS per source (about its degrees of freedom), sigmas, bias."""
        if state is None:
            return {}
        sigma = np.sqrt(np.diag(state.Sigma_c_w))
        values = {
            "sigma position (m)": f"{sigma[:3].max():.3f}",
            "sigma orientation (deg)": f"{np.rad2deg(sigma[3:].max()):.3f}",
            "bias (deg/s)": " ".join(f"{v:.3f}" for v in np.rad2deg(state.bias)),
        }
        if state.Sigma_imu_bias is not None:
            of = np.rad2deg(np.sqrt(np.diag(state.Sigma_imu_bias)).max())
            found = " ".join(f"{v:.3f}" for v in np.rad2deg(state.imu_bias))
            values["bias of the IMU (deg/s)"] = f"{found} +- {of:.3f}"
        values["stands"] = "yes" if state.still else "no"
        for name, (error, of) in scales(state).items():
            values[f"scale of {name} (%)"] = f"{100 * error:+.2f} +- {100 * of:.2f}"
        for source, recent in self._nis.items():
            mean = float(np.mean(recent))
            values[f"NIS {source}"] = f"{mean:.2f} over {len(recent)}"
            values[f"confidence of {source}"] = confidence(mean / DEGREES_OF_FREEDOM[source])
        return values


def confidence(share: float) -> str:
    """What a mean NIS says of sigmas, as a share of its dimension: ideal is 1."""
    if LEAST_NIS <= share <= MOST_NIS:
        return "as it says"
    factor = max(share, 1e-6) ** 0.5
    if share > 1.0:
        return f"over-confident: sigmas are {factor:.1f} times too small"
    return f"under-confident: sigmas are {1.0 / factor:.1f} times too large"


def rotation_health(rotation: RelativeRotation) -> dict[str, str]:
    """Standard deviations, and how much of the variance is epistemic, or lasts."""
    sigma = np.rad2deg(np.sqrt(np.linalg.eigvalsh(rotation.Sigma_2_1)))
    values = {"sigma (deg)": f"{sigma[0]:.4f} to {sigma[-1]:.4f}"}
    if rotation.epistemic is not None:
        share = np.trace(rotation.epistemic) / np.trace(rotation.Sigma_2_1)
        values["epistemic share"] = f"{share:.3f}"
    if rotation.persistent is not None:
        share = np.trace(rotation.persistent) / np.trace(rotation.Sigma_2_1)
        values["persistent share"] = f"{share:.3f}"
        values["persistent for (s)"] = f"{rotation.persistent_s:.3g}"
    return values


def odometry_health(
    result: VOResult, calibration_px: tuple[float, float] | None
) -> dict[str, str]:
    """How a frame of the odometry went, and how well distances and the calibration are known."""
    s = result.statistics
    values = {
        "tracks": str(s.tracks),
        "inliers": str(s.inliers),
        "residual scale": f"{s.residual_scale:.2f}",
        "computing (ms)": f"{s.milliseconds:.1f}",
    }
    if calibration_px is not None:
        values["calibration off by (px)"] = "{:.1f} left, {:.1f} right".format(*calibration_px)
    if result.pose is not None:
        sigma = np.sqrt(np.diag(result.pose.Sigma_2_1))
        values["sigma (m)"] = f"{sigma[:3].max():.4f}"
        values["sigma (deg)"] = f"{np.rad2deg(sigma[3:].max()):.4f}"
        values["scale sigma (%)"] = f"{100.0 * result.pose.scale_sigma:.3f}"
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
    stamp: object, name: str, values: Mapping[str, str], problems: list[tuple[bytes, str]]
) -> DiagnosticArray:
    """The message for /diagnostics with one status: OK, or the worst level of the problems."""
    worst_first = sorted(problems, key=lambda each: each[0], reverse=True)
    status = DiagnosticStatus(
        level=worst_first[0][0] if problems else DiagnosticStatus.OK,
        name=name,
        message="; ".join(text for _, text in worst_first) or "running",
        hardware_id="",
        values=[KeyValue(key=key, value=value) for key, value in values.items()],
    )
    array = DiagnosticArray(status=[status])
    array.header.stamp = stamp
    return array
