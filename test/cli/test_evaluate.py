from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hydranet_ros import __version__
from hydranet_ros.cli import __main__ as cli
from hydranet_ros.geometry.trajectory import write_kitti, write_tum

POSES = np.tile(np.eye(4), (60, 1, 1))
POSES[:, 2, 3] = 2.0 * np.arange(60)

KEYS = [
    "ate_m",
    "ate_deg",
    "seg_pct",
    "seg_deg_per_100m",
    "devkit_pct",
    "devkit_deg_per_100m",
    "f2f_deg",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hydranet_ros.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def truth(tmp_path: Path) -> str:
    write_kitti(tmp_path / "truth.txt", POSES)
    return str(tmp_path / "truth.txt")


def test_json_has_the_agreed_keys(tmp_path: Path, truth: str) -> None:
    scaled = POSES.copy()
    scaled[:, :3, 3] *= 1.01
    write_kitti(tmp_path / "estimate.txt", scaled)
    done = run("evaluate", str(tmp_path / "estimate.txt"), truth, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads(done.stdout)
    assert list(figures) == KEYS
    # 102 m is the first length beyond 100 m at 2 m steps.
    assert figures["seg_pct"] == pytest.approx(1.02)
    assert figures["ate_m"] == pytest.approx(0.01 * 59)


def test_covariances_add_nll_and_nees(tmp_path: Path, truth: str) -> None:
    np.savez(tmp_path / "s.npz", Sigma=np.tile(np.eye(6), (59, 1, 1)))
    done = run("evaluate", truth, truth, "--covariance", f"{tmp_path / 's.npz'}:Sigma", "--json")
    figures = json.loads(done.stdout)
    assert figures["nll"] == pytest.approx(0.0, abs=1e-9)
    assert figures["nees"] == pytest.approx(0.0, abs=1e-9)


def test_short_paths_print_null_and_a_reason(tmp_path: Path, truth: str) -> None:
    write_kitti(tmp_path / "short.txt", POSES[:5])
    short = str(tmp_path / "short.txt")
    assert json.loads(run("evaluate", short, short, "--json").stdout)["seg_pct"] is None
    assert "path shorter than 100 m" in run("evaluate", short, short).stdout


def test_partial_stamps_are_paired_but_not_with_covariances(tmp_path: Path) -> None:
    stamps = np.arange(60) * 10**8
    write_tum(tmp_path / "truth.tum", POSES[:50], stamps[:50])
    write_tum(tmp_path / "estimate.tum", POSES, stamps)
    np.savez(tmp_path / "s.npz", Sigma=np.tile(np.eye(6), (59, 1, 1)))
    files = [str(tmp_path / name) for name in ("estimate.tum", "truth.tum")]
    assert run("evaluate", *files).returncode == 0
    done = run("evaluate", *files, "--covariance", f"{tmp_path / 's.npz'}:Sigma")
    assert done.returncode == 2
    assert "10 have none" in done.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "bad.txt: is empty"),
        ("1 2 3\n", "bad.txt:1: expected 12 numbers"),
        ("1 0 0 0 0 1 0 0 0 0 1 0\n", "has 1 poses and"),
        ("1 0 0 nan 0 1 0 0 0 0 1 0\n", "bad.txt:1: row 0 is not finite"),
        ("1 0 0 0 0 1 0 0 0 0 2 0\n", "bad.txt:1: row 0 is not a rigid-body pose"),
        (None, "bad.txt: cannot be read: No such file or directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, truth: str, content: str | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "bad.txt").write_text(content)
    done = run("evaluate", str(tmp_path / "bad.txt"), truth, "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("hydranet evaluate: ")
    assert why in done.stderr


def test_help_has_an_example_and_version_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in [
        (["evaluate", "--help"], "examples:\n  hydranet evaluate"),
        (["--version"], f"hydranet_ros {__version__}"),
    ]:
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 0
        assert expected in capsys.readouterr().out
