"""An IMU: its gyro preintegrated between states, with the Jacobian of its bias, and gravity.

The gyro measures m = w + b + noise, in the axes of the camera here. With the rate constant over a
step, C_2_1 and the covariance P of its left perturbation grow, and so does its Jacobian J in the
bias (Forster et al., On-Manifold Preintegration, 2017, written for left perturbations):

    A = Exp(-(m - b) dt),    L = Jl(-(m - b) dt) dt
    C <- A C,    J <- A J + L,    P <- A P A^T + L L^T s^2 / dt

So C_2_1(b + d) = Exp(J d) C_2_1(b), to first order in d: a bias that is found later needs no new
integration. Between two samples the rate is the mean of both, at a stamp between them it is
interpolated. A share of the turned angle is added to P, as for other sources: scale and axes of a
MEMS gyro are known to some tenths of a per cent.

The factor between two states, and what it is differentiated by (dJ = J (b_b - b)):

    e = Log(C_b_a C_meas^T Exp(-dJ)),    de = Jl^-1(e) (phi_b - C_b_a phi_a) - Jl^-1(-e) Jl(dJ) J d
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hydranet_ros.fusion.factors import (
    TWO_ROTATIONS,
    Columns,
    Index,
    Linear,
    States,
    apply,
)
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting

TURN_AND_BIAS: Columns = (*TWO_ROTATIONS, (1, 4))
TWO_IMU_BIASES: Columns = ((0, 4), (1, 4))
GRAVITY: Columns = ((0, 1),)
# A turn is never known better: this keeps the equations regular.
LEAST_RAD = 1e-6
# Over what angle a share of it stays the same, as for other sources.
SCALE_RAD = 1.0
# Before anything is integrated, a rate beyond this is a broken sensor (rad/s), and so is an
# acceleration (m/s^2): MEMS sensors end at 2000 deg/s and 16 g.
FASTEST, STRONGEST = 70.0, 400.0
STANDARD_GRAVITY = 9.80665
# Gravity is what the accelerometer shows while the vehicle neither turns nor speeds up: over this
# time the rate is below, the spread of the acceleration is below, and its length is within a share
# of what it is at rest. Stated: 0.2 m/s^2 across, which that length does not show, tilts it by
# 1.2 deg, about the default of `gravity_sigma_deg`.
GRAVITY_S, GRAVITY_RATE, GRAVITY_SPREAD, GRAVITY_SHARE = 0.5, 0.1, 0.5, 0.05


@dataclass(frozen=True)
class ImuConfig(Configuration):
    """What is believed of an IMU. The values are those of a small MEMS sensor."""

    use: bool = setting(True, "use an IMU where there is one")
    noise_deg: float = setting(0.05, "noise of a turn, per root of a second", 1e-6)
    share: float = setting(0.003, "standard deviation of a turn of 1 rad, as a share of it")
    bias_sigma_deg_s: float = setting(1.0, "of the bias, before it is observed", 1e-6)
    bias_walk_deg_s: float = setting(0.003, "random walk of the bias, per root of a second", 1e-9)
    max_gap_s: float = setting(0.1, "samples further apart are not integrated", 1e-4)
    gravity: Literal["auto", "off"] = setting(
        "auto", "hold roll and pitch by gravity, where the acceleration shows nothing else"
    )
    gravity_sigma_deg: float = setting(1.0, "of the vertical, each half second", 1e-3)


@dataclass(frozen=True, eq=False, slots=True)
class ImuSample:
    """Rate (3,) in rad/s and acceleration (3,) in m/s^2, None where there is none."""

    stamp_ns: int
    rate: Array
    acceleration: Array | None = None

    @property
    def sound(self) -> bool:
        """Whether these are numbers that a sensor can send."""
        return bool(np.abs(self.rate).max() < FASTEST) and (
            self.acceleration is None or bool(np.abs(self.acceleration).max() < STRONGEST)
        )

    def turned(self, C: Array) -> ImuSample:
        """In other axes."""
        acceleration = None if self.acceleration is None else C @ self.acceleration
        return ImuSample(self.stamp_ns, C @ self.rate, acceleration)


@dataclass(frozen=True, eq=False, slots=True)
class ImuTurn:
    """C_2_1 with its covariance, about a bias, and the Jacobian J in it."""

    C: Array
    covariance: Array
    bias: Array
    jacobian: Array

    def at(self, bias: Array) -> Array:
        """C_2_1 with another bias."""
        return lie.so3_exp(self.jacobian @ (bias - self.bias)) @ self.C


@dataclass(frozen=True, eq=False, slots=True)
class Rest:
    """Means and spreads of the last samples: what standing still is told by."""

    rate: Array
    rate_spread: float
    acceleration: Array | None
    acceleration_spread: float


def integrate(seconds: Array, rates: Array, bias: Array, noise: float) -> ImuTurn:
    """Steps of `seconds` (N,) at `rates` (N, 3); `noise` in rad per root of a second."""
    turned = -(rates - bias) * seconds[:, None]
    steps = lie.so3_exp(turned)
    gains = lie.so3_left_jacobian(turned) * seconds[:, None, None]
    C, J, P = np.eye(3), np.zeros((3, 3)), np.zeros((3, 3))
    for A, L, dt in zip(steps, gains, seconds, strict=True):
        C, J = A @ C, A @ J + L
        P = A @ P @ A.T + L @ L.T * (noise**2 / dt)
    return ImuTurn(C, P, bias, J)


class ImuBuffer:
    """The samples of the last `keep_s` seconds, in order."""

    def __init__(self, config: ImuConfig, keep_s: float) -> None:
        self.config, self.keep_ns = config, round(keep_s * 1e9)
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._stamps: list[int] = []
        self._rates: list[Array] = []
        self._accelerations: list[Array | None] = []

    def __len__(self) -> int:
        return len(self._stamps)

    def covers(self, stamp: int) -> bool:
        """Whether there are samples about a stamp."""
        gap = round(self.config.max_gap_s * 1e9)
        return bool(self._stamps) and self._stamps[0] - gap <= stamp <= self._stamps[-1] + gap

    def add(self, sample: ImuSample) -> bool:
        """Take the next sample in; False where it is not after the last, or no measurement."""
        if (self._stamps and sample.stamp_ns <= self._stamps[-1]) or not sample.sound:
            return False
        self._stamps.append(sample.stamp_ns)
        self._rates.append(sample.rate)
        self._accelerations.append(sample.acceleration)
        if len(self._stamps) % 64 == 0:
            old = bisect_left(self._stamps, sample.stamp_ns - self.keep_ns)
            del self._stamps[:old], self._rates[:old], self._accelerations[:old]
        return True

    def turn(self, begin: int, end: int, bias: Array) -> ImuTurn | None:
        """The turn between two stamps; None where the samples do not cover it."""
        first = bisect_right(self._stamps, begin) - 1
        last = bisect_left(self._stamps, end)
        if first < 0 or last >= len(self._stamps):
            return None
        known = np.array(self._stamps[first : last + 1])
        if np.diff(known).max() > self.config.max_gap_s * 1e9:
            return None
        stamps = known.copy()
        stamps[0], stamps[-1] = begin, end
        rates = np.array(self._rates[first : last + 1])
        ends = np.array([rates[0], rates[-1]])
        for row, at in ((0, 0), (-1, len(known) - 2)):
            share = (stamps[row] - known[at]) / (known[at + 1] - known[at])
            ends[row] = (1.0 - share) * rates[at] + share * rates[at + 1]
        rates[[0, -1]] = ends
        seconds = np.diff(stamps) * 1e-9
        moving = seconds > 0.0
        noise = np.deg2rad(self.config.noise_deg)
        turn = integrate(
            seconds[moving], 0.5 * (rates[1:] + rates[:-1])[moving], bias.copy(), float(noise)
        )
        angle = float(np.linalg.norm(lie.so3_log(turn.C)))
        more = self.config.share**2 * angle * SCALE_RAD + LEAST_RAD**2
        return ImuTurn(turn.C, turn.covariance + more * np.eye(3), turn.bias, turn.jacobian)

    def rest(self, end: int, seconds: float) -> Rest | None:
        """Statistics over the time before a stamp; None where the samples do not cover it."""
        first = bisect_left(self._stamps, end - round(seconds * 1e9))
        last = bisect_right(self._stamps, end)
        if last - first < 5 or self._stamps[last - 1] - self._stamps[first] < 0.7e9 * seconds:
            return None
        rates = np.array(self._rates[first:last])
        accelerations = [a for a in self._accelerations[first:last] if a is not None]
        mean, spread = None, np.inf
        if len(accelerations) == last - first:
            values = np.array(accelerations)
            mean, spread = values.mean(axis=0), float(values.std(axis=0).max())
        return Rest(rates.mean(axis=0), float(rates.std(axis=0).max()), mean, spread)

    def vertical(self, stamp: int) -> Array | None:
        """(3,), up in the axes of the camera; None where the acceleration shows more than it."""
        rest = self.rest(stamp, GRAVITY_S) if self.config.gravity == "auto" else None
        if rest is None or rest.acceleration is None:
            return None
        length = float(np.linalg.norm(rest.acceleration))
        turns = float(np.linalg.norm(rest.rate)) > GRAVITY_RATE
        shaken = rest.acceleration_spread > GRAVITY_SPREAD
        if turns or shaken or abs(length / STANDARD_GRAVITY - 1.0) > GRAVITY_SHARE:
            return None
        up: Array = rest.acceleration / length
        return up


# --- factors -------------------------------------------------------------------------------------


def turns(states: States, index: Index, edges: list[ImuTurn]) -> Linear:
    """Columns: TURN_AND_BIAS."""
    C_meas = np.array([edge.C for edge in edges]).reshape(-1, 3, 3)
    J = np.array([edge.jacobian for edge in edges]).reshape(-1, 3, 3)
    about = np.array([edge.bias for edge in edges]).reshape(-1, 3)
    a, b = index.T
    C_b_a = states.C[b] @ np.swapaxes(states.C[a], -1, -2)
    moved = apply(J, states.i[b] - about)
    e = lie.so3_log(C_b_a @ np.swapaxes(lie.so3_exp(moved) @ C_meas, -1, -2))
    left = lie.so3_left_jacobian_inverse(e)
    right = lie.so3_left_jacobian_inverse(-e)
    along_bias = -right @ lie.so3_left_jacobian(moved) @ J
    return Linear(e, np.concatenate([-left @ C_b_a, left, along_bias], axis=-1))


def bias_walk(states: States, index: Index) -> Linear:
    """E = i_b - i_a. Columns: TWO_IMU_BIASES."""
    jacobian = np.broadcast_to(np.hstack([-np.eye(3), np.eye(3)]), (len(index), 3, 6))
    return Linear(states.i[index[:, 1]] - states.i[index[:, 0]], jacobian)


def gravity(states: States, index: Index, measured: Array, up_w: Array) -> Linear:
    """E = u x (C up_w), u (M, 3) measured: de = -[u]x [C up_w]x phi. Columns: GRAVITY."""
    up = states.C[index[:, 0]] @ up_w
    crossed = lie.hat(measured)
    return Linear(apply(crossed, up), -crossed @ lie.hat(up))
