from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydranet_ros import cli, lie
from hydranet_ros.errors import HydraNetError
from hydranet_ros.experiments import kitti, kitti_training
from hydranet_ros.experiments.fitting import use_threads
from hydranet_ros.experiments.kitti_pairs import read_pairs


def test_both_tables_to_the_paper_s_digits(recordings: Path) -> None:
    outcome = kitti.run(recordings, quick=True)
    assert len(outcome.expected) == 3 * (2 * 4 + 2)
    assert outcome.faults() == []
    assert "00 paper              9.86      2.83      1.34      0.63" in outcome.report


def test_a_missing_recording_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "kitti", "--recordings", str(tmp_path)]) == 2
    assert f"{tmp_path / 'kitti_00.npz'}: is missing" in capsys.readouterr().err


def test_a_missing_dataset_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "kitti", "--dataset", str(tmp_path)]) == 2
    assert f"{tmp_path / 'sequences'}: is missing" in capsys.readouterr().err


def test_pairs_are_forward_and_then_swapped(data: Path) -> None:
    pairs = read_pairs(data / "kitti", "09", 64, 5, reverse=True)
    assert pairs.inputs(range(8)).shape == (8, 2, 64, 64)
    q = pairs.targets.double().numpy()
    product = lie.quaternion_multiply(q[:4], q[4:])
    np.testing.assert_allclose(lie.quaternion_log(product), 0.0, atol=1e-6)
    forward, backward = pairs.flow[:4].astype(float), pairs.flow[4:].astype(float)
    # Where flow is smooth, the swapped images flow back.
    assert np.corrcoef(forward.ravel(), -backward.ravel())[0, 1] > 0.5


def test_an_unknown_test_sequence_is_named(data: Path) -> None:
    settings = kitti_training.Settings(data / "kitti", test="00").quick()
    with pytest.raises(HydraNetError, match="--test 00: .* has only 09"):
        kitti_training.read_split(settings)


def test_training_learns_from_real_flow(data: Path) -> None:
    """End to end on small images; the weights are thrown away."""
    use_threads(1)
    outcome = kitti_training.run(kitti_training.Settings(data / "kitti"), quick=True)
    assert outcome.figures["training_pairs"] == 90
    assert outcome.figures["test_pairs"] == 30
    assert outcome.figures["mean_deg"] < 20.0  # an untrained network is wrong by 100 deg
    assert np.isfinite(outcome.figures["nll"])
