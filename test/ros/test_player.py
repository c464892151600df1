"""player_node as a process of its own, and a listener in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

rclpy = pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("rosbags", reason="no rosbags here: pip install rosbags")

from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMessage
from rclpy.executors import SingleThreadedExecutor
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, Image

from hydranet_ros.datasets.bag_files import write_bag
from hydranet_ros.datasets.bag_messages import ODOMETRY, Message, recorded
from hydranet_ros.datasets.source import SimulatedStreet, Source, open_source
from hydranet_ros.geometry.camera import Frame, StereoCamera
from hydranet_ros.ros.player import MOST_POSES, Playlist, TruthPath
from hydranet_ros.ros.qos import LATCHED

FRAMES = 12
TOPICS = {
    "left/image_rect": Image,
    "right/image_rect": Image,
    "left/camera_info": CameraInfo,
    "right/camera_info": CameraInfo,
    "ground_truth/odometry": Odometry,
    "ground_truth/path": PathMessage,
    "/clock": Clock,
}


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("played") / "bag"
    write_bag(path, recorded(SimulatedStreet(FRAMES)))
    return path


class Listener:
    """Everything that is heard, by topic."""

    def __init__(self, namespace: str = "") -> None:
        self.node = rclpy.create_node("listener", namespace=namespace)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.heard: dict[str, list[Any]] = {topic: [] for topic in TOPICS}
        for topic, kind in TOPICS.items():
            append = self.heard[topic].append
            self.node.create_subscription(kind, topic, append, QoSProfile(depth=1000))

    def until(self, done: Callable[[], bool], seconds: float = 40.0) -> bool:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            self.executor.spin_once(timeout_sec=0.05)
        return done()


@pytest.fixture
def listener() -> Iterator[Listener]:
    rclpy.init()
    listener = Listener()
    try:
        yield listener
    finally:
        listener.executor.shutdown()
        listener.node.destroy_node()
        rclpy.shutdown()


@contextmanager
def player(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "hydranet_ros.cli", "play", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def stamps(messages: list[Any]) -> list[int]:
    return [m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in messages]


def test_a_bag_arrives_whole_and_in_time(bag: Path, listener: Listener) -> None:
    with player(str(bag), "--subscribers", "1", "--rate", "2") as child:
        assert listener.until(lambda: child.poll() is not None)
        listener.until(lambda: False, 0.5)
        _, log = child.communicate()
    assert child.returncode == 0
    source = open_source(str(bag))
    for topic in list(TOPICS)[:5]:
        assert stamps(listener.heard[topic]) == source.stamps_ns.tolist(), topic
    for frame, left, right in zip(
        source, listener.heard["left/image_rect"], listener.heard["right/image_rect"], strict=True
    ):
        check_image(frame, left, right)
    check_calibration(listener.heard["left/camera_info"][0], source.camera, right=False)
    check_calibration(listener.heard["right/camera_info"][0], source.camera, right=True)
    check_truth(listener.heard["ground_truth/odometry"], source)
    assert f"played {FRAMES} frames in 0.5" in log or f"played {FRAMES} frames in 0.6" in log
    assert "of 20.00 Hz asked" in log


def check_image(frame: Frame, left: Image, right: Image) -> None:
    assert left.header.frame_id == "camera_left_optical"
    for pixels, message in ((frame.left, left), (frame.right, right)):
        assert (message.height, message.width, message.encoding) == (*pixels.shape, "mono8")
        np.testing.assert_array_equal(np.frombuffer(message.data, np.uint8), pixels.ravel())


def check_calibration(info: CameraInfo, camera: StereoCamera, right: bool) -> None:
    c = camera.left
    assert (info.header.frame_id == "camera_right_optical") is right
    assert info.k.tolist() == [c.fx, 0.0, c.cx, 0.0, c.fy, c.cy, 0.0, 0.0, 1.0]
    assert info.r.tolist() == np.eye(3).ravel().tolist()
    assert list(info.d) == [0.0] * 5
    Tx = -c.fx * camera.baseline_m if right else 0.0
    assert info.p.tolist() == [c.fx, 0.0, c.cx, Tx, 0.0, c.fy, c.cy, 0.0, 0.0, 0.0, 1.0, 0.0]


def check_truth(messages: list[Odometry], source: Source) -> None:
    assert source.T_w_c is not None
    for message, T in zip(messages, source.T_w_c, strict=True):
        assert (message.header.frame_id, message.child_frame_id) == ("odom", "camera_left_optical")
        p = message.pose.pose.position
        np.testing.assert_allclose([p.x, p.y, p.z], T[:3, 3], atol=1e-12)


def test_the_clock_runs_at_the_rate_and_the_truth_is_a_path(bag: Path, listener: Listener) -> None:
    with player(str(bag), "--subscribers", "1", "--rate", "2") as child:
        assert listener.until(lambda: child.poll() is not None)
        listener.until(lambda: False, 0.5)
    ticks = [m.clock.sec * 10**9 + m.clock.nanosec for m in listener.heard["/clock"]]
    assert ticks == sorted(ticks)
    assert ticks[-1] == open_source(str(bag)).stamps_ns[-1]
    # 100 ticks per second of the wall, and one with every message.
    assert len(ticks) > 40
    assert len(listener.heard["ground_truth/path"][-1].poses) == 11


@pytest.mark.slow
def test_start_leaves_out_the_beginning(bag: Path, listener: Listener) -> None:
    with player(str(bag), "--subscribers", "1", "--start", "0.6") as child:
        assert listener.until(lambda: child.poll() is not None)
        listener.until(lambda: False, 0.5)
    expected = [s for s in open_source(str(bag)).stamps_ns.tolist() if s >= 600_000_000]
    assert stamps(listener.heard["left/image_rect"]) == expected


def test_a_folder_of_one_camera_is_played(listener: Listener, tmp_path: Path) -> None:
    folder = tmp_path / "rgbd_dataset_freiburg1_desk"
    (folder / "rgb").mkdir(parents=True)
    times = [f"{0.1 * (1 + k):.6f}" for k in range(3)]
    for each in times:
        cv2.imwrite(str(folder / "rgb" / f"{each}.png"), np.zeros((480, 640), np.uint8))
    (folder / "rgb.txt").write_text("".join(f"{each} rgb/{each}.png\n" for each in times))
    with player(str(folder), "--subscribers", "1", "--rate", "2") as child:
        assert listener.until(lambda: child.poll() is not None)
        listener.until(lambda: False, 0.5)
        log = child.communicate()[1]
    assert child.returncode == 0, log
    assert stamps(listener.heard["left/image_rect"]) == [10**8, 2 * 10**8, 3 * 10**8]
    assert len(listener.heard["left/camera_info"]) == 3
    assert listener.heard["right/image_rect"] == []


def test_a_loop_goes_on_until_a_signal_ends_it(bag: Path, listener: Listener) -> None:
    images = listener.heard["left/image_rect"]
    with player(str(bag), "--loop", "--rate", "10") as child:
        assert listener.until(lambda: len(images) > 2 * FRAMES)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=10) == 0
        assert time.monotonic() - began < 2.0
    steps = np.diff(stamps(images))
    assert (steps < 0).any()
    assert (steps[steps > 0] == 100_000_000).all()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "nowhere: is not a folder"),
        (["street", "--rate", "0"], "argument --rate: must be a number above 0, got '0'"),
        (["street", "--start", "-1"], "argument --start: must be a number of at least 0"),
        (["BAG", "--start", "100"], "has nothing after start 100.0 s"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(bag: Path, arguments: list[str], why: str) -> None:
    with player(*(str(bag) if a == "BAG" else a for a in arguments)) as child:
        _, log = child.communicate(timeout=60)
    lines = [line for line in log.splitlines() if not line.startswith("[")]
    assert child.returncode == 2
    assert len(lines) == 1
    assert why in lines[0]


def test_subscribers_that_do_not_come_are_missed(bag: Path) -> None:
    command = [sys.executable, "-m", "hydranet_ros.ros.player_node", "--ros-args"]
    parameters = [f"source:={bag}", "subscribers:=3", "timeout:=0.5"]
    arguments = [word for parameter in parameters for word in ("-p", parameter)]
    done = subprocess.run(
        [*command, *arguments], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "/left/image_rect: 0 of 3 subscribers after 0.5 s" in done.stderr


def test_a_recorder_refuses_topics_that_it_cannot_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hydranet_ros.ros.recorder_node", "--ros-args"]
    arguments = ["-p", f"out:={tmp_path}/bag", "-p", "topics:=['fused/odometry no/such/Message']"]
    done = subprocess.run(
        [*command, *arguments], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "'fused/odometry no/such/Message' is not a topic and a known type" in done.stderr
    assert list(tmp_path.iterdir()) == []


POSES = 12_000


def test_a_true_path_of_hours_is_as_long_and_less_dense(listener: Listener) -> None:
    """Sent whole each time, it must not grow, nor be made where nobody hears it."""
    node = rclpy.create_node("truth")
    listener.executor.add_node(node)
    paths: list[PathMessage] = []
    path = TruthPath(node, Playlist("drive", {"ground_truth/odometry": ODOMETRY}, iter))
    for index in range(POSES):
        truth = Odometry()
        truth.header.stamp.sec = 1 + index
        data = serialize_message(truth)
        path.add(Message("ground_truth/odometry", ODOMETRY, index * 10**9, data))
    # It is kept for those who come later.
    listener.node.create_subscription(PathMessage, "ground_truth/path", paths.append, LATCHED)
    assert listener.until(lambda: bool(paths), 10.0)
    node.destroy_node()
    seconds = np.array([pose.header.stamp.sec for pose in paths[-1].poses])
    assert len(seconds) <= MOST_POSES
    assert seconds[0] == 1
    assert seconds[-1] > POSES - 10
    assert len(np.unique(np.diff(seconds))) == 1


def test_a_true_path_that_nobody_hears_is_not_sent(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.node.destroy_node()
    node, sent = rclpy.create_node("truth"), []
    monkeypatch.setattr(Publisher, "publish", lambda _, message: sent.append(message))
    path = TruthPath(node, Playlist("drive", {"ground_truth/odometry": ODOMETRY}, iter))
    for index in range(100):
        truth = Odometry()
        truth.header.stamp.sec = 1 + index
        data = serialize_message(truth)
        path.add(Message("ground_truth/odometry", ODOMETRY, index * 10**9, data))
    assert not [each for each in sent if isinstance(each, PathMessage)]
    node.destroy_node()
