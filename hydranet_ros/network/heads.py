"""The heads of a HydraNet: many rotations and one covariance from one vector of features."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydranet_ros.network.config import NetworkConfig


def at_least_single(x: Tensor) -> Tensor:
    """float32, or float64 where it came so: autocast ends where angles begin."""
    return x if x.dtype == torch.float64 else x.float()


class ManyLinear(nn.Module):
    """H affine maps side by side: (batch, H, inputs) -> (batch, H, outputs)."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / sqrt(inputs)  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs) for all maps, or (batch, H, inputs) -> (batch, H, outputs)."""
        if x.ndim == 2:  # one matrix product: (inputs) x (H * outputs, inputs)
            y = functional.linear(x, self.weight.flatten(0, 1), self.bias.flatten())
            return y.reshape(-1, *self.bias.shape)
        return torch.einsum("bhi,hoi->bho", x, self.weight) + self.bias


class RotationHeads(nn.Module):
    """H times Linear, PReLU, dropout, Linear, evaluated together."""

    def __init__(self, config: NetworkConfig, features: int) -> None:
        super().__init__()
        outputs = 4 if config.output == "quaternion" else 3
        self.first = ManyLinear(config.heads, features, config.head_hidden)
        self.slope = nn.Parameter(torch.full((config.heads, 1), 0.25))  # a PReLU per head
        self.dropout = nn.Dropout(config.head_dropout)
        self.second = ManyLinear(config.heads, config.head_hidden, outputs)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, features) -> (batch, H, 4 or 3), in float32."""
        x = self.first(features)
        x = torch.where(x < 0.0, self.slope.to(x.dtype) * x, x)
        return at_least_single(self.second(self.dropout(x)))


class CovarianceHead(nn.Module):
    """The aleatoric covariance as L, lower triangular with Sigma_a = L L^T.

    `diagonal`: P = (softplus(z) + floor) / unit^2 are the precisions, L = diag(P^-1/2).
    `cholesky`: L / unit has softplus(z) + floor on its diagonal and three free elements below.
    """

    def __init__(self, config: NetworkConfig, features: int) -> None:
        super().__init__()
        self.kind, self.floor = config.covariance, config.covariance_floor
        self.unit_rad = config.sigma_unit_rad
        self.layers = nn.Sequential(
            nn.Linear(features, config.covariance_hidden),
            nn.PReLU(),
            nn.Linear(config.covariance_hidden, 3 if self.kind == "diagonal" else 6),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(batch, features) -> (batch, 3, 3), in float32."""
        z = at_least_single(self.layers(features))
        positive = functional.softplus(z[..., :3]) + self.floor
        if self.kind == "diagonal":
            return self.unit_rad * torch.diag_embed(positive.rsqrt())
        (a, b, c), (d, e, f) = positive.unbind(dim=-1), z[..., 3:].unbind(dim=-1)
        zero = torch.zeros_like(a)
        rows = torch.stack([a, zero, zero, d, b, zero, e, f, c], dim=-1)
        return self.unit_rad * rows.reshape(-1, 3, 3)
