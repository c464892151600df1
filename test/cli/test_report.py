"""`hydranet report`: a report again, and two runs side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="a report needs matplotlib")

from hydranet_ros.cli import __main__ as cli
from hydranet_ros.evaluation.record_file import read_record, record_bytes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The street twice, with different settings."""
    folder = tmp_path_factory.mktemp("runs")
    street = ["run", "street", "--frames", "12"]
    assert cli.main([*street, "--out", str(folder / "one")]) == 0
    few = ["--set", "vo.cells=300", "--set", "fusion.window_size=3"]
    assert cli.main([*street, *few, "--out", str(folder / "other")]) == 0
    return folder / "one", folder / "other"


def test_a_report_is_written_again_as_it_was(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (runs[0] / "report.html").read_bytes()
    assert cli.main(["report", str(runs[0]), "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    # Latencies are kept to a microsecond.
    marked = re.compile(rb"<!-- timing -->.*<!-- timing -->", re.DOTALL)
    again = (tmp_path / "report.html").read_bytes()
    assert len(marked.findall(again)) == 1
    assert marked.sub(b"", again) == marked.sub(b"", before)


def test_a_report_has_all_its_parts(runs: tuple[Path, Path]) -> None:
    page = (runs[0] / "report.html").read_text(encoding="utf-8")
    headings = re.findall("<h2>(.*?)</h2>", page)
    for part in (
        "Trajectories",
        "Errors over time",
        "Errors over distance",
        "Calibration over 1, 10, 100 frames",
        "Consistency of the fusion",
        "Latency",
        "All figures",
        "Configuration",
    ):
        assert part in headings
    assert "window_size" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)  # it opens without a network


def test_a_record_is_read_as_it_was_written(runs: tuple[Path, Path]) -> None:
    record = read_record(runs[0])
    assert record_bytes(record) == (runs[0] / "record.npz").read_bytes()
    assert len(record.latencies_ms["frame"]) == 11
    assert set(record.errors) == {"position (m)", "orientation (deg)"}
    assert set(record.blocks) == {"rotation", "vo"}


def test_two_runs_are_compared(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["report", *(str(each) for each in runs), "--out", str(tmp_path)]
    assert cli.main([*command, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    kept = [json.loads((each / "metrics.json").read_text()) for each in runs]
    row = figures["fused.ate_m"]
    assert row["one"] == pytest.approx(kept[0]["fused"]["ate_m"])
    assert row["other"] == pytest.approx(kept[1]["fused"]["ate_m"])
    assert row["times"] == pytest.approx(row["one"] / row["other"])
    assert cli.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert page.count("<img") == 3
    assert "times better" in page


def test_what_is_no_run_is_one_line(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "record.npz: is missing: make it with hydranet run" in capsys.readouterr().err
    assert cli.main(["report", str(runs[0]), str(runs[0])]) == 2
    assert "is the same run" in capsys.readouterr().err
    (tmp_path / "record.npz").write_bytes((runs[0] / "record.npz").read_bytes()[:-40])
    (tmp_path / "timing.json").write_text("{}")
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "record.npz: is damaged" in capsys.readouterr().err
