"""Rules of arrival for odometry that is faster than the camera, as wheels are.

States are made where rotations begin and end, at most `state_rate_hz` of them: shorter rotations
in a row are composed first. Odometry is preintegrated between them. A rotation waits only until
odometry has come to its end, and enters where it belongs, however late it comes: where it begins
or ends within a motion of the window, that motion is cut there. Where no rotation comes for
`max_wait_s`, states are made at `state_rate_hz` from the odometry alone; where no odometry comes
for so long, from rotations alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hydranet_ros.fusion.arrival import ODOMETRY, ROTATION, Group, Measurement
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.preintegration import OdometryBuffer
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

# Rotations shorter than this share of a step between states are composed: stamps are not exact.
SHORT = 0.9
# A lone message cannot be told from the start of a gap by less than this.
LEAST_WAIT_S = 0.05
# So many rotations wait for odometry that comes and is behind, and then the oldest go: clocks are
# not set together.
MOST_WAITING = 1000


class OwnRates:
    """Measurements in, groups that are ready out: one for each new state."""

    def __init__(
        self,
        window: SlidingWindowFusion,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window, self._clock = window, clock
        self.odometry = OdometryBuffer(0.0)
        self._rotations: list[tuple[RelativeRotation, float]] = []
        self.clear()

    def apply(self, config: FusionConfig) -> None:
        """Go on with other settings."""
        self._step_ns = round(1e9 / config.state_rate_hz)
        self._tolerance_ns = round(config.stamp_tolerance_s * 1e9)
        self._wait_ns = round(max(config.max_wait_s, LEAST_WAIT_S) * 1e9)
        self.odometry.keep_ns = round(config.window_s * 1e9) + 2 * self._wait_ns

    def clear(self) -> None:
        """Forget what waits, and the odometry so far."""
        self.apply(self._window.config)
        self.odometry.clear()
        self._rotations.clear()
        self._passed: dict[str, int] = {}
        self._heard = self._clock()  # when odometry came last
        self._absent: set[str] = set()

    def __len__(self) -> int:
        return len(self._rotations)

    def passed(self, source: str, stamp_ns: int) -> None:
        """Note that a source has come to a stamp, with or without a measurement."""
        self._passed[source] = max(stamp_ns, self._passed.get(source, stamp_ns))
        if source == ODOMETRY:
            self._heard = self._clock()
        self._absent.discard(source)

    def add(self, measurement: Measurement) -> None:
        """Take a measurement in."""
        if isinstance(measurement, RelativePose):
            self.passed(ODOMETRY, measurement.stamp_2_ns)
            self.odometry.add(measurement)
            return
        self.passed(ROTATION, measurement.stamp_2_ns)
        if self._rotations:
            last, arrived = self._rotations[-1]
            if last.stamp_2_ns == measurement.stamp_1_ns and self._is_short(last):
                self._rotations[-1] = last.then(measurement), arrived
                return
        self._rotations.append((measurement, self._clock()))

    def ready(self) -> Iterator[Group]:
        """Take out what need not wait, the earliest first."""
        yield from self._start()
        while self._rotations and self._is_due(*self._rotations[0]):
            rotation, arrived = self._rotations.pop(0)
            yield from self._with(rotation, arrived)
        del self._rotations[:-MOST_WAITING]
        yield from self._without_rotations()

    # --- rotations -------------------------------------------------------------------------------

    def _is_due(self, rotation: RelativeRotation, arrived: float) -> bool:
        """Whether odometry has come to its end, or was awaited for long enough."""
        more = len(self._rotations) == 1 and self._is_short(rotation)
        if more and not self._is_old(rotation):
            return False  # more of it may come
        if self._passed.get(ODOMETRY, -1) >= rotation.stamp_2_ns - self._tolerance_ns:
            return True
        if ODOMETRY in self._absent:
            return True
        if self._clock() - max(arrived, self._heard) <= self._window.config.max_wait_s:
            return False  # also where odometry comes, and is behind
        self._absent.add(ODOMETRY)
        return True

    def _is_short(self, rotation: RelativeRotation) -> bool:
        return rotation.stamp_2_ns - rotation.stamp_1_ns < SHORT * self._step_ns

    def _is_old(self, rotation: RelativeRotation) -> bool:
        """Whether odometry went on for long after it: nothing more of it will come."""
        return self._passed.get(ODOMETRY, 0) - rotation.stamp_2_ns > self._wait_ns

    def _start(self) -> Iterator[Group]:
        """The first motion makes the first states: everything else goes on from there."""
        oldest = self.odometry.oldest_ns
        if oldest is None or self._window.odometry_seen:
            return
        first = self.odometry.parts(oldest, oldest + self._step_ns)[0]
        yield Group(first.end, self._clock(), {ODOMETRY: first.checked})

    def _with(self, rotation: RelativeRotation, arrived: float) -> Iterator[Group]:
        """Odometry up to where a rotation begins, then both to where it ends."""
        begin, end = rotation.stamp_1_ns, rotation.stamp_2_ns
        oldest = self._window.oldest_ns
        if oldest is not None and begin < oldest - self._tolerance_ns and self._is_first(begin):
            return  # of before there was odometry
        for stamp in (begin, end):
            self._cut(stamp)
        newest = self._newest()
        if newest is not None:
            for motion in self.odometry.between(newest, begin):
                if motion.end - motion.begin > self._tolerance_ns:
                    yield Group(motion.end, arrived, {ODOMETRY: motion.checked})
        newest = self._newest()
        motions = [] if newest is None else self.odometry.between(max(newest, begin), end)
        for motion in motions[:-1]:
            yield Group(motion.end, arrived, {ODOMETRY: motion.checked})
        group = Group(end, arrived, {ROTATION: rotation})
        if motions and motions[-1].end - motions[-1].begin > self._tolerance_ns:
            group.measurements[ODOMETRY] = motions[-1].checked
        yield group

    def _is_first(self, stamp: int) -> bool:
        oldest = self.odometry.oldest_ns
        return oldest is not None and stamp < oldest

    def _newest(self) -> int | None:
        """The newest state, which groups that were taken out before have moved on."""
        return self._window.newest_ns

    def _cut(self, stamp: int) -> None:
        """Cut the motion of the window that a late rotation begins or ends within."""
        over = self._window.odometry_across(stamp)
        if over is None:
            return
        parts = [self.odometry.between(over[0], stamp), self.odometry.between(stamp, over[1])]
        if all(len(part) == 1 for part in parts):
            before, after = parts[0][0], parts[1][0]
            if before.begin == over[0] and after.end == over[1]:
                self._window.cut(before.checked, after.checked)

    # --- odometry alone --------------------------------------------------------------------------

    def _without_rotations(self) -> Iterator[Group]:
        """States from odometry alone, where rotations have been awaited for long enough."""
        reached, newest = self.odometry.newest_ns, self._newest()
        if reached is None or newest is None:
            return
        limit = reached - self._wait_ns
        if self._rotations:
            limit = min(limit, self._rotations[0][0].stamp_1_ns)
        while newest + self._step_ns <= limit:
            motions = self.odometry.between(newest, newest + self._step_ns)
            if not motions:  # a gap: the next state is where odometry goes on
                motions = self.odometry.between(newest, limit)[:1]
                if not motions:
                    return
            for motion in motions:
                yield Group(motion.end, self._clock(), {ODOMETRY: motion.checked})
            newest = motions[-1].end
