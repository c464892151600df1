"""From the heads to one rotation with its two covariances (the paper's Algorithm 2).

`combine` does so for one camera, `combine_stereo` joins the predictions of a stereo pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.config import Calibration


class HeadsOutput(Protocol):
    """What the heads say, in arrays or in tensors of the CPU."""

    @property
    def quaternions(self) -> Any:
        """(batch, H, 4)."""

    @property
    def root(self) -> Any:
        """(batch, 3, 3), lower triangular."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Rotations C_2_1 of a batch, in float64; covariances are of left perturbations, in rad^2."""

    quaternions: Array  # (batch, 4), w x y z, w >= 0
    deviations: Array  # (batch, H, 3), Log(q_h (x) q^-1): how far each head is from the mean
    aleatoric: Array  # (batch, 3, 3)

    def __len__(self) -> int:
        return len(self.quaternions)

    @cached_property
    def epistemic(self) -> Array:
        """Sigma_e = sum_h phi_h phi_h^T / (H - 1), (batch, 3, 3)."""
        phi = self.deviations
        covariance: Array = np.swapaxes(phi, 1, 2) @ phi / (phi.shape[1] - 1)
        return covariance

    @property
    def covariance(self) -> Array:
        """Sigma_t = Sigma_e + Sigma_a, (batch, 3, 3)."""
        return self.epistemic + self.aleatoric

    def halves(self) -> tuple[Prediction, Prediction]:
        """Its first half and its second."""
        q, phi, Sigma = (
            np.split(p, 2) for p in (self.quaternions, self.deviations, self.aleatoric)
        )
        return Prediction(q[0], phi[0], Sigma[0]), Prediction(q[1], phi[1], Sigma[1])

    def inverse(self) -> Prediction:
        """Of C_1_2: q^-1, and what Exp(phi) q has on its right comes to the left, C^T (-phi)."""
        C = lie.quaternion_to_matrix(self.quaternions)
        return Prediction(
            self.quaternions * [1.0, -1.0, -1.0, -1.0],
            -self.deviations @ C,
            np.swapaxes(C, 1, 2) @ self.aleatoric @ C,
        )

    def widened(self, floor_rad: float) -> Prediction:
        """With an independent error of this standard deviation about each axis."""
        return replace(self, aleatoric=self.aleatoric + floor_rad**2 * np.eye(3))

    def rotations(self, stamps_ns: Sequence[tuple[int, int]]) -> list[RelativeRotation]:
        """The estimates, given the stamps of images 1 and 2 of each."""
        if len(stamps_ns) != len(self):
            raise ValueError(f"{len(self)} rotations need as many stamps, got {len(stamps_ns)}")
        C_2_1, Sigma = lie.quaternion_to_matrix(self.quaternions), self.covariance
        return [
            RelativeRotation(C_2_1[i], Sigma[i], start, end, self.epistemic[i])
            for i, (start, end) in enumerate(stamps_ns)
        ]


def combine(output: HeadsOutput, calibration: Calibration | None = None) -> Prediction:
    """The mean of the heads, their spread and Sigma_a, calibrated.

    In float64: heads differ by less than float32 resolves next to 1.
    """
    calibration = calibration or Calibration()
    heads = np.asarray(output.quaternions, dtype=np.float64)
    root = np.asarray(output.root, dtype=np.float64)
    finite = np.isfinite(heads).all(axis=(1, 2)) & np.isfinite(root).all(axis=(1, 2))
    if not finite.all():
        raise not_finite(int(np.argmin(finite)))
    heads = heads / np.linalg.norm(heads, axis=-1, keepdims=True)
    mean = lie.quaternion_mean(heads)
    inverse = mean * [1.0, -1.0, -1.0, -1.0]
    apart = lie.quaternion_log(lie.quaternion_multiply(heads, inverse[:, None]))
    bias = lie.quaternion_exp(-np.asarray(calibration.bias_rad))
    root = np.asarray(calibration.aleatoric_scale)[:, None] * root
    found = Prediction(
        lie.quaternion_positive(lie.quaternion_multiply(bias, mean)),
        calibration.epistemic_scale * apart,
        root @ _t(root),
    )
    return found.widened(calibration.floor_rad)


def not_finite(sample: int) -> HydraNetError:
    """What to say of an output that is none."""
    return HydraNetError(
        f"the network's output for sample {sample} is not finite: is the flow finite where its "
        "mask is valid, and of sane size?"
    )


# --- stereo --------------------------------------------------------------------------------------
# Two cameras of a rectified pair see the same rotation. Their errors are not independent: the
# scene, the flow method and the network are the same. An average that took them as independent
# would halve the covariance, and be over-confident.


def combine_pair(found: Prediction, calibration: Calibration) -> Prediction:
    """One estimate of a pair: forward flow of the left camera, then backward flow of the right.

    `found` has no floor yet: it is that of both.
    """
    forward, backward = found.halves()
    both = combine_stereo(forward, backward.inverse(), calibration.stereo_correlation)
    return both.widened(calibration.floor_rad)


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
