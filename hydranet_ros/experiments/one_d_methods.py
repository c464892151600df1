"""Five ways to get an uncertainty out of a network: how each is trained, and what it predicts.

Also the function they learn, its noise, and the two readings of the paper's experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import log, pi

import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.experiments.one_d_networks import Shape, Stack

FLOOR = 1e-6  # added to the softplus of an uncertainty output
PASSES = 50  # through a network with dropout, at test time
MEMBERS = 10  # of a bag, and heads of a HydraNet
BATCH = 50
BLOCK = 100  # networks that are worked on together: a bag's fit a core's own cache


@dataclass(frozen=True)
class Method:
    """The paper's table of hyper-parameters, one row."""

    name: str
    title: str
    learning_rate: float
    momentum: float
    members: int = 1
    heads: int = 1
    outputs: int = 1
    dropout: float = 0.0
    likelihood: bool = False
    """Trained on the negative log likelihood instead of the squared error."""
    deviation: bool = False
    """The uncertainty output stands for sigma; False: for sigma^2."""
    optimiser: str = "sgd"

    def shape(self, repetitions: int) -> Shape:
        """The networks of all repetitions."""
        return Shape(repetitions * self.members, self.heads, self.outputs)


METHODS = {
    method.name: method
    for method in (
        Method("dropout", "Dropout", 0.05, 0.5, dropout=0.03),
        # One head for the mean and one for sigma, as of a HydraNet with a single head.
        Method("direct", "Direct sigma", 1e-4, 0.0, heads=2, likelihood=True, deviation=True),
        Method("bagging", "Bagging", 0.01, 0.9, members=MEMBERS),
        Method("hydranet_no_sigma", "HydraNet, no sigma_a", 0.01, 0.9, heads=MEMBERS),
        Method("hydranet", "HydraNet", 0.01, 0.1, heads=MEMBERS + 1, likelihood=True),
    )
}


@dataclass(frozen=True)
class Predicted:
    """Mean and variance at each test input, (R, samples); epistemic and aleatoric add up."""

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor

    @property
    def variance(self) -> Tensor:
        """sigma^2 = sigma_e^2 + sigma_a^2."""
        return self.epistemic + self.aleatoric

    def nll(self, y: Tensor) -> Tensor:
        """Mean negative log likelihood of each repetition, with the 2 pi term."""
        square = (self.mean - y) ** 2 / self.variance
        return 0.5 * (square + self.variance.log() + log(2.0 * pi)).mean(dim=1)

    def mse(self, y: Tensor) -> Tensor:
        """Mean squared error of each repetition."""
        return ((self.mean - y) ** 2).mean(dim=1)


def train(
    method: Method,
    data: FunctionSamples,
    epochs: int,
    rng: torch.Generator,
    progress: Callable[[range], Iterator[int]] = iter,
) -> list[Stack]:
    """Train all repetitions of a method at once; `progress` wraps the loop over epochs.

    Targets are (R, samples), or (R, heads, samples) where each head has its own. An epoch is done
    block by block, each with the networks of some repetitions that fit a core's cache together.
    """
    sizes = _block_sizes(method, len(data.x))
    data = resampled(data, method.members, rng)
    if data.y.ndim == 2:
        data = FunctionSamples(data.x, data.y[:, None])
    stacks = [Stack(method.shape(size), rng, method.dropout) for size in sizes]
    networks = [stack.shape.networks for stack in stacks]
    parts = map(FunctionSamples, torch.split(data.x, networks), torch.split(data.y, networks))
    optimiser = _adam if method.optimiser == "adam" else _sgd
    blocks = [
        (stack, part, optimiser(stack, method)) for stack, part in zip(stacks, parts, strict=True)
    ]
    gradient = (
        partial(likelihood_gradient, method.deviation) if method.likelihood else square_gradient
    )
    for _ in progress(range(epochs)):
        # One order for all: each network has samples of its own, or is meant to see the same.
        order = torch.randperm(data.x.shape[1], generator=rng)
        for stack, part, descend in blocks:
            x, y = part.x.index_select(-1, order), part.y.index_select(-1, order)
            batches = zip(torch.split(x, BATCH, -1), torch.split(y, BATCH, -1), strict=True)
            for x_batch, y_batch in batches:
                descend(gradient(stack.forward(x_batch), y_batch))
    return stacks


def _block_sizes(method: Method, repetitions: int) -> list[int]:
    """Repetitions in each block."""
    size = max(1, BLOCK // method.members)
    return [min(size, repetitions - start) for start in range(0, repetitions, size)]


def resampled(data: FunctionSamples, members: int, rng: torch.Generator) -> FunctionSamples:
    """Every member's own bootstrap sample; a single member keeps the data."""
    if members == 1:
        return data
    count = data.x.shape[1]
    index = torch.randint(count, (len(data.x) * members, count), generator=rng)
    x, y = (each.repeat_interleave(members, dim=0) for each in (data.x, data.y))
    return FunctionSamples(x.gather(1, index), y.gather(1, index))


def square_gradient(output: Tensor, y: Tensor) -> Tensor:
    """d/d output of mean (output - y)^2 over samples, summed over heads; y (R, 1 or H, n)."""
    return (output - y[:, :, None]).mul_(2.0 / y.shape[-1])


def likelihood_gradient(deviation: bool, output: Tensor, y: Tensor) -> Tensor:
    """d/d output of the mean over samples and heads of (mu - y)^2 / 2 v + log(v) / 2."""
    mean, raw = split(output)
    variance, slope = variance_of(raw, deviation)
    error = mean - y
    share = 1.0 / (error.shape[1] * error.shape[2])
    d_mean = error / variance * share
    d_variance = 0.5 * (1.0 - (error * error).mean(dim=1, keepdim=True) / variance) / variance
    d_raw = d_variance * slope / y.shape[-1]
    return torch.cat([d_mean, d_raw], dim=1).reshape(output.shape)


def variance_of(raw: Tensor, deviation: bool) -> tuple[Tensor, Tensor]:
    """The variance that an output stands for, and its derivative."""
    positive, slope = functional.softplus(raw) + FLOOR, torch.sigmoid(raw)
    return (positive**2, 2.0 * positive * slope) if deviation else (positive, slope)


def split(output: Tensor) -> tuple[Tensor, Tensor]:
    """(R, heads, outputs, samples) -> means (R, n, samples), raw variance (R, 1, samples)."""
    rows = output.flatten(1, 2)
    return rows[:, :-1], rows[:, -1:]


def _sgd(stack: Stack, method: Method) -> Callable[[Tensor], None]:
    def descend(slope: Tensor) -> None:
        stack.backward(slope, keep=method.momentum)
        stack.parameters.add_(stack.gradient, alpha=-method.learning_rate)

    return descend


def _adam(stack: Stack, method: Method) -> Callable[[Tensor], None]:
    stack.parameters.grad = stack.gradient
    optimiser = torch.optim.Adam([stack.parameters], lr=method.learning_rate, fused=True)

    def descend(slope: Tensor) -> None:
        stack.backward(slope)
        optimiser.step()

    return descend


def predict(method: Method, stacks: list[Stack], x: Tensor) -> Predicted:
    """What the networks of each repetition say at x (R, samples)."""
    sizes = [stack.shape.networks // method.members for stack in stacks]
    found = [
        _predict(method, stack, part)
        for stack, part in zip(stacks, torch.split(x, sizes), strict=True)
    ]
    return Predicted(
        torch.cat([each.mean for each in found]),
        torch.cat([each.epistemic for each in found]),
        torch.cat([each.aleatoric for each in found]),
    )


def _predict(method: Method, stack: Stack, x: Tensor) -> Predicted:
    repetitions = len(x)
    inputs = x.repeat_interleave(method.members, dim=0)
    passes = PASSES if method.dropout > 0.0 else 1
    outputs = torch.stack([stack.forward(inputs).clone() for _ in range(passes)], dim=1)
    if method.likelihood:
        means, raw = split(outputs[:, 0])
        aleatoric, _ = variance_of(raw[:, 0], method.deviation)
    else:
        means = outputs.reshape(repetitions, -1, x.shape[1])
        aleatoric = torch.zeros_like(x)
    epistemic = means.var(dim=1) if means.shape[1] > 1 else torch.zeros_like(x)
    return Predicted(means.mean(dim=1), epistemic, aleatoric)


# --- the function, its noise, and the two readings of the paper's experiment ---------------------

TRAIN_INTERVALS = (0.0, 0.6), (0.8, 1.0)
TEST_RANGE = -2.0, 2.0


@dataclass(frozen=True)
class OneDPreset:
    """What the paper's text and the authors' published numbers disagree on."""

    name: str
    noise_sigma: float
    uniform_test: bool
    """Test inputs drawn at random and noisy; False: a noise-free grid."""
    direct_optimiser: str


PRESETS = {
    "paper": OneDPreset("paper", noise_sigma=3.0, uniform_test=True, direct_optimiser="sgd"),
    "published": OneDPreset(
        "published", noise_sigma=0.03, uniform_test=False, direct_optimiser="adam"
    ),
}


@dataclass(frozen=True)
class FunctionSamples:
    """Inputs and targets of R repetitions, (R, samples) each."""

    x: Tensor
    y: Tensor


def function(x: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """F(x) = x + sin(4 (x + w)) + sin(13 (x + w)) + w."""
    return x + torch.sin(4.0 * (x + noise)) + torch.sin(13.0 * (x + noise)) + noise


def training_set(
    preset: OneDPreset, repetitions: int, samples: int, rng: torch.Generator
) -> FunctionSamples:
    """Each repetition draws its own inputs, uniformly over both intervals, and its own noise."""
    (low, high), (low_2, high_2) = TRAIN_INTERVALS
    along = (high - low + high_2 - low_2) * torch.rand(repetitions, samples, generator=rng)
    x = torch.where(along < high - low, low + along, low_2 + along - (high - low))
    noise = preset.noise_sigma * torch.randn(x.shape, generator=rng)
    return FunctionSamples(x, function(x, noise))


def test_set(
    preset: OneDPreset, repetitions: int, samples: int, rng: torch.Generator
) -> FunctionSamples:
    """As the preset says; sorted, so that it plots."""
    low, high = TEST_RANGE
    if not preset.uniform_test:
        x = torch.linspace(low, high, samples).expand(repetitions, samples).contiguous()
        return FunctionSamples(x, function(x))
    x = (low + (high - low) * torch.rand(repetitions, samples, generator=rng)).sort(dim=1).values
    noise = preset.noise_sigma * torch.randn(x.shape, generator=rng)
    return FunctionSamples(x, function(x, noise))
