"""`hydranet run A B C --jobs N`: as one after the other, and one that fails does not matter."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from pathlib import Path

import cv2
import pytest
from command_line import exit_code

from hydranet_ros.cli import many_runs
from hydranet_ros.cli.run import Outcome
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

CAMERA = (
    "image_width: 620\nimage_height: 188\n"
    "camera_matrix:\n  data: [359, 0, 303, 0, 359, 93, 0, 0, 1]\n"
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Three folders of a few images each, and the calibration of their camera."""
    parent = tmp_path_factory.mktemp("sources")
    camera = parent / "camera.yaml"
    camera.write_text(CAMERA)
    folders = []
    for seed in (1, 2, 3):
        folder = parent / f"drive_{seed}"
        folder.mkdir()
        lines = []
        for k, frame in enumerate(Street(StreetConfig(seed=seed, frames=4))):
            cv2.imwrite(str(folder / f"{k}.png"), frame.left)
            lines.append(f"{0.1 * k} {k}.png\n")
        (folder / "images.txt").write_text("".join(lines))
        folders.append(str(folder))
    return camera, folders


def written(folder: Path) -> dict[str, bytes]:
    """All files but those that hold times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.json", "timing.png", "report.html")
    }


def arguments(camera: Path, *more: str) -> list[str]:
    return ["--cameras", "mono", "--only", "rotation", "--camera", str(camera), *more]


def test_several_at_once_are_as_one_after_the_other(
    sources: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    camera, folders = sources
    more = arguments(camera, "--json", "--out")
    assert exit_code("run", *folders, "--jobs", "2", *more, str(tmp_path / "many")) == 0
    together = json.loads(capsys.readouterr().out)
    assert list(together) == ["drive_1", "drive_2", "drive_3"]
    for folder in folders:
        name = Path(folder).name
        assert exit_code("run", folder, *more, str(tmp_path / "one" / name)) == 0
        alone = json.loads(capsys.readouterr().out)
        for figures in (alone, together[name]):
            del figures["ms_median"]
        assert together[name] == alone
    many, one = written(tmp_path / "many"), written(tmp_path / "one")
    assert set(many) == set(one)
    assert "drive_1/metrics.json" in many
    assert many == one


def test_one_that_fails_is_named_and_the_others_finish(
    sources: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    camera, folders = sources
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "images.txt").write_text("0.0 none.png\n0.1 none.png\n")
    code = exit_code("run", str(broken), *folders[:2], *arguments(camera, "--json"))
    printed = capsys.readouterr()
    assert code == 2
    assert list(json.loads(printed.out)) == ["drive_1", "drive_2"]
    (line,) = printed.err.splitlines()
    assert "broken: " in line
    assert "1 of 3 failed" in line


def test_what_belongs_to_one_source_is_refused_for_several(
    sources: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    camera, folders = sources
    for more, message in (
        (["--poses", "poses.txt"], "--poses is for one SOURCE, got 2"),
        (["--view"], "--view is for one SOURCE, got 2"),
        (["--odometry", "wheels.csv"], "--odometry FILE is for one SOURCE, got 2"),
    ):
        assert exit_code("run", *folders[:2], *arguments(camera), *more) == 2
        assert message in capsys.readouterr().err
    assert exit_code("run", folders[0], folders[0], *arguments(camera)) == 2
    assert "two sources are called 'drive_1'" in capsys.readouterr().err


class Bar:
    """Counts as tqdm's does."""

    total = 0

    def refresh(self) -> None:
        """Nothing is shown."""

    def update(self, count: int) -> None:
        """Nothing is shown."""


def test_one_that_is_ended_from_outside_is_named() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=os.abort)
    process.start()
    theirs.close()
    job = many_runs._Job("06", argparse.Namespace(), process, ours)
    assert not many_runs._heard(job, Bar())
    assert job.failure == "its process ended with signal 6"


def test_one_that_was_interrupted_is_named_and_keeps_what_it_has() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    job = many_runs._Job("06", argparse.Namespace(), context.Process(), ours)
    theirs.send(("outcome", Outcome({"frames": 3}, "3 frames", interrupted=True)))
    assert many_runs._heard(job, Bar())
    assert job.failure == "interrupted"
    assert job.outcome is not None
    assert job.outcome.printed == {"frames": 3}
