"""Calibration states: what is the same all the time, or nearly so, and is found on the way.

Each state of the window carries three errors of scale beside its pose, each a random walk:

    gyro      rotations from images are 1 + g times the true ones: the focal length is wrong
    yaw       turns of the odometry are 1 + y times the true ones: the track of wheels is wrong
    distance  ways of the odometry are 1 + d times the true ones: their radius is wrong

The factors of the window become, with xi = Log(T_b_a), phi = Log(C_b_a) and S = diag(1 + d,
1 + y) on way and turn,

    pose      e = Log(Exp(S xi) inv(T_meas))
    rotation  e = Log(Exp(b dt) Exp((1 + g) phi) C_meas^T)

Exp(S xi) turns by Jl(S xi) S Jl(xi)^-1 times what T_b_a is perturbed by, and by Jl(S xi) (0, phi)
per y. Wheels and one camera only tell y - g: their priors share it out, and a camera's focal
length is known far better than a track. Nothing but another distance tells d: it is off. The axle
is taken to be below the camera: of a lever of 0.5 m, an error of 5 % leaves 25 mm per radian.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros.fusion.factors import (
    TWO_POSES,
    TWO_ROTATIONS,
    Columns,
    EdgeFactors,
    Index,
    Linear,
    States,
    apply,
)
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting

SCALED_POSES: Columns = (*TWO_POSES, (1, 3))
SCALED_ROTATIONS: Columns = (*TWO_ROTATIONS, (1, 2), (1, 3))
TWO_SCALES: Columns = ((0, 3), (1, 3))
NAMES = ("gyro", "yaw", "distance")
# A scale that is off is held to this, which is nothing, and keeps the equations regular.
HELD = 1e-5


@dataclass(frozen=True)
class CalibrationConfig(Configuration):
    """What is known of the scales beforehand. A sigma of 0 holds one at 0."""

    wheels: bool = setting(True, "find the errors of scale, where odometry is that of wheels")
    gyro_sigma: float = setting(0.005, "of the gyro's scale: focal length of a calibrated camera")
    nominal_sigma: float = setting(
        0.1, "of the gyro's scale, where nobody calibrated the camera or an IMU tells it"
    )
    yaw_sigma: float = setting(0.1, "of the scale of turns: track of a skid-steered robot")
    distance_sigma: float = setting(0.0, "of the scale of ways: only another distance tells it")
    gyro_walk: float = setting(1e-5, "how the gyro's scale wanders, per root of a second", 1e-9)
    yaw_walk: float = setting(1e-3, "how the scale of turns wanders, as the ground does", 1e-9)
    distance_walk: float = setting(1e-4, "how the scale of ways wanders", 1e-9)

    @property
    def sigmas(self) -> Array:
        """(3,) before anything is measured."""
        return np.maximum([self.gyro_sigma, self.yaw_sigma, self.distance_sigma], HELD)

    @property
    def walk(self) -> Array:
        """(3,) variances per second."""
        walks = np.array([self.gyro_walk, self.yaw_walk, self.distance_walk])
        return np.where(self.sigmas > HELD, walks, 0.1 * HELD) ** 2


def linearise_scaled(states: States, edges: EdgeFactors) -> tuple[Linear, Linear]:
    """Pose edges (columns SCALED_POSES) and rotation edges (SCALED_ROTATIONS)."""
    count, a, b = edges.count, edges.a, edges.b
    C_b_a = states.C[b] @ np.swapaxes(states.C[a], -1, -2)
    return _poses(states, edges, C_b_a[:count]), _rotations(
        states.b[b[count:]], states.s[b[count:], :1], edges, C_b_a[count:]
    )


def _poses(states: States, edges: EdgeFactors, C_b_a: Array) -> Linear:
    a, b = edges.a[: edges.count], edges.b[: edges.count]
    r_b_a = states.r[b] - apply(C_b_a, states.r[a])
    xi = lie.se3_log(lie.se3_from(C_b_a, r_b_a))
    scale = 1.0 + np.repeat(states.s[b][:, [2, 1]], 3, axis=1)
    scaled = lie.se3_exp(scale * xi)
    C_e = scaled[:, :3, :3] @ edges.inverse_C_meas[: edges.count]
    error = lie.se3_log(lie.se3_from(C_e, scaled[:, :3, 3] - apply(C_e, edges.r_meas)))
    along = lie.se3_left_jacobian_inverse(error) @ lie.se3_left_jacobian(scale * xi)
    along_b = (along * scale[:, None, :]) @ lie.se3_left_jacobian_inverse(xi)
    along_a = -along_b @ lie.se3_adjoint_of(C_b_a, r_b_a)
    along_s = np.zeros((len(a), 6, 3))
    along_s[:, :, 1] = apply(along[:, :, 3:], xi[:, 3:])
    along_s[:, :, 2] = apply(along[:, :, :3], xi[:, :3])
    return Linear(error, np.concatenate([along_a, along_b, along_s], axis=-1))


def _rotations(bias: Array, g: Array, edges: EdgeFactors, C_b_a: Array) -> Linear:
    phi, beta = lie.so3_log(C_b_a), bias * edges.dt
    scaled, C_beta = (1.0 + g) * phi, lie.so3_exp(beta)
    error = lie.so3_log(C_beta @ lie.so3_exp(scaled) @ edges.inverse_C_meas[edges.count :])
    left = lie.so3_left_jacobian_inverse(error)
    turned = left @ C_beta
    grown = lie.so3_left_jacobian(scaled) @ lie.so3_left_jacobian_inverse(phi)
    along_b = turned @ ((1.0 + g)[:, :, None] * grown)
    along_bias = left @ lie.so3_left_jacobian(beta) * edges.dt[:, None]
    along_s = np.zeros((len(phi), 3, 3))
    along_s[:, :, 0] = apply(turned, phi)
    parts = [-along_b @ C_b_a, along_b, along_bias, along_s]
    return Linear(error, np.concatenate(parts, axis=-1))


def scale_walk(states: States, index: Index) -> Linear:
    """E = s_b - s_a. Columns: TWO_SCALES."""
    jacobian = np.broadcast_to(np.hstack([-np.eye(3), np.eye(3)]), (len(index), 3, 6))
    return Linear(states.s[index[:, 1]] - states.s[index[:, 0]], jacobian)
