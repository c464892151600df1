"""An IMU into fusion_node: its bias comes out, and its messages without it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from geometry_msgs.msg import TwistWithCovarianceStamped
from nav_msgs.msg import Odometry
from ros.in_process import finite, overrides, spinning
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
