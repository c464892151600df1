from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from hydranet_ros.cli import __main__ as cli
from hydranet_ros.datasets.source import SimulatedStreet
from hydranet_ros.evaluation.report import TIMING_MARK
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.geometry.trajectory import read_trajectory, write_kitti, write_tum
from hydranet_ros.pipeline import PipelineConfig
from hydranet_ros.settings import dump


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hydranet_ros.cli", "run", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_street_is_the_default_and_its_covariances_are_honest(tmp_path: Path) -> None:
    done = run("--only", "vo", "--json", "--out", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads(done.stdout)
    assert list(figures) == ["frames", "ms_median", "unmatched", "lost", "calibration_px", "vo"]
    assert (figures["frames"], figures["lost"]) == (100, 0)
    assert figures["vo"]["f2f_deg"] < 0.01
    assert figures["vo"]["ate_m"] < 0.2
    # Cautious: the covariance allows for errors of a calibration that has none here.
    assert 1.5 <= figures["vo"]["nees"] <= 6.0
    kitti, tum = read_trajectory(tmp_path / "vo.txt"), read_trajectory(tmp_path / "vo.tum")
    np.testing.assert_allclose(kitti.T_w_c, tum.T_w_c, atol=1e-9)
    assert json.loads((tmp_path / "metrics.json").read_text())["vo"] == figures["vo"]
    config = (tmp_path / "config.yaml").read_text()
    assert "# source: street\n# frames: 100\n" in config
    assert yaml.safe_load(config)["parts"] == "vo"
    assert json.loads((tmp_path / "timing.json").read_text())["ms_median"] > 0.0


def written(folder: Path) -> dict[str, bytes]:
    """All files but the one that depends on the machine."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found.pop("timing.json")
    found.pop("plots/timing.png", None)
    if "report.html" in found:
        before, _, after = found["report.html"].split(TIMING_MARK.encode())
        found["report.html"] = before + after
    return found


def test_a_run_with_the_settings_that_it_wrote_gives_the_same_bytes(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    changes = ["--cameras", "stereo", "--set", "fusion.window_size=5", "--set", "vo.cells=500"]
    street = ["run", "street", "--frames", "6"]
    assert cli.main([*street, *changes, "--out", str(a)]) == 0
    assert cli.main([*street, "--config", str(a / "config.yaml"), "--out", str(b)]) == 0
    assert cli.main([*street, "--out", str(c)]) == 0
    names = {f"{part}.{kind}" for part in ("vo", "rotation", "fused") for kind in ("txt", "tum")}
    names |= {"rotation.csv", "metrics.json", "config.yaml", "report.html", "plots/top_down.png"}
    assert names <= written(a).keys()
    assert written(a) == written(b)
    assert written(a)["fused.txt"] != written(c)["fused.txt"]


def test_settings_are_shown_and_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("fusion: {window_size: 7}\ngyro.cameras: stereo\n")
    arguments = [
        "--config",
        str(tmp_path / "mine.yaml"),
        "--cameras",
        "mono",
        "--only",
        "rotation",
    ]
    assert cli.main(["run", *arguments, "--set", "gyro.device=cpu", "--dump-config"]) == 0
    out, err = capsys.readouterr()
    config = yaml.safe_load(out)
    assert err == ""
    assert (config["parts"], config["fusion"]["window_size"]) == ("rotation", 7)
    assert (config["gyro"]["cameras"], config["gyro"]["device"]) == ("mono", "cpu")
    assert cli.main(["run", "--dump-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == dump(PipelineConfig())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--set", "fusion.windowsize=7"], "did you mean fusion.window_size?"),
        (["--set", "odometry=own"], "did you mean fusion.odometry?"),
        (["--set", "vo.cells=many"], "vo.cells must be a whole number"),
        (["--config", "FILE"], "mine.yaml: fusion.hydranet.infltion is not known: did you mean"),
    ],
)
def test_settings_that_are_not_known_are_one_line(
    tmp_path: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("fusion: {hydranet: {infltion: 2}}\n")
    given = [str(tmp_path / "mine.yaml") if word == "FILE" else word for word in arguments]
    assert cli.main(["run", *given, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert why in error
    assert not (tmp_path / "out").exists()


@pytest.fixture
def one_camera(tmp_path: Path) -> Path:
    """Four frames of the street as a KITTI folder without image_1."""
    source = SimulatedStreet(4)
    (tmp_path / "mono" / "image_0").mkdir(parents=True)
    for i, frame in enumerate(source):
        cv2.imwrite(str(tmp_path / "mono" / "image_0" / f"{i:06d}.png"), frame.left)
    c = source.camera.left
    projection = f"P0: {c.fx} 0 {c.cx} 0 0 {c.fy} {c.cy} 0 0 0 1 0\n"
    (tmp_path / "mono" / "calib.txt").write_text(projection)
    times = "".join(f"{stamp * 1e-9:.9f}\n" for stamp in source.stamps_ns)
    (tmp_path / "mono" / "times.txt").write_text(times)
    write_kitti(tmp_path / "mono" / "poses.txt", source.T_w_c)
    return tmp_path / "mono"


def test_one_camera_is_enough_for_rotations(
    one_camera: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rotations of the folder are those of the street's left camera."""
    for name, source in (("folder", str(one_camera)), ("street", "street")):
        arguments = [source, "--only", "rotation", "--frames", "4", "--out", str(tmp_path / name)]
        assert cli.main(["run", *arguments]) == 0
    capsys.readouterr()
    assert json.loads((tmp_path / "folder" / "metrics.json").read_text())["rotation"]["nees"] > 0.0
    for name in ("rotation.csv", "rotation.txt"):
        found, expected = ((tmp_path / run / name).read_bytes() for run in ("folder", "street"))
        assert found == expected, name


def test_one_camera_without_a_pair_gives_the_rotation_alone(
    one_camera: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(one_camera), "--cameras", "mono", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "no pair of cameras: the rotation alone" in text
    assert "gyro over frames: 1 " in text
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["rotation_over"]["1"]["blocks"] == 3
    assert list(metrics["rotation_over"]["1"]) == ["blocks", "mean_deg", "nees", "bias_deg"]
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["parts"] == "rotation"


def test_a_folder_without_calibration_is_given_one(
    one_camera: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames of the street as a list: the same rotations, and no truth for half of them."""
    source, folder = SimulatedStreet(4), tmp_path / "listed"
    folder.mkdir()
    names = [path.name for path in sorted((one_camera / "image_0").iterdir())]
    (one_camera / "image_0").rename(folder / "image")
    stamps = [stamp + 10**18 for stamp in source.stamps_ns.tolist()]
    lines = [f"{s // 10**9}.{s % 10**9:09d} image/{n}" for s, n in zip(stamps, names, strict=True)]
    (folder / "images.txt").write_text("\n".join(lines))
    c = source.camera.left
    height, width = next(iter(source)).left.shape
    data = [c.fx, 0.0, c.cx, 0.0, c.fy, c.cy, 0.0, 0.0, 1.0]
    camera = {"image_width": width, "image_height": height, "camera_matrix": {"data": data}}
    (tmp_path / "camera.yaml").write_text(yaml.safe_dump(camera))
    command = ["run", str(folder), "--cameras", "mono"]
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "camera.yaml: is missing" in error
    write_tum(folder / "groundtruth.txt", source.T_w_c[:3], stamps[:3])
    command += ["--camera", str(tmp_path / "camera.yaml"), "--out", str(tmp_path / "out")]
    assert cli.main(command) == 0
    capsys.readouterr()
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert (figures["frames"], figures["rotation_over"]["1"]["blocks"]) == (4, 2)
    assert figures["rotation"]["mean_deg"] < 0.1
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("arguments", [[], ["--cameras", "stereo"], ["--only", "vo"]])
def test_odometry_says_that_it_needs_a_pair(
    one_camera: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(one_camera), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "stereo odometry needs a pair: with one camera use --cameras mono" in error


def test_a_real_sequence(data: Path) -> None:
    sequence = data / "kitti" / "sequences" / "09"
    if not sequence.is_dir():
        pytest.skip(f"no sequence at {sequence}")
    done = run(str(sequence), "--frames", "150", "--json")
    figures = json.loads(done.stdout)
    names = ["unmatched", "lost", "calibration_px", "vo", "rotation", "rotation_over", "fused"]
    assert list(figures)[2:] == names
    assert (figures["frames"], figures["lost"]) == (150, 0)
    assert figures["rotation"]["mean_deg"] < 0.06
    assert figures["fused"]["f2f_deg"] <= 1.05 * figures["vo"]["f2f_deg"]
    assert figures["fused"]["ate_m"] <= 1.1 * figures["vo"]["ate_m"]
    assert figures["vo"]["devkit_pct"] < 1.3
    assert figures["vo"]["devkit_deg_per_100m"] < 0.6
    assert figures["vo"]["f2f_deg"] < 0.04
    assert 3.0 <= figures["vo"]["nees"] <= 12.0


@pytest.mark.parametrize(("name", "frames"), [("euroc", 25), ("seven_scenes", 25)])
def test_real_rooms_and_flights(
    data: Path, name: str, frames: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (data / name).is_dir():
        pytest.skip(f"no {name} in {data}")
    command = ["run", str(data / name), "--only", "rotation", "--frames", str(frames), "--json"]
    assert cli.main(command) == 0
    figures = json.loads(capsys.readouterr().out)["rotation_over"]
    assert (figures["1"]["blocks"], figures["10"]["blocks"]) == (frames - 1, 2)
    assert figures["1"]["mean_deg"] < 0.3
    assert figures["10"]["mean_deg"] < 3.0


@pytest.mark.slow
def test_the_whole_real_sequence(data: Path) -> None:
    figures = json.loads(run(str(data / "kitti" / "sequences" / "09"), "--json").stdout)
    assert figures["vo"]["devkit_pct"] <= 1.3
    assert figures["vo"]["devkit_deg_per_100m"] <= 0.40
    assert figures["vo"]["f2f_deg"] <= 0.032
    assert 3.0 <= figures["vo"]["nees"] <= 12.0


@pytest.fixture(scope="module")
def real_rotations(data: Path) -> dict[str, dict]:
    """The figures of one camera and of both."""
    sequence = str(data / "kitti" / "sequences" / "09")
    return {
        cameras: json.loads(
            run(sequence, "--only", "rotation", "--cameras", cameras, "--json").stdout
        )["rotation"]
        for cameras in ("mono", "stereo")
    }


@pytest.mark.slow
def test_rotations_of_the_whole_real_sequence(real_rotations: dict[str, dict]) -> None:
    mono = real_rotations["mono"]
    assert mono["mean_deg"] <= 0.095
    assert mono["nll"] <= -19.5
    assert 1.5 <= mono["nees"] <= 5.0
    assert max(abs(each) for each in mono["bias_deg"]) <= 0.015
    assert mono["seg_deg_per_100m"] <= 2.5
    # Most of either error is that of the official poses.
    assert real_rotations["stereo"]["mean_deg"] < 1.01 * mono["mean_deg"]


def test_rotations_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--only", "rotation", "--frames", "12"]
    assert cli.main([*command, "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    figures = json.loads(out)
    assert list(figures) == ["frames", "ms_median", "unmatched", "rotation", "rotation_over"]
    assert list(figures["rotation_over"]) == ["1", "10"]
    assert list(figures["rotation"]) == [
        "mean_deg",
        "nll",
        "nees",
        "bias_deg",
        "seg_deg_per_100m",
        "aleatoric_deg",
        "epistemic_deg",
    ]
    assert figures["rotation"]["mean_deg"] < 0.06
    assert not (tmp_path / "vo.txt").exists()
    rows = np.genfromtxt(tmp_path / "rotation.csv", delimiter=",", names=True)
    assert len(rows) == 11
    chained = read_trajectory(tmp_path / "rotation.txt").T_w_c
    C_2_1 = lie.so3_inverse(chained[1:, :3, :3]) @ chained[:-1, :3, :3]
    quaternions = np.stack([rows[name] for name in "wxyz"], axis=-1)
    np.testing.assert_allclose(C_2_1, lie.quaternion_to_matrix(quaternions), atol=1e-7)
    assert cli.main([*command, "--details"]) == 0
    text = capsys.readouterr().out
    assert "calibration:" in text
    assert "epistemic_deg" in text
    assert cli.main(["run", "--frames", "12", "--odometry", "wheels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert [line.split()[0] for line in lines[2:5]] == ["wheels", "fused", "gyro"]
    assert "\033" not in "".join(lines)  # no colours but on a terminal


def test_an_imu_of_another_time_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imu = tmp_path / "imu.csv"
    imu.write_text("".join(f"{1e6 + 0.01 * i:.2f},0,0,0,0,0,9.81\n" for i in range(9)))
    assert cli.main(["run", "--frames", "2", "--imu", str(imu)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "the frames of 0.000 to 0.100 s: their clocks differ" in err


def test_what_the_network_lacks_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, why in (
        (["--weights", str(tmp_path / "none")], "none: cannot be read"),
        (["--device", "abacus"], "device must be auto, numpy, cpu, cuda"),
    ):
        assert cli.main(["run", "--only", "rotation", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert why in error


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "nowhere: is not a folder"),
        (["."], ".: has no images in a known layout: image_0"),
        (["street", "--poses", "x"], "knows its own poses"),
    ],
)
def test_bad_sources_are_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], why: str
) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "hydranet_ros.cli", "run", *arguments, "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert why in done.stderr
    assert not out.exists()


class Interrupted(SimulatedStreet):
    """The street, and Ctrl-C after four frames."""

    def __iter__(self) -> Iterator[Frame]:
        yield from islice(super().__iter__(), 4)
        raise KeyboardInterrupt


def test_an_interruption_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hydranet_ros.cli.run.open_chosen", lambda *_: Interrupted(20))
    assert cli.main(["run", "--out", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert out.startswith("4 frames, 0 lost")
    assert "interrupted" in err
    assert len(read_trajectory(tmp_path / "vo.txt")) == 4
