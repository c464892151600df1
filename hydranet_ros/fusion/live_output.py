"""The pose at the newest odometry: the last solution, and what odometry has moved since.

    T_c_w = T_tail T_s_w,    Sigma = Sigma_tail + Ad(T_tail) Sigma_s Ad(T_tail)^T

with the state s that was solved last. When a solution changes what was already told, the output
does not jump: it differs from the solution by Exp(xi) in the frame of the camera, and xi dies away
with a time constant of smooth_s / 3, so that 5 % are left after `smooth_s`. While it does, the
output is known to be off by xi: xi xi^T is added to its covariance.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.preintegration import Motion, OdometryBuffer, scaled
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array


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

    def solve(self, state: FusedState) -> FusedState:
        """Take the newest solution, and tell its state: the output goes over to it smoothly."""
        if self._solved is not None and state.stamp_ns < self._solved.stamp_ns:
            return state
        self._solved, self._tail = state, None
        if self._told is None or self.smooth_s <= 0.0:
            return state
        stamp, T_w_c = self._told
        if stamp >= state.stamp_ns:
            tail = self._moved(state, state.stamp_ns, stamp)
            if tail is not None:
                T_s = state.T_w_c @ lie.se3_inverse(tail.T)
                self._apart = lie.se3_log(lie.se3_inverse(T_s) @ T_w_c)
            return state
        ahead = self._moved(state, stamp, state.stamp_ns)
        if ahead is None:
            return state
        T_told = T_w_c @ lie.se3_inverse(ahead.T)
        fade = np.exp(-3e-9 * (state.stamp_ns - stamp) / self.smooth_s)
        self._apart = fade * lie.se3_log(lie.se3_inverse(state.T_w_c) @ T_told)
        T_told = state.T_w_c @ lie.se3_exp(self._apart)
        self._told = state.stamp_ns, T_told
        Sigma = state.Sigma_c_w + np.outer(self._apart, self._apart)
        return replace(state, T_w_c=T_told, Sigma_c_w=Sigma)

    def _moved(self, state: FusedState, begin: int, stamp: int) -> Motion | None:
        """What odometry says of a motion, calibrated as in a state; None where there is a gap."""
        if stamp == begin:
            return Motion(np.eye(4), np.zeros((6, 6)), stamp, stamp)
        parts = self._odometry.parts(begin, stamp)
        ends = [begin, *(part.end for part in parts)]
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
            self._tail = self._moved(solved, solved.stamp_ns, newest)
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
