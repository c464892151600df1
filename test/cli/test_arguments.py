"""What the commands share: quick answers, one spelling, one line for what is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from command_line import exit_code

from hydranet_ros.cli import __main__ as cli
from hydranet_ros.cli import arguments, demo_nodes, evaluate, fuse, kitti2bag
from hydranet_ros.datasets import recording, source
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.geometry.metrics import ALIGNMENTS
from hydranet_ros.gyro.visual_gyro import GyroConfig
from hydranet_ros.pipeline import PipelineConfig
from hydranet_ros.settings import Configuration, dump, walk
from hydranet_ros.training.config import CONFIGS

COMMANDS = [command.__name__.rpartition(".")[2] for command in cli.COMMANDS]
HEAVY = {"numpy", "scipy", "cv2", "torch", "matplotlib", "rosbags", "rclpy", "tqdm"}


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys; from hydranet_ros.cli.__main__ import parser; parser(); "
        f"print(sorted({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(command, "--help") == 0
    assert f"examples:\n  hydranet {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "config"),
    [
        (["run"], PipelineConfig()),
        (["bench"], PipelineConfig()),
        (["fuse", "drive.npz"], FusionConfig()),
        (["train"], CONFIGS["default"]),
        (["train", "--config", "paper"], CONFIGS["paper"]),
        (["demo"], demo_nodes.DemoConfig()),
    ],
)
def test_the_settings_are_printed_and_nothing_is_run(
    command: list[str], config: Configuration, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*command, "--dump-config") == 0
    assert yaml.safe_load(capsys.readouterr().out) == dump(config)


def test_choices_are_those_of_the_core() -> None:
    kinds = {each.name: each.choices for each in walk(FusionConfig)}
    assert kinds["odometry"] == ("own", "visual", "wheels")
    assert {each.name: each.choices for each in walk(GyroConfig)}["cameras"] == arguments.CAMERAS
    assert evaluate.ALIGNMENTS == ALIGNMENTS
    assert fuse.VARIANTS == recording.VARIANTS
    assert arguments.STREET == source.STREET


def test_storages_are_those_of_the_bags() -> None:
    bag_files = pytest.importorskip("hydranet_ros.datasets.bag_files", reason="no rosbags here")
    assert kitti2bag.STORAGES == bag_files.STORAGES


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["run", "--frames", "1"], "--frames: must be a whole number of at least 2, got '1'"),
        (["run", "--frames", "x"], "--frames: must be a whole number of at least 2, got 'x'"),
        (["run", "--max-frames", "9"], "unrecognized arguments: --max-frames"),
        (["run", "--cameras", "two"], "invalid choice: 'two'"),
        (["demo", "--mono"], "unrecognized arguments: --mono"),
        (["demo", "--frames", "2"], "--frames: must be a whole number of at least 3, got '2'"),
        (["demo", "--rate", "0"], "--rate: must be a number above 0 up to 1000, got '0'"),
        (["play", "--rate", "nan"], "--rate: must be a number above 0, got 'nan'"),
        (["play", "--start", "-1"], "--start: must be a number of at least 0, got '-1'"),
        (["fuse", "a.npz", "--odometry", "mine"], "invalid choice: 'mine'"),
        (["train"], "--out DIR is needed"),
        (["walk"], "invalid choice: 'walk'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_arguments_are_one_line(
    given: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*given) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("hydranet")
    assert why in error
