"""How good a network is on pairs it has not seen, and what its covariances need."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import isnan

import numpy as np
import torch
from numpy.typing import NDArray

from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.config import LARGEST_SCALE, Calibration
from hydranet_ros.gyro.network import HydraNet, HydraOutput
from hydranet_ros.gyro.prediction import Prediction, combine, error_correlation
from hydranet_ros.training.data import FlowDataset

_BATCH = 256
_ITERATIONS = 20
_SHARE_OF_DRIVES = 0.9


@dataclass(frozen=True)
class Figures:
    """Of a validation: the paper's NLL without its constant, and NEES, which is 3 if honest."""

    mean_deg: float
    nll: float
    nees: float
    aleatoric_deg: float
    epistemic_deg: float
    auroc_unusual: float

    def as_dict(self) -> dict[str, float]:
        """With rounded values, for files that should stay equal; without what is not known."""
        return {name: round(value, 6) for name, value in asdict(self).items() if not isnan(value)}


@dataclass(frozen=True, eq=False)
class Validation:
    """What a network says of a data set, before calibration."""

    output: HydraOutput
    unusual: HydraOutput | None
    truth: Array  # (pairs, 4)
    drive: NDArray[np.intp]  # (pairs,)

    def drive_ratios(self, calibration: Calibration) -> Array:
        """(drives, 3): the mean of e_i^2 / Sigma_ii over each drive, 1 if honest."""
        found = combine(self.output, calibration)
        ratio = self.errors(found) ** 2 / np.diagonal(found.covariance, axis1=1, axis2=2)
        # Errors beyond 5 sigma count as 5 sigma: a few outliers must not decide for a drive.
        ratio = np.clip(ratio, 0.0, 25.0)
        return np.array([ratio[self.drive == k].mean(axis=0) for k in np.unique(self.drive)])

    def errors(self, prediction: Prediction) -> Array:
        """Log(q (x) q_true^-1), (pairs, 3)."""
        inverse = self.truth * np.array([1.0, -1.0, -1.0, -1.0])
        return lie.quaternion_log(lie.quaternion_multiply(prediction.quaternions, inverse))

    def figures(self, calibration: Calibration | None = None) -> Figures:
        """Under a calibration."""
        found = combine(self.output, calibration)
        errors = self.errors(found)
        nll, nees = metrics.mean_nll_and_nees(errors, found.covariance)
        spread = np.trace(found.epistemic, axis1=1, axis2=2)
        if self.unusual is None:
            auroc = float("nan")
        else:
            odd = combine(self.unusual, calibration).epistemic
            auroc = area_under_roc(spread, np.trace(odd, axis1=1, axis2=2))
        return Figures(
            float(np.degrees(np.linalg.norm(errors, axis=1)).mean()),
            nll,
            nees,
            _degrees(np.trace(found.aleatoric, axis1=1, axis2=2)),
            _degrees(spread),
            auroc,
        )


def evaluate(model: HydraNet, data: FlowDataset, most: int | None = None) -> Validation:
    """Run a network over a data set, in evaluation mode; `most` takes evenly spread pairs."""
    count = len(data) if most is None else min(most, len(data))
    numbers = np.linspace(0, len(data) - 1, count).astype(np.intp)
    channels = model.config.input_shape[0]
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found, odd = [], []
    with torch.inference_mode():
        for part in _parts(numbers):
            inputs = data.batch(part).inputs(channels)
            found.append(model(*(each.to(device) for each in inputs)))
        for part in _parts(np.arange(data.unusual_count)):
            inputs = data.unusual(part).inputs(channels)
            odd.append(model(*(each.to(device) for each in inputs)))
    model.train(was_training)
    truth = data.targets[numbers].double().numpy()
    unusual = _joined(odd) if odd else None
    return Validation(_joined(found), unusual, truth, data.drive[numbers])


def calibrate(
    known: Validation,
    strange: tuple[Validation, Validation] | None = None,
    floor_rad: float = 0.0,
) -> Calibration:
    """Widen Sigma_a until it is large enough on nine of ten drives, about all axes alike.

    Not on the mean of all: the next drive is in a world that no training has seen, and its
    covariance is to be large enough too. For the same reason Sigma_a is never made narrower.
    `known` are drives like those of the training, `strange` the left camera of drives of another
    style, and the right one backward in time, which give the correlation as well. The epistemic
    part is left as it is, and `floor_rad` is added at the end: it is for what no simulated drive
    has.
    """
    everything = [known] if strange is None else [known, strange[0]]
    scale = 1.0
    for _ in range(_ITERATIONS):
        so_far = Calibration(aleatoric_scale=(scale, scale, scale))
        ratios = np.concatenate([each.drive_ratios(so_far) for each in everything])
        more = float(np.sqrt(np.quantile(ratios.mean(axis=1), _SHARE_OF_DRIVES)))
        scale = _widened(scale * more)
    found = Calibration(aleatoric_scale=(scale, scale, scale))
    if strange is not None:
        left, right = (combine(side.output, found) for side in strange)
        correlation = error_correlation(left, right.inverse(), strange[0].truth)
        found = replace(found, stereo_correlation=correlation)
    return replace(found, floor_rad=floor_rad)


def _widened(scale: float) -> float:
    """Never narrower than the network says, and within what a calibration may hold."""
    return min(max(1.0, scale), LARGEST_SCALE)


def area_under_roc(ordinary: Array, unusual: Array) -> float:
    """The chance that an unusual value is above an ordinary one."""
    order = np.sort(ordinary)
    below = np.searchsorted(order, unusual, side="left")
    equal = np.searchsorted(order, unusual, side="right") - below
    return float(np.mean((below + 0.5 * equal) / len(order)))


def _degrees(traces: Array) -> float:
    """Root of the median variance per axis."""
    return float(np.degrees(np.sqrt(np.median(traces) / 3.0)))


def _parts(numbers: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [numbers[i : i + _BATCH] for i in range(0, len(numbers), _BATCH)]


def _joined(outputs: list[HydraOutput]) -> HydraOutput:
    return HydraOutput(*(torch.cat(parts).cpu() for parts in zip(*outputs, strict=True)))
