"""Rules of arrival: bring the motion and the rotation of one interval together.

Measurements are grouped by the stamp they end at, and groups are fused in the order of their
stamps. A group with both sources is complete. An incomplete one is fused without the other source
as soon as that source has passed the stamp (a source never goes back), or when the group has
waited for `max_wait_s`. After such a timeout the source is not waited for until it sends again,
so an absent source delays a single group. What comes after its group was fused, is fused alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.stamps import nearest

Measurement = RelativePose | RelativeRotation
ODOMETRY, ROTATION = SOURCES = ("odometry", "rotation")
DEGREES_OF_FREEDOM = {ODOMETRY: 6, ROTATION: 3}  # of the innovations of a source
IMU = "imu"  # comes at its own rate, and is awaited by nobody


def source_of(measurement: Measurement) -> str:
    """Which source a measurement is of."""
    return ODOMETRY if isinstance(measurement, RelativePose) else ROTATION


@dataclass
class Group:
    """What is known of the motion that ends at a stamp, and when the first of it arrived."""

    stamp_ns: int
    arrived: float
    measurements: dict[str, Measurement] = field(default_factory=dict)


class MeasurementPairing:
    """Measurements in, groups that are ready out."""

    def __init__(
        self, tolerance_ns: int, max_wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tolerance_ns, self.max_wait_s, self._clock = tolerance_ns, max_wait_s, clock
        self.clear()

    def apply(self, config: FusionConfig) -> None:
        """Go on with other settings."""
        self.tolerance_ns = round(config.stamp_tolerance_s * 1e9)
        self.max_wait_s = config.max_wait_s

    def clear(self) -> None:
        """Forget what waits, and wait for both sources again."""
        self._groups: dict[int, Group] = {}
        self._newest: dict[str, int] = {}
        self._absent: set[str] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def passed(self, source: str, stamp_ns: int) -> None:
        """Note that a source has come to a stamp, with or without a measurement."""
        self._newest[source] = stamp_ns
        self._absent.discard(source)

    def add(self, measurement: Measurement) -> None:
        """Take a measurement in."""
        source, stamp = source_of(measurement), measurement.stamp_2_ns
        self.passed(source, stamp)
        known = nearest(self._groups, stamp, self.tolerance_ns)
        stamp = stamp if known is None else known
        group = self._groups.setdefault(stamp, Group(stamp, self._clock()))
        group.measurements[source] = measurement

    def ready(self) -> Iterator[Group]:
        """Take out the groups that need not wait, the earliest first."""
        while self._groups:
            group = self._groups[min(self._groups)]
            timeout = self._clock() - group.arrived > self.max_wait_s
            missing = [s for s in SOURCES if s not in group.measurements]
            awaited = [s for s in missing if self._may_come(s, group.stamp_ns)]
            if awaited and not timeout:
                return
            self._absent |= set(awaited)
            del self._groups[group.stamp_ns]
            yield group

    def _may_come(self, source: str, stamp_ns: int) -> bool:
        newest = self._newest.get(source)
        passed = newest is not None and newest >= stamp_ns - self.tolerance_ns
        return source not in self._absent and not passed
