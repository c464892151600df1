"""The one-dimensional function, its noise, and the two readings of the paper's experiment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TRAIN_INTERVALS = (0.0, 0.6), (0.8, 1.0)
TEST_RANGE = -2.0, 2.0


@dataclass(frozen=True)
class Preset:
    """What the paper's text and the authors' published numbers disagree on."""

    name: str
    noise_sigma: float
    uniform_test: bool
    """Test inputs drawn at random and noisy; False: a noise-free grid."""
    direct_optimiser: str


PRESETS = {
    "paper": Preset("paper", noise_sigma=3.0, uniform_test=True, direct_optimiser="sgd"),
    "published": Preset(
        "published", noise_sigma=0.03, uniform_test=False, direct_optimiser="adam"
    ),
}


@dataclass(frozen=True)
class Samples:
    """Inputs and targets of R repetitions, (R, samples) each."""

    x: Tensor
    y: Tensor


def function(x: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """F(x) = x + sin(4 (x + w)) + sin(13 (x + w)) + w."""
    return x + torch.sin(4.0 * (x + noise)) + torch.sin(13.0 * (x + noise)) + noise


def training_set(preset: Preset, repetitions: int, samples: int, rng: torch.Generator) -> Samples:
    """Each repetition draws its own inputs, uniformly over both intervals, and its own noise."""
    (low, high), (low_2, high_2) = TRAIN_INTERVALS
    along = (high - low + high_2 - low_2) * torch.rand(repetitions, samples, generator=rng)
    x = torch.where(along < high - low, low + along, low_2 + along - (high - low))
    noise = preset.noise_sigma * torch.randn(x.shape, generator=rng)
    return Samples(x, function(x, noise))


def test_set(preset: Preset, repetitions: int, samples: int, rng: torch.Generator) -> Samples:
    """As the preset says; sorted, so that it plots."""
    low, high = TEST_RANGE
    if not preset.uniform_test:
        x = torch.linspace(low, high, samples).expand(repetitions, samples).contiguous()
        return Samples(x, function(x))
    x = (low + (high - low) * torch.rand(repetitions, samples, generator=rng)).sort(dim=1).values
    noise = preset.noise_sigma * torch.randn(x.shape, generator=rng)
    return Samples(x, function(x, noise))
