"""The factors of the window, linearised in batches.

The state of frame i is `T_i_w` (camera i from world), kept as `C` and `r`, and the bias `b` of the
network's rotation rate, perturbed as T <- Exp(xi) T and b <- b + d.

    pose      e = Log(T_b_a inv(T_meas)),                T_b_a = T_b_w inv(T_a_w)
    rotation  e = Log(Exp(b dt) C_b_a C_meas^T)          the network sees Exp(b dt) C_b_a
    velocity  e = Log(T_c_b)/dt_c_b - Log(T_b_a)/dt_b_a  a random walk
    bias      e = b_b - b_a                              a random walk

Residuals are (M, d) and Jacobians (M, d, k); the columns of a Jacobian are named by `Columns`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import compiled_loops
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

Index = NDArray[np.intp]

compiled = compiled_loops("hydranet_ros.fusion.factors_numba")
"""The inner loops; None where numba is not installed."""

# Columns: for each group of three, which of the factor's states, and which third of that state
# (0 translation, 1 rotation, 2 bias, 3 errors of scale, 4 bias of an IMU).
Columns = tuple[tuple[int, int], ...]
TWO_POSES: Columns = ((0, 0), (0, 1), (1, 0), (1, 1))
THREE_POSES: Columns = (*TWO_POSES, (2, 0), (2, 1))
TWO_ROTATIONS: Columns = ((0, 1), (1, 1))
ROTATIONS_AND_BIAS: Columns = (*TWO_ROTATIONS, (1, 2))
TWO_BIASES: Columns = ((0, 2), (1, 2))


class States(NamedTuple):
    """The poses `C` (N, 3, 3), `r` (N, 3) of T_i_w, and the biases `b` (N, 3) in rad/s.

    `s` (N, 3) are the errors of scale, which `calibration.py` is about, and `i` (N, 3) the biases
    of an IMU (`imu.py`), in rad/s.
    """

    C: Array
    r: Array
    b: Array
    s: Array
    i: Array = np.zeros((0, 3))


class Linear(NamedTuple):
    """Residuals (M, d) and Jacobians (M, d, k)."""

    residual: Array
    jacobian: Array


class EdgeFactors:
    """Pose edges, then rotation edges: C_meas (P + R, 3, 3), r_meas (P, 3), dt (R,) in seconds.

    Both need the logarithm of a rotation, so they go through it together: at the few edges of a
    window, time goes with the number of array operations, not with their size.
    """

    def __init__(
        self, pose_index: Index, rotation_index: Index, C_meas: Array, r_meas: Array, dt: Array
    ) -> None:
        self.count = len(pose_index)
        self.a, self.b = np.concatenate([pose_index, rotation_index]).T.copy()
        self.C_meas, self.inverse_C_meas = C_meas, np.swapaxes(C_meas, -1, -2)
        self.r_meas, self.dt = r_meas, dt[:, None]


def linearise_edges(states: States, edges: EdgeFactors, with_bias: bool) -> tuple[Linear, Linear]:
    """Pose edges (columns TWO_POSES) and rotation edges (ROTATIONS_AND_BIAS or TWO_ROTATIONS)."""
    count, a, b = edges.count, edges.a, edges.b
    if compiled is not None:
        turns = len(a) - count
        poses = Linear(np.zeros((count, 6)), np.zeros((count, 6, 12)))
        rotations = Linear(np.zeros((turns, 3)), np.zeros((turns, 3, 9 if with_bias else 6)))
        given = (*map(np.ascontiguousarray, states[:3]), a, b, count)
        measured = map(np.ascontiguousarray, (edges.C_meas, edges.r_meas, edges.dt[:, 0]))
        compiled.linearise_edges(*given, *measured, with_bias, *poses, *rotations)
        return poses, rotations
    C_b_a = states.C[b] @ np.swapaxes(states.C[a], -1, -2)
    C_e = C_b_a @ edges.inverse_C_meas
    if with_bias:
        beta = states.b[b[count:]] * edges.dt
        C_beta = lie.so3_exp(beta)
        C_e[count:] = C_beta @ C_e[count:]
    phi = lie.so3_log(C_e)
    k, (e, d) = lie.hat(phi), lie.inverse_coefficients(phi)
    left = np.eye(3) - 0.5 * k + e[:, None, None] * (k @ k)
    r_b_a = states.r[b[:count]] - apply(C_b_a[:count], states.r[a[:count]])
    rho = apply(left[:count], r_b_a - apply(C_e[:count], edges.r_meas))
    xi = np.concatenate([rho, phi[:count]], axis=-1)
    # Jl^-1 beside -Jl^-1 Ad(T_b_a), both with zeros below their corners.
    corner = lie.inverse_corner(rho, phi[:count], e[:count], d[:count])
    along = np.zeros((count, 6, 12))
    along[:, :3, 6:9] = along[:, 3:, 9:] = left[:count]
    along[:, :3, 9:] = corner
    along[:, :3, :3] = along[:, 3:, 3:6] = -left[:count] @ C_b_a[:count]
    along[:, :3, 3:6] = -(left[:count] @ lie.hat(r_b_a) + corner) @ C_b_a[:count]
    poses = Linear(xi, along)
    left, C_b_a, phi = left[count:], C_b_a[count:], phi[count:]
    if not with_bias:
        return poses, Linear(phi, np.concatenate([-left @ C_b_a, left], axis=-1))
    along_b, along_bias = left @ C_beta, left @ lie.so3_left_jacobian(beta) * edges.dt[:, None]
    return poses, Linear(phi, np.concatenate([-along_b @ C_b_a, along_b, along_bias], axis=-1))


def moved(states: States, step: Array) -> States:
    """Perturb all states by (N, d): C <- Exp(phi) C, r <- Exp(phi) r + rho, the rest by adding.

    To first order that is Exp(xi) T, which is all that a retraction must be.
    """
    if compiled is not None:
        C, r = compiled.moved(*map(np.ascontiguousarray, (states.C, states.r, step)))
    else:
        turn = lie.so3_exp(step[:, 3:6])
        C, r = turn @ states.C, apply(turn, states.r) + step[:, :3]
    rest = (
        part + step[:, 3 * k : 3 * k + 3] if step.shape[1] > 3 * k else part
        for k, part in enumerate((states.b, states.s, states.i), start=2)
    )
    return States(C, r, *rest)


def apply(matrix: Array, vector: Array) -> Array:
    """(M, i, j) times (M, j)."""
    return (matrix @ vector[:, :, None])[:, :, 0]


def still(states: States, index: Index) -> Linear:
    """E = Log(T_b_a): a pose edge that measured no motion. Columns: TWO_POSES."""
    xi, jacobian_a, jacobian_b = _motion(states, index[:, 0], index[:, 1])
    return Linear(xi, np.concatenate([jacobian_a, jacobian_b], axis=-1))


def velocity_walk(states: States, index: Index, rate_b_a: Array, rate_c_b: Array) -> Linear:
    """Compare rate_c_b Log(T_c_b) with rate_b_a Log(T_b_a), rates (M, 6). Columns: THREE_POSES."""
    first, first_a, first_b = _motion(states, index[:, 0], index[:, 1])
    second, second_b, second_c = _motion(states, index[:, 1], index[:, 2])
    before, after = rate_b_a, rate_c_b
    along_b = after[:, :, None] * second_b - before[:, :, None] * first_b
    jacobian = np.concatenate(
        [-before[:, :, None] * first_a, along_b, after[:, :, None] * second_c], axis=-1
    )
    return Linear(after * second - before * first, jacobian)


def _motion(states: States, a: Index, b: Index) -> tuple[Array, Array, Array]:
    """Log(T_b_a) and its Jacobians in xi_a and xi_b."""
    C_b_a = states.C[b] @ np.swapaxes(states.C[a], -1, -2)
    r_b_a = states.r[b] - apply(C_b_a, states.r[a])
    xi = lie.se3_log(lie.se3_from(C_b_a, r_b_a))
    jacobian_b = lie.se3_left_jacobian_inverse(xi)
    return xi, -jacobian_b @ lie.se3_adjoint_of(C_b_a, r_b_a), jacobian_b


def bias_walk(states: States, index: Index) -> Linear:
    """Columns: TWO_BIASES."""
    jacobian = np.broadcast_to(np.hstack([-np.eye(3), np.eye(3)]), (len(index), 3, 6))
    return Linear(states.b[index[:, 1]] - states.b[index[:, 0]], jacobian)
