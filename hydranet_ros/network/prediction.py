"""From what the heads say to one rotation with its two covariances (the paper's Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.network import quaternion
from hydranet_ros.network.config import Calibration
from hydranet_ros.network.model import HydraOutput


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


def combine(output: HydraOutput, calibration: Calibration | None = None) -> Prediction:
    """The mean of the heads, their spread and Sigma_a, calibrated.

    In float64 on the CPU: heads differ by less than float32 tells next to 1.
    """
    calibration = calibration or Calibration()
    heads = quaternion.normalise(output.quaternions.detach().to("cpu", torch.float64))
    root = output.root.detach().to("cpu", torch.float64)
    finite = heads.isfinite().all(dim=-1).all(dim=-1) & root.isfinite().flatten(1).all(dim=-1)
    if not finite.all():
        index = int(torch.nonzero(~finite)[0])
        raise HydraNetError(
            f"the network's output for sample {index} is not finite: is the flow finite where its "
            "mask is valid, and of sane size?"
        )
    mean = quaternion.mean(heads)
    deviations = calibration.epistemic_scale * quaternion.difference(heads, mean[:, None])
    bias = torch.tensor(calibration.bias_rad, dtype=torch.float64)
    mean = quaternion.positive(quaternion.multiply(quaternion.exp(-bias), mean))
    root = torch.tensor(calibration.aleatoric_scale, dtype=torch.float64)[:, None] * root
    found = Prediction(mean.numpy(), deviations.numpy(), (root @ root.mT).numpy())
    return found.widened(calibration.floor_rad)
