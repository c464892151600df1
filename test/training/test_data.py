"""Data sets that are kept, and a training from its command."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from hydranet_ros.cli import train
from hydranet_ros.errors import FileError
from hydranet_ros.gyro.weights import load_weights
from hydranet_ros.settings import complete, dump, to_yaml
from hydranet_ros.training.config import CONFIGS, DataConfig, TrainingConfig, read_config
from hydranet_ros.training.data import prepare
from hydranet_ros.training.pairs import exact_pairs, rendered_pairs
from hydranet_ros.training.streets import random_street

TINY = {
    "seed": 3,
    "network": {"heads": 4, "features": 16, "head_hidden": 16},
    "data": {
        "streets": 1,
        "validation_streets": 1,
        "exact_streets": 1,
        "calibration_streets": 1,
        "frames_per_street": 3,
        "gaps": [1],
        "unusual": 1,
    },
    "epochs": 1,
    "steps_per_epoch": 2,
    "batch_size": 4,
}


def test_exact_flow_has_no_errors_but_those_of_the_grid() -> None:
    street = random_street(3, 0, 2)
    exact, rendered = exact_pairs(street, gaps=(1,)), rendered_pairs(street, gaps=(1,), unusual=0)
    np.testing.assert_array_equal(exact.phi, rendered.phi)
    np.testing.assert_array_equal(exact.mask, rendered.mask)
    apart = (exact.cells[:, :2].astype(float), rendered.cells[:, :2].astype(float))
    apart = np.linalg.norm(apart[0] - apart[1], axis=1)
    assert (exact.cells[:, 2, exact.mask] == 1.0).all()
    assert np.median(apart[:, exact.mask]) < 3e-3


def run_command(*arguments: str) -> None:
    """`hydranet train ...`."""
    parser = argparse.ArgumentParser()
    train.add_parser(parser.add_subparsers())
    options = parser.parse_args(["train", *arguments])
    options.run(options)


def test_a_training_from_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, cache = tmp_path / "tiny.yaml", tmp_path / "cache"
    config.write_text(yaml.safe_dump(TINY))
    command = ["--config", str(config), "--cache", str(cache), "--device", "cpu"]
    run_command(*command, "--out", str(tmp_path / "a"))
    assert "auroc_unusual" in capsys.readouterr().out
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npz")}
    assert len(made) == 5
    run_command(*command, "--out", str(tmp_path / "b"))
    assert made == {path: path.stat().st_mtime_ns for path in cache.rglob("*.npz")}
    first, second = (tmp_path / name / "weights.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    weights = load_weights(first)
    assert weights.provenance.flow_method == "dis"
    assert weights.provenance.seed == 3
    assert min(weights.calibration.aleatoric_scale) >= 1.0
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["data"]["streets"] == 1


def test_kitti_folders_are_learned_from_both_ways(data: Path, tmp_path: Path) -> None:
    sequence = data / "kitti" / "sequences" / "09"
    if not sequence.is_dir():
        pytest.skip(f"no sequence at {sequence}")
    short = tmp_path / "sequences" / "00"
    for name in ("image_0", "image_1"):
        (short / name).mkdir(parents=True)
        for number in range(4):
            source = next((sequence / name).glob(f"{number:06d}.*"))
            (short / name / source.name).symlink_to(source)
    for name in ("calib.txt", "times.txt"):
        (short / name).symlink_to(sequence / name)
    (short / "poses.txt").symlink_to(data / "kitti" / "poses" / "09.txt")
    other = tmp_path / "sequences" / "01"
    other.symlink_to(short)
    folders = DataConfig(
        gaps=(1,), flow="farneback", kitti=(str(short),), kitti_validation=(str(other),)
    )
    found = prepare(TrainingConfig(preset="paper", data=folders), tmp_path / "cache")
    assert len(found.training) == 6
    batch = found.training.batch(np.arange(6))
    assert batch.flow.shape == (6, 2, 224, 224)
    assert batch.flow.abs().median() > 0.3  # pixels, not angles
    np.testing.assert_allclose(batch.target[:3, 1:], -batch.target[3:, 1:], atol=1e-6)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("epochs: 0", "epochs must be a whole number"),
        ("epoch: 3", "epoch is not known: did you mean epochs?"),
        ("data: {street: 3}", "data.street is not known: did you mean data.streets?"),
        ("streets: 3", "streets is not known: did you mean data.streets?"),
        ("data: 3", "data must be a mapping of names to values"),
        ("data: {gaps: []}", "data.gaps must have at least one"),
        ("learning_rate: fast", "learning_rate must be a number from 1e-09 to 10"),
        ("data: {flow: magic}", "flow must be one of dis"),
        ("data: {kitti: [a]}", "kitti_validation"),
        ("data: {kitti: [a], kitti_validation: [a]}", "other folders"),
        ("base: mine", "base must be one of default, paper"),
        ("network: {legs: 4}", "network.legs is not known"),
        ("network: {head: 4}", "network.head is not known: did you mean network.heads?"),
        ("network: {heads: 1}", "network.heads must be a whole number from 2"),
        ("network.heads: 1", "network.heads must be a whole number from 2"),
        ("preset: mine", "preset must be one of default, paper"),
        ("base: [paper]", "base must be one of default, paper"),
        ("- 1", "mapping"),
        ("a: [", "while parsing"),
    ],
)
def test_bad_configurations_are_one_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        run_command("--config", str(path), "--out", str(tmp_path / "out"))
    error = str(caught.value)
    assert "\n" not in error
    assert error.startswith(str(path))
    assert why in error
    assert not (tmp_path / "out").exists()


def test_configurations_survive_their_file(tmp_path: Path) -> None:
    for name, config in CONFIGS.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(to_yaml(config, "made by a test"))
        assert read_config(str(path)) == config


# --- several processes, on one machine or on two -------------------------------------------------

WORKER = """
import json, sys
from pathlib import Path
import torch
from hydranet_ros.settings import complete
from hydranet_ros.training import data
from hydranet_ros.training.config import TrainingConfig
from hydranet_ros.training.distributed import joined_processes
made, make = [], data._make
def counted(jobs, *rest):
    made.extend(job.path.name for job in jobs)
    make(jobs, *rest)
data._make = counted
if __name__ == "__main__":
    config = complete(TrainingConfig, json.loads(sys.argv[1]))
    with joined_processes(torch.device("cpu")) as processes:
        cache = Path(sys.argv[2].format(rank=processes.rank))
        data.prepare(config, cache, 1, processes)
        (cache / f"made-{processes.rank}.json").write_text(json.dumps(made))
"""


def kept(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(cache.rglob("*.npz"))}


@pytest.mark.parametrize("disk", ["common", pytest.param("own-{rank}", marks=pytest.mark.slow)])
def test_two_processes_make_the_data_of_one(tmp_path: Path, disk: str) -> None:
    """On one disk, or each on its own as on two machines: the same bytes, half of the work."""
    settings = {**dump(TrainingConfig()), "seed": 3}
    settings["data"] = {**settings["data"], **TINY["data"]}  # type: ignore[dict-item]
    prepare(complete(TrainingConfig, settings), tmp_path / "alone", 1)
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    for rank in (0, 1):
        (tmp_path / disk.format(rank=rank)).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(worker), json.dumps(settings), str(tmp_path / disk)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected, made = kept(tmp_path / "alone"), []
    assert len(expected) == 5
    for rank in (0, 1):
        cache = tmp_path / disk.format(rank=rank)
        assert kept(cache) == expected
        made.append(json.loads((cache / f"made-{rank}.json").read_text()))
    assert sorted(made[0] + made[1]) == sorted(expected)
    assert {len(each) for each in made} == {2, 3}
