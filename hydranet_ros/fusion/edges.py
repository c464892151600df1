"""What the window takes, edges, and what it tells, states; and what it did not take, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros.fusion.arrival import Measurement, source_of
from hydranet_ros.fusion.calibration import HELD, NAMES
from hydranet_ros.fusion.gating import RelativeMotion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array

Interval = tuple[int, int]

# A larger variance says nothing; on all axes, other people's odometry says 'lost' with it.
MAX_VARIANCE = 1e3
# A smaller one, in any direction, leaves no digits for the rest of the window.
MIN_VARIANCE = 1e-14


@dataclass(frozen=True)
class Rejection:
    """A measurement that was not used, and why."""

    source: str
    stamp_1_ns: int
    stamp_2_ns: int
    reason: str


@dataclass(frozen=True, eq=False)
class FusedState:
    """What is known after an update.

    `Sigma_c_w` belongs to the left perturbation of T_c_w, which is the right (child frame)
    perturbation of T_w_c. `T_2_1` with `Sigma_2_1` is the motion since the state before, over
    `step_s` seconds; None while there is only one. `velocity` is the camera's own in its own frame
    (m/s, rad/s), `bias` that of the network's rotation rate (rad/s), `scales` the errors of scale
    of the gyro, and of turn and way of the odometry; `Sigma_scales` is None where they are off.
    `imu_bias` (rad/s) is that of an IMU, in the axes of the camera; its Sigma is None without one.
    `nis` has what was tested in this update.
    `waited_s` is how long the first measurement of it waited for the others. `still` where the
    vehicle is known to stand.
    """

    stamp_ns: int
    T_w_c: Array
    Sigma_c_w: Array
    T_2_1: Array | None
    Sigma_2_1: Array | None
    step_s: float | None
    velocity: Array
    bias: Array
    Sigma_bias: Array | None
    scales: Array
    Sigma_scales: Array | None
    imu_bias: Array
    Sigma_imu_bias: Array | None
    nis: dict[str, float]
    rejected: tuple[Rejection, ...]
    waited_s: float = 0.0
    still: bool = False


def scales(state: FusedState) -> dict[str, tuple[float, float]]:
    """The errors of scale that are found, by name, with their sigmas; empty where they are off."""
    if state.Sigma_scales is None:
        return {}
    sigmas = np.sqrt(np.diagonal(state.Sigma_scales)).tolist()
    found = zip(NAMES, state.scales.tolist(), sigmas, strict=True)
    return {name: (error, sigma) for name, error, sigma in found if sigma > 10.0 * HELD}


@dataclass(frozen=True, eq=False)
class Edge:
    """A measurement as the window takes it, with its covariance as it is believed."""

    measurement: Measurement
    interval: Interval
    C: Array
    r: Array
    covariance: Array

    @property
    def source(self) -> str:
        """Which source it is of."""
        return source_of(self.measurement)

    @property
    def information(self) -> Array:
        """Sigma^-1."""
        return np.linalg.inv(self.covariance)

    @property
    def motion(self) -> RelativeMotion:
        """As it is tested."""
        return RelativeMotion(self.C, self.r, self.covariance)


def make_edge(m: Measurement, interval: Interval, believed: Array) -> Edge | Rejection:
    """The edge of a measurement with its covariance as it is believed, or why there is none."""
    if float(np.diagonal(m.Sigma_2_1).min()) > MAX_VARIANCE:
        return rejection(m, f"all variances are above {MAX_VARIANCE:g}: its source is lost")
    pose = m.T_2_1 if isinstance(m, RelativePose) else lie.se3_from(m.C_2_1, np.zeros(3))
    covariance = _bounded(believed)
    if float(np.linalg.eigvalsh(covariance)[0]) < MIN_VARIANCE:
        return rejection(m, f"it has a variance below {MIN_VARIANCE:g}, and no floor for it")
    return Edge(m, interval, pose[:3, :3], pose[:3, 3], covariance)


def _bounded(covariance: Array) -> Array:
    """Nothing is known along an axis with a huge variance, whatever it is correlated with."""
    huge = np.diagonal(covariance) > MAX_VARIANCE
    if not huge.any():
        return covariance
    out = covariance.copy()
    out[huge, :] = out[:, huge] = 0.0
    out[huge, huge] = MAX_VARIANCE
    return out


def rejection(m: Measurement, reason: str) -> Rejection:
    """A measurement that is not used."""
    return Rejection(source_of(m), m.stamp_1_ns, m.stamp_2_ns, reason)
