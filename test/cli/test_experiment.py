from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from hydranet_ros.cli import __main__ as cli
from hydranet_ros.cli import experiment

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
    assert cli.main(["experiment", *arguments]) == 0
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
    assert cli.main(["experiment", *arguments]) == 2
    assert "1 figures differ: metric_defect is " in capsys.readouterr().err


def test_without_torch_the_remedy_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(experiment, "find_spec", absent)
    assert cli.main(["experiment", "one-d", "--quick"]) == 2
    assert "pip install 'hydranet_ros[learning,report]'" in capsys.readouterr().err


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys; from hydranet_ros.cli.__main__ import parser; parser(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["two-d"],
        ["one-d", "--repetitions", "0"],
        ["one-d", "--preset", "mine"],
        ["hemisphere", "--threads", "x"],
    ],
)
def test_bad_arguments_end_with_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["experiment", *arguments])
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_test_sequence_needs_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "kitti", "--test", "00"]) == 2
    assert "--test names a sequence of --dataset DIR" in capsys.readouterr().err
