"""A plain training of a HydraNet on samples that are at hand: Adam, and the best epoch is kept."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.config import LARGEST_SCALE, LEAST_SCALE, Calibration, NetworkConfig
from hydranet_ros.gyro.device import choose_device
from hydranet_ros.gyro.network import HydraNet, HydraOutput
from hydranet_ros.gyro.prediction import Prediction, combine
from hydranet_ros.settings import Configuration, section, setting
from hydranet_ros.training.config import LossConfig
from hydranet_ros.training.loss import bootstrap_weights, loss

_CALIBRATION_STEPS = 20


class Samples(Protocol):
    """Inputs and true rotations by number."""

    @property
    def targets(self) -> Tensor:
        """Unit quaternions, (samples, 4)."""

    def __len__(self) -> int: ...

    def inputs(self, numbers: Sequence[int]) -> Tensor:
        """(batch, *input_shape)."""


@dataclass(frozen=True)
class FitConfig(Configuration):
    """How a network is trained."""

    epochs: int = setting(100, "times through all samples", 1)
    batch_size: int = setting(32, "samples in a batch", 1)
    learning_rate: float = setting(1e-4, "learning rate of Adam", 1e-9)
    seed: int = setting(0, "seed of the order of samples, and of dropout")
    device: str = setting("auto", "auto, cpu, cuda or cuda:N")
    decay: bool = setting(False, "let the learning rate fall to zero along a cosine")
    loss: LossConfig = section(LossConfig)


def untrained(network: NetworkConfig, seed: int) -> HydraNet:
    """A network whose weights are drawn from a seed."""
    torch.manual_seed(seed)
    return HydraNet(network)


def fit(
    model: HydraNet,
    config: FitConfig,
    training: Samples,
    held_out: Samples | None = None,
) -> HydraNet:
    """Train a network; with a held-out set, leave it as in the epoch with the lowest NLL."""
    torch.manual_seed(config.seed)
    model = model.to(choose_device(config.device))
    optimiser = torch.optim.Adam(model.parameters(), config.learning_rate, fused=True)
    steps = config.epochs * -(-len(training) // config.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    best, best_nll = None, float("inf")
    with tqdm(total=steps, desc="training", unit="step", disable=None) as bar:
        for _ in range(config.epochs):
            model.train()
            for numbers in _batches(len(training), config.batch_size):
                value = _loss(model, config, training, numbers)
                optimiser.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                if config.decay:
                    schedule.step()
                bar.update()
            if held_out is not None:
                nll = evaluate(model, held_out).nll
                bar.set_postfix(nll=f"{nll:.2f}")
                if nll < best_nll:
                    best, best_nll = deepcopy(model.state_dict()), nll
    if best is not None:
        model.load_state_dict(best)
    return model.eval()


def _batches(count: int, size: int) -> list[list[int]]:
    order = torch.randperm(count).tolist()
    return [order[start : start + size] for start in range(0, count, size)]


def _loss(model: HydraNet, config: FitConfig, samples: Samples, numbers: list[int]) -> Tensor:
    kind, heads = model.config.bootstrap, model.config.heads
    device = next(model.parameters()).device
    weights = bootstrap_weights(numbers, heads, kind, config.seed)
    return loss(
        model(samples.inputs(numbers).to(device)),
        samples.targets[numbers].to(device),
        None if weights is None else weights.to(device),
        config.loss,
    )


@dataclass(frozen=True, eq=False)
class PredictionErrors:
    """Predictions of a set of samples and their errors Log(q (x) q_true^-1), (n, 3)."""

    prediction: Prediction
    errors: Array

    @property
    def angles_deg(self) -> Array:
        """(n,)."""
        angles: Array = np.degrees(np.linalg.norm(self.errors, axis=1))
        return angles

    @property
    def nll(self) -> float:
        """The paper's, without the 2 pi term."""
        return metrics.mean_nll_and_nees(self.errors, self.prediction.covariance)[0]

    @property
    def nees(self) -> float:
        """3 is consistent."""
        return metrics.mean_nll_and_nees(self.errors, self.prediction.covariance)[1]

    def sigmas_deg(self, covariance: Array) -> Array:
        """Standard deviations about each axis, (n, 3)."""
        sigmas: Array = np.degrees(np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)))
        return sigmas

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Which errors about each axis are within 3 sigma of Sigma_t, (n, 3)."""
        sigma = self.sigmas_deg(self.prediction.covariance)
        return np.abs(np.degrees(self.errors)) <= 3.0 * sigma


def evaluate(
    model: HydraNet, samples: Samples, calibration: Calibration | None = None
) -> PredictionErrors:
    """What a network says of all samples, calibrated, and how wrong it is."""
    prediction = combine(heads(model, samples), calibration)
    return _errors(prediction, samples.targets.double().numpy())


def _errors(prediction: Prediction, truth: Array) -> PredictionErrors:
    inverse = truth * np.array([1.0, -1.0, -1.0, -1.0])
    errors = lie.quaternion_log(lie.quaternion_multiply(prediction.quaternions, inverse))
    return PredictionErrors(prediction, errors)


def calibrated(model: HydraNet, samples: Samples) -> Calibration:
    """Scale Sigma_a so that each axis has the errors that Sigma_t says: mean e^2 / Sigma_ii = 1.

    On samples like those of the training, but not among them. Sigma_e is left as it is.
    """
    output, truth = heads(model, samples), samples.targets.double().numpy()
    x = y = z = 1.0
    for _ in range(_CALIBRATION_STEPS):
        found = _errors(combine(output, Calibration((x, y, z))), truth)
        sigma = np.diagonal(found.prediction.covariance, axis1=1, axis2=2)
        # Errors beyond 5 sigma count as 5 sigma: a few outliers must not decide the scale.
        ratio = np.sqrt(np.clip(found.errors**2 / sigma, 0.0, 25.0).mean(axis=0))
        scales = np.clip(np.array([x, y, z]) * ratio, LEAST_SCALE, LARGEST_SCALE)
        x, y, z = (float(scale) for scale in scales)
    return Calibration((x, y, z))


def heads(model: HydraNet, samples: Samples, batch_size: int = 64) -> HydraOutput:
    """Run a network over all samples, in evaluation mode."""
    model.eval()
    device = next(model.parameters()).device
    outputs: list[HydraOutput] = []
    with torch.inference_mode():
        for start in range(0, len(samples), batch_size):
            numbers = range(start, min(start + batch_size, len(samples)))
            outputs.append(model(samples.inputs(numbers).to(device)))
    return HydraOutput(*(torch.cat(parts).cpu() for parts in zip(*outputs, strict=True)))
