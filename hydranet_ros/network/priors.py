"""Randomised prior functions: what makes the heads disagree where nobody taught them.

Heads that share a body and see the same data learn the same function and agree everywhere, also
where all of them are wrong. Here each head has a small random network of its own, which is never
trained and is added to what the head says. Training makes the head cancel it, but only on inputs
like those of the training set; on others the cancellation fails, in a different way per head, and
the sample covariance grows. (Osband et al., Randomized Prior Functions, 2018.)
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydranet_ros.network.config import NetworkConfig

# Images are summarised on so coarse a grid that the body can follow, and cancel, the priors.
_ROWS, _COLUMNS = 4, 12


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
        inputs = shape[0] if len(shape) == 1 else 2 * shape[0] * _ROWS * _COLUMNS
        self.first: Tensor
        self.first_bias: Tensor
        self.second: Tensor
        generator = torch.Generator(device="cpu").manual_seed(config.prior_seed)
        for name, size, scale in (
            (
                "first",
                (config.heads, config.prior_hidden, inputs),
                config.prior_gain * inputs**-0.5,
            ),
            ("first_bias", (config.heads, config.prior_hidden), pi),  # of a phase: any
            ("second", (config.heads, 3, config.prior_hidden), (2.0 / config.prior_hidden) ** 0.5),
        ):
            values = scale * torch.randn(size, generator=generator, device="cpu")
            self.register_buffer(name, values.to(torch.get_default_device()))

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
            x = torch.cat([x[:, :2] / self.input_scale, x[:, 2:]], dim=1)
        else:
            x = x / self.input_scale
        mean = functional.adaptive_avg_pool2d(x, (_ROWS, _COLUMNS))
        square = functional.adaptive_avg_pool2d(x * x, (_ROWS, _COLUMNS))
        deviation = (square - mean * mean).clamp_min(1e-12).sqrt()
        return torch.cat([mean, deviation], dim=1).flatten(1)
