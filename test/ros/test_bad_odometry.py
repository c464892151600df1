"""Odometry of every quality into fusion_node: read as it is meant, refused where it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry, Path
from ros.in_process import counted, finite, overrides, spinning
from ros.node_processes import Bench
from sensor_msgs.msg import TimeReference
from std_srvs.srv import Trigger
from visualization_msgs.msg import MarkerArray

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.odometry_input import OdometryInputConfig, OdometryReader
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation, change_frame
from hydranet_ros.ros import conversions as c
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.fusion_node import FusionNode

PERIOD = 100_000_000
DT = PERIOD * 1e-9
T_b_c = FramesConfig().T_b_c
T_c_b = lie.se3_inverse(T_b_c)
STEP = lie.se3_exp([0.01, 0.0, -0.8, 0.0, 0.02, 0.001])  # T_2_1 of a car that turns
SIGMA = np.diag([1e-4, 2e-4, 3e-4, 1e-6, 2e-6, 3e-6])
SIGMA[0, 4] = SIGMA[4, 0] = 5e-6
SIGMA_PHI = np.diag([4e-6, 5e-6, 6e-6])


def odometry(
    nanoseconds: int, T_w_c: np.ndarray, measured: bool = True, **fields: Any
) -> Odometry:
    """What stereo_vo_node says of a camera at T_w_c after one STEP."""
    T_w_b, Sigma_b_w = change_frame(T_b_c, T_w_c, np.eye(6) * 1e-6)
    T_2_1, Sigma = change_frame(T_b_c, STEP, SIGMA)
    twist = Sigma / DT**2 if measured else np.eye(6) * 9999.0
    message = c.odometry_message(
        nanoseconds, ("odom", "base_link"), T_w_b, Sigma_b_w, -lie.se3_log(T_2_1) / DT, twist
    )
    for name, value in fields.items():
        setattr(message, name, value)
    return message


class Drive:
    """A fusion node, and a car that drives STEP after STEP."""

    def __init__(self) -> None:
        self.bench = Bench("drive")
        self.node = FusionNode(
            parameter_overrides=overrides(fusion__max_wait_s=5.0, output__path__period_s=0.0)
        )
        self.vo = self.bench.publisher(Odometry, "vo/odometry")
        self.rotation = self.bench.publisher(PoseWithCovarianceStamped, "relative_rotation")
        self.interval = self.bench.publisher(TimeReference, "relative_rotation/interval")
        self.fused = self.bench.hear(Odometry, "fused/odometry")
        self.path = self.bench.hear(Path, "fused/path")
        self.markers = self.bench.hear(MarkerArray, "fused/markers")
        self.now, self.T_w_c = 5_000 * 10**9, np.eye(4)

    def ready(self) -> bool:
        heard = all(p.get_subscription_count() for p in (self.vo, self.rotation, self.interval))
        return heard and self.bench.node.count_publishers("fused/odometry") == 1

    def reset(self) -> None:
        """The node and the car at the origin."""
        answer = self.bench.call(Trigger, "fusion_node/reset", Trigger.Request())
        assert answer.success
        self.fused.clear()
        self.now, self.T_w_c = self.now + 10 * PERIOD, np.eye(4)
        self.vo.publish(odometry(self.now, self.T_w_c, measured=False))

    def turn(self, start: int, end: int) -> None:
        told = RelativeRotation(STEP[:3, :3], SIGMA_PHI, start, end)
        self.interval.publish(c.interval_message(told, "camera_left"))
        self.rotation.publish(c.rotation_message(told, "camera_left"))

    def step(self, vo: bool = True, turn: bool = True, **fields: Any) -> None:
        self.now += PERIOD
        self.T_w_c = self.T_w_c @ lie.se3_inverse(STEP)
        if vo:
            self.vo.publish(odometry(self.now, self.T_w_c, **fields))
        if turn:
            self.turn(self.now - PERIOD, self.now)

    def poses(self) -> dict[int, np.ndarray]:
        return {
            c.stamp_ns(m.header.stamp): T_c_b @ c.pose_matrix(m.pose.pose) @ T_b_c
            for m in self.fused
        }

    def fused_up_to(self, nanoseconds: int) -> bool:
        return self.bench.spin_until(lambda: nanoseconds in self.poses(), 10.0)


@pytest.fixture(scope="module")
def drive() -> Iterator[Drive]:
    made = Drive()
    try:
        with spinning(made.node):
            assert made.bench.spin_until(made.ready, 20.0)
            yield made
            assert made.path
            assert made.markers
            assert all(finite(m) for m in (*made.fused, *made.path, *made.markers))
    finally:
        made.bench.close()


def offline(start: int, steps: list[tuple[bool, bool]]) -> dict[int, np.ndarray]:
    """The core alone, over steps with or without each source."""
    fusion, found = SlidingWindowFusion(), {}
    for i, (vo, turn) in enumerate(steps):
        span = start + i * PERIOD, start + (i + 1) * PERIOD
        measured: list[Any] = [RelativePose(STEP, SIGMA, *span)] if vo else []
        measured += [RelativeRotation(STEP[:3, :3], SIGMA_PHI, *span)] if turn else []
        if measured:
            found[span[1]] = fusion.update(*measured).T_w_c
    return found


def same(found: dict[int, np.ndarray], expected: dict[int, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for stamp, pose in expected.items():
        np.testing.assert_allclose(found[stamp], pose, atol=1e-9)


def test_both_sources_are_fused_as_the_core_does(drive: Drive) -> None:
    drive.reset()
    start = drive.now
    for _ in range(12):
        drive.step()
    assert drive.fused_up_to(drive.now)
    same(drive.poses(), offline(start, [(True, True)] * 12))
    message = drive.fused[-1]
    assert (message.header.frame_id, message.child_frame_id) == ("odom", "base_link")
    assert message.twist.twist.linear.x == pytest.approx(8.0, rel=0.05)
    assert message.twist.twist.angular.z == pytest.approx(0.2, rel=0.1)  # to the left
    twist = c.covariance_matrix(message.twist.covariance)
    assert (np.linalg.eigvalsh(twist) > 0.0).all()


def test_a_lost_source_is_bridged_by_the_other(drive: Drive) -> None:
    drive.reset()
    start = drive.now
    pattern = [(True, True)] * 3 + [(True, False)] * 2 + [(True, True)] * 3
    for vo, turn in pattern:
        drive.step(vo, turn)
    assert drive.fused_up_to(drive.now)
    same(drive.poses(), offline(start, pattern))


def with_zero_quaternion(message: Odometry) -> None:
    q = message.pose.pose.orientation
    q.w = q.x = q.y = q.z = 0.0


def with_nan(message: Odometry) -> None:
    message.pose.pose.position.x = float("nan")


def with_9999(message: Odometry) -> None:
    message.twist.covariance = (np.eye(6) * 9999.0).ravel()


def with_jump(message: Odometry) -> None:
    message.pose.pose.position.y += 500.0


def in_another_frame(message: Odometry) -> None:
    message.child_frame_id = "somebody_else"


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (with_zero_quaternion, "lost"),
        (with_nan, "lost"),
        (with_9999, "not measured"),
        (with_jump, "jump"),
    ],
)
def test_a_lost_odometry_is_refused_and_the_rotation_goes_on(
    drive: Drive, spoil: Any, kind: str
) -> None:
    drive.reset()
    for _ in range(4):
        drive.step()
    before = drive.node.warn.counts[f"/vo/odometry: {kind}"]
    drive.step(vo=False)
    bad = odometry(drive.now, drive.T_w_c)
    spoil(bad)
    drive.vo.publish(bad)
    assert counted(drive.bench, drive.node, f"/vo/odometry: {kind}", before + 1)
    for _ in range(4):
        drive.step()
    assert drive.fused_up_to(drive.now)
    # The car went on straight through: the fused pose is where it is, to a car's length.
    offset = drive.poses()[drive.now][:3, 3] - drive.T_w_c[:3, 3]
    assert np.linalg.norm(offset) < 1.0


def test_odometry_without_covariances_is_used_and_said(drive: Drive) -> None:
    drive.reset()
    for _ in range(8):
        drive.step(vo=False)
        message = odometry(drive.now, drive.T_w_c)
        message.twist.covariance = np.zeros(36)
        drive.vo.publish(message)
    assert drive.fused_up_to(drive.now)
    assert counted(drive.bench, drive.node, "odometry")
    offset = drive.poses()[drive.now][:3, 3] - drive.T_w_c[:3, 3]
    assert np.linalg.norm(offset) < 1.0


def test_odometry_without_a_frame_is_refused(drive: Drive) -> None:
    drive.reset()
    drive.step(child_frame_id="")
    assert counted(drive.bench, drive.node, "/vo/odometry: frames")


def test_odometry_of_an_unknown_frame_is_refused(drive: Drive) -> None:
    drive.reset()
    drive.step(child_frame_id="somebody_else")
    drive.step(child_frame_id="somebody_else")
    assert counted(drive.bench, drive.node, "/vo/odometry: frames")


def test_equal_and_backward_stamps(drive: Drive) -> None:
    drive.reset()
    for _ in range(3):
        drive.step()
    drive.vo.publish(odometry(drive.now, drive.T_w_c))
    assert counted(drive.bench, drive.node, "/vo/odometry: equal stamps")
    assert drive.fused_up_to(drive.now)
    # A bag loops: the pose goes on from where it was, and says that it is lost.
    before = drive.poses()[drive.now]
    drive.fused.clear()
    drive.now, drive.T_w_c = drive.now - 1000 * PERIOD, np.eye(4)
    start = drive.now
    drive.vo.publish(odometry(drive.now, drive.T_w_c, measured=False))
    for _ in range(6):
        drive.step()
    assert counted(drive.bench, drive.node, "stamps went back")
    assert drive.fused_up_to(drive.now)
    first, last = (drive.poses()[stamp] for stamp in (start + PERIOD, drive.now))
    assert np.linalg.norm((lie.se3_inverse(before) @ first)[:3, 3]) < 2.0
    # From then on it moves as the car does.
    relative = lie.se3_inverse(last) @ first
    wanted = np.linalg.matrix_power(STEP, 5)
    assert np.linalg.norm(lie.se3_log(relative @ lie.se3_inverse(wanted))) < 0.1
    covariance = c.covariance_matrix(drive.fused[-1].pose.covariance)
    assert np.sqrt(np.diagonal(covariance)[:3].min()) > 50.0
    drive.now += 2000 * PERIOD


def test_rotations_alone_without_odometry_do_not_wait_forever(drive: Drive) -> None:
    drive.reset()
    drive.step(vo=False)
    first = drive.now
    drive.bench.spin(0.3)
    assert first not in drive.poses()  # it waits for odometry
    drive.vo.publish(odometry(drive.now + PERIOD, drive.T_w_c, measured=False))
    assert drive.fused_up_to(first)  # odometry has passed it


# --- reading odometry ----------------------------------------------------------------------------


def read(mode: str, messages: list[Odometry], **fields: Any) -> RelativePose | None:
    reader = OdometryReader(OdometryInputConfig(covariance=mode, **fields))
    return [reader.read(c.odometry_sample(message)) for message in messages][-1]


def accumulated(count: int) -> list[Odometry]:
    """Messages whose pose covariance grows by SIGMA per step."""
    messages, T_c_w, Sigma_c_w = [], np.eye(4), np.eye(6) * 1e-12
    for i in range(count):
        T_w_b, Sigma = change_frame(T_b_c, lie.se3_inverse(T_c_w), Sigma_c_w)
        names = "odom", "base_link"
        messages.append(
            c.odometry_message(i * PERIOD, names, T_w_b, Sigma, np.zeros(6), np.eye(6))
        )
        adjoint = lie.se3_adjoint(STEP)
        T_c_w, Sigma_c_w = STEP @ T_c_w, SIGMA + adjoint @ Sigma_c_w @ adjoint.T
    return messages


def test_every_covariance_mode_finds_the_same_covariance() -> None:
    expected = change_frame(T_b_c, STEP, SIGMA)
    T_w_c = lie.se3_inverse(STEP)
    pair = [odometry(0, np.eye(4)), odometry(PERIOD, T_w_c)]
    for mode, messages in (("twist", pair), ("pose_accumulated", accumulated(7))):
        found = read(mode, messages)
        assert found is not None
        np.testing.assert_allclose(found.T_2_1, expected[0], atol=1e-12)
        np.testing.assert_allclose(found.Sigma_2_1, expected[1], rtol=1e-6, atol=1e-12)
    found = read("twist_per_frame", pair)
    assert found is not None
    np.testing.assert_allclose(found.Sigma_2_1, expected[1] / DT**2, rtol=1e-9, atol=1e-12)
    found = read("constant", pair, sigma_m=0.2, sigma_deg=0.5)
    assert found is not None
    sigma = [0.2] * 3 + [np.deg2rad(0.5)] * 3
    np.testing.assert_allclose(np.sqrt(np.diag(found.Sigma_2_1)), sigma)


def test_a_pose_covariance_that_does_not_grow_is_no_accumulated_one() -> None:
    with pytest.raises(BadInput, match="choose another of twist, twist_per_frame"):
        read("pose_accumulated", [odometry(0, np.eye(4)), odometry(PERIOD, STEP)])
