"""The training loss: how unlikely a target is under what each head says.

    L = mean over heads and batch of  1/2 phi^T Sigma_a^-1 phi + 1/2 log det Sigma_a,
    phi = Log(q_head (x) q_target^-1)

without the constant 3/2 log 2 pi, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from hydranet_ros.gyro import quaternion
from hydranet_ros.gyro.network import HydraOutput

KINDS = ("nll", "split")


@dataclass(frozen=True)
class LossConfig:
    """Which form of the loss.

    The likelihood weighs each sample's error by its own precision: what is badly predicted gets a
    large covariance, then little gradient, and may stay badly predicted. Two remedies:

    - `beta` > 0 multiplies each sample's loss by det(Sigma_a)^(beta/3), held constant and scaled
      to mean 1 over the batch (beta-NLL, Seitzer et al. 2022, for a full covariance). 1 gives
      every sample's error the same weight; 0.5 is a good start.
    - kind `split` trains rotations on |phi|^2 / (2 mean_sigma_rad^2), whatever the covariance,
      and the covariance on errors held constant.
    """

    kind: str = "nll"
    beta: float = 0.0
    mean_sigma_rad: float = 0.01

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta must be from 0 to 1, got {self.beta}")
        if not self.mean_sigma_rad > 0.0:
            raise ValueError(f"mean_sigma_rad must be positive, got {self.mean_sigma_rad}")


def negative_log_likelihood(phi: Tensor, root: Tensor) -> Tensor:
    """1/2 |L^-1 phi|^2 + log det L: (batch, H, 3), (batch, 3, 3) -> (batch, H)."""
    (a, _, _), (d, b, _), (e, f, c) = (row.unbind(dim=-1) for row in root[:, None].unbind(dim=-2))
    x, y, z = phi.unbind(dim=-1)  # forward substitution
    x = x / a
    y = (y - d * x) / b
    z = (z - e * x - f * y) / c
    return 0.5 * (x * x + y * y + z * z) + torch.log(a) + torch.log(b) + torch.log(c)


def _mean_of_all(values: Tensor) -> Tensor:
    """The mean over the batches of all processes that train together."""
    mean = values.mean()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(mean)
        mean = mean / distributed.get_world_size()
    return mean


def loss(
    output: HydraOutput,
    target: Tensor,
    weights: Tensor | None = None,
    config: LossConfig | None = None,
) -> Tensor:
    """Mean over batch and heads, a scalar; target (batch, 4), bootstrap weights (batch, H)."""
    config = config or LossConfig()
    phi = quaternion.difference(output.quaternions, target[:, None])  # (batch, H, 3)
    if config.kind == "split":
        value = negative_log_likelihood(phi.detach(), output.root)
        value = value + 0.5 * (phi * phi).sum(dim=-1) / config.mean_sigma_rad**2
    else:
        value = negative_log_likelihood(phi, output.root)
    if config.beta > 0.0:
        log_det = 2.0 * output.root.detach().diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        share = torch.exp(config.beta / 3.0 * log_det)
        value = value * (share / _mean_of_all(share))[:, None]
    return (value if weights is None else value * weights).mean()
