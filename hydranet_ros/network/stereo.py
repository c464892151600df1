"""Two cameras of one rectified pair see the same rotation: one estimate from two predictions.

Their errors are not independent: the scene, the flow algorithm and the network are the same.
Averaging as if they were would halve the covariance, and the estimate would be over-confident.
"""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.network.prediction import Prediction


def combine_stereo(left: Prediction, right: Prediction, correlation: float) -> Prediction:
    """The information-weighted mean of two predictions, with the covariance it really has.

    q = Exp(W_r Log(q_r (x) q_l^-1)) (x) q_l with W_r = (Lambda_l + Lambda_r)^-1 Lambda_r and
    W_l = I - W_r. Its error is W_l phi_l + W_r phi_r to first order, so

        Sigma_a = W_l A_l W_l^T + W_r A_r W_r^T + W_l X W_r^T + W_r X^T W_l^T,
        X = correlation A_l^(1/2) A_r^(1/2),

    which is (1 + correlation) / 2 A for two equal covariances A. Epistemic errors need no assumed
    correlation: each head makes one estimate from both cameras, and those are what spreads.
    """
    if not 0.0 <= correlation <= 1.0:
        raise ValueError(f"correlation must be from 0 to 1, got {correlation}")
    if len(left) != len(right):
        raise ValueError(f"left has {len(left)} predictions, right {len(right)}")
    information = np.linalg.inv(left.covariance), np.linalg.inv(right.covariance)
    W_r = np.linalg.solve(information[0] + information[1], information[1])
    W_l = np.eye(3) - W_r
    cross = W_l @ (correlation * _root(left.aleatoric) @ _root(right.aleatoric)) @ _t(W_r)
    aleatoric = W_l @ left.aleatoric @ _t(W_l) + W_r @ right.aleatoric @ _t(W_r)
    apart = lie.quaternion_log(lie.quaternion_multiply(right.quaternions, _inverse(left)))
    step = lie.quaternion_exp((W_r @ apart[..., None])[..., 0])
    return Prediction(
        lie.quaternion_positive(lie.quaternion_multiply(step, left.quaternions)),
        left.deviations @ _t(W_l) + right.deviations @ _t(W_r),
        aleatoric + cross + _t(cross),
    )


def error_correlation(
    left: Prediction, right: Prediction, truth: Array, robust: bool = True
) -> float:
    """The correlation of the whitened errors of two predictions against (n, 4) true rotations.

    With z = A^(-1/2) phi it is 2 <z_l z_r> / (<z_l^2> + <z_r^2>), clipped to what
    `combine_stereo` takes. `robust` leaves out whitened errors beyond 5.
    """
    z_l, z_r = _whitened(left, truth), _whitened(right, truth)
    if robust:
        kept = (np.abs(z_l) < 5.0) & (np.abs(z_r) < 5.0)
        z_l, z_r = z_l[kept], z_r[kept]
    total = np.sum(z_l * z_l) + np.sum(z_r * z_r)
    if not total > 0.0:
        raise ValueError("a correlation needs errors that are not all zero or outliers")
    return float(np.clip(2.0 * np.sum(z_l * z_r) / total, 0.0, 1.0))


def _whitened(prediction: Prediction, truth: Array) -> Array:
    inverse = np.asarray(truth) * [1.0, -1.0, -1.0, -1.0]
    phi = lie.quaternion_log(lie.quaternion_multiply(prediction.quaternions, inverse))
    white: Array = np.linalg.solve(_root(prediction.aleatoric), phi[..., None])[..., 0]
    return white


def _inverse(prediction: Prediction) -> Array:
    return prediction.quaternions * [1.0, -1.0, -1.0, -1.0]


def _t(matrix: Array) -> Array:
    return np.swapaxes(matrix, -1, -2)


def _root(covariance: Array) -> Array:
    """The symmetric square root: the same in every frame, unlike a Cholesky factor."""
    values, vectors = np.linalg.eigh(covariance)
    root: Array = (vectors * np.sqrt(values)[..., None, :]) @ _t(vectors)
    return root
