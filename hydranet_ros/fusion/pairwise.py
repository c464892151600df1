"""The paper's relaxation: each pair of poses alone, then chained.

For every pair of frames, T_2_1 minimises xi' Sigma_vo^-1 xi + phi' Sigma_hn^-1 phi with
xi = Log(T_2_1 inv(T_vo)) and phi = Log(C_2_1 C_hn^T). All pairs are solved at once.
"""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

# The paper keeps VO where the network's covariance is larger than this.
MAX_DETERMINANT = 1e-4


def relax_pairs(
    T_vo: Array,
    Sigma_vo: Array,
    C_hn: Array,
    Sigma_hn: Array,
    *,
    max_determinant: float | None = MAX_DETERMINANT,
    unit_jacobians: bool = True,
    tolerance: float = 1e-12,
    max_iterations: int = 50,
) -> Array:
    """T_2_1 (N, 4, 4) of VO poses (N, 4, 4) with (N, 6, 6) and rotations (N, 3, 3) with (N, 3, 3).

    `max_determinant` is the paper's fall-back: pairs with det(Sigma_hn) above it keep VO; None
    uses every rotation. `unit_jacobians` takes dLog as the identity, as the published figures
    did: it shifts the solution by less than 0.4 mm a pair. False gives the exact minimum.
    """
    used = np.ones(len(T_vo), dtype=bool)
    if max_determinant is not None:
        used = np.linalg.det(Sigma_hn) <= max_determinant
    weight_vo, weight_hn = np.linalg.inv(Sigma_vo[used]), np.linalg.inv(Sigma_hn[used])
    inv_vo, inv_hn = lie.se3_inverse(T_vo[used]), lie.so3_inverse(C_hn[used])
    pose = T_vo[used]
    for _ in range(max_iterations):
        xi = lie.se3_log(pose @ inv_vo)
        phi = lie.so3_log(pose[:, :3, :3] @ inv_hn)
        jacobian_vo = np.broadcast_to(np.eye(6), (len(pose), 6, 6))
        jacobian_hn = np.broadcast_to(np.eye(3), (len(pose), 3, 3))
        if not unit_jacobians:
            jacobian_vo = lie.se3_left_jacobian_inverse(xi)
            jacobian_hn = lie.so3_left_jacobian_inverse(phi)
        hessian, gradient = _normal_equations(jacobian_vo, weight_vo, xi)
        hessian_hn, gradient_hn = _normal_equations(jacobian_hn, weight_hn, phi)
        hessian[:, 3:, 3:] += hessian_hn
        gradient[:, 3:] += gradient_hn
        step = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
        pose = lie.se3_exp(step) @ pose
        if np.max(np.abs(step), initial=0.0) < tolerance:
            break
    relaxed = T_vo.copy()
    relaxed[used] = pose
    return relaxed


def pair_covariances(
    Sigma_vo: Array, Sigma_hn: Array, max_determinant: float | None = MAX_DETERMINANT
) -> Array:
    """The covariances (N, 6, 6) that the relaxation implies: (Sigma_vo^-1 + Sigma_hn^-1)^-1."""
    information = np.linalg.inv(Sigma_vo)
    used = np.ones(len(Sigma_vo), dtype=bool)
    if max_determinant is not None:
        used = np.linalg.det(Sigma_hn) <= max_determinant
    information[used, 3:, 3:] += np.linalg.inv(Sigma_hn[used])
    return np.linalg.inv(information)


def _normal_equations(jacobian: Array, weight: Array, residual: Array) -> tuple[Array, Array]:
    """(J' W J, J' W e) for a batch."""
    weighted = np.swapaxes(jacobian, -1, -2) @ weight
    return weighted @ jacobian, (weighted @ residual[..., None])[..., 0]
