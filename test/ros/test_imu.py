"""An IMU into fusion_node: its bias comes out, and its messages without it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from geometry_msgs.msg import TwistWithCovarianceStamped
from nav_msgs.msg import Odometry
from ros.in_process import counted, finite, overrides, spinning
from ros.node_processes import Bench
from sensor_msgs.msg import Imu

from hydranet_ros.errors import BadInput
from hydranet_ros.ros import conversions as c
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.imu_topics import imu_sample

BIAS = np.array([0.01, -0.02, 0.015])
MS = 1_000_000


def imu(nanoseconds: int) -> Imu:
    message = Imu(header=c.header(nanoseconds, "imu_link"))
    rate, felt = message.angular_velocity, message.linear_acceleration
    rate.x, rate.y, rate.z = (float(v) for v in BIAS)
    felt.z = 9.81
    return message


def wheels(nanoseconds: int) -> Odometry:
    pose, Sigma = np.eye(4), np.eye(6) * 1e-6
    return c.odometry_message(nanoseconds, ("odom", "base_link"), pose, Sigma, np.zeros(6), Sigma)


def test_the_bias_of_a_standing_robot_is_told_and_taken_out() -> None:
    bench = Bench("standing")
    node = FusionNode(
        parameter_overrides=overrides(fusion__odometry="wheels", imu__frame="base_link")
    )
    odometry = bench.publisher(Odometry, "vo/odometry")
    raw = bench.publisher(Imu, "imu/data_raw")
    unbiased = bench.hear(Imu, "imu/data_unbiased")
    bias = bench.hear(TwistWithCovarianceStamped, "imu/bias")
    try:
        with spinning(node):
            heard = (odometry, raw)
            assert bench.spin_until(lambda: all(p.get_subscription_count() for p in heard), 20.0)
            assert bench.spin_until(lambda: bench.node.count_publishers("imu/bias") == 1, 20.0)
            for i in range(300):
                stamp = 10**12 + i * 10 * MS
                raw.publish(imu(stamp))
                if i % 2 == 0:
                    odometry.publish(wheels(stamp))
                bench.spin_until(lambda: False, 0.002)
            assert bench.spin_until(lambda: len(bias) > 50 and len(unbiased) > 50, 10.0)
    finally:
        bench.close()
    assert all(finite(each) for each in (*bias, *unbiased))
    last = bias[-1].twist.twist.angular
    assert bias[-1].header.frame_id == "base_link"
    np.testing.assert_allclose([last.x, last.y, last.z], BIAS, atol=2e-3)
    sigma = np.sqrt(np.diagonal(c.covariance_matrix(bias[-1].twist.covariance))[3:])
    assert (sigma < 2e-3).all()
    rate = unbiased[-1].angular_velocity
    np.testing.assert_allclose([rate.x, rate.y, rate.z], 0.0, atol=2e-3)
    assert unbiased[-1].linear_acceleration.z == 9.81


def test_what_an_imu_does_not_measure_is_not_used() -> None:
    message = imu(5)
    message.linear_acceleration_covariance[0] = -1.0
    assert imu_sample(message).acceleration is None
    message.angular_velocity_covariance[0] = -1.0
    with pytest.raises(BadInput, match="no angular velocity"):
        imu_sample(message)
    message = imu(5)
    message.angular_velocity.x = float("nan")
    with pytest.raises(BadInput, match="no numbers"):
        imu_sample(message)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench("imu")
    yield made
    made.close()


def test_the_frame_of_an_imu_is_set_before_it_is_used(bench: Bench) -> None:
    node = FusionNode(namespace="framed")
    frame = overrides(imu__frame="base_link")
    with spinning(node):
        (refused,) = node.set_parameters(frame)
        assert not refused.successful
        assert node.config.imu.frame == ""
        node.trigger_deactivate()
        node.trigger_cleanup()
        assert node.set_parameters(frame)[0].successful
        node.trigger_configure()
        node.trigger_activate()
        sent = bench.publisher(Imu, "/framed/imu/data_raw")
        assert bench.spin_until(sent.get_subscription_count, 10.0)
        sent.publish(imu(10**9))
        assert bench.spin_until(lambda: node._imu._mount is not None, 10.0)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ("", "IMU has no frame_id: set imu.frame"),
        ("imu_link", "IMU: frame 'imu_link' is not frames.base_frame 'base_link'"),
    ],
)
def test_an_imu_in_an_unknown_frame_is_told_as_such(
    bench: Bench, capfd: pytest.CaptureFixture[str], frame: str, why: str
) -> None:
    """And not as odometry, of which another setting would be the remedy."""
    node = FusionNode(namespace="elsewhere")
    sent = bench.publisher(Imu, "/elsewhere/imu/data_raw")
    message = imu(10**9)
    message.header.frame_id = frame
    with spinning(node):
        assert bench.spin_until(sent.get_subscription_count, 10.0)
        sent.publish(message)
        assert counted(bench, node, "/elsewhere/imu/data_raw: frames")
    log = capfd.readouterr().err
    assert why in log
    assert "set imu.frame" in log
    assert "odometry has no" not in log
