"""The paper's network on KITTI, leaving one sequence out: the training behind kitti.py.

    hydranet experiment kitti --dataset DIR --test 00     train on the others, test on 00
    hydranet experiment kitti --dataset DIR --quick       small images, two epochs

Expected of the paper, mean error deg / NLL: 00 0.199 / -16.84, 02 0.138 / -18.44, 05 0.109 /
-19.31. The paper chose the epoch on the test sequence; here another sequence is held out for that.
Where the data set has one sequence, its last fifth is tested on and the fifth before validates.
The true poses are the official ones, where the paper took OXTS. Without a GPU this takes weeks.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.experiments.fit import PredictionErrors
from hydranet_ros.experiments.outcome import AXES, Outcome, error_bands, grid
from hydranet_ros.gyro.device import choose_device
from hydranet_ros.gyro.prediction import combine
from hydranet_ros.settings import dump
from hydranet_ros.training.calibration import evaluate
from hydranet_ros.training.config import PAPER, TrainingConfig
from hydranet_ros.training.data import FlowDataset, default_cache, prepare
from hydranet_ros.training.loop import Training
from hydranet_ros.training.pairs import FlowPairs, kitti_pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUICK = replace(
    PAPER,
    network={"input_shape": [2, 64, 64], "heads": 5, "head_hidden": 64},
    epochs=2,
    learning_rate=5e-4,
)


@dataclass(frozen=True)
class KittiTrainingSettings:
    """What is run."""

    dataset: Path
    out: Path
    """For checkpoints: an interrupted training goes on where it was."""
    test: str | None = None
    """The sequence that is left out; the first one there is, where none is named."""
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Split:
    """Pairs to learn from, to choose the epoch by, and to test on."""

    training: FlowDataset
    held_out: FlowDataset
    test: FlowDataset


def run(settings: KittiTrainingSettings, quick: bool = False) -> Outcome:
    """Train and test; the weights of a quick run are thrown away."""
    base = replace(QUICK if quick else PAPER, seed=settings.seed)
    name, config, split = read_split(settings, base)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) if quick else settings.out / "training"
        found = _train(config, split, folder)
    figures = _figures(split, found)
    return Outcome(
        figures,
        _report(name, figures),
        {"quick": quick, "test": name, "training": dump(config)},
        tables={"network": [{"sequence": name, **figures}]},
        plots={
            "regression": lambda: _plot_regression(found),
            "histograms": lambda: _plot_histograms(found),
        },
    )


def _train(config: TrainingConfig, split: Split, folder: Path) -> PredictionErrors:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be made: {error.strerror}") from None
    device = choose_device("auto")
    training = Training(config, split.training, split.held_out, folder, device)
    with redirect_stdout(sys.stderr):  # a line per epoch, which is not the result
        training.run()
    tested = evaluate(training.best_network(), split.test)
    prediction = combine(tested.output)
    return PredictionErrors(prediction, tested.errors(prediction))


def read_split(
    settings: KittiTrainingSettings, config: TrainingConfig
) -> tuple[str, TrainingConfig, Split]:
    """The test sequence, one for validation, and all others to learn from."""
    names = find_sequences(settings.dataset)
    test = settings.test or names[0]
    if test not in names:
        raise HydraNetError(f"--test {test}: {settings.dataset} has only {', '.join(names)}")
    folders = {name: str(settings.dataset / "sequences" / name) for name in names}
    if len(names) == 1:
        pairs = kitti_pairs(config, folders[test])
        learned, held = part(pairs, 0.0, 0.6), part(pairs, 0.6, 0.8)
        tested = part(pairs, 0.8, 1.0, both_ways=False)
        return test, config, Split(*(FlowDataset([each]) for each in (learned, held, tested)))
    *others, held_out = [folders[name] for name in names if name != test]
    if not others:
        raise HydraNetError(f"{settings.dataset}: leaving one out takes 3 sequences, it has 2")
    data = replace(config.data, kitti=tuple(others), kitti_validation=(held_out,))
    config = replace(config, data=data)
    pairs = part(kitti_pairs(config, folders[test]), 0.0, 1.0, both_ways=False)
    known = prepare(config, default_cache())
    return test, config, Split(known.training, known.validation, FlowDataset([pairs]))


def find_sequences(dataset: Path) -> list[str]:
    """The names of the sequences that have images and poses."""
    folder = dataset / "sequences"
    if not folder.is_dir():
        raise FileError(folder, "is missing: --dataset names the folder of KITTI odometry")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = [name for name in names if (dataset / "poses" / f"{name}.txt").is_file()]
    if not names:
        raise FileError(dataset / "poses", "has no poses for the sequences: download them as well")
    return names


def part(pairs: FlowPairs, start: float, end: float, both_ways: bool = True) -> FlowPairs:
    """The pairs between two shares of a drive; its first half is forwards, its second back."""
    count = len(pairs) // 2
    forward = np.arange(round(start * count), round(end * count))
    rows = np.concatenate([forward, count + forward]) if both_ways else forward
    return replace(pairs, cells=pairs.cells[rows], phi=pairs.phi[rows])


# --- output --------------------------------------------------------------------------------------


def _figures(split: Split, found: PredictionErrors) -> dict[str, float]:
    # A network that always says "no rotation" is wrong by the rotation itself.
    half = np.linalg.norm(split.test.targets[:, 1:].double().numpy(), axis=1)
    return {
        "mean_deg": float(found.angles_deg.mean()),
        "nll": found.nll,
        "nees": found.nees,
        "no_rotation_deg": float(np.degrees(2.0 * np.arcsin(half)).mean()),
        "training_pairs": float(len(split.training)),
        "test_pairs": float(len(split.test)),
    }


def _report(name: str, figures: dict[str, float]) -> str:
    return (
        f"{'sequence':<10}{'mean error deg':>16}{'NLL':>10}{'NEES':>10}{'no rotation deg':>17}\n"
        f"{name:<10}{figures['mean_deg']:>16.3f}{figures['nll']:>10.2f}"
        f"{figures['nees']:>10.2f}{figures['no_rotation_deg']:>17.3f}"
    )


def _plot_regression(found: PredictionErrors) -> Figure:
    errors = np.degrees(found.errors)
    bands = {"3 sigma of Sigma_t": found.sigmas_deg(found.prediction.covariance)}
    frames = np.arange(len(errors), dtype=np.float64)
    return error_bands(frames, errors, bands, "frame")


def _plot_histograms(found: PredictionErrors) -> Figure:
    figure, axes = grid(1, 3, 3.0, 2.5)
    for i, each in enumerate(axes[0]):
        each.hist(np.degrees(found.errors[:, i]), 50)
        each.set_xlabel(f"error about {AXES[i]}, deg")
    return figure
