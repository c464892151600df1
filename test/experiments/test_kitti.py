from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.experiments import kitti, kitti_training
from hydranet_ros.experiments.kitti_training import KittiTrainingSettings, part
from hydranet_ros.gyro.device import set_threads
from hydranet_ros.training.pairs import FlowPairs


def test_both_tables_to_the_paper_s_digits(recordings: Path) -> None:
    outcome = kitti.run(recordings, quick=True)
    assert len(outcome.expected) == 3 * (2 * 4 + 2)
    assert outcome.faults() == []
    assert "00 paper              9.86      2.83      1.34      0.63" in outcome.report


@pytest.fixture
def one_sequence(data: Path, tmp_path: Path) -> Path:
    """The data set as if it had sequence 09 alone."""
    for name in ("sequences/09", "poses/09.txt"):
        (tmp_path / "kitti" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "kitti" / name).symlink_to(data / "kitti" / name)
    return tmp_path / "kitti"


def test_a_missing_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"kitti_00\.npz: is missing"):
        kitti.run(tmp_path)


def test_a_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="sequences: is missing"):
        kitti_training.run(KittiTrainingSettings(tmp_path, tmp_path))


def drive(frames: int) -> FlowPairs:
    """Pairs that know which frames they are of: (i, i + 1), then (i + 1, i)."""
    first = np.arange(frames - 1.0)
    phi = np.concatenate([first, -first])[:, None] * [1.0, 0.0, 0.0]
    cells = np.zeros((len(phi), 6, 4, 4), dtype=np.float16)
    return FlowPairs(cells, np.ones((4, 4), dtype=bool), phi, cells[:0])


def test_parts_of_a_drive_do_not_share_frames_either_way() -> None:
    whole = drive(11)
    assert part(whole, 0.0, 0.6).phi[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, -1, -2, -3, -4, -5]
    assert part(whole, 0.6, 0.8).phi[:, 0].tolist() == [6, 7, -6, -7]
    assert part(whole, 0.8, 1.0, both_ways=False).phi[:, 0].tolist() == [8, 9]


def test_an_unknown_test_sequence_is_named(one_sequence: Path, tmp_path: Path) -> None:
    settings = KittiTrainingSettings(one_sequence, tmp_path / "out", test="00")
    with pytest.raises(HydraNetError, match=r"--test 00: .* has only 09"):
        kitti_training.read_split(settings, kitti_training.QUICK)


@pytest.mark.slow
def test_training_runs_end_to_end_and_leaves_no_weights(
    one_sequence: Path, tmp_path: Path
) -> None:
    set_threads(1)
    out = tmp_path / "out"
    outcome = kitti_training.run(KittiTrainingSettings(one_sequence, out), quick=True)
    assert outcome.figures["training_pairs"] == 2 * 359
    assert outcome.figures["test_pairs"] == 120
    # Of an untrained network it is about 100 deg.
    assert outcome.figures["mean_deg"] < 10.0
    assert np.isfinite(outcome.figures["nll"])
    assert not out.exists()
