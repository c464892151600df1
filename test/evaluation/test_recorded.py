"""A run of the nodes, read from a bag: written here as the nodes publish it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="bags need rosbags")

from hydranet_ros.datasets import bag_messages as ros
from hydranet_ros.datasets.bag_files import write_bag
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.recorded import (
    CAMERA,
    FUSED,
    ROTATION,
    VO,
    agreement,
    camera_poses,
    network_rotations,
    odometry_rotations,
    read_recorded_run,
    summary,
)
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL, Camera
from hydranet_ros.geometry.odometer import LOST_VARIANCE, chain

N, PERIOD = 30, 10**8
STEP = lie.se3_exp([0.02, 0.0, -1.0, 0.001, 0.02, 0.0])  # T_2_1 of the camera
DELAYS_MS = {VO: 20, ROTATION: 25, FUSED: 30}
POSE, REFERENCE = "geometry_msgs/msg/PoseWithCovarianceStamped", "sensor_msgs/msg/TimeReference"


class Drive:
    """A source without images: thirty frames along an arc."""

    name, unmatched, camera = "drive", 0, Camera(700.0, 700.0, 600.0, 180.0)
    stamps_ns = np.arange(N, dtype=np.int64) * PERIOD + 5 * 10**9
    T_w_c = chain(np.tile(STEP, (N - 1, 1, 1)), np.eye(4))

    def __len__(self) -> int:
        return N


def odometry(stamp: int, T_w_c: np.ndarray, T_2_1: np.ndarray | None, sigma: float) -> Any:
    """Of a base that the camera looks forward from; 9999 where no motion was measured."""
    T_b_c = T_BASE_OPTICAL
    T_w_b = T_b_c @ T_w_c @ lie.se3_inverse(T_b_c)
    velocity, variance = np.zeros(6), LOST_VARIANCE
    if T_2_1 is not None:
        motion = T_b_c @ lie.se3_inverse(T_2_1) @ lie.se3_inverse(T_b_c)
        velocity, variance = lie.se3_log(motion) / 0.1, (sigma / 0.1) ** 2
    message = ros.odometry(stamp, "odom", "base_link", T_w_b, velocity)
    message.twist.covariance = (np.eye(6) * variance).reshape(-1)
    return message


def rotation(stamp: int, C_2_1: np.ndarray, Sigma: np.ndarray) -> Any:
    R_1_2 = C_2_1.T
    full = np.eye(6) * 1e6
    full[3:, 3:] = R_1_2 @ Sigma @ R_1_2.T
    T = lie.se3_from(R_1_2, np.zeros(3))
    pose = ros.make(
        "geometry_msgs/msg/Pose", position=ros.point(T[:3, 3]), orientation=ros.quaternion(T)
    )
    held = ros.make("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=full.reshape(-1))
    return ros.make(POSE, header=ros.header(stamp, "camera"), pose=held)


def messages(lost: int | None = None, topics: frozenset[str] = frozenset(DELAYS_MS)) -> list:
    """What the recorder would have, each at its arrival; VO has lost one frame."""
    drive, out = Drive(), []

    def add(topic: str, kind: str, stamp: int, content: Any, delay_ms: float = 0.0) -> None:
        out.append(ros.pack(topic, kind, stamp + round(delay_ms * 1e6), content))

    for i, stamp in enumerate(drive.stamps_ns.tolist()):
        info = ros.camera_info(stamp, "camera", drive.camera, (1226, 370))
        add(CAMERA, ros.CAMERA_INFO, stamp, info)
        motion = None if i in (0, lost) else STEP
        if VO in topics:
            content = odometry(stamp, drive.T_w_c[i], motion, 1e-3)
            add(VO, ros.ODOMETRY, stamp, content, DELAYS_MS[VO])
        if i == 0:
            continue
        if FUSED in topics:
            content = odometry(stamp, drive.T_w_c[i], STEP, 1e-3)
            add(FUSED, ros.ODOMETRY, stamp, content, DELAYS_MS[FUSED])
        Sigma = np.diag([1e-6, 2e-6, 3e-6])
        for part, share in (("", 1.0), ("/epistemic", 0.2)):
            content = rotation(stamp, STEP[:3, :3], share * Sigma)
            add(ROTATION + part, POSE, stamp, content, DELAYS_MS[ROTATION])
        begin = ros.header(stamp - PERIOD, "").stamp
        interval = ros.make(
            REFERENCE, header=ros.header(stamp, "camera"), time_ref=begin, source="camera"
        )
        add(f"{ROTATION}/interval", REFERENCE, stamp, interval)
    return sorted(out, key=lambda message: message.stamp_ns)


def test_estimates_are_read_back(tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", messages(lost=7))
    run, drive = read_recorded_run(tmp_path / "bag"), Drive()
    poses = camera_poses(run.topic(VO))
    np.testing.assert_allclose([poses[s] for s in drive.stamps_ns], drive.T_w_c, atol=1e-9)
    turns, network = odometry_rotations(run.topic(VO)), network_rotations(run)
    stamps = drive.stamps_ns.tolist()
    assert list(turns) == [s for s in stamps[1:] if s != stamps[7]]
    assert list(network) == stamps[1:]
    for stamp, each in turns.items():
        assert (each.stamp_1_ns, each.stamp_2_ns) == (stamp - PERIOD, stamp)
        np.testing.assert_allclose(each.C_2_1, STEP[:3, :3], atol=1e-9)
        np.testing.assert_allclose(each.Sigma_2_1, np.eye(3) * 1e-6, rtol=1e-9, atol=1e-15)
    first = network[stamps[1]]
    np.testing.assert_allclose(first.Sigma_2_1, np.diag([1e-6, 2e-6, 3e-6]), atol=1e-15)
    np.testing.assert_allclose(first.epistemic, 0.2 * first.Sigma_2_1, atol=1e-15)
    both = agreement(turns, network)
    assert both.stamps_ns.tolist() == list(turns)
    np.testing.assert_allclose(both.nis, 0.0, atol=1e-6)


def test_figures_and_record_of_a_run(tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", messages())
    figures, record = summary(read_recorded_run(tmp_path / "bag"), Drive())
    assert (figures["frames"], figures["fused_frames"], figures["dropped"]) == (N, N - 1, 0)
    assert figures["played_hz"] == pytest.approx(10.0)
    assert figures["latency_p50_ms"] == pytest.approx(DELAYS_MS[FUSED])
    for name in ("vo", "fused"):
        assert figures[name]["ate_m"] == pytest.approx(0.0, abs=1e-9)
        assert figures[name]["nees"] == pytest.approx(0.0, abs=1e-9)
    assert set(record.rotations) == {"vo", "hydranet", "fused"}
    assert record.stamps_ns.tolist() == Drive.stamps_ns.tolist()[1:]
    np.testing.assert_allclose(record.latencies_ms["vo"], DELAYS_MS[VO], atol=1e-9)
    assert "29 fused at 10.0 Hz, 0 dropped" in record.notes[0]


def test_without_the_camera_there_are_no_latencies(tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", [each for each in messages() if each.topic != CAMERA])
    figures, record = summary(read_recorded_run(tmp_path / "bag"), Drive())
    assert (figures["latency_p50_ms"], figures["latency_p95_ms"]) == (None, None)
    assert "played at an unknown rate" in record.notes[0]
    assert record.notes[0].endswith("image to fused odometry unknown")
    assert record.latencies_ms["fused"].size == 0


def test_without_truth_there_are_no_errors(tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", messages())
    drive = Drive()
    drive.T_w_c = None
    figures, record = summary(read_recorded_run(tmp_path / "bag"), drive)
    assert "vo" not in figures
    assert (record.T_w_c_gt, record.rotations) == (None, {})


def test_too_few_results_are_one_line(tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", messages(topics=frozenset({VO})))
    with pytest.raises(HydraNetError, match="too few results to show: 30 of vo, 0 of fused"):
        summary(read_recorded_run(tmp_path / "bag"), Drive())
