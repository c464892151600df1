"""The sliding window fusion: measurements in any order, a trajectory out, by stated rules.

Stamps. A measurement between two stamps is an edge between two states. A stamp within
`stamp_tolerance_s` of a state is that state; otherwise a state is made at its place in time. A
measurement that begins before the oldest state is rejected as too old, and one of an interval that
already has one of its kind as a duplicate. Within the window the order of arrival does not matter.

Silence. Neighbouring states without an odometry edge are held together by the motion prior:
the velocity is a random walk. An edge that comes late takes the place of the prior. Over a gap the
last velocity is carried on for `max_gap_s` at most. The covariance grows with the gap, until after
`window.LONGEST_GAP_S` nothing is known of the pose any more.

Disagreement. Each source is tested by its NIS against the motion prior and the other source; of
two that disagree, the one further from the motion prior is rejected. After so many rejections in a
row (`max_consecutive_rejections`) a source is believed again, because by then it is more likely
that the motion has changed. A rejected interval still makes a state. Where an IMU turned too, two
that agree outvote the third: an IMU is not used over that interval, and wheels that slip are used
no further than they are off.

IMU. Neighbouring states have what the IMU says of their interval, as soon as its samples cover it.
Its bias is a state from its first sample on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hydranet_ros.fusion.arrival import IMU, ODOMETRY, ROTATION, Measurement, source_of
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import Edge, FusedState, Interval, Rejection, make_edge, rejection
from hydranet_ros.fusion.expectation import Expectation, Known
from hydranet_ros.fusion.gating import Gate, outvoted, widened
from hydranet_ros.fusion.imu import ImuBuffer, ImuSample
from hydranet_ros.fusion.inertial import hold, take_imu
from hydranet_ros.fusion.solution import solution
from hydranet_ros.fusion.start import (
    ORIGIN_SIGMA,
    RESTART_SIGMA,
    START_SPEED,
    assumptions,
    first_variances,
)
from hydranet_ros.fusion.window import Window
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import nearest

MOST_VARIANCE = 1e6  # of a pose that is set
BEFORE_WINDOW = "it begins before the window, which has moved on"
DUPLICATE = "there is one of this interval already"


class SlidingWindowFusion:
    """Fuse relative poses and relative rotations into a trajectory."""

    def __init__(self, config: FusionConfig | None = None, T_w_c: Array | None = None) -> None:
        self.config = config or FusionConfig()
        self._start_pose = np.eye(4) if T_w_c is None else np.array(T_w_c, dtype=np.float64)
        self.imu = ImuBuffer(self.config.imu, 0.0)
        self.reset()

    def reset(self) -> None:
        """Forget everything, and begin again where this began."""
        self._T_w_c, self._Sigma_c_w = self._start_pose, np.eye(6) * ORIGIN_SIGMA**2
        self._up_w: Array | None = None
        self._forget_calibration()
        self.imu.clear()
        self._begin()

    def place(self, T_w_c: Array, Sigma_c_w: Array, up_w: Array | None = None) -> None:
        """Go on from this pose, with the covariance of the left perturbation of its inverse.

        What was learnt of biases and scales stays. `up_w` (3,) is up in the world, where that is
        known.
        """
        self._keep_calibration()
        self._T_w_c = np.array(T_w_c, dtype=np.float64)
        variances, axes = np.linalg.eigh(0.5 * (Sigma_c_w + np.transpose(Sigma_c_w)))
        # Rounding makes what is certain negative; beyond MOST_VARIANCE nothing is known anyway.
        variances = np.clip(variances, 0.0, MOST_VARIANCE) + ORIGIN_SIGMA**2
        self._Sigma_c_w = (axes * variances) @ axes.T
        self._up_w = up_w
        self._begin()

    def restart(self) -> None:
        """Go on from the newest pose with the next measurement; how far it went is not known."""
        self._forget_calibration()
        self.imu.clear()
        if self.started:
            self._carry_over()
            self._Sigma_c_w = self._Sigma_c_w + np.diag(RESTART_SIGMA**2)
            self._up_w = None
            self._begin()

    def apply(self, config: FusionConfig) -> None:
        """Go on with other settings; pose and covariance stay."""
        before, self.config = self.config, config
        kept = before.with_bias == config.with_bias and before.with_scales == config.with_scales
        kept &= before.imu.use == config.imu.use
        self.imu.config = config.imu
        self._keep_samples()
        if not self.started or not kept:
            if self.started:
                self._carry_over()
            if not kept:
                self._forget_calibration()
            self._begin()
            return
        self.window.noise, *kernels = assumptions(self.config)
        self.window.pose_kernel, self.window.rotation_kernel = kernels
        self.expects.config = config
        self.gate.apply(config.gate_probability, config.max_consecutive_rejections)

    def _keep_calibration(self) -> None:
        """Begin the next window with the biases and scales of this one."""
        s, Sigma = self.window.states, self.expects.known.calibration
        if self.started and Sigma is not None:
            self._calibration = np.concatenate([s.b[-1], s.s[-1], s.i[-1]])
            self._Sigma_calibration, self._kept_ns = Sigma, int(self.window.stamps[-1])

    def _forget_calibration(self) -> None:
        self._calibration, self._Sigma_calibration = np.zeros(9), np.zeros((0, 0))
        self._kept_ns = 0

    def _carry_over(self) -> None:
        self._T_w_c = lie.se3_inverse(self.window.pose(-1))
        self._Sigma_c_w, self._up_w = self.expects.known.Sigma_c_w, self.window.up_w

    def _keep_samples(self) -> None:
        """Of the IMU, as long as a late rotation may ask for them."""
        c = self.config
        self.imu.keep_ns = round(1e9 * (2.0 * c.window_s + 2.0 * c.max_wait_s + 1.0))

    def _begin(self) -> None:
        """An empty window, which will start at `_T_w_c` with `_Sigma_c_w`."""
        self._keep_samples()
        c = self.config
        self.window = Window(*assumptions(self.config), c.with_bias, c.with_scales)
        self.gate = Gate(c.gate_probability, c.max_consecutive_rejections)
        self._edges: dict[tuple[str, Interval], Edge] = {}
        self._refused: dict[Interval, str] = {}  # what the IMU says of these is not used, and why
        self.odometry_seen = False
        self.window.up_w = self._up_w
        bias = np.deg2rad(c.rotation_model.bias_sigma_deg_s) * c.with_bias
        known = Known(
            self._Sigma_c_w,
            np.diag(START_SPEED**2),
            1.0,
            np.eye(3) * bias**2,
            np.diag(c.calibration.sigmas**2) * c.with_scales,
        )
        self.expects = Expectation(c, self.window, self._edges, self.imu, known)
        if len(self.imu):
            self._add_imu()

    @property
    def started(self) -> bool:
        """Whether there is a state."""
        return len(self.window) > 0

    @property
    def newest_ns(self) -> int | None:
        """The stamp of the newest state."""
        return int(self.window.stamps[-1]) if self.started else None

    @property
    def oldest_ns(self) -> int | None:
        """The stamp of the oldest state."""
        return int(self.window.stamps[0]) if self.started else None

    # --- the update ------------------------------------------------------------------------------

    def update(self, *measurements: Measurement) -> FusedState:
        """Take measurements in, optimise, and tell what is known now.

        Give the pose and the rotation of one interval together where both are at hand: then a
        wrong one is found before it moves anything.
        """
        if not measurements:
            raise ValueError("an update needs at least one measurement")
        rejected: list[Rejection] = []
        nis: dict[str, float] = {}
        edges: dict[Interval, dict[str, Edge]] = {}
        stamps: list[int] = self.window.stamps.tolist()
        for measurement in sorted(measurements, key=lambda m: (m.stamp_2_ns, m.stamp_1_ns)):
            edge = self._edge(measurement, stamps)
            if isinstance(edge, Edge):
                stamps += edge.interval
                known = edges.setdefault(edge.interval, {})
                if edge.source in known:
                    edge = rejection(measurement, DUPLICATE)
                else:
                    known[edge.source] = edge
            if isinstance(edge, Rejection):
                rejected.append(edge)
        first = self._first_odometry(edges)
        if first is not None:
            self._put_origin(first)
        if edges and not self.started:
            self._start(min(interval[0] for interval in edges))
        for interval, new in edges.items():
            rejected += self._take(interval, new, nis)
        if not self.started:
            raise ValueError(f"nothing to start from: {rejected[0].reason}")
        return self._solve(nis, tuple(rejected))

    def predict(self, stamp_ns: int) -> Array:
        """T_w_c at any stamp from the oldest state on, without making a state there."""
        if not self.started or stamp_ns < self.window.stamps[0]:
            raise ValueError(f"nothing is known of {stamp_ns} ns")
        at = np.flatnonzero(self.window.stamps == stamp_ns)
        T_c_w = self.window.pose(int(at[0])) if len(at) else self.expects.pose_at(stamp_ns)
        return lie.se3_inverse(T_c_w)

    def _solve(self, nis: dict[str, float], rejected: tuple[Rejection, ...]) -> FusedState:
        """Optimise, and let go of the states that the window has no room for."""
        take_imu(self.window, self.imu, self._refused)
        still = self.config.hold_still and hold(self.window, self.expects)
        self.window.optimise(self.config.max_iterations)
        found = solution(self.window, self.expects.known, self._Sigma_c_w, nis, rejected)
        state, self.expects.known = replace(found[0], still=still), found[1]
        while self._is_full():
            self.window.marginalise_oldest()
            if self._is_full():
                self.window.optimise(self.config.max_iterations)
        oldest = self.window.stamps[0]
        for key in [key for key in self._edges if key[1][0] < oldest]:
            del self._edges[key]
        for refused in [each for each in self._refused if each[1] <= oldest]:
            del self._refused[refused]
        return state

    def _is_full(self) -> bool:
        """Whether the oldest state may go: there are too many, or they span enough without it."""
        c, stamps = self.config, self.window.stamps
        if len(stamps) > c.most_states or not c.own_rates:
            return len(stamps) > c.most_states
        return len(stamps) > 3 and float(stamps[-1] - stamps[1]) * 1e-9 >= c.window_s

    # --- odometry at its own rate ----------------------------------------------------------------

    def odometry_across(self, stamp: int) -> Interval | None:
        """The interval of the motion that a stamp lies within, if a state can be made there."""
        if not self.started or self._known(stamp, self.window.stamps.tolist()) != stamp:
            return None
        if stamp in self.window.stamps or not self._has_place(stamp):
            return None
        for source, interval in self._edges:
            if source == ODOMETRY and interval[0] < stamp < interval[1]:
                return interval
        return None

    def cut(self, before: RelativePose, after: RelativePose) -> None:
        """Put two motions in the place of the one over both, with a state between them."""
        self._withdraw(ODOMETRY, (before.stamp_1_ns, after.stamp_2_ns))
        self.window.insert(before.stamp_2_ns, self.expects.pose_at(before.stamp_2_ns))
        for motion in (before, after):
            edge = self._edge(motion, self.window.stamps.tolist())
            if isinstance(edge, Edge):
                self._put(edge)

    # --- an IMU ----------------------------------------------------------------------------------

    def add_imu(self, sample: ImuSample) -> bool:
        """Take a sample in, in the axes of the camera; False where it is none that can be used."""
        if not self.config.imu.use:
            return True
        first = not len(self.imu)
        used = self.imu.add(sample)
        if first and used:
            self._add_imu()
        return used

    def _add_imu(self) -> None:
        """Make room for its bias."""
        if self.window.dimension < 15:
            self.window.add_imu(first_variances(self.config, len(self.imu) > 0))
            self.expects.known.Sigma_imu = np.diag(
                first_variances(self.config, len(self.imu) > 0)[6:]
            )

    # --- from measurements to edges --------------------------------------------------------------

    def _edge(self, m: Measurement, stamps: list[int]) -> Edge | Rejection:
        """Make an edge between `stamps`, which are those of the states, or new ones."""
        source = source_of(m)
        begin = self._known(m.stamp_1_ns, stamps)
        interval = begin, self._known(m.stamp_2_ns, [*stamps, begin])
        if interval[0] >= interval[1]:
            return rejection(m, "its interval is shorter than stamp_tolerance_s")
        if len(self.window) and not self._has_place(interval[0]):
            longer = "window_s" if self.config.own_rates else "window_size"
            return rejection(m, f"{BEFORE_WINDOW}: raise fusion.{longer}")
        if len(self.window) and not self._has_place(interval[1]):
            return rejection(m, "it ends between states that the window has moved on from")
        if (source, interval) in self._edges:
            return rejection(m, DUPLICATE)
        return make_edge(m, interval, self._believed(m))

    def _known(self, stamp: int, stamps: list[int]) -> int:
        """The nearest of `stamps` if it is within the tolerance, or the stamp itself."""
        known = nearest(stamps, stamp, round(self.config.stamp_tolerance_s * 1e9))
        return stamp if known is None else known

    def _has_place(self, stamp: int) -> bool:
        """Whether a state at this stamp is there, or can still be inserted."""
        if stamp in self.window.stamps:
            return True
        return stamp > int(self.window.stamps[self.window.covered - 1])

    def _believed(self, m: Measurement) -> Array:
        """The covariance as the error model of its source has it."""
        if isinstance(m, RelativePose):
            return self.config.odometry_model.covariance(m)
        return self.config.rotation_model.covariance(m)

    # --- from edges to states --------------------------------------------------------------------

    def _take(
        self, interval: Interval, new: dict[str, Edge], nis: dict[str, float]
    ) -> list[Rejection]:
        """Test what is said of one interval, make its states, and keep the edges that pass."""
        if interval[0] not in self.window.stamps:
            self.window.insert(interval[0], self.expects.pose_at(interval[0]))
        prior, odometry = self.expects.motion(interval), self.expects.odometry(interval, new)
        rotation = self.expects.rotation(interval, new, prior if odometry is None else odometry)
        imu, motion = self.expects.imu(interval), None if odometry is None else odometry.turn
        wheels = self.config.odometry == "wheels"
        wrong = outvoted(motion, rotation, imu, self.gate.rotation.gate, wheels)
        if imu is not None and motion is not None and rotation is not None:
            self.gate.count_vote(against_imu=wrong == IMU)
        if imu is not None and self.gate.imu_is_doubtful:
            wrong = IMU
        if wrong == IMU:
            self._refused[interval] = f"{IMU}: disagrees with odometry and rotation"
            prior = self.expects.motion(interval, with_imu=False)
        slip = None
        if wrong == ODOMETRY and ODOMETRY in new and odometry is not None and imu is not None:
            slip = widened(odometry, imu)
            new[ODOMETRY] = replace(new[ODOMETRY], covariance=slip.covariance)
            odometry, self.gate.slips = slip, self.gate.slips + 1
        judged = self.gate.judge(
            odometry,
            rotation,
            prior,
            chained=ODOMETRY not in new and (ODOMETRY, interval) not in self._edges,
        )
        failed = judged.failed
        if wrong == ROTATION and (ROTATION in new or (ROTATION, interval) in self._edges):
            failed = {ROTATION: "disagrees with odometry and IMU"}
        steps = self.expects.agreement(interval, new)
        if steps is not None and not failed:
            nis.update(self.gate.agreement(*steps))
        if interval[1] not in self.window.stamps:
            self.window.insert(interval[1], self.expects.first_guess(interval, new, failed))
        for edge in new.values():
            self._put(edge)
        for source in {*new, *failed}:
            self.gate[source].count(rejected=source in failed)
        # Either may have come before its partner.
        for source, widening in judged.doubtful.items():
            if (source, interval) in self._edges:
                edge = self._withdraw(source, interval)
                self._put(replace(edge, covariance=edge.covariance + widening))
        for source in failed:
            self._withdraw(source, interval)
        if slip is not None and ODOMETRY not in failed:
            failed = {**failed, ODOMETRY: "slips: it turns otherwise than the IMU, and is widened"}
        if wrong == IMU:
            failed = {**failed, IMU: self._refused[interval]}
        return [Rejection(source, *interval, reason) for source, reason in failed.items()]

    def _put(self, edge: Edge) -> None:
        self._edges[edge.source, edge.interval] = edge
        window, values = self.window, (edge.interval, edge.C, edge.r, edge.information)
        if edge.source == ODOMETRY:
            window.poses = window.poses.plus(*values)
        else:
            window.rotations = window.rotations.plus(*values)

    def _withdraw(self, source: str, interval: Interval) -> Edge:
        """Take an edge out again."""
        window = self.window
        if source == ODOMETRY:
            window.poses = window.poses.where(~window.poses.between(interval))
        else:
            window.rotations = window.rotations.where(~window.rotations.between(interval))
        return self._edges.pop((source, interval))

    def _start(self, stamp: int) -> None:
        size = self.window.dimension
        covariance = np.zeros((size, size))
        covariance[:6, :6] = self._Sigma_c_w
        variances = first_variances(self.config, self.imu.covers(stamp))
        covariance[6:, 6:] = np.diag(variances[: size - 6])
        count = min(size - 6, len(self._Sigma_calibration))
        seconds = max(float(stamp - self._kept_ns) * 1e-9, 0.0)
        kept, walked = slice(6, 6 + count), self.window.noise.calibration_walk[:count] * seconds
        covariance[kept, 6:] = covariance[6:, kept] = 0.0
        covariance[kept, kept] = self._Sigma_calibration[:count, :count] + np.diag(walked)
        self.window.start(stamp, lie.se3_inverse(self._T_w_c), covariance, self._calibration)

    def _first_odometry(self, edges: dict[Interval, dict[str, Edge]]) -> int | None:
        """Where odometry begins, if there were only rotations before it."""
        begins = [interval[0] for interval, new in edges.items() if ODOMETRY in new]
        if not begins or self.odometry_seen:
            return None
        self.odometry_seen = True
        return min(begins) if self.started else None

    def _put_origin(self, stamp: int) -> None:
        """Begin again with the rotation so far: without odometry nothing was known of a position.

        The position at the beginning of the odometry is where this began.
        """
        T_w_c = self.predict(max(stamp, int(self.window.stamps[0])))
        T_w_c[:3, 3] = self._T_w_c[:3, 3]
        # What the camera turned since the last rotation is known less and less.
        gap = max(float(stamp - self.window.stamps[-1]) * 1e-9, 0.0)
        rate = np.deg2rad(self.config.angular_acceleration_deg) * np.sqrt(gap)
        turned = self.expects.known.Sigma_c_w[3:, 3:] + np.eye(3) * min(rate * gap, np.pi) ** 2
        self._T_w_c, self._Sigma_c_w = T_w_c, self._Sigma_c_w.copy()
        self._Sigma_c_w[3:, 3:] = turned
        self._begin()
        self.odometry_seen = True
