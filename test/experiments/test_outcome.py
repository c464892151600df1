from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from hydranet_ros.errors import HydraNetError
from hydranet_ros.experiments.outcome import Outcome, boxes, write_outcome


def outcome(**change: object) -> Outcome:
    values = {"figures": {"a": 1.0}, "report": "fine", "settings": {"seed": 3}} | change
    return Outcome(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.4, 2.1, float("nan")])
def test_a_figure_out_of_its_range_is_named(value: float) -> None:
    found = outcome(figures={"a": value}, expected={"a": (0.5, 2.0)})
    with pytest.raises(HydraNetError, match=r"1 figures differ: a is .*, expected 0\.5 to 2"):
        found.check()


def test_a_figure_that_is_missing_is_a_fault() -> None:
    assert outcome(expected={"b": (0.0, 1.0)}).faults() == ["b is nan, expected 0 to 1"]


def test_checking_against_nothing_is_said() -> None:
    with pytest.raises(HydraNetError, match="no figures are stored for these settings"):
        outcome().check()


def test_limits_belong_to_the_range() -> None:
    assert outcome(expected={"a": (1.0, 1.0)}).faults() == []


def test_everything_is_written_and_the_same_twice(tmp_path: Path) -> None:
    found = outcome(
        tables={"rows": [{"x": 1, "y": 2.5}, {"x": 2, "y": 3.5}]},
        plots={"box": lambda: boxes({"one": [1.0, 2.0, 3.0]}, "value")},
        timing={"seconds": 1.5},
    )
    for folder in ("first", "second"):
        write_outcome(tmp_path / folder, "try", found)
    first = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    second = {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()}
    assert first == second
    assert json.loads(first["results.json"]) == {"experiment": "try", "figures": {"a": 1.0}}
    assert yaml.safe_load(first["config.yaml"])["seed"] == 3
    rows = list(csv.DictReader(first["rows.csv"].decode().splitlines()))
    assert rows == [{"x": "1", "y": "2.5"}, {"x": "2", "y": "3.5"}]
    assert first["box.png"].startswith(b"\x89PNG")
    assert first["box.pdf"].startswith(b"%PDF")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HydraNetError, match="cannot be written"):
        write_outcome(tmp_path / "file" / "out", "try", outcome())
