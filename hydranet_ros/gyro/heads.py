"""The heads of a HydraNet: many rotations and one covariance from one vector of features.

Also the random prior functions that make the heads disagree on inputs unlike the training set.
"""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydranet_ros.gyro.config import NetworkConfig
from hydranet_ros.gyro.search_settings import PRIOR_COLUMNS, PRIOR_ROWS

_COVARIANCE_OUTPUTS = {"diagonal": 3, "cholesky": 6, "scaled": 2}


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
    `scaled`: L L^T = s^2 R R^T + a^2 I of a geometric root R, s = softplus(z_0) + floor and
    a = unit softplus(z_1): the same whichever way up the camera is mounted.
    """

    def __init__(self, config: NetworkConfig, features: int) -> None:
        super().__init__()
        self.kind, self.floor = config.covariance, config.covariance_floor
        self.unit_rad = config.sigma_unit_rad
        self.layers = nn.Sequential(
            nn.Linear(features, config.covariance_hidden),
            nn.PReLU(),
            nn.Linear(config.covariance_hidden, _COVARIANCE_OUTPUTS[self.kind]),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(batch, features) -> (batch, 3, 3), in float32."""
        z = at_least_single(self.layers(features))
        if self.kind == "scaled":
            raise ValueError("a scaled covariance needs a root: use `scale`")
        positive = functional.softplus(z[..., :3]) + self.floor
        if self.kind == "diagonal":
            return self.unit_rad * torch.diag_embed(positive.rsqrt())
        (a, b, c), (d, e, f) = positive.unbind(dim=-1), z[..., 3:].unbind(dim=-1)
        zero = torch.zeros_like(a)
        rows = torch.stack([a, zero, zero, d, b, zero, e, f, c], dim=-1)
        return self.unit_rad * rows.reshape(-1, 3, 3)

    def scale(self, quality: Tensor, root: Tensor) -> Tensor:
        """(batch, m), (batch, 3, 3) -> (batch, 3, 3), of kind `scaled`."""
        z = at_least_single(self.layers(quality))
        size = functional.softplus(z[:, :1, None]) + self.floor
        added = self.unit_rad * functional.softplus(z[:, 1:, None])
        # In float64: where motion is ambiguous, R R^T spans more than float32 can hold.
        wide = size.double() * root.double()
        eye = torch.eye(3, dtype=wide.dtype, device=wide.device)
        covariance = wide @ wide.mT + added.double() ** 2 * eye
        return torch.linalg.cholesky_ex(covariance).L.to(root.dtype)


# --- randomised prior functions ------------------------------------------------------------------
# Heads that share a body and see the same data learn the same function and agree everywhere, also
# where all of them are wrong. So each head has a small random network of its own, which is never
# trained and is added to the head's output. Training makes the head cancel it, but only on inputs
# like those of the training set. On others the cancellation fails, differently in each head, and
# the sample covariance grows. (Osband et al., Randomized Prior Functions, 2018.)


class RandomPriors(nn.Module):
    """H fixed random functions of the input: (batch, *input_shape) -> (batch, H, 3) in rad.

        prior(z) = scale (1 + |z|^2 / n) sum_k a_k sqrt(2) cos(gain w_k z + b_k)

    with z the input, or a summary of it, in units of its typical size. Waves, because what ReLU
    networks extrapolate, piecewise linear functions, a trained head extrapolates alike; growing,
    because the further away an input is, the larger its error may be. All weights are buffers:
    stored with the network, untouched by an optimiser.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.scale_rad, self.input_scale = config.prior_scale_rad, config.prior_input_scale
        self.has_mask = config.body == "flow"
        shape = config.input_shape
        channels = min(shape[0], 3)  # of what has flow: u v and the mask
        inputs = shape[0] if len(shape) == 1 else 2 * channels * PRIOR_ROWS * PRIOR_COLUMNS
        self.first: Tensor
        self.first_bias: Tensor
        self.second: Tensor
        generator = torch.Generator(device="cpu").manual_seed(config.prior_seed)
        device = torch.get_default_device()
        for name, size, scale in (
            (
                "first",
                (config.heads, config.prior_hidden, inputs),
                config.prior_gain * inputs**-0.5,
            ),
            ("first_bias", (config.heads, config.prior_hidden), pi),  # of a phase: any
            ("second", (config.heads, 3, config.prior_hidden), (2.0 / config.prior_hidden) ** 0.5),
        ):
            if device.type == "meta":  # a model without memory, to be filled from a file
                values = torch.empty(size)
            else:
                values = scale * torch.randn(size, generator=generator, device="cpu")
            self.register_buffer(name, values.to(device))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) -> (batch, H, 3)."""
        z = x / self.input_scale if x.ndim == 2 else self._summary(x)
        size = 1.0 + z.square().mean(dim=1)
        phase = functional.linear(z, self.first.flatten(0, 1), self.first_bias.flatten())
        waves = torch.cos(phase.reshape(-1, *self.first_bias.shape))  # (batch, H, hidden)
        sums = torch.einsum("bhi,hoi->bho", waves, self.second)
        return self.scale_rad * size[:, None, None] * sums

    def _summary(self, x: Tensor) -> Tensor:
        """Mean and deviation in each cell of a coarse grid: noise averages out of means alone."""
        if self.has_mask:
            x = torch.cat([x[:, :2] / self.input_scale, x[:, 2:3]], dim=1)
        else:
            x = x / self.input_scale
        mean = functional.adaptive_avg_pool2d(x, (PRIOR_ROWS, PRIOR_COLUMNS))
        square = functional.adaptive_avg_pool2d(x * x, (PRIOR_ROWS, PRIOR_COLUMNS))
        deviation = (square - mean * mean).clamp_min(1e-12).sqrt()
        return torch.cat([mean, deviation], dim=1).flatten(1)
