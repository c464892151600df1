"""The sliding window: states, edges between any two of them, Gauss-Newton, marginalisation.

It optimises whatever edges it is given. Which edges to give it (stamps, gating, what to do when a
source is silent) is the business of `sliding_window.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.fusion import calibration, factors, imu
from hydranet_ros.fusion.factors import Index, Linear, States
from hydranet_ros.fusion.imu import ImuTurn
from hydranet_ros.fusion.normal_equations import (
    Block,
    Kernel,
    Layout,
    Quadratic,
    solve_positive,
)
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

Stamps = NDArray[np.int64]

FIRST_DAMPING = 1e-6
# After so long without any measurement nothing is known of the pose. A longer gap cannot say less,
# and its information would leave no digits for the rest of the window.
LONGEST_GAP_S = 30.0


class Edges(NamedTuple):
    """Measurements between states: their stamps (M, 2), values and information (M, d, d)."""

    stamps: Stamps
    C: Array
    r: Array
    information: Array

    @classmethod
    def none(cls, size: int) -> Edges:
        """No edges, with information matrices of `size`."""
        return cls(
            np.zeros((0, 2), np.int64),
            np.zeros((0, 3, 3)),
            np.zeros((0, 3)),
            np.zeros((0, size, size)),
        )

    def plus(self, stamps: tuple[int, int], C: Array, r: Array, information: Array) -> Edges:
        """These edges and one more."""
        return Edges(
            np.concatenate([self.stamps, np.array([stamps], np.int64)]),
            np.concatenate([self.C, C[None]]),
            np.concatenate([self.r, r[None]]),
            np.concatenate([self.information, information[None]]),
        )

    def where(self, keep: NDArray[np.bool_]) -> Edges:
        """The edges that `keep` names."""
        return Edges(*(part[keep] for part in self))

    def between(self, stamps: tuple[int, int]) -> NDArray[np.bool_]:
        """Which edges run between exactly these two stamps."""
        return np.asarray((self.stamps == stamps).all(axis=1))


@dataclass(frozen=True)
class Prior:
    """What marginalised states say of the first states: g' d + d' H d / 2 about where they are.

    As the states move by small steps, so does the point that it is about.
    """

    hessian: Array
    gradient: Array

    def moved(self, step: Array) -> tuple[Array, float]:
        """Gradient and cost after a step of all states."""
        step = step[: len(self.gradient)]
        change = self.hessian @ step
        return self.gradient + change, float(step @ (self.gradient + 0.5 * change))


@dataclass(frozen=True)
class WindowNoise:
    """The noise of the factors that are not measurements."""

    velocity_walk: Array  # (6,) variance of (linear, angular) velocity per second
    start_velocity: Array  # (6,) variance of the velocity before anything is known of it
    bias_walk: float  # variance of the bias per second
    max_gap_s: float  # a velocity is not carried on for longer than this
    scale_walk: Array | None = None  # (3,) variances of the errors of scale per second
    imu_walk: float = 1.0  # variance of the bias of an IMU per second
    vertical: float = 1.0  # variance of a vertical, rad^2

    @property
    def calibration_walk(self) -> Array:
        """(9,) variances of bias, errors of scale and bias of an IMU per second."""
        scales = np.zeros(3) if self.scale_walk is None else self.scale_walk
        return np.concatenate([np.full(3, self.bias_walk), scales, np.full(3, self.imu_walk)])


class Window:
    """States in the order of their stamps, the edges between them, and the prior.

    A state has `dimension` 15 (pose, bias, errors of scale, bias of an IMU), 12 without an IMU, 9
    without the scales as well, or 6 without any bias.
    """

    def __init__(
        self,
        noise: WindowNoise,
        pose_kernel: Kernel,
        rotation_kernel: Kernel,
        with_bias: bool,
        with_scales: bool = False,
    ) -> None:
        self.noise, self.with_bias, self.with_scales = noise, with_bias, with_scales
        self.pose_kernel, self.rotation_kernel = pose_kernel, rotation_kernel
        self.dimension = 12 if with_scales else 9 if with_bias else 6
        self.stamps: Stamps = np.zeros(0, np.int64)
        nothing = np.zeros((0, 3))
        self.states = States(np.zeros((0, 3, 3)), nothing, nothing, nothing, nothing)
        self.poses, self.rotations = Edges.none(6), Edges.none(3)
        self.turns: dict[tuple[int, int], ImuTurn] = {}  # by an IMU, of neighbouring states
        self.verticals: dict[int, Array] = {}  # up (3,) at a state, by an accelerometer
        self.stills: dict[tuple[int, int], Array] = {}  # variances (6,) of no motion at all
        self.up_w: Array | None = None  # up in the world
        self.prior = Prior(np.zeros((0, 0)), np.zeros(0))
        self._fresh = True  # nothing was marginalised yet
        self._layout: Layout | None = None
        self._solution: Quadratic | None = None
        self._last_step = np.zeros(0)
        self._measured_until = 0  # the end of the last pose edge that was marginalised

    def __len__(self) -> int:
        return len(self.stamps)

    # --- structure -------------------------------------------------------------------------------

    def start(
        self, stamp: int, T_c_w: Array, covariance: Array, calibration: Array | None = None
    ) -> None:
        """Begin with one state and its covariance (dimension, dimension).

        `calibration` (9,) is bias, scales and bias of an IMU; without it they are zero.
        """
        self.stamps = np.array([stamp], np.int64)
        self._measured_until = stamp
        known = np.zeros(9) if calibration is None else calibration
        self.states = States(T_c_w[None, :3, :3], T_c_w[None, :3, 3], *known.reshape(3, 1, 3))
        self.prior = Prior(np.linalg.inv(covariance), np.zeros(self.dimension))

    @property
    def covered(self) -> int:
        """How many of the oldest states the prior covers; none can be inserted before them."""
        return len(self.prior.gradient) // self.dimension

    def insert(self, stamp: int, T_c_w: Array) -> None:
        """Add a state at its place in time; biases and scales start as those before it."""
        at = int(np.searchsorted(self.stamps, stamp))
        if at < self.covered:
            raise ValueError(f"there is no place for a state at {stamp} ns before the prior")
        s, before = self.states, slice(at - 1, at)
        new = (T_c_w[None, :3, :3], T_c_w[None, :3, 3], s.b[before], s.s[before], s.i[before])
        self.stamps = np.concatenate([self.stamps[:at], [stamp], self.stamps[at:]])
        if at == len(s.r):  # as most are
            self.states = States(*[np.concatenate(pair) for pair in zip(s, new, strict=True)])
            return
        self.states = States(
            *[np.concatenate([o[:at], n, o[at:]]) for o, n in zip(s, new, strict=True)]
        )

    def add_imu(self, variances: Array) -> None:
        """Give every state a bias of an IMU, and what else it has no room for yet.

        `variances` (9,) are those of bias, scales and bias of the IMU before anything is known.
        """
        old, new, covered = self.dimension, 15, self.covered
        places = (np.arange(covered)[:, None] * new + np.arange(old)).ravel()
        hessian, gradient = np.zeros((covered * new, covered * new)), np.zeros(covered * new)
        hessian[places[:, None], places] = self.prior.hessian
        gradient[places] = self.prior.gradient
        if covered:  # else the start brings them
            first = np.arange(old, new)
            hessian[first, first] = 1.0 / variances[old - 6 :]
        self.prior, self.dimension = Prior(hessian, gradient), new
        self._layout = self._solution = None

    def pose(self, index: int) -> Array:
        """T_i_w of a state."""
        return lie.se3_from(self.states.C[index], self.states.r[index])

    def relative_pose(self, a: int, b: int) -> Array:
        """T_b_a between two states."""
        return self.pose(b) @ lie.se3_inverse(self.pose(a))

    def unmeasured(self) -> NDArray[np.bool_]:
        """(N - 1,): which neighbouring states have no pose edge between them."""
        return self._unmeasured(np.searchsorted(self.stamps, self.poses.stamps))

    def _unmeasured(self, pose_index: Index) -> NDArray[np.bool_]:
        missing = np.ones(len(self) - 1, dtype=bool)
        missing[pose_index[pose_index[:, 1] == pose_index[:, 0] + 1, 0]] = False
        return missing

    # --- factors ---------------------------------------------------------------------------------

    def _seconds(self, earlier: Index, later: Index) -> Array:
        return (self.stamps[later] - self.stamps[earlier]) * 1e-9

    def _problem(self) -> tuple[list[Block], Callable[[States], list[Linear]]]:
        """The factors by kind, and the function that linearises them all."""
        i_poses = np.searchsorted(self.stamps, self.poses.stamps)
        i_rotations = np.searchsorted(self.stamps, self.rotations.stamps)
        with_bias, with_scales = self.dimension >= 9, self.dimension >= 12
        columns = factors.ROTATIONS_AND_BIAS if with_bias else factors.TWO_ROTATIONS
        of_poses = factors.TWO_POSES
        if with_scales:
            of_poses, columns = calibration.SCALED_POSES, calibration.SCALED_ROTATIONS
        blocks = [
            Block(i_poses, of_poses, self.poses.information, self.pose_kernel),
            Block(i_rotations, columns, self.rotations.information, self.rotation_kernel),
        ]
        dt = self._seconds(i_rotations[:, 0], i_rotations[:, 1])
        C_meas = np.concatenate([self.poses.C, self.rotations.C])
        measured = factors.EdgeFactors(i_poses, i_rotations, C_meas, self.poses.r, dt)
        more: list[Callable[[States], Linear]] = []
        if with_bias:
            blocks.append(self._bias_walk())
            more.append(partial(factors.bias_walk, index=blocks[-1].states))
        if with_scales:
            blocks.append(self._scale_walk())
            more.append(partial(calibration.scale_walk, index=blocks[-1].states))
        if self.dimension == 15:
            self._add_imu_factors(blocks, more)
        if self.stills:
            index = np.searchsorted(self.stamps, np.array(list(self.stills), np.int64))
            information = np.eye(6) / np.array(list(self.stills.values()))[:, None, :]
            blocks.append(Block(index, factors.TWO_POSES, information, self.pose_kernel))
            more.append(partial(factors.still, index=index))
        missing = self._unmeasured(i_poses)
        if missing.any():
            self._add_motion_prior(missing, blocks, more)

        def linearise(states: States) -> list[Linear]:
            if with_scales:
                edges = calibration.linearise_scaled(states, measured)
            else:
                edges = factors.linearise_edges(states, measured, with_bias)
            return [*edges, *(function(states) for function in more)]

        return blocks, linearise

    def _add_imu_factors(
        self, blocks: list[Block], functions: list[Callable[[States], Linear]]
    ) -> None:
        """The walk of its bias, its turns between neighbours, and verticals."""
        k = np.arange(len(self) - 1)
        walk = self.noise.imu_walk * self._seconds(k, k + 1)
        index = np.stack([k, k + 1], axis=1)
        blocks.append(Block(index, imu.TWO_IMU_BIASES, np.eye(3) / walk[:, None, None]))
        functions.append(partial(imu.bias_walk, index=index))
        if self.turns:
            index = np.searchsorted(self.stamps, np.array(list(self.turns), np.int64))
            edges = list(self.turns.values())
            information = np.linalg.inv(np.array([edge.covariance for edge in edges]))
            blocks.append(Block(index, imu.TURN_AND_BIAS, information, self.rotation_kernel))
            functions.append(partial(imu.turns, index=index, edges=edges))
        if self.verticals and self.up_w is not None:
            index = np.searchsorted(self.stamps, list(self.verticals))[:, None]
            measured = np.array(list(self.verticals.values()))
            information = np.broadcast_to(np.eye(3) / self.noise.vertical, (len(index), 3, 3))
            blocks.append(Block(index, imu.GRAVITY, information, self.rotation_kernel))
            functions.append(partial(imu.gravity, index=index, measured=measured, up_w=self.up_w))

    def _bias_walk(self) -> Block:
        k = np.arange(len(self) - 1)
        variance = self.noise.bias_walk * self._seconds(k, k + 1)
        information = np.eye(3) / variance[:, None, None]
        return Block(np.stack([k, k + 1], axis=1), factors.TWO_BIASES, information)

    def _scale_walk(self) -> Block:
        if self.noise.scale_walk is None:
            raise ValueError("errors of scale need a random walk")
        k = np.arange(len(self) - 1)
        variance = self.noise.scale_walk * self._seconds(k, k + 1)[:, None]
        information = np.eye(3) / variance[:, None, :]
        return Block(np.stack([k, k + 1], axis=1), calibration.TWO_SCALES, information)

    def _add_motion_prior(
        self,
        missing: NDArray[np.bool_],
        blocks: list[Block],
        functions: list[Callable[[States], Linear]],
    ) -> None:
        """Where neighbours have no pose edge, the velocity before and after is nearly the same."""
        if self._fresh and missing[0]:
            index = np.array([[0, 1]])
            gap = np.minimum(self._seconds(index[:, 0], index[:, 1]), LONGEST_GAP_S)
            variance = self.noise.start_velocity * gap**2
            blocks.append(Block(index, factors.TWO_POSES, np.diag(1.0 / variance)[None]))
            functions.append(partial(factors.still, index=index))
        gaps = self._seconds(np.arange(len(missing)), np.arange(len(missing)) + 1)
        # What is measured after the longest gaps says nothing of the velocity in them.
        told = missing[:-1] & (gaps[:-1] < LONGEST_GAP_S) | missing[1:]
        middle = np.flatnonzero(told) + 1
        index = np.stack([middle - 1, middle, middle + 1], axis=1)
        before, after = (np.minimum(gaps[k], LONGEST_GAP_S) for k in (middle - 1, middle))
        carried = self._carried(missing, middle, after)
        variance = self.noise.velocity_walk * (0.5 * (before + after))[:, None]
        variance += (1.0 - carried) ** 2 * self.noise.start_velocity
        blocks.append(Block(index, factors.THREE_POSES, np.eye(6) / variance[:, None, :]))
        rate_b_a = carried / before[:, None]
        rate_c_b = np.repeat(1.0 / after[:, None], 6, axis=1)
        functions.append(
            partial(factors.velocity_walk, index=index, rate_b_a=rate_b_a, rate_c_b=rate_c_b)
        )

    def _carried(self, missing: NDArray[np.bool_], middle: Index, after: Array) -> Array:
        """(M, 6): which part of the velocity lasts beyond `middle`, for `after` seconds.

        All of it until `max_gap_s` after the last pose edge. Then, once, none: the velocity starts
        from zero and the variance of a start. The turn rate lasts where a rotation is measured.
        """
        ends = np.where(missing, self._measured_until, self.stamps[1:])
        since = np.maximum.accumulate(np.concatenate([[self._measured_until], ends]))
        silent = (self.stamps - since) * 1e-9  # at each state
        part = np.clip((self.noise.max_gap_s - silent[middle]) / after, 0.0, 1.0)
        known = ~missing[middle] | (silent[middle - 1] >= self.noise.max_gap_s)
        carried = np.repeat(np.where(known, 1.0, part)[:, None], 6, axis=1)
        carried[np.isin(self.stamps[middle + 1], self.rotations.stamps[:, 1]), 3:] = 1.0
        return carried

    # --- optimisation ----------------------------------------------------------------------------

    def optimise(self, max_iterations: int = 10, tolerance: float = 1e-5) -> int:
        """Minimise by Gauss-Newton, damped as by Levenberg-Marquardt only where a step fails.

        Stop at a step below `tolerance` (m, rad), which is still taken: with small residuals each
        is far shorter than the one before. Return the number of steps.
        """
        blocks, linearise = self._problem()
        layout, prior = self._layout_of(blocks), self.prior
        states, damping = self.states, 0.0
        way = last = np.zeros(layout.size)  # from where the prior is; after the last linearisation
        now = layout.fill(linearise(states), prior.hessian, prior.gradient, 0.0)
        iteration = 0
        while iteration < max_iterations:
            iteration += 1
            step = now.step(damping)
            if step is None:
                damping = max(10.0 * damping, FIRST_DAMPING)
                continue
            moved_way = way + step
            moved = factors.moved(states, step.reshape(len(self), self.dimension))
            if np.abs(step).max() < tolerance:
                states, way, last = moved, moved_way, step
                break
            new = layout.fill(linearise(moved), prior.hessian, *prior.moved(moved_way))
            if new.cost > now.cost + 1e-9 * (1.0 + abs(now.cost)):
                damping = max(10.0 * damping, FIRST_DAMPING)
                continue
            states, way, now = moved, moved_way, new
            damping = 0.1 * damping if damping > FIRST_DAMPING else 0.0
        self.states, self._layout, self._solution, self._last_step = states, layout, now, last
        self.prior = Prior(prior.hessian, prior.moved(way)[0])
        return iteration

    def _layout_of(self, blocks: list[Block]) -> Layout:
        """The layout of the last optimisation if it fits, as it does in steady state."""
        structure = blocks, len(self), self.dimension, self.covered
        if self._layout is not None and self._layout.fits(*structure):
            self._layout.blocks = blocks
            return self._layout
        return Layout(*structure)

    def marginalise_oldest(self) -> None:
        """Fold the oldest state and every factor that touches it into the prior.

        The factors are those of the last optimisation, as it linearised them.
        """
        if self._layout is None or self._solution is None:
            raise ValueError("optimise before marginalising")
        d, blocks = self.dimension, self._layout.blocks
        touching = [np.flatnonzero(block.states[:, 0] == 0) for block in blocks]
        reaches = [
            b.states[rows, -1].max(initial=-1) for b, rows in zip(blocks, touching, strict=True)
        ]
        reach = max(self.covered, int(max(reaches)) + 1)
        hessian, gradient = np.zeros((reach * d, reach * d)), np.zeros(reach * d)
        for columns, part, rows in zip(
            self._layout.columns, self._solution.parts, touching, strict=True
        ):
            for row in rows.tolist():
                at = columns[row]
                hessian[at[:, None], at] += part.hessian[row]
                gradient[at] += part.gradient[row]
        gradient += hessian @ self._last_step[: reach * d]
        covered = len(self.prior.gradient)
        hessian[:covered, :covered] += self.prior.hessian
        gradient[:covered] += self.prior.gradient
        right = np.empty((d, len(gradient) - d + 1))
        right[:, :-1], right[:, -1] = hessian[:d, d:], gradient[:d]
        try:
            solved = solve_positive(hessian[:d, :d], right)
        except np.linalg.LinAlgError as error:
            reason = "the oldest state is not observable: it cannot be marginalised"
            raise ValueError(reason) from error
        remaining = hessian[d:, d:] - hessian[d:, :d] @ solved[:, :-1]
        slope = gradient[d:] - hessian[d:, :d] @ solved[:, -1]
        self.prior = Prior(0.5 * (remaining + remaining.T), slope)
        self._drop_oldest()
        self._fresh = False

    def _drop_oldest(self) -> None:
        pair = oldest, second = int(self.stamps[0]), int(self.stamps[1])
        if self.poses.between(pair).any():
            self._measured_until = second
        self.poses = self.poses.where(self.poses.stamps[:, 0] != oldest)
        self.rotations = self.rotations.where(self.rotations.stamps[:, 0] != oldest)
        self.turns.pop(pair, None)
        self.stills.pop(pair, None)
        self.verticals.pop(oldest, None)
        self.stamps = self.stamps[1:]
        self.states = States(*(part[1:] for part in self.states))
        self._solution = None

    def newest_covariance(self, count: int) -> Array:
        """The joint covariance of the last `count` states, after `optimise`."""
        if self._solution is None:
            raise ValueError("optimise before asking for a covariance")
        return self._solution.last_covariance(min(count, len(self)) * self.dimension)


@cache
def warm_up() -> None:
    """Solve a window of three states: what is compiled takes long for the first time."""
    noise = WindowNoise(np.ones(6), np.ones(6), 1.0, 1.0)
    window = Window(noise, Kernel("huber", 1.0), Kernel("huber", 1.0), with_bias=True)
    window.start(0, np.eye(4), np.eye(window.dimension))
    for stamp in (1, 2):
        step = stamp - 1, stamp
        window.insert(stamp, np.eye(4))
        window.poses = window.poses.plus(step, np.eye(3), np.zeros(3), np.eye(6))
        window.rotations = window.rotations.plus(step, np.eye(3), np.zeros(3), np.eye(3))
        window.optimise()
    window.newest_covariance(1)
    window.marginalise_oldest()
