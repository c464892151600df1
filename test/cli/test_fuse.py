from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from hydranet_ros.cli import __main__ as cli
from hydranet_ros.datasets.recording import read_recording
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.odometer import chain
from hydranet_ros.geometry.trajectory import read_trajectory
from hydranet_ros.settings import dump

STEPS = 60
FIGURES = [
    "ate_m",
    "ate_deg",
    "seg_pct",
    "seg_deg_per_100m",
    "devkit_pct",
    "devkit_deg_per_100m",
    "f2f_deg",
    "nll",
    "nees",
]
FILES = ["config.yaml", "fused.tum", "fused.txt", "metrics.json", "vo.tum", "vo.txt"]


def street() -> dict[str, np.ndarray]:
    """A short drive of 2 m a step: VO and rotations as good as they say, and better when sharp."""
    rng = np.random.default_rng(0)
    twists = np.tile([0.0, 0.0, -2.0, 0.0, 0.01, 0.0], (STEPS, 1))
    steps = lie.se3_exp(twists)
    arrays = {"T_w_c_gt_oxts": chain(steps, np.eye(4))}
    for suffix, noise in (("", 1.0), ("_blur", 3.0)):
        Sigma_vo = np.diag([0.01**2] * 3 + [2e-3**2] * 3) * noise**2
        Sigma_hn = np.eye(3) * (5e-4 * noise) ** 2
        drawn = rng.normal(size=(STEPS, 6)) * np.sqrt(np.diagonal(Sigma_vo))
        arrays["T_w_c_vo" + suffix] = chain(lie.se3_exp(drawn) @ steps, np.eye(4))
        arrays["Sigma_21_vo" + suffix] = np.tile(Sigma_vo, (STEPS, 1, 1))
        drawn = rng.normal(size=(STEPS, 3)) * 5e-4 * noise
        arrays["C_21_hn" + suffix] = lie.so3_exp(drawn) @ steps[:, :3, :3]
        arrays["Sigma_21_hn" + suffix] = np.tile(Sigma_hn, (STEPS, 1, 1))
    return arrays


def saved(folder: Path, **change: np.ndarray | None) -> str:
    arrays = {k: v for k, v in (street() | change).items() if v is not None}
    np.savez(folder / "drive.npz", **arrays)
    return str(folder / "drive.npz")


@pytest.fixture
def drive(tmp_path: Path) -> str:
    return saved(tmp_path)


@pytest.fixture
def fuse(capsys: pytest.CaptureFixture[str]):
    """Run the command here: the exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["fuse", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def figures(outcome: tuple[int, str, str]) -> dict:
    code, out, err = outcome
    assert (code, err) == (0, "")
    return json.loads(out)


def test_json_has_the_agreed_shape(fuse, drive: str) -> None:
    result = figures(fuse(drive, "--json"))
    assert list(result) == ["vo", "fused", "rejected"]
    assert list(result["vo"]) == list(result["fused"]) == FIGURES
    assert isinstance(result["rejected"], int)
    assert result["fused"]["seg_deg_per_100m"] < result["vo"]["seg_deg_per_100m"]


def test_a_simulated_imu_makes_it_better_and_its_bias_is_a_file(
    fuse, drive: str, tmp_path: Path
) -> None:
    alone = figures(fuse(drive, "--vo-only", "--json"))["fused"]
    out = tmp_path / "out"
    arguments = ("--vo-only", "--imu", "simulated", "--json", "--out", str(out))
    result = figures(fuse(drive, *arguments))
    assert result["fused"]["f2f_deg"] < 0.9 * alone["f2f_deg"]
    found = result["calibration"]["imu bias z"]
    assert abs(found["deg_s"] - 0.4) < 4.0 * found["sigma"]  # as simulated
    written = yaml.safe_load((out / "robot_calibration.yaml").read_text())
    assert written["imu_bias_z_deg_s"]["value"] == pytest.approx(found["deg_s"], abs=1e-4)
    assert written["imu_bias_z_deg_s"]["sigma"] == pytest.approx(found["sigma"], abs=1e-5)


def test_an_imu_of_another_time_is_refused(fuse, drive: str, tmp_path: Path) -> None:
    imu = tmp_path / "imu.csv"
    imu.write_text("".join(f"{1e6 + 0.01 * i:.2f},0,0,0,0,-9.81,0\n" for i in range(9)))
    code, out, err = fuse(drive, "--imu", str(imu))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "imu.csv: is of 1000000.000 to 1000000.080 s, the frames of 0.000 to 6.000 s" in err


def test_wheels_are_held_to_the_ground(fuse, tmp_path: Path) -> None:
    """They measure neither height nor roll and pitch: the motions are surer where these are."""
    Sigma = np.diag([0.01, 3.0, 0.01, 0.3, 2e-3, 0.3]) ** 2
    path = saved(tmp_path, Sigma_21_vo=np.tile(Sigma, (STEPS, 1, 1)))
    arguments = (path, "--odometry", "wheels", "--vo-only", "--json", "--set")
    held, free = (figures(fuse(*arguments, f"planar={planar}")) for planar in ("true", "false"))
    assert held["fused"]["nll"] < free["fused"]["nll"] - 5.0


def test_the_track_of_wheels_is_written_for_the_robot(fuse, drive: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--odometry", "wheels", "--rotation", "gyro", "--json", "--out", str(out))
    result = figures(fuse(drive, *arguments))
    written = yaml.safe_load((out / "robot_calibration.yaml").read_text())
    error = result["calibration"]["yaw"]["scale_error"]
    assert written["track_factor"]["value"] == pytest.approx(1.0 + error, abs=1e-5)
    assert "focal_length_factor" in written


def test_the_process_prints_the_same(fuse, drive: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hydranet_ros.cli", "fuse", drive, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == fuse(drive, "--json")[1]


def test_the_table_has_the_papers_columns(fuse, drive: str, tmp_path: Path) -> None:
    code, out, _ = fuse(drive, "--out", str(tmp_path / "out"))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["ATE", "m", "ATE", "deg", "seg", "%", "seg", "deg/100", "m"]
    assert [line.split()[0] for line in lines[1:3]] == ["vo", "fused"]
    assert lines[3] == "rejected: 0"
    assert lines[4] == f"written to {tmp_path / 'out'}"
    result = figures(fuse(drive, "--json"))
    assert lines[2].split()[1] == f"{result['fused']['ate_m']:.2f}"


def test_the_papers_mode_reproduces_its_table(fuse, recordings: Path) -> None:
    result = figures(fuse(str(recordings / "kitti_05.npz"), "--mode", "paper", "--json"))
    keys = "ate_m", "ate_deg", "seg_pct", "seg_deg_per_100m"
    assert [round(result["vo"][key], 2) for key in keys] == [23.72, 8.10, 1.79, 0.79]
    assert [round(result["fused"][key], 2) for key in keys] == [9.85, 3.23, 1.38, 0.60]
    assert result["fused"]["nees"] > 6


def test_the_papers_mode_counts_the_steps_that_kept_vo(fuse, tmp_path: Path) -> None:
    Sigma = street()["Sigma_21_hn"]
    Sigma[3:7] = np.eye(3)
    path = saved(tmp_path, Sigma_21_hn=Sigma)
    assert figures(fuse(path, "--mode", "paper", "--json"))["rejected"] == 4


@pytest.mark.parametrize("mode", ["window", "paper"])
def test_out_writes_everything_twice_the_same(fuse, drive: str, tmp_path: Path, mode: str) -> None:
    folders = [tmp_path / "one", tmp_path / "deep" / "two"]
    for folder in folders:
        result = figures(fuse(drive, "--mode", mode, "--out", str(folder), "--json"))
        assert sorted(path.name for path in folder.iterdir()) == FILES
    for name in FILES:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    folder = folders[0]
    assert json.loads((folder / "metrics.json").read_text()) == result
    text = (folder / "config.yaml").read_text()
    assert f"# recording: drive.npz\n# mode: {mode}\n" in text
    assert yaml.safe_load(text) == dump(FusionConfig(rotation="gyro"))  # as it was found
    vo = read_trajectory(folder / "vo.txt").T_w_c
    np.testing.assert_allclose(vo, street()["T_w_c_vo"], atol=1e-6)
    fused = read_trajectory(folder / "fused.tum")
    np.testing.assert_allclose(fused.T_w_c, read_trajectory(folder / "fused.txt").T_w_c, atol=1e-6)
    np.testing.assert_array_equal(fused.stamps_ns, np.arange(STEPS + 1) * 100_000_000)
    assert np.abs(fused.T_w_c - vo).max() > 1e-3


def test_vo_only_leaves_the_rotations_out(fuse, drive: str, tmp_path: Path) -> None:
    alone = figures(fuse(drive, "--vo-only", "--json"))
    # nothing but VO and no gap: the window hands VO through
    assert alone["fused"]["ate_m"] == pytest.approx(alone["vo"]["ate_m"], rel=1e-4)
    assert alone["fused"]["nees"] < alone["vo"]["nees"]
    without = saved(tmp_path, C_21_hn=None, Sigma_21_hn=None)
    assert figures(fuse(without, "--vo-only", "--json")) == alone


def test_dropped_vo_is_bridged(fuse, drive: str, tmp_path: Path) -> None:
    whole = figures(fuse(drive, "--json"))
    gaps = figures(fuse(drive, "--drop-vo", "20:10,45:3", "--json"))
    assert gaps["vo"] == whole["vo"]
    assert gaps["fused"]["ate_m"] != whole["fused"]["ate_m"]
    assert gaps["fused"]["ate_m"] < 3.0
    # the dropped steps are not looked at
    T = street()["T_w_c_vo"]
    T[21:] = T[21:] @ lie.se3_exp([5.0, 0.0, 0.0, 0.0, 0.5, 0.0])
    T[31:] = T[30] @ lie.se3_inverse(street()["T_w_c_vo"][30]) @ street()["T_w_c_vo"][31:]
    jump = saved(tmp_path, T_w_c_vo=T)
    assert figures(fuse(jump, "--drop-vo", "20:10,45:3", "--json"))["fused"] == pytest.approx(
        gaps["fused"], rel=1e-6
    )
    coasting = figures(fuse(drive, "--drop-vo", "20:10", "--vo-only", "--json"))
    assert coasting["fused"]["ate_m"] < 5.0


def test_every_step_may_go_and_before_the_first_state_the_pose_is_the_start(
    fuse, drive: str, tmp_path: Path
) -> None:
    assert fuse(drive, "--drop-vo", f"0:{STEPS}", "--json")[0] == 0
    out = tmp_path / "out"
    assert fuse(drive, "--drop-vo", "0:5", "--vo-only", "--out", str(out))[0] == 0
    fused = read_trajectory(out / "fused.txt").T_w_c
    np.testing.assert_allclose(fused[:6], np.tile(np.eye(4), (6, 1, 1)), atol=1e-9)
    vo = street()["T_w_c_vo"]
    np.testing.assert_allclose(fused[-1], lie.se3_inverse(vo[5]) @ vo[-1], atol=0.1)


def test_a_step_without_anything_has_the_predicted_pose(fuse, drive: str, tmp_path: Path) -> None:
    """No state is made there: the last velocity is carried on, and NEES leaves the gap out."""
    out = tmp_path / "out"
    arguments = ("--drop-vo", "30:3", "--vo-only", "--json", "--out", str(out))
    result = figures(fuse(drive, *arguments))
    fused = read_trajectory(out / "fused.txt").T_w_c
    steps = np.linalg.norm(np.diff(fused[:, :3, 3], axis=0), axis=1)
    np.testing.assert_allclose(steps[30:33], 2.0, atol=0.1)
    assert result["fused"]["nees"] < 12.0


def test_settings_come_from_files_and_arguments(fuse, drive: str, tmp_path: Path) -> None:
    given = ("--odometry", "wheels", "--set", "wheels.scale=9")
    code, dumped, _ = fuse(drive, *given, "--dump-config")
    assert code == 0
    config = yaml.safe_load(dumped)
    assert (config["odometry"], config["wheels"]["scale"]) == ("wheels", 9.0)
    (tmp_path / "mine.yaml").write_text(dumped)
    from_file = figures(fuse(drive, "--config", str(tmp_path / "mine.yaml"), "--json"))
    assert from_file == figures(fuse(drive, *given, "--json")) != figures(fuse(drive, "--json"))


def test_variants_are_other_sources(fuse, drive: str) -> None:
    sharp, blurred = (figures(fuse(drive, "--variant", v, "--json")) for v in ("", "blur"))
    assert blurred["vo"]["f2f_deg"] > 2 * sharp["vo"]["f2f_deg"]
    assert blurred["fused"]["f2f_deg"] < blurred["vo"]["f2f_deg"]


def test_without_truth_there_is_nothing_to_compare(fuse, tmp_path: Path) -> None:
    path = saved(tmp_path, T_w_c_gt_oxts=None)
    assert figures(fuse(path, "--json", "--out", str(tmp_path / "out"))) == {"rejected": 0}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES
    assert "no ground truth" in fuse(path)[1]


def with_nan(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[7, 0, 0] = np.nan
    return array


@pytest.mark.parametrize(
    ("change", "arguments", "why"),
    [
        ({"T_w_c_vo": None}, [], "has no array 'T_w_c_vo'"),
        ({"C_21_hn": None}, [], "has no rotations to fuse: use --vo-only"),
        ({"C_21_hn": np.zeros((3, 3))}, [], "expected shape (60, 3, 3)"),
        ({"T_w_c_vo": with_nan(street()["T_w_c_vo"])}, [], "row 7 is not finite"),
        ({"C_21_hn": with_nan(street()["C_21_hn"])}, [], "row 7 is not finite"),
        ({"Sigma_21_vo": with_nan(street()["Sigma_21_vo"])}, [], "Sigma_21_vo"),
        ({}, ["--variant", "nc"], "of variant 'nc'"),
        ({}, ["--drop-vo", "5"], "'5' is not START:LEN"),
        ({}, ["--drop-vo", "5:x"], "'5:x' is not START:LEN"),
        ({}, ["--drop-vo=-5:3"], "'-5:3' is not START:LEN"),
        ({}, ["--drop-vo", "55:6"], "'55:6' goes beyond the 60 steps"),
        ({}, ["--drop-vo", "²:1"], "is not START:LEN"),
        ({}, ["--mode", "paper", "--drop-vo", "5:3"], "--mode paper needs both sources"),
        ({}, ["--mode", "paper", "--vo-only"], "--mode paper needs both sources"),
        ({}, ["--set", "vo_scale=4"], "--set vo_scale=4: vo_scale is not known"),
        ({}, ["--set", "window_size"], "--set window_size: expected NAME=VALUE"),
        ({}, ["--set", "window_size=2"], "window_size must be a whole number of at least 3"),
        ({}, ["--config", "none.yaml"], "none.yaml: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    fuse, tmp_path: Path, change: dict, arguments: list[str], why: str
) -> None:
    code, out, err = fuse(saved(tmp_path, **change), *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("hydranet fuse: ")
    assert err.count("\n") == 1
    assert why in err


def test_files_that_cannot_be_read_or_written(fuse, drive: str, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "taken").write_text("a file")
    for arguments in (
        [str(tmp_path / "absent.npz")],
        [str(tmp_path / "text.npz")],
        [str(tmp_path)],
        [drive, "--out", str(tmp_path / "taken")],
    ):
        code, out, err = fuse(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fuse", "--help"])
    assert stopped.value.code == 0
    assert "examples:\n  hydranet fuse" in capsys.readouterr().out


@pytest.mark.parametrize("said", ["gyro", "hydranet"])
def test_the_file_says_whose_rotations_it_has(fuse, tmp_path: Path, said: str) -> None:
    file = saved(tmp_path, rotation_source=np.array(said))
    figures(fuse(file, "--json", "--out", str(tmp_path / "out")))
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["rotation"] == said
    other = {"gyro": "hydranet", "hydranet": "gyro"}[said]
    figures(fuse(file, "--json", "--rotation", other, "--out", str(tmp_path / "other")))
    assert yaml.safe_load((tmp_path / "other" / "config.yaml").read_text())["rotation"] == other


def test_rotations_of_nobody_known_are_refused(fuse, tmp_path: Path) -> None:
    code, _, err = fuse(saved(tmp_path, rotation_source=np.array("mine")))
    assert (code, "'rotation_source' is 'mine'" in err) == (2, True)


@pytest.mark.parametrize(
    ("name", "variant", "source"),
    [
        ("00_gyro", "", "gyro"),
        ("00", "", "hydranet"),
        ("05", "", "hydranet"),
        ("09", "", "hydranet"),
        ("02", "blur", "hydranet"),
        ("05", "blur", "hydranet"),
    ],
)
def test_whose_rotations_are_told_by_their_covariances(
    recordings: Path, name: str, variant: str, source: str
) -> None:
    recording = read_recording(recordings / f"kitti_{name}.npz", variant)
    assert recording.rotation_source == source
