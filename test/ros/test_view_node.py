"""The page of a running system: what is published comes to it, by real topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: rclpy is absent")
pytest.importorskip("viser", reason="no viser: pip install 'hydranet_ros[view]'")

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import CameraInfo, Image, TimeReference

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.ros import conversions
from hydranet_ros.ros.qos import OUTPUT
from hydranet_ros.ros.view_node import ROTATIONS, PoseWithCovarianceStamped, ViewNode
from hydranet_ros.view.frames import BIAS, ERROR, LATENCY, NIS
from hydranet_ros.view.scene import History

STEP_NS = 100_000_000


def until(done: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.02)
    return done()


@contextmanager
def listening() -> Iterator[History]:
    """A view_node with a browser that looks, on a thread of its own."""
    view, stop = ViewNode(), Event()
    view.look(True)
    executor = SingleThreadedExecutor()
    executor.add_node(view)

    def spin() -> None:
        while not stop.is_set():
            executor.spin_once(timeout_sec=0.05)

    thread = Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield view.drives.newest
    finally:
        stop.set()
        thread.join(5.0)
        executor.shutdown()
        view.destroy_node()


def status() -> DiagnosticArray:
    values = {
        "rate (Hz)": "9.98",
        "bias (deg/s)": "0.010 -0.020 0.030",
        "scale of yaw (%)": "+5.10 +- 0.30",
        "NIS odometry": "6.60 over 100",
    }
    pairs = [KeyValue(key=key, value=value) for key, value in values.items()]
    fusion = DiagnosticStatus(name="/fusion_node", message="running", values=pairs)
    gyro = DiagnosticStatus(
        name="/hydranet_node",
        level=DiagnosticStatus.ERROR,
        message="no output for 3 s, lost: dark",
    )
    return DiagnosticArray(status=[fusion, gyro])


def test_what_the_nodes_publish_becomes_scenes() -> None:
    rclpy.init()
    node = rclpy.create_node("sender")
    try:
        with listening() as history:
            kinds = {
                "ground_truth/odometry": Odometry,
                "vo/odometry": Odometry,
                "fused/odometry": Odometry,
                ROTATIONS: PoseWithCovarianceStamped,
                f"{ROTATIONS}/interval": TimeReference,
                "hydranet_node/flow/image": Image,
                "left/camera_info": CameraInfo,
                "/diagnostics": DiagnosticArray,
            }
            out = {name: node.create_publisher(kind, name, OUTPUT) for name, kind in kinds.items()}
            assert until(lambda: all(each.get_subscription_count() for each in out.values()))
            out["/diagnostics"].publish(status())
            turn = lie.so3_exp(np.array([0.0, 0.01, 0.0]))
            for i in range(1, 4):
                stamp = i * STEP_NS
                info = CameraInfo()
                info.header = conversions.header(stamp, "camera")
                out["left/camera_info"].publish(info)
                R = lie.so3_exp(np.array([0.0, 0.0, 0.01 * i]))
                T = lie.se3_from(R, np.array([1.0 * i, 0.0, 0.0]))
                frames, none = ("odom", "base_link"), np.zeros((6, 6))
                for name in ("ground_truth/odometry", "vo/odometry"):
                    out[name].publish(
                        conversions.odometry_message(stamp, frames, T, none, np.zeros(6), none)
                    )
                rotation = RelativeRotation(turn, 1e-6 * np.eye(3), stamp - STEP_NS, stamp)
                out[f"{ROTATIONS}/interval"].publish(
                    conversions.interval_message(rotation, "camera")
                )
                out[ROTATIONS].publish(conversions.rotation_message(rotation, "camera"))
                picture = conversions.image_message(np.full((60, 90, 3), 50 * i, np.uint8), "bgr8")
                picture.header = conversions.header(stamp, "camera")
                out["hydranet_node/flow/image"].publish(picture)
                time.sleep(0.2)
                sure = np.diag([0.04, 0.01, 0.01, 1e-4, 1e-4, 1e-4])
                out["fused/odometry"].publish(
                    conversions.odometry_message(stamp, frames, T, sure, np.zeros(6), none)
                )
                assert until(lambda wanted=i: history.count == wanted)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    last = history[2]
    assert last.stamp_ns == 3 * STEP_NS
    assert set(last.poses) == {"truth", "odometry", "gyro", "fused"}
    np.testing.assert_allclose(last.poses["fused"][:3, 3], [3.0, 0.0, 0.0])
    assert last.Sigma is not None
    np.testing.assert_allclose(last.Sigma, last.Sigma.T)
    np.testing.assert_allclose(np.trace(last.Sigma), 0.06)
    # The camera turns left about its own y, as the truth does.
    assert max(abs(last.numbers[ERROR][axis]) for axis in "xyz") < last.numbers[ERROR]["3 sigma"]
    assert last.numbers[BIAS]["gyro z"] == pytest.approx(0.03)
    assert last.numbers[NIS]["odometry"] == pytest.approx(1.1)
    assert 150.0 < last.numbers[LATENCY]["image to fused"] < 5000.0
    assert last.states["fusion"] == "ok, 10.0 Hz"
    assert "lost: dark" in last.states["gyro"]
    assert last.found["scale of yaw (%)"] == "+5.10 +- 0.30"
    assert history.picture(2) is not None
