from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("rosbags", reason="bags need rosbags")

from command_line import exit_code


def test_a_run_over_the_bag_is_a_run_over_the_folder(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sequence = data / "kitti" / "sequences" / "09"
    if not sequence.is_dir():
        pytest.skip(f"no sequence at {sequence}")
    bag = tmp_path / "bag"
    assert exit_code("kitti2bag", str(sequence), str(bag), "--frames", "30") == 0
    assert "30 frames, ground truth: 151 messages" in capsys.readouterr().out
    arguments = ["--only", "vo", "--frames", "30", "--json", "--out"]
    figures = []
    for name, source in (("folder", sequence), ("bag_run", bag)):
        assert exit_code("run", str(source), *arguments, str(tmp_path / name)) == 0
        figures.append(json.loads(capsys.readouterr().out)["vo"])
    assert figures[1] == pytest.approx(figures[0], rel=1e-6)
    for name in ("vo.txt", "vo.tum"):
        written = [(tmp_path / run / name).read_bytes() for run in ("folder", "bag_run")]
        assert written[0] == written[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere", "OUT"], "nowhere: is not a folder"),
        (["street", "EXISTING"], "exists already"),
        (["street", "OUT", "--frames", "0"], "--frames: must be a whole number of at least 1"),
        (["street", "OUT", "--frames", "2", "--epoch", "3e9"], "--epoch 3000000000.0"),
        (["street", "OUT", "--frames", "2", "--epoch", "nan"], "--epoch nan"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    places = {"OUT": str(tmp_path / "out"), "EXISTING": str(tmp_path / "there")}
    assert exit_code("kitti2bag", *(places.get(a, a) for a in arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert why in error
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "bag"
    child = subprocess.Popen(
        [sys.executable, "-m", "hydranet_ros.cli", "kitti2bag", "street", str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60.0
        while not list(tmp_path.glob(".bag.unfinished/bag/*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list(tmp_path.glob(".bag.unfinished/bag/*"))
        os.kill(child.pid, signal.SIGINT)
        _, error = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert error == "hydranet kitti2bag: interrupted\n"
    # CPython ends by the signal itself where that found it inside exec(), as in dataclasses;
    # a shell says 130 to both.
    assert child.returncode in (130, -signal.SIGINT)
    assert list(tmp_path.iterdir()) == []
