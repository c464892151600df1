"""`hydranet bench`: it times every part, and says what is wrong with its arguments."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="rotations from images need torch")

from command_line import exit_code

PARTS = {
    "gyro, one camera",
    "gyro, both cameras",
    "stereo odometry",
    "all, with the fusion",
    "Farneback (OpenCV)",
}


def test_every_part_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--frames", "8", "--threads", "1", "--device", "cpu", "--json"]
    assert exit_code("bench", *arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["image"] == [1226, 370]
    assert (figures["frames"], figures["opencv_threads"]) == (8, 1)
    assert figures["device"].startswith("cpu")
    assert set(figures["ms"]) == PARTS
    times = {name: each["p50"] for name, each in figures["ms"].items()}
    assert min(times.values()) > 0.0
    assert times["all, with the fusion"] > times["stereo odometry"]
    assert all(each["p50"] <= each["p95"] for each in figures["ms"].values())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--frames", "2"], "--frames: must be a whole number of at least 6, got '2'"),
        (["--threads", "0"], "--threads: must be a whole number of at least 1, got '0'"),
        (["nowhere"], "nowhere: is not a folder"),
        (["--set", "gyro.wieghts=a"], "gyro.wieghts is not known: did you mean gyro.weights?"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("bench", *arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert why in error
