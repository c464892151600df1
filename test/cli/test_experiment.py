from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import exit_code

FILES = {
    "accuracy.csv",
    "accuracy.pdf",
    "accuracy.png",
    "config.yaml",
    "domain.csv",
    "domain.pdf",
    "domain.png",
    "results.json",
    "timing.json",
}


def test_an_experiment_checks_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rotation-averaging", "--quick", "--check", "--json", "--out", str(tmp_path)]
    assert exit_code("experiment", *arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    written = json.loads((tmp_path / "results.json").read_text())
    assert written == {"experiment": "rotation-averaging", "figures": printed}
    assert printed["right_share.aligned.85_deg"] == 1.0


def test_a_figure_that_differs_ends_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydranet_ros.experiments import rotation_averaging

    monkeypatch.setitem(rotation_averaging.EXPECTED, "metric_defect", (1.0, 2.0))
    arguments = ["rotation-averaging", "--quick", "--check", "--out", str(tmp_path)]
    assert exit_code("experiment", *arguments) == 2
    assert "1 figures differ: metric_defect is " in capsys.readouterr().err


def test_without_torch_the_remedy_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert exit_code("experiment", "one-d", "--quick") == 2
    error = capsys.readouterr().err
    assert "an experiment needs torch: pip install 'hydranet_ros[learning]'" in error


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["two-d"],
        ["one-d", "--repetitions", "0"],
        ["one-d", "--preset", "mine"],
        ["hemisphere", "--threads", "x"],
        ["kitti", "--seed", "-1"],
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("experiment", *arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("hydranet experiment")
    assert "--help)" in error


def test_a_test_sequence_needs_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("experiment", "kitti", "--test", "00") == 2
    assert "--test names a sequence of --dataset DIR" in capsys.readouterr().err
