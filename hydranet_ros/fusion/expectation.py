"""What is expected of an interval before it is measured: by the motion so far, and by each source.

The motion prior carries the velocity before an interval on, with its random walk. Where an IMU
covers the interval, its turn is part of what is expected. Odometry and rotations are told less the
errors of calibration that are known so far, with covariances that have what is not known of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import numpy as np

from hydranet_ros.fusion.arrival import ODOMETRY, ROTATION
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import Edge, Interval
from hydranet_ros.fusion.gating import RelativeMotion, Turn
from hydranet_ros.fusion.imu import ImuBuffer
from hydranet_ros.fusion.standing import REST_S, images_stand, imu_stands, odometry_stands
from hydranet_ros.fusion.window import Window
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.lie import Array

# Over so many steps the random walk of a vehicle's velocity is learnt.
LEARNT = 50


@dataclass
class Known:
    """Covariances of the last solution: of the newest pose, step, bias, scales, bias of an IMU."""

    Sigma_c_w: Array
    Sigma_2_1: Array
    step_s: float
    Sigma_bias: Array
    Sigma_scales: Array
    Sigma_imu: Array = field(default_factory=lambda: np.zeros((3, 3)))
    calibration: Array | None = None  # of bias, scales and bias of an IMU together, once solved


class Expectation:
    """What a window expects."""

    def __init__(
        self,
        config: FusionConfig,
        window: Window,
        edges: dict[tuple[str, Interval], Edge],
        imu: ImuBuffer,
        known: Known,
    ) -> None:
        self.config, self.window, self.known = config, window, known
        self._edges, self._imu = edges, imu
        self._walk: Array | None = None  # (3,) variance of the velocity per second, as it is

    def odometry(self, interval: Interval, new: dict[str, Edge]) -> RelativeMotion | None:
        """The odometry's motion over an interval: its edge, or its edges from state to state."""
        if ODOMETRY in new:
            return self._calibrated(new[ODOMETRY].motion)
        inside = [s for s in self.window.stamps.tolist() if interval[0] <= s <= interval[1]]
        if inside[-1] != interval[1]:
            return None
        edges = [self._edges.get((ODOMETRY, pair)) for pair in pairwise(inside)]
        motions = [edge.motion for edge in edges if edge is not None]
        if len(motions) != len(edges):
            return None
        return self._calibrated(reduce(RelativeMotion.then, motions))

    def _calibrated(self, motion: RelativeMotion) -> RelativeMotion:
        """A motion of the odometry less the errors of scale that are known so far."""
        _, turn, distance = self.window.states.s[-1]
        if not self.config.with_scales:
            return motion
        xi = lie.se3_log(lie.se3_from(motion.C, motion.r))
        T = lie.se3_exp(xi / np.repeat([1.0 + distance, 1.0 + turn], 3))
        spread = np.zeros((6, 6))
        spread[3:, 3:] = self.known.Sigma_scales[1, 1] * np.outer(xi[3:], xi[3:])
        spread[:3, :3] = self.known.Sigma_scales[2, 2] * np.outer(xi[:3], xi[:3])
        return RelativeMotion(T[:3, :3], T[:3, 3], motion.covariance + spread)

    def rotation(
        self, interval: Interval, new: dict[str, Edge], known: RelativeMotion | None = None
    ) -> Turn | None:
        """The network's rotation over an interval, less its bias, where this motion is known."""
        edge = new.get(ROTATION) or self._edges.get((ROTATION, interval))
        if edge is None:
            return None
        assert isinstance(edge.measurement, RelativeRotation)
        covariance = edge.covariance
        if known is not None:
            angle = float(np.linalg.norm(lie.so3_log(known.C)))
            covariance = self.config.rotation_model.covariance(edge.measurement, angle)
        dt = (interval[1] - interval[0]) * 1e-9
        bias = self.window.states.b[-1] * dt
        phi = lie.so3_log(lie.so3_exp(-bias) @ edge.C)
        C = lie.so3_exp(phi / (1.0 + self.window.states.s[-1, 0]))
        covariance = covariance + self.known.Sigma_scales[0, 0] * np.outer(phi, phi)
        return Turn(C, covariance + self.known.Sigma_bias * dt**2)

    def _velocity_before(self, index: int) -> tuple[Array, float] | None:
        """Log(T_2_1) per second of the step that ends at a state, and its seconds."""
        if index < 1:
            return None
        dt = float(self.window.stamps[index] - self.window.stamps[index - 1]) * 1e-9
        return lie.se3_log(self.window.relative_pose(index - 1, index)) / dt, dt

    def motion(self, interval: Interval, with_imu: bool = True) -> RelativeMotion | None:
        """What the motion prior expects: the velocity before, with its random walk."""
        before = self._velocity_before(int(np.searchsorted(self.window.stamps, interval[0])))
        if before is None:
            return None
        velocity, dt_before = before
        dt = (interval[1] - interval[0]) * 1e-9
        pose = lie.se3_exp(velocity * min(dt, self.config.max_gap_s))
        walk = np.diag(self.window.noise.velocity_walk) * 0.5 * (dt_before + dt)
        # The newest step that was solved for: a state that was just put in has no velocity yet.
        covariance = (walk + self.known.Sigma_2_1 / self.known.step_s**2) * dt**2
        expected = RelativeMotion(pose[:3, :3], pose[:3, 3], covariance)
        turn = self.imu(interval) if with_imu else None
        return expected if turn is None else expected.given(turn)

    def imu(self, interval: Interval) -> Turn | None:
        """The turn by the IMU, less its bias; None where there is none."""
        if self.window.dimension < 15:
            return None
        turn = self._imu.turn(*interval, self.window.states.i[-1])
        if turn is None:
            return None
        spread = turn.jacobian @ self.known.Sigma_imu @ turn.jacobian.T
        return Turn(turn.C, turn.covariance + spread)

    def votes_of_rest(self, interval: Interval) -> tuple[bool | None, bool | None, bool | None]:
        """Whether odometry, IMU and images stand still, over the time up to the interval's end."""
        end = interval[1]
        recent = [
            (edge.motion, (each[1] - each[0]) * 1e-9)
            for (source, each), edge in self._edges.items()
            if source == ODOMETRY and each[1] > end - REST_S * 1e9
        ]
        covered = any(each == (ODOMETRY, interval) for each in self._edges)
        odometry = odometry_stands(recent) if covered else None
        rest = self._imu.rest(end, REST_S) if self.window.dimension == 15 else None
        bias = self.window.states.i[-1]
        imu = None if rest is None else imu_stands(rest, bias, self.known.Sigma_imu)
        edge = self._edges.get((ROTATION, interval))
        images = None if edge is None else images_stand(Turn(edge.C, edge.covariance))
        return odometry, imu, images

    # --- how far sources agree -------------------------------------------------------------------

    def agreement(
        self, interval: Interval, new: dict[str, Edge]
    ) -> tuple[RelativeMotion, Turn, RelativeMotion] | None:
        """Odometry and rotation of one interval, and the motion expected, as single steps.

        Each has the covariance of one step, which is smaller than what the window believes; of the
        scales only their difference is uncertain between the two. The motion prior of the gate is
        wide, so that no manoeuvre is beyond it. Here its random walk of the velocity is the one
        that this vehicle has: the mean of what odometry changed by, less what its noise explains.
        None where one of them, or the velocity before, is not known.
        """
        odometry, edge = new.get(ODOMETRY), new.get(ROTATION)
        index = int(np.searchsorted(self.window.stamps, interval[0]))
        if odometry is None or edge is None or index < 1:
            return None
        assert isinstance(odometry.measurement, RelativePose)
        assert isinstance(edge.measurement, RelativeRotation)
        Sigma = self.config.odometry_model.step_covariance(odometry.measurement)
        scales, self.known.Sigma_scales = self.known.Sigma_scales, np.zeros((3, 3))
        motion = self._calibrated(RelativeMotion(odometry.C, odometry.r, Sigma))
        self.known.Sigma_scales = scales
        phi = lie.so3_log(edge.C)
        apart = scales[0, 0] + scales[1, 1] - 2.0 * scales[0, 1]
        Sigma_turn = self.config.rotation_model.step_covariance(
            edge.measurement, float(np.linalg.norm(lie.so3_log(motion.C)))
        )
        dt = (interval[1] - interval[0]) * 1e-9
        C = lie.so3_exp(
            lie.so3_log(lie.so3_exp(-self.window.states.b[-1] * dt) @ edge.C)
            / (1.0 + self.window.states.s[-1, 0])
        )
        turn = Turn(C, Sigma_turn + apart * np.outer(phi, phi) + self.known.Sigma_bias * dt**2)
        prior = self.motion(interval)
        if prior is None:
            return None
        return motion, turn, self._as_it_moves(prior, motion, interval, index)

    def _as_it_moves(
        self, prior: RelativeMotion, motion: RelativeMotion, interval: Interval, index: int
    ) -> RelativeMotion:
        """The prior with the random walk of translations that was seen so far."""
        dt = (interval[1] - interval[0]) * 1e-9
        before = float(self.window.stamps[index] - self.window.stamps[index - 1]) * 1e-9
        gain = 0.5 * (dt + before) * dt**2
        assumed = self.window.noise.velocity_walk[:3]
        walk = assumed if self._walk is None else self._walk
        covariance = prior.covariance.copy()
        covariance[:3, :3] -= np.diag(assumed * gain)
        shown = np.array([self.config.odometry_model.step_share**0.5] * 3 + [1.0] * 3)
        covariance = shown[:, None] * covariance * shown
        covariance[:3, :3] += np.diag(walk * gain)
        apart = prior.to(motion).difference[:3] ** 2
        noise = np.diagonal(covariance)[:3] - walk * gain + np.diagonal(motion.covariance)[:3]
        seen = np.minimum((apart - noise) / gain, 20.0 * assumed)  # one jump is no habit
        self._walk = np.clip(walk + (seen - walk) / LEARNT, 1e-4 * assumed, 4.0 * assumed)
        return RelativeMotion(prior.C, prior.r, covariance)

    def pose_at(self, stamp: int) -> Array:
        """T_c_w at a stamp that no state has: between two states, or carried on from the last."""
        at = int(np.searchsorted(self.window.stamps, stamp))
        dt = float(stamp - self.window.stamps[at - 1]) * 1e-9
        before = self._velocity_before(at if at < len(self.window) else at - 1)
        if before is None:
            return self.window.pose(at - 1)
        return lie.se3_exp(before[0] * min(dt, self.config.max_gap_s)) @ self.window.pose(at - 1)

    def first_guess(
        self, interval: Interval, new: dict[str, Edge], failed: dict[str, str]
    ) -> Array:
        """T_c_w of a new state, from the best of what was not rejected."""
        begin = self.window.pose(int(np.searchsorted(self.window.stamps, interval[0])))
        turn = None if ROTATION in failed else self.rotation(interval, new)
        if ODOMETRY in new and ODOMETRY not in failed:
            # Mostly this is the solution, to first order: then one step is enough.
            motion = self._calibrated(new[ODOMETRY].motion)
            motion = motion if turn is None else motion.given(turn)
            return lie.se3_from(motion.C, motion.r) @ begin
        guess = self.pose_at(interval[1])
        if turn is not None:
            position = -guess[:3, :3].T @ guess[:3, 3]
            C = turn.C @ begin[:3, :3]
            guess = lie.se3_from(C, -C @ position)
        return guess
