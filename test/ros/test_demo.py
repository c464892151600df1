"""The demonstration: every node a process of its own, over real DDS, ended in every case."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("rosbags", reason="no rosbags here: pip install rosbags")
pytest.importorskip("matplotlib", reason="no matplotlib here: pip install matplotlib")

from hydranet_ros.datasets.bag_files import topics, write_bag
from hydranet_ros.datasets.bag_messages import recorded
from hydranet_ros.datasets.source import SimulatedStreet
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.recorded import (
    FUSED,
    VO,
    camera_poses,
    odometry_rotations,
    read_recorded_run,
)
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.odometer import OdometryPath
from hydranet_ros.ros import environment
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.view.recorded import open_recorded

FRAMES = 12


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The street as a bag, so that it is rendered once."""
    path = tmp_path_factory.mktemp("demo") / "street"
    write_bag(path, recorded(SimulatedStreet(FRAMES)))
    return path


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {k: v for k, v in os.environ.items() if k != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"}
    with subprocess.Popen(
        [sys.executable, "-m", "hydranet_ros.cli", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def nodes_of(out: Path) -> list[str]:
    """The processes that log into a folder: whoever was started for it."""
    mark = f"ROS_LOG_DIR={out.resolve()}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended meanwhile, or is another user's
            continue
    return found


@pytest.fixture(scope="module")
def finished(
    street: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A demonstration, and what it printed."""
    out = tmp_path_factory.mktemp("out") / "demo"
    with demo("--source", str(street), "--out", str(out), "--weights", str(weights)) as child:
        said, complaint = child.communicate(timeout=170)
    assert (child.returncode, complaint) == (0, "")
    return out, said


def test_it_shows_a_table_and_says_where_the_rest_is(finished: tuple[Path, str]) -> None:
    out, said = finished
    lines = said.splitlines()
    if find_spec("viser") is not None:
        assert lines.pop(0).startswith("live page: http://127.0.0.1:")
    assert lines[1].split()[:2] == ["VO", "alone"]
    assert lines[2].split()[0] == "fused"
    assert f"{FRAMES} frames played at" in lines[3]
    assert f"{FRAMES - 1} fused at" in lines[3]
    assert " 0 dropped" in lines[3]
    assert str(out / "report.html") in lines[4]
    assert f"hydranet view {out / 'recorded'}" in lines[4]
    figures = json.loads((out / "metrics.json").read_text())
    assert 0.0 < figures["latency_p50_ms"] <= figures["latency_p95_ms"]
    assert figures["played_hz"] == pytest.approx(10.0, abs=2.0)
    assert figures["vo"]["f2f_deg"] < 0.02


def test_it_leaves_a_bag_plots_and_logs_and_no_process(finished: tuple[Path, str]) -> None:
    out, _ = finished
    assert sorted(path.name for path in out.iterdir()) == [
        "logs",
        "metrics.json",
        "plots",
        "recorded",
        "report.html",
    ]
    assert {"top_down", "rotation_hydranet", "calibration", "timing", "nis"} <= {
        path.stem for path in (out / "plots").iterdir()
    }
    kinds = topics(out / "recorded")
    assert kinds["/fused/odometry"] == "nav_msgs/msg/Odometry"
    assert kinds["/hydranet_node/relative_rotation/interval"] == "sensor_msgs/msg/TimeReference"
    assert "sensor_msgs/msg/Image" not in kinds.values()
    assert nodes_of(out) == []


@pytest.mark.skipif(find_spec("viser") is None, reason="no viser: the page was not there")
def test_the_page_is_kept_with_its_pictures(finished: tuple[Path, str]) -> None:
    history = open_recorded(finished[0] / "recorded")
    assert history.count == FRAMES - 1
    assert set(history[history.count - 1].poses) == {"truth", "odometry", "gyro", "fused"}
    assert any(history.picture(i) is not None for i in range(history.count))


def test_what_was_recorded_is_what_the_core_computes(finished: tuple[Path, str]) -> None:
    source = SimulatedStreet(FRAMES)
    vo, path = StereoVO(source.camera), OdometryPath()
    for frame in source:
        result = vo.update(frame)
        path.add(frame.stamp_ns, result.pose, result.bridged)
    run = read_recorded_run(finished[0] / "recorded")
    poses = camera_poses(run.topic(VO))
    assert sorted(poses) == path.stamps_ns
    np.testing.assert_allclose(
        np.array([poses[s] for s in path.stamps_ns]), np.array(path.T_w_c), atol=1e-9
    )
    steps = odometry_rotations(run.topic(VO))
    for motion in path.motions:
        found = steps[motion.stamp_2_ns]
        assert found.stamp_1_ns == motion.stamp_1_ns
        np.testing.assert_allclose(found.C_2_1, motion.T_2_1[:3, :3], atol=1e-9)
        np.testing.assert_allclose(
            found.Sigma_2_1, motion.Sigma_2_1[3:, 3:], rtol=1e-6, atol=1e-15
        )


def test_fused_odometry_arrives_for_every_frame_but_the_first(
    finished: tuple[Path, str],
) -> None:
    run = read_recorded_run(finished[0] / "recorded")
    fused = camera_poses(run.topic(FUSED))
    assert sorted(fused) == SimulatedStreet(FRAMES).stamps_ns.tolist()[1:]
    for pose in fused.values():
        np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-9)
        assert np.isfinite(lie.se3_log(pose)).all()


def wait_until_playing(child: subprocess.Popen[str], out: Path) -> None:
    deadline = time.monotonic() + 150.0
    while len(nodes_of(out)) < 5:
        assert child.poll() is None, child.stderr.read() if child.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of a killed parent")
def test_a_kill_ends_the_nodes_as_well(street: Path, weights: Path, tmp_path: Path) -> None:
    arguments = ("--source", str(street), "--out", str(tmp_path), "--weights", str(weights))
    with demo(*arguments, "--rate", "0.1") as child:
        wait_until_playing(child, tmp_path)
        child.kill()
        child.communicate(timeout=20)
    deadline = time.monotonic() + 20.0
    while nodes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert nodes_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_nodes_as_well(
    street: Path, weights: Path, tmp_path: Path, number: signal.Signals
) -> None:
    arguments = ("--source", str(street), "--out", str(tmp_path), "--weights", str(weights))
    with demo(*arguments, "--rate", "0.1") as child:
        wait_until_playing(child, tmp_path)
        child.send_signal(number)
        _, complaint = child.communicate(timeout=20)
    assert (child.returncode, complaint) == (130, "hydranet demo: interrupted\n")
    assert nodes_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_node_that_fails_is_named_and_the_others_are_ended(
    street: Path, weights: Path, tmp_path: Path
) -> None:
    arguments = ("--source", str(street), "--out", str(tmp_path), "--weights", str(weights))
    with demo(*arguments, "--no-view", "--cameras", "mono", "--device", "abacus") as child:
        said, complaint = child.communicate(timeout=170)
    assert (child.returncode, said, complaint.count("\n")) == (2, "", 1)
    assert complaint.startswith("hydranet demo: hydranet_node ended with code 2: ")
    assert "abacus" in complaint
    assert nodes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--source", "nowhere", "--weights", "WEIGHTS"], "nowhere: is not a folder"),
        (["--weights", "none.safetensors"], "none.safetensors: is missing"),
        (
            ["--weights", "WEIGHTS", "--frames", "2"],
            "--frames: must be a whole number of at least 3",
        ),
        (["--weights", "WEIGHTS", "--rate", "0"], "--rate: must be a number above 0"),
        (["--weights", "WEIGHTS", "--out", "WEIGHTS"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    weights: Path, tmp_path: Path, arguments: list[str], why: str
) -> None:
    given = [str(weights) if word == "WEIGHTS" else word for word in arguments]
    out = () if "--out" in given else ("--out", str(tmp_path))
    with demo(*given, *out) as child:
        said, complaint = child.communicate(timeout=170)
    assert (child.returncode, said, complaint.count("\n")) == (2, "", 1)
    assert why in complaint


def test_a_domain_in_use_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of domains beyond those that other tests take meanwhile."""
    with ExitStack() as stack:
        for domain in (110, 111):
            port = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            port.bind(("", 7410 + 250 * domain + 3))
        monkeypatch.setattr(environment, "DOMAINS", range(110, 112))
        with pytest.raises(HydraNetError, match="no ROS domain from 110 to 111"):
            environment.free_domain()
        monkeypatch.setattr(environment, "DOMAINS", range(110, 113))
        assert environment.free_domain() == 112
