"""The training: it learns, resumes, and does not depend on the number of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hydranet_ros.errors import FileError
from hydranet_ros.geometry import lie
from hydranet_ros.gyro.epipolar import grid_points
from hydranet_ros.gyro.grid import CanonicalGrid
from hydranet_ros.training.calibration import Figures
from hydranet_ros.training.config import DataConfig, TrainingConfig
from hydranet_ros.training.data import FlowDataset
from hydranet_ros.training.loop import CHECKPOINT, LOG, Training
from hydranet_ros.training.pairs import FlowPairs

GRID = CanonicalGrid(56, 80, 1.0 / 48.0)
SMALL = TrainingConfig(
    seed=1,
    network={
        "heads": 4,
        "features": 16,
        "head_hidden": 16,
        "input_shape": [6, GRID.rows, GRID.columns],
        "grid": {"rows": GRID.rows, "columns": GRID.columns, "cell": GRID.cell},
    },
    data=DataConfig(streets=1, validation_streets=1),
    epochs=3,
    steps_per_epoch=3,
    batch_size=8,
    unusual_share=0.25,
    warmup_steps=2,
    average_decay=0.5,
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drives(seed: int, count: int = 24) -> FlowDataset:
    """Noisy flow of a street: a ground plane, which alone would have two solutions, and walls."""
    rng = np.random.default_rng(seed)
    x, y = grid_points(GRID).double().numpy()
    rays = np.stack([x, y, np.ones_like(x)]).reshape(3, -1)
    phi = rng.normal(0.0, [0.004, 0.015, 0.004], (count, 3))
    moved = lie.so3_exp(phi) @ rays
    inverse_depth = np.maximum(rays[1] / 1.65, np.abs(rays[0]) / 4.0)
    moved[:, 2] -= rng.uniform(0.3, 1.5, (count, 1)) * inverse_depth
    flow = moved[:, :2] / moved[:, 2:] - rays[:2]
    flow = (flow + 5e-4 * rng.standard_normal(flow.shape)).reshape(count, 2, *x.shape)
    # Of two motions each: of pure noise any motion is as good, and rounding decides.
    odd = np.concatenate([flow[:8, :, :, ::2], flow[8:16, :, :, ::2]], axis=3)
    mask = np.ones(x.shape, dtype=bool)
    return FlowDataset([FlowPairs(cells(flow), mask, phi, cells(odd))])


def cells(flow: np.ndarray) -> np.ndarray:
    """As they are stored: trusted, and well textured."""
    known = np.array([1.0, 20.0, 0.0, 20.0])[None, :, None, None]
    rest = np.broadcast_to(known, (len(flow), 4, *flow.shape[2:]))
    return np.concatenate([flow, rest], axis=1).astype(np.float16)


def trained(config: TrainingConfig, out: Path, spoil: float = 0.0) -> Training:
    """`spoil` is a relative change of the parameters before the first step."""
    out.mkdir(exist_ok=True)
    training = Training(config, drives(0), drives(1), out)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in training.network.parameters():
            each.mul_(1.0 + spoil * torch.randn(each.shape, generator=generator))
    training.run()
    return training


def parameters(training: Training) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in training.network.parameters()])


def test_it_learns_and_repeats(tmp_path: Path) -> None:
    first = trained(replace(SMALL, epochs=4, steps_per_epoch=6), tmp_path / "a")
    losses = [row["train_loss"] for row in first.rows]
    assert losses[-1] < losses[0] - 1.0
    second = trained(replace(SMALL, epochs=4, steps_per_epoch=6), tmp_path / "b")
    assert torch.equal(parameters(first), parameters(second))
    assert (tmp_path / "a" / LOG).read_bytes() == (tmp_path / "b" / LOG).read_bytes()


def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(SMALL, tmp_path / "whole")
    steps = Training._step

    def interrupted(self: Training, step: int, numbers: np.ndarray) -> float:
        if step == 7:  # in the last epoch
            raise KeyboardInterrupt
        return steps(self, step, numbers)

    (tmp_path / "parts").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(SMALL, tmp_path / "parts")
    again = Training(SMALL, drives(0), drives(1), tmp_path / "parts")
    assert again.epoch == 2
    again.run()
    assert torch.equal(parameters(whole), parameters(again))
    assert whole.rows == again.rows


def test_a_checkpoint_of_other_settings_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    trained(replace(SMALL, epochs=1), tmp_path)
    with pytest.raises(FileError, match="other settings"):
        Training(SMALL, drives(0), drives(1), tmp_path)
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FileError, match="delete it to start again"):
        Training(SMALL, drives(0), drives(1), tmp_path)


def test_it_stops_when_the_validation_does_not_improve(tmp_path: Path) -> None:
    config = replace(SMALL, epochs=30, steps_per_epoch=1, patience=2, learning_rate=1e-9)
    training = trained(config, tmp_path)
    assert training.stalled
    assert training.epoch < 30


WORKER = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[1])
from test_loop import SMALL, drives, parameters
from hydranet_ros.training.loop import CHECKPOINT, Training
from hydranet_ros.training.distributed import joined_processes
torch.set_num_threads(1)
with joined_processes(torch.device("cpu")) as processes:
    out = Path(sys.argv[2])
    training = Training(SMALL, drives(0), drives(1), out, processes=processes)
    training.run()
    if processes.first:
        torch.save(parameters(training), out / "parameters.pt")
        print(processes.count, training.rows[-1]["nll"], training.rows[0]["train_loss"])
"""


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    alone = trained(SMALL, tmp_path / "alone")
    (tmp_path / "two").mkdir()
    (tmp_path / "worker.py").write_text(WORKER)
    here = str(Path(__file__).parent)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(tmp_path / "worker.py"), here, str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, nll, _ = done.stdout.strip().splitlines()[-1].split()
    assert int(count) == 2
    assert float(nll) == pytest.approx(alone.rows[-1]["nll"], abs=0.02)
    together = torch.load(tmp_path / "two" / "parameters.pt", weights_only=True)
    before = parameters(Training(SMALL, drives(0), drives(1), tmp_path))
    heads = torch.cat(
        [
            torch.full((each.numel(),), name.startswith(("heads", "covariance", "body.linear")))
            for name, each in alone.network.named_parameters()
        ]
    )
    # Gradients of the convolutions are small, of their biases before batch norms nothing but
    # rounding errors, and Adam makes steps of them: as large as after a change of the last bits.
    rounded = parameters(trained(SMALL, tmp_path / "rounded", spoil=1e-7)) - parameters(alone)
    apart, moved = together - parameters(alone), parameters(alone) - before
    print(*(each[heads].norm() / moved[heads].norm() for each in (apart, rounded)))
    print(*(each.norm() / moved.norm() for each in (apart, rounded)))
    assert apart[heads].norm() < 0.02 * moved[heads].norm()
    assert apart.norm() < 3.0 * rounded.norm()


def test_figures_that_are_not_known_are_left_out() -> None:
    """Weights are stored with figures as JSON, which has no NaN."""
    figures = Figures(0.1, -20.0, 3.0, 0.02, 0.01, float("nan"))
    assert "auroc_unusual" not in figures.as_dict()
    assert figures.as_dict()["nll"] == -20.0
