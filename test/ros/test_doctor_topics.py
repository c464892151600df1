"""`hydranet doctor --topics` names faults of a running system, and none where there are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

import rclpy
from nav_msgs.msg import Odometry
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from ros.node_processes import RELIABLE, Bench, stamp
from sensor_msgs.msg import CameraInfo, Image, Imu

from hydranet_ros.errors import Finding
from hydranet_ros.ros.environment import WHEELS_GUARD
from hydranet_ros.ros.examination import ODOMETRY, System, Topic, covariance_findings, examine

BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
SECOND = 10**9
DOCTOR = sys.executable, "-m", "hydranet_ros.cli", "doctor"
Send = Callable[[int], None]


def doctor(bench: Bench, sends: list[Send]) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """Run the command while messages are sent; its exit code, what it says of topics, and them."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hydranet_ros.cli",
            "doctor",
            "--topics",
            "--seconds",
            "2.5",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != WHEELS_GUARD},
    )
    try:
        while process.poll() is None:
            for send in sends:
                send(time.time_ns())
            bench.spin(0.05)
        out, errors = process.communicate()
    finally:
        process.kill()
        process.communicate()
    assert errors == ""
    told = json.loads(out)
    topics = {each["name"]: each for each in told["topics"]}
    return process.returncode, told["findings"], topics


def calibration(width: int = 32, focal: float = 30.0, tx: float = 0.0) -> CameraInfo:
    info = CameraInfo(width=width, height=24)
    info.header.frame_id = "camera"
    info.k = [focal, 0.0, 16.0, 0.0, focal, 12.0, 0.0, 0.0, 1.0]
    info.p = [focal, 0.0, 16.0, tx, 0.0, focal, 12.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


def picture() -> Image:
    message = Image(width=32, height=24, encoding="mono8", step=32, data=bytes(32 * 24))
    message.header.frame_id = "camera"
    return message


def odometry(variance: float = 0.01, child: str = "base_link") -> Odometry:
    message = Odometry(child_frame_id=child)
    message.header.frame_id = "odom"
    message.pose.pose.orientation.w = 1.0
    covariance = [variance if i % 7 == 0 else 0.0 for i in range(36)]
    message.pose.covariance = message.twist.covariance = covariance
    return message


def imu(gravity: float = 9.81) -> Imu:
    message = Imu()
    message.linear_acceleration.z = gravity
    return message


class Robot:
    """Publishers, and what they send next."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.sends = bench, list[Send]()

    def add(self, topic: str, message: Any, later_ns: int | None = 0) -> None:
        """Send a message over and over, stamped now and `later_ns`; None: with stamp 0."""
        publisher = self.bench.node.create_publisher(
            type(message),
            topic,
            BEST_EFFORT,
            event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
        )

        def send(now_ns: int) -> None:
            if later_ns is not None:
                message.header.stamp = stamp(now_ns + later_ns)
            publisher.publish(message)

        self.sends.append(send)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench("robot")
    yield made
    made.close()


def test_nothing_is_wrong_with_a_sound_robot(bench: Bench) -> None:
    robot = Robot(bench)
    robot.add("/left/image_rect", picture())
    robot.add("/left/camera_info", calibration())
    robot.add("/right/image_rect", picture())
    robot.add("/right/camera_info", calibration(tx=-3.0))
    robot.add("/odom", odometry())
    robot.add("/imu/data_raw", imu())
    code, findings, topics = doctor(bench, robot.sends)
    ours = [
        each for each in findings if each["subject"].startswith("/") and "shm" not in str(each)
    ]
    # How fast a busy machine sends is no fault of the robot.
    assert [each for each in ours if " Hz" not in each["text"]] == []
    assert code == 0, [each for each in findings if each["level"] == "error"]
    assert topics["/odom"]["publishers"] == ["robot"]
    assert topics["/odom"]["count"] > 3
    assert abs(topics["/odom"]["offset_s"]) < 1.0
    assert topics["/left/image_rect"]["rate_hz"] > 0.0


FAULTS = [
    ("/a/camera_info", "error", "not calibrated", "cameracalibrator"),
    ("/b/camera_info", "error", "64x24 pixels, and images of /b/image_raw have 32x24", "resize"),
    ("/c/image_raw", "warning", "nothing was heard on /c/camera_info", "camera_info"),
    ("/right/camera_info", "error", "no baseline", "cameracalibrator"),
    ("/right/image_rect", "error", "do not meet those of /left/image_rect", "sync_tolerance_s"),
    ("/wheels", "warning", "covariance of its twist is zero", "what the source is good for"),
    ("/visual", "error", "negative variances", "variances"),
    ("/nameless", "error", "no child_frame_id", "base_link"),
    ("/unstamped", "error", "have stamp 0", "header.stamp"),
    ("/old", "warning", "s before now", "chrony"),
    ("/old", "error", "they never meet", "chrony"),
    ("/in_g", "error", "in g, and not in m/s^2", "9.80665"),
    ("/clock", "error", "/simulated uses use_sim_time", "use_sim_time false"),
    ("/wheels", "error", "robot does not hear robot", "reliability"),
    ("/nobody/odom", "warning", "robot listens to it, and nobody publishes it", "remap"),
    ("/silent", "warning", "nothing was heard of robot", "active"),
    ("/e/image_raw", "error", "encoding 'rgb565'", "mono8"),
]


@pytest.fixture(scope="module")
def faulty() -> Iterator[list[dict[str, Any]]]:
    bench = Bench("robot")
    robot = Robot(bench)
    for name, info in (("a", CameraInfo()), ("b", calibration(64)), ("e", calibration())):
        robot.add(f"/{name}/image_raw", picture())
        robot.add(f"/{name}/camera_info", info)
    robot.add("/c/image_raw", picture())
    strange = picture()
    strange.encoding = "rgb565"
    robot.add("/e/image_raw", strange)
    for side, later in (("left", 0), ("right", 25_000_000)):
        robot.add(f"/{side}/image_rect", picture(), later)
        robot.add(f"/{side}/camera_info", calibration())
    robot.add("/wheels", odometry(0.0))
    robot.add("/visual", odometry(-0.1))
    robot.add("/nameless", odometry(child=""))
    robot.add("/unstamped", odometry(), None)
    robot.add("/old", odometry(), -100 * SECOND)
    robot.add("/in_g", imu(1.0))
    bench.publisher(Odometry, "/silent")
    bench.node.create_subscription(  # reliable, of a publisher that is not
        Odometry,
        "/wheels",
        lambda _: None,
        RELIABLE,
        event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
    )
    bench.hear(Odometry, "/nobody/odom")
    simulated = rclpy.create_node(
        "simulated", parameter_overrides=[Parameter("use_sim_time", value=True)]
    )
    bench.executor.add_node(simulated)
    try:
        code, findings, _ = doctor(bench, robot.sends)
        assert code == 1
        yield findings
    finally:
        bench.executor.remove_node(simulated)
        simulated.destroy_node()
        bench.close()


@pytest.mark.parametrize(("subject", "level", "text", "remedy"), FAULTS)
def test_a_fault_of_the_robot_is_named(
    faulty: list[dict[str, Any]], subject: str, level: str, text: str, remedy: str
) -> None:
    said = [each for each in faulty if each["subject"] == subject]
    found = [each for each in said if text in each["text"]]
    assert len(found) == 1, said
    assert found[0]["level"] == level
    assert remedy in found[0]["remedy"]


# --- what the wheels of ROS 2 cannot publish: TF -------------------------------------------------


def tf_findings(*edges: tuple[str, str]) -> list[Finding]:
    odometry_topic = Topic("/odom", ODOMETRY, ["robot"], 9, 20.0, 0.0, last={"child": "base_link"})
    odometry_topic.last |= {
        "orientation": [1.0, 0.0, 0.0, 0.0],
        "twist": list(odometry().twist.covariance),
    }
    info = Topic("/camera_info", "sensor_msgs/msg/CameraInfo", ["robot"], 9, frame="camera")
    message = calibration()
    info.last = {name: list(getattr(message, name)) for name in "kpd"}
    info.last |= {"width": 32, "height": 24, "part": False}
    system = System({"/odom": odometry_topic, "/camera_info": info}, edges=list(edges))
    return [each for each in examine(system) if each.subject == "/tf"]


def test_tf_is_a_tree_that_reaches_the_camera() -> None:
    chain = ("odom", "base_link"), ("base_link", "mast"), ("mast", "camera")
    assert tf_findings(*chain) == []
    assert tf_findings() == []  # who publishes no TF has parameters
    (apart,) = tf_findings(*chain[:2])
    assert apart.level == "warning"
    assert "does not connect base_link with camera" in apart.text
    (parents,) = tf_findings(*chain, ("map", "base_link"))
    assert parents.level == "error"
    assert "base_link has two parents, map, odom" in parents.text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({0: float("nan")}, "not finite"),
        ({1: 0.5}, "not symmetric"),
        ({1: 0.5, 6: 0.5}, "negative eigenvalue"),
        ({7 * i: 9999.0 for i in range(6)}, "says lost"),
        ({7 * i: 0.0 for i in range(6)}, "is zero"),
        ({0: -1.0}, "negative variances"),
        ({}, None),
    ],
)
def test_a_covariance_that_cannot_be(change: dict[int, float], text: str | None) -> None:
    covariance = [0.01 if i % 7 == 0 else 0.0 for i in range(36)]
    for index, value in change.items():
        covariance[index] = value
    found = [each.text for each in covariance_findings("/odom", "pose", covariance)]
    assert [text in each for each in found] == ([True] if text else []), found
