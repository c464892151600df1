"""The benchmark finds sequences, measures what the command `run` does, and sees regressions."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from command_line import exit_code

from hydranet_ros.datasets.source import SimulatedStreet, true_trajectory
from hydranet_ros.evaluation import benchmark, benchmark_page
from hydranet_ros.evaluation.five_point import FivePoint, PoseLib
from hydranet_ros.evaluation.run import RunResults, wheels_of_truth
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.trajectory import Trajectory, write_kitti
from hydranet_ros.pipeline import Pipeline, PipelineConfig

FRAMES = 14


@pytest.fixture(scope="module")
def street() -> SimulatedStreet:
    return SimulatedStreet(FRAMES)


@pytest.fixture(scope="module")
def figures(street: SimulatedStreet) -> dict[str, Any]:
    return benchmark.measure(street, PipelineConfig())


@pytest.fixture(scope="module")
def kitti(tmp_path_factory: pytest.TempPathFactory, street: SimulatedStreet) -> Path:
    """The street as a KITTI sequence in a folder of data sets, beside what is none."""
    data = tmp_path_factory.mktemp("data")
    folder = data / "kitti" / "sequences" / "77"
    for k in (0, 1):
        (folder / f"image_{k}").mkdir(parents=True)
    camera = street.camera
    c, b = camera.left, camera.baseline_m
    row = f"{c.fx} 0 {c.cx} {{}} 0 {c.fy} {c.cy} 0 0 0 1 0"
    (folder / "calib.txt").write_text(f"P0: {row.format(0)}\nP1: {row.format(-c.fx * b)}\n")
    (folder / "times.txt").write_text("".join(f"{t * 1e-9:.9f}\n" for t in street.stamps_ns))
    for i, frame in enumerate(street):
        cv2.imwrite(str(folder / f"image_0/{i:06d}.png"), frame.left)
        cv2.imwrite(str(folder / f"image_1/{i:06d}.png"), frame.right)
    write_kitti(folder / "poses.txt", street.T_w_c)
    (data / "notes").mkdir()
    (data / "notes" / "readme.txt").write_text("nothing")
    listed = data / "robot"
    (listed / "image").mkdir(parents=True)
    (listed / "images.txt").write_text("1.0 image/0.png\n")
    cv2.imwrite(str(listed / "image/0.png"), np.zeros((24, 32), dtype=np.uint8))
    return data


def test_sequences_are_found_by_their_layout(kitti: Path) -> None:
    found = benchmark.find_sequences(kitti)
    assert [(each.name, each.kind) for each in found] == [
        ("kitti/sequences/77", "KITTI"),
        ("robot", "TUM"),
    ]
    assert [each.on_ground for each in found] == [True, False]
    (alone,) = benchmark.find_sequences(kitti / "kitti/sequences/77")
    assert alone.name == "77"


def test_it_measures_what_a_run_does(street: SimulatedStreet, figures: dict[str, Any]) -> None:
    """The same figures as by the pipeline over all of the images, also with simulated wheels."""
    wheels = replace(PipelineConfig(), fusion=replace(PipelineConfig().fusion, odometry="wheels"))
    runs = {"own": (PipelineConfig(), None), "wheels": (wheels, wheels_of_truth(street, wheels))}
    for name, (config, motions) in runs.items():
        pipeline = Pipeline(street.camera, config, odometry=motions)
        results = RunResults(street, pipeline)
        for frame in street:
            results.add(pipeline.update(frame), 0.0)
        expected = results.figures()
        alone, fused = ("vo", "fused") if name == "own" else ("wheels", "fused")
        ours = ("odometry", "fused") if name == "own" else ("wheels", "wheels + gyro")
        for theirs, mine in zip((alone, fused), ours, strict=True):
            for key in ("ate_m", "ate_deg"):
                assert figures[mine][key] == pytest.approx(expected[theirs][key], rel=1e-9)
        rotations = expected["rotation_over"]
        assert figures["gyro"]["nees_summed_10"] == pytest.approx(rotations["10"]["nees"])
        assert figures["gyro"]["deg_1"] == pytest.approx(rotations["1"]["mean_deg"])
    # One step of the odometry: the NEES of a block of one frame is that of the run.
    assert figures["odometry"]["nees_1"] == pytest.approx(
        _run_figures(street)["vo"]["nees"], rel=1e-6
    )
    assert figures["five-point"]["deg_1"] < 0.5
    assert figures["gyro"]["deg_100"] is None
    assert {each["lost"] for each in figures.values()} == {0}


def _run_figures(street: SimulatedStreet) -> dict[str, Any]:
    pipeline = Pipeline(street.camera, replace(PipelineConfig(), parts="vo"))
    results = RunResults(street, pipeline)
    for frame in street:
        results.add(pipeline.update(frame), 0.0)
    return results.figures()


def test_nees_of_motions_whose_covariance_is_right() -> None:
    """White errors with the covariance that is told have NEES 6, over any number of frames."""
    rng = np.random.default_rng(0)
    Sigma = np.diag([1e-4, 2e-4, 3e-4, 1e-6, 2e-6, 3e-6])
    n = 4001
    stamps = np.arange(n, dtype=np.int64) * 10**8
    step = lie.se3_exp(np.array([0.1, 0.0, -1.0, 0.0, 0.02, 0.0]))
    true, estimate = [np.eye(4)], [np.eye(4)]
    for xi in rng.multivariate_normal(np.zeros(6), Sigma, n - 1):
        true.append(true[-1] @ lie.se3_inverse(step))
        estimate.append(estimate[-1] @ lie.se3_inverse(lie.se3_exp(xi) @ step))
    covariances = {(int(a), int(b)): Sigma for a, b in itertools.pairwise(stamps)}
    truth = Trajectory(np.array(true), stamps, "the truth")
    for length in (1, 10):
        found = benchmark.pose_nees(np.array(estimate), covariances, truth, stamps, length)
        assert found == pytest.approx(6.0, abs=4.0 * np.sqrt(12.0 * length / n))
    del covariances[int(stamps[5]), int(stamps[6])]  # a block with a gap is left out
    assert (
        benchmark.pose_nees(np.array(estimate[:11]), covariances, truth, stamps[:11], 10) is None
    )


def test_a_regression_is_named(figures: dict[str, Any]) -> None:
    before = {"sequences": {"street": {"frames": FRAMES, "methods": figures}}}
    now = copy.deepcopy(before)
    methods = now["sequences"]["street"]["methods"]
    assert benchmark.regressions(now, before) == []
    methods["gyro"]["deg_1"] = 1.2 * figures["gyro"]["deg_1"] + 0.002
    methods["fused"]["nees_1"] = 2.0 * figures["fused"]["nees_1"] + 1.0
    methods["odometry"]["lost"] = 3
    methods["gyro"]["ms"] = 1e4
    del methods["wheels"]
    lines = benchmark.regressions(now, before)
    for word in ("street, gyro: deg_1", "fused: nees_1", "odometry: lost", "wheels: ate_m is not"):
        assert any(word in line for line in lines), (word, lines)
    assert not any("ms" in line for line in lines)
    assert any("gyro: ms" in line for line in benchmark.regressions(now, before, with_time=True))
    # Within the tolerance, or better, is no regression.
    methods |= copy.deepcopy(figures)
    methods["gyro"]["deg_1"] = 1.05 * figures["gyro"]["deg_1"]
    methods["gyro"]["nees_1"] = 0.0
    assert benchmark.regressions(now, before) == []
    now["sequences"]["street"]["frames"] = 7
    assert "7 frames instead of 14" in benchmark.regressions(now, before)[0]
    assert benchmark.regressions({"sequences": {}}, before) == ["street: was not measured"]


def test_the_command(kitti: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, page and figures; the same folder again is as before, a spoiled one is not."""
    out = tmp_path / "out"
    assert exit_code("benchmark", str(kitti), "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "kitti/sequences/77  wheels + gyro" in said
    assert "left out: robot: " in said
    run = json.loads((out / "benchmark.json").read_text())
    assert run["sequences"]["kitti/sequences/77"]["frames"] == FRAMES
    page = (out / "benchmark.html").read_text()
    assert "five-point" in page
    assert (out / "benchmark.md").read_text().count("| kitti/sequences/77 |") == 6
    for each in run["sequences"]["kitti/sequences/77"]["methods"].values():
        if each.get("deg_1") is not None:
            each["deg_1"] *= 0.5
            each["deg_1"] -= 0.002
    (tmp_path / "better.json").write_text(json.dumps(run))
    command = "benchmark", str(kitti), "--jobs", "2", "--json", "--baseline"
    assert exit_code(*command, str(tmp_path / "better.json")) == 1
    again = json.loads(capsys.readouterr().out)
    assert any("gyro: deg_1" in line for line in again["regressions"])
    assert exit_code(*command, str(out / "benchmark.md")) == 2
    assert "is not the benchmark.json of an earlier run" in capsys.readouterr().err
    assert exit_code("benchmark", str(kitti / "notes")) == 2
    assert "no sequence is below it" in capsys.readouterr().err
    assert exit_code("benchmark", str(kitti / "robot")) == 2
    assert "no sequence could be measured; robot: " in capsys.readouterr().err


def test_poselib_where_it_is_installed(street: SimulatedStreet) -> None:
    pytest.importorskip("poselib", reason="PoseLib is not installed")
    truth = true_trajectory(street)
    assert truth is not None
    peer = PoseLib(street.camera.left)
    other = FivePoint(street.camera.left)
    for frame, T, T_before in zip(street, truth.T_w_c[1:], truth.T_w_c, strict=False):
        C, _ = peer.update(frame.left), other.update(frame.left)
        if C is not None:
            error = lie.so3_log(C @ (lie.se3_inverse(T) @ T_before)[:3, :3].T)
            assert np.degrees(np.linalg.norm(error)) < 2.0


def test_the_tables_have_their_columns(figures: dict[str, Any]) -> None:
    sequence = {"frames": FRAMES, "path_m": 11.0, "methods": figures}
    run = {"version": "0", "sequences": {"a|b": sequence}, "left_out": {}}
    for table, head in benchmark_page.HEADS.items():
        rows = list(benchmark_page.rows(run, table))
        assert rows
        assert {len(row) for row in rows} == {len(head)}
    assert "| a\\|b |" in benchmark_page.markdown(run)
    assert "nees by 25 %" in benchmark_page.tolerances_text()
