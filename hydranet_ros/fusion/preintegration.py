"""Preintegration of fast odometry: its motions, composed between any two stamps.

Odometry sends a motion T_k+1_k with Sigma_k+1_k every few milliseconds. Between two stamps

    T_b_a = T_n_n-1 ... T_2_1,    Sigma_b_a = sum of Ad(T_b_k) Sigma_k_k-1 Ad(T_b_k)^T

as motions in a row are independent. Inside a motion the velocity is constant: the share s of it is
Exp(s Log(T)), with s Sigma, as white noise grows with time. So what is cut anywhere and composed
again is the whole, to first order in the noise.

The pose at the newest odometry: the last solution, and what odometry has moved since.

    T_c_w = T_tail T_s_w,    Sigma = Sigma_tail + Ad(T_tail) Sigma_s Ad(T_tail)^T

with the state s that was solved last. When a solution changes what was already told, the output
does not jump: it differs from the solution by Exp(xi) in the frame of the camera, and xi dies away
with a time constant of smooth_s / 3, so that 5 % are left after `smooth_s`. While it does, the
output is known to be off by xi: xi xi^T is added to its covariance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array


@dataclass(frozen=True, eq=False, slots=True)
class Motion:
    """T_2_1 with the covariance of its left perturbation, from `begin` to `end` (ns).

    As a RelativePose, without its checks: these are parts of motions that were checked.
    """

    T: Array
    Sigma: Array
    begin: int
    end: int

    @classmethod
    def of(cls, motion: RelativePose) -> Motion:
        """The same motion."""
        return cls(motion.T_2_1, motion.Sigma_2_1, motion.stamp_1_ns, motion.stamp_2_ns)

    @property
    def checked(self) -> RelativePose:
        """As a measurement."""
        return RelativePose(self.T, self.Sigma, self.begin, self.end)

    def then(self, later: Motion) -> Motion:
        """The motion over both."""
        adjoint = lie.se3_adjoint(later.T)
        Sigma = later.Sigma + adjoint @ self.Sigma @ adjoint.T
        return Motion(later.T @ self.T, Sigma, self.begin, later.end)

    def part(self, begin: int, end: int) -> Motion:
        """What of it lies between two stamps within it."""
        if (begin, end) == (self.begin, self.end):
            return self
        share = (end - begin) / (self.end - self.begin)
        return Motion(lie.se3_exp(share * lie.se3_log(self.T)), share * self.Sigma, begin, end)


class OdometryBuffer:
    """The motions of the last `keep_s` seconds, in order; where one begins late there is a gap."""

    def __init__(self, keep_s: float) -> None:
        self.keep_ns = round(keep_s * 1e9)
        self._motions: deque[Motion] = deque()

    def clear(self) -> None:
        """Forget all."""
        self._motions.clear()

    def __len__(self) -> int:
        return len(self._motions)

    @property
    def oldest_ns(self) -> int | None:
        """Where the oldest motion begins."""
        return self._motions[0].begin if self._motions else None

    @property
    def newest_ns(self) -> int | None:
        """Where the newest motion ends."""
        return self._motions[-1].end if self._motions else None

    @property
    def last(self) -> Motion:
        """The newest motion."""
        return self._motions[-1]

    def add(self, motion: RelativePose) -> None:
        """Take the next motion in; of one that begins before the last ended, the rest counts."""
        new = Motion.of(motion)
        if self._motions:
            last = self._motions[-1].end
            if new.end <= last:
                return
            if new.begin < last:
                new = new.part(last, new.end)
        self._motions.append(new)
        while new.end - self._motions[0].end > self.keep_ns:
            self._motions.popleft()

    def parts(self, begin: int, end: int) -> list[Motion]:
        """The motions between two stamps, cut there."""
        first = bisect_right(self._motions, begin, key=lambda motion: motion.end)
        found = []
        for i in range(first, len(self._motions)):
            motion = self._motions[i]
            if motion.begin >= end:
                break
            found.append(motion.part(max(begin, motion.begin), min(end, motion.end)))
        return found

    def between(self, begin: int, end: int) -> list[Motion]:
        """The motion between two stamps; several, or none, where there are gaps."""
        whole: list[Motion] = []
        for part in self.parts(begin, end):
            if whole and whole[-1].end == part.begin:
                whole[-1] = whole[-1].then(part)
            else:
                whole.append(part)
        return whole


def scaled(motion: Motion, turn: float, distance: float) -> Motion:
    """The motion with its way and its turn divided by 1 + error: what calibration takes out."""
    if turn == 0.0 and distance == 0.0:
        return motion
    xi = lie.se3_log(motion.T) / np.repeat([1.0 + distance, 1.0 + turn], 3)
    return Motion(lie.se3_exp(xi), motion.Sigma, motion.begin, motion.end)


class LiveOutput:
    """A state for every motion of the odometry, at once."""

    def __init__(self, odometry: OdometryBuffer, smooth_s: float) -> None:
        self._odometry, self.smooth_s = odometry, smooth_s
        self.clear()

    def clear(self) -> None:
        """Forget what was told: the next output may be anywhere."""
        self._solved: FusedState | None = None
        self._tail: Motion | None = None  # from the solution to the newest odometry
        self._told: tuple[int, Array] | None = None  # the last output
        self._apart = np.zeros(6)  # Log(inv(T_w_c solved) T_w_c told)

    def solve(self, state: FusedState) -> None:
        """Take the newest solution; the output goes over to it smoothly."""
        if self._solved is not None and state.stamp_ns < self._solved.stamp_ns:
            return
        self._solved, self._tail = state, None
        if self._told is None or self.smooth_s <= 0.0:
            return
        stamp, T_w_c = self._told
        if stamp >= state.stamp_ns:
            tail = self._moved(state, stamp)
            if tail is not None:
                T_s = state.T_w_c @ lie.se3_inverse(tail.T)
                self._apart = lie.se3_log(lie.se3_inverse(T_s) @ T_w_c)

    def _moved(self, state: FusedState, stamp: int) -> Motion | None:
        """What odometry says of the motion from a state to a stamp; None where there is a gap."""
        if stamp == state.stamp_ns:
            return Motion(np.eye(4), np.zeros((6, 6)), stamp, stamp)
        parts = self._odometry.parts(state.stamp_ns, stamp)
        ends = [state.stamp_ns, *(part.end for part in parts)]
        if ends[-1] != stamp or any(p.begin != end for p, end in zip(parts, ends, strict=False)):
            return None
        return reduce(Motion.then, [self._calibrated(state, part) for part in parts])

    def _calibrated(self, state: FusedState, motion: Motion) -> Motion:
        _, turn, distance = state.scales.tolist()
        return scaled(motion, turn, distance)

    def now(self, config: FusionConfig) -> FusedState | None:
        """The state at the newest odometry; None where there is nothing new, or a gap before."""
        solved, newest = self._solved, self._odometry.newest_ns
        if solved is None or newest is None or newest <= solved.stamp_ns:
            return None
        if self._told is not None and newest <= self._told[0]:
            return None
        last = self._calibrated(solved, self._odometry.last)
        if self._tail is not None and self._tail.end == last.begin:
            self._tail = self._tail.then(last)
        else:
            self._tail = self._moved(solved, newest)
        if self._tail is None:
            return None
        return self._told_state(solved, self._tail, last, config)

    def _told_state(
        self, solved: FusedState, tail: Motion, last: Motion, config: FusionConfig
    ) -> FusedState:
        model, adjoint = config.odometry_model, lie.se3_adjoint(tail.T)
        Sigma = model.covariance(tail.checked) + adjoint @ solved.Sigma_c_w @ adjoint.T
        T_w_c = solved.T_w_c @ lie.se3_inverse(tail.T)
        if self._apart.any():
            since = last.end - (self._told[0] if self._told is not None else last.begin)
            self._apart = self._apart * np.exp(-3e-9 * since / self.smooth_s)
            T_w_c = T_w_c @ lie.se3_exp(self._apart)
            Sigma = Sigma + np.outer(self._apart, self._apart)
        self._told = last.end, T_w_c
        step_s = (last.end - last.begin) * 1e-9
        return replace(
            solved,
            stamp_ns=last.end,
            T_w_c=T_w_c,
            Sigma_c_w=Sigma,
            T_2_1=last.T,
            Sigma_2_1=model.covariance(last.checked),
            step_s=step_s,
            velocity=-lie.se3_log(last.T) / step_s,
            nis={},
            rejected=(),
        )
