"""The environment has a ROS 2 that carries a real message over real DDS."""

from __future__ import annotations

import time

import pytest

rclpy = pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from geometry_msgs.msg import PoseWithCovarianceStamped
from rclpy.executors import SingleThreadedExecutor


def test_a_pose_with_covariance_arrives_as_it_was_sent() -> None:
    rclpy.init()
    node = rclpy.create_node("client_library_test")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        received: list[PoseWithCovarianceStamped] = []
        node.create_subscription(PoseWithCovarianceStamped, "pose", received.append, 10)
        publisher = node.create_publisher(PoseWithCovarianceStamped, "pose", 10)
        sent = PoseWithCovarianceStamped()
        sent.header.stamp.sec, sent.header.stamp.nanosec = 1_300_000_000, 999_999_999
        sent.pose.covariance = [float(i) for i in range(36)]
        deadline = time.monotonic() + 20.0
        while not received and time.monotonic() < deadline:
            publisher.publish(sent)
            executor.spin_once(timeout_sec=0.1)
        assert received
        assert received[0] == sent
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown()
