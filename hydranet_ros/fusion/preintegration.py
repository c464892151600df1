"""Preintegration of fast odometry: its motions, composed between any two stamps.

Odometry sends a motion T_k+1_k with Sigma_k+1_k every few milliseconds. Between two stamps

    T_b_a = T_n_n-1 ... T_2_1,    Sigma_b_a = sum of Ad(T_b_k) Sigma_k_k-1 Ad(T_b_k)^T

as motions in a row are independent. Inside a motion the velocity is constant: the share s of it is
Exp(s Log(T)), with s Sigma, as white noise grows with time. So what is cut anywhere and composed
again is the whole, to first order in the noise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

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
