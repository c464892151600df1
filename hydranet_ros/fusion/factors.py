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

from hydranet_ros import lie
from hydranet_ros.lie import Array

Index = NDArray[np.intp]

# Columns: for each group of three, which of the factor's states, and which third of that state
# (0 translation, 1 rotation, 2 bias).
Columns = tuple[tuple[int, int], ...]
TWO_POSES: Columns = ((0, 0), (0, 1), (1, 0), (1, 1))
THREE_POSES: Columns = (*TWO_POSES, (2, 0), (2, 1))
TWO_ROTATIONS: Columns = ((0, 1), (1, 1))
ROTATIONS_AND_BIAS: Columns = (*TWO_ROTATIONS, (1, 2))
TWO_BIASES: Columns = ((0, 2), (1, 2))


class States(NamedTuple):
    """The poses `C` (N, 3, 3), `r` (N, 3) of T_i_w, and the biases `b` (N, 3) in rad/s."""

    C: Array
    r: Array
    b: Array


class Linear(NamedTuple):
    """Residuals (M, d) and Jacobians (M, d, k)."""

    residual: Array
    jacobian: Array


def edges(
    states: States,
    poses: tuple[Index, Array, Array],
    rotations: tuple[Index, Array, Array],
    with_bias: bool,
) -> tuple[Linear, Linear]:
    """Linearise pose edges (index (P, 2), C_meas, r_meas) and rotation edges (index, C_meas, dt).

    Both need the logarithm of a rotation, so they go through it together: at the few edges of a
    window, time goes with the number of array operations, not with their size.
    Columns: TWO_POSES, and ROTATIONS_AND_BIAS or TWO_ROTATIONS.
    """
    count = len(poses[0])
    index = np.concatenate([poses[0], rotations[0]])
    C_meas = np.concatenate([poses[1], rotations[1]])
    C_b_a = states.C[index[:, 1]] @ np.swapaxes(states.C[index[:, 0]], -1, -2)
    C_e = C_b_a @ np.swapaxes(C_meas, -1, -2)
    if with_bias:
        dt = rotations[2][:, None]
        beta = states.b[rotations[0][:, 1]] * dt
        C_beta = lie.so3_exp(beta)
        C_e[count:] = C_beta @ C_e[count:]
    phi = lie.so3_log(C_e)
    left = lie.so3_left_jacobian_inverse(phi)
    pose = _pose_edges(states, poses, C_b_a[:count], C_e[:count], phi[:count], left[:count])
    along_b = left[count:]
    if not with_bias:
        jacobian = np.concatenate([-along_b @ C_b_a[count:], along_b], axis=-1)
        return pose, Linear(phi[count:], jacobian)
    along_bias = along_b @ lie.so3_left_jacobian(beta) * dt[:, None]
    along_b = along_b @ C_beta
    jacobian = np.concatenate([-along_b @ C_b_a[count:], along_b, along_bias], axis=-1)
    return pose, Linear(phi[count:], jacobian)


def _pose_edges(
    states: States,
    poses: tuple[Index, Array, Array],
    C_b_a: Array,
    C_e: Array,
    phi: Array,
    left: Array,
) -> Linear:
    index, _, r_meas = poses
    r_b_a = states.r[index[:, 1]] - _apply(C_b_a, states.r[index[:, 0]])
    rho = _apply(left, r_b_a - _apply(C_e, r_meas))
    xi = np.concatenate([rho, phi], axis=-1)
    jacobian_b = lie.se3_left_jacobian_inverse(xi)
    jacobian_a = -jacobian_b @ lie.se3_adjoint_of(C_b_a, r_b_a)
    return Linear(xi, np.concatenate([jacobian_a, jacobian_b], axis=-1))


def _apply(matrix: Array, vector: Array) -> Array:
    return (matrix @ vector[:, :, None])[:, :, 0]


def still(states: States, index: Index) -> Linear:
    """E = Log(T_b_a): a pose edge that measured no motion. Columns: TWO_POSES."""
    xi, jacobian_a, jacobian_b = _motion(states, index[:, 0], index[:, 1])
    return Linear(xi, np.concatenate([jacobian_a, jacobian_b], axis=-1))


def velocity_walk(states: States, index: Index, dt_b_a: Array, dt_c_b: Array) -> Linear:
    """Columns: THREE_POSES."""
    first, first_a, first_b = _motion(states, index[:, 0], index[:, 1])
    second, second_b, second_c = _motion(states, index[:, 1], index[:, 2])
    before, after = 1.0 / dt_b_a[:, None], 1.0 / dt_c_b[:, None]
    along_b = after[:, None] * second_b - before[:, None] * first_b
    jacobian = np.concatenate(
        [-before[:, None] * first_a, along_b, after[:, None] * second_c], axis=-1
    )
    return Linear(after * second - before * first, jacobian)


def _motion(states: States, a: Index, b: Index) -> tuple[Array, Array, Array]:
    """Log(T_b_a) and its Jacobians in xi_a and xi_b."""
    C_b_a = states.C[b] @ np.swapaxes(states.C[a], -1, -2)
    r_b_a = states.r[b] - _apply(C_b_a, states.r[a])
    xi = lie.se3_log(lie.se3_from(C_b_a, r_b_a))
    jacobian_b = lie.se3_left_jacobian_inverse(xi)
    return xi, -jacobian_b @ lie.se3_adjoint_of(C_b_a, r_b_a), jacobian_b


def bias_walk(states: States, index: Index) -> Linear:
    """Columns: TWO_BIASES."""
    jacobian = np.broadcast_to(np.hstack([-np.eye(3), np.eye(3)]), (len(index), 3, 6))
    return Linear(states.b[index[:, 1]] - states.b[index[:, 0]], jacobian)
