"""Start the real nodes as processes, feed them, and hear what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, Image

from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.ros.lifecycle import RCLError

RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
REPLAY = [
    "-p",
    "input.reliability:=reliable",
    "-p",
    "input.depth:=1000",
    "-p",
    "input.queue:=1000",
]
REMAPS = [
    *("-r", "relative_rotation:=hydranet_node/relative_rotation"),
    *("-r", "relative_rotation/interval:=hydranet_node/relative_rotation/interval"),
]


ROTATION = "hydranet_node/relative_rotation"
FUSED_FROM = ("vo/odometry", ROTATION, f"{ROTATION}/interval")


class NodeProcess:
    """One node in its own process; its log goes to a file."""

    def __init__(self, name: str, arguments: Iterable[str], folder: Path) -> None:
        self.name, self.log_path = name, folder / f"{name}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", f"hydranet_ros.ros.{name}", "--ros-args", *arguments]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ)
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def interrupt(self) -> tuple[int, float]:
        """The exit code after SIGINT, and how long the end took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=20.0)
        return code, time.monotonic() - began

    def end(self) -> None:
        if self.running:
            self.process.kill()
            self.process.wait(timeout=10.0)


@contextmanager
def processes(folder: Path, **nodes: Iterable[str]) -> Iterator[dict[str, NodeProcess]]:
    """Nodes by name with their arguments; all are ended in any case."""
    started: dict[str, NodeProcess] = {}
    try:
        for name, arguments in nodes.items():
            started[name] = NodeProcess(name, arguments, folder)
        yield started
    finally:
        for each in started.values():
            each.end()


class Bench:
    """A node of the test's own, to publish and to listen with."""

    def __init__(self, name: str = "bench") -> None:
        rclpy.init()
        self.node: Node = rclpy.create_node(name)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self._clients: dict[str, Any] = {}

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown()

    def hear(self, kind: type[Any], topic: str, qos: QoSProfile = RELIABLE) -> list[Any]:
        """What is heard on a topic from now on, with the moment it came."""
        heard: list[Any] = []
        self.node.create_subscription(kind, topic, heard.append, qos)
        return heard

    def publisher(self, kind: type[Any], topic: str, qos: QoSProfile = RELIABLE) -> Any:
        return self.node.create_publisher(kind, topic, qos)

    def spin(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0.0:
            self.executor.spin_once(timeout_sec=left)

    def spin_until(self, condition: Callable[[], Any], seconds: float = 30.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.executor.spin_once(timeout_sec=0.02)
        return True

    def wait_for_listeners(self, wanted: dict[str, int], seconds: float = 180.0) -> bool:
        """Until the nodes say that so many listen to each of these topics of theirs.

        A topic's listeners in the graph do not tell: what is published before the two ends have
        found each other is lost.
        """
        told: dict[str, str] = {}

        def note(message: DiagnosticArray) -> None:
            told.update((v.key, v.value) for status in message.status for v in status.values)

        subscription = self.node.create_subscription(DiagnosticArray, "/diagnostics", note, 100)
        try:
            return self.spin_until(
                lambda: all(
                    int(told.get(f"listeners of /{topic}", "0")) >= count
                    for topic, count in wanted.items()
                ),
                seconds,
            )
        finally:
            self.node.destroy_subscription(subscription)

    def call(self, kind: type[Any], name: str, request: Any, seconds: float = 60.0) -> Any:
        if name not in self._clients:
            self._clients[name] = self.node.create_client(kind, name)
            assert self._clients[name].wait_for_service(timeout_sec=seconds), name
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            # Asked again, because an answer is lost where the server does not know us yet.
            future = self._clients[name].call_async(request)
            if self.spin_until(future.done, 5.0):
                return future.result()
        raise AssertionError(f"{name} does not answer")


def stamp(nanoseconds: int) -> Time:
    return Time(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)


def image(pixels: np.ndarray, nanoseconds: int, frame: str = "camera_left") -> Image:
    message = Image(
        height=pixels.shape[0], width=pixels.shape[1], encoding="mono8", step=pixels.shape[1]
    )
    message.header.stamp, message.header.frame_id = stamp(nanoseconds), frame
    message.data = np.ascontiguousarray(pixels).tobytes()
    return message


def camera_info(camera: StereoCamera, shape: tuple[int, int], right: bool) -> CameraInfo:
    c = camera.left
    info = CameraInfo(height=shape[0], width=shape[1], distortion_model="plumb_bob")
    info.d = [0.0] * 5
    info.k = [c.fx, 0.0, c.cx, 0.0, c.fy, c.cy, 0.0, 0.0, 1.0]
    tx = -c.fx * camera.baseline_m if right else 0.0
    info.p = [c.fx, 0.0, c.cx, tx, 0.0, c.fy, c.cy, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


class StereoRig:
    """The four topics of a stereo camera."""

    def __init__(
        self, bench: Bench, camera: StereoCamera, shape: tuple[int, int], prefix: str = ""
    ) -> None:
        sides = [f"{prefix}{side}" for side in ("left", "right")]
        self.images = [bench.publisher(Image, f"{side}/image_rect") for side in sides]
        self.infos = [bench.publisher(CameraInfo, f"{side}/camera_info") for side in sides]
        self.calibration = [camera_info(camera, shape, right) for right in (False, True)]

    def listened(self, count: int) -> bool:
        """Whether so many nodes listen to every topic."""
        return all(p.get_subscription_count() >= count for p in (*self.images, *self.infos))

    def send(
        self, nanoseconds: int, left: np.ndarray, right: np.ndarray, right_later_ns: int = 0
    ) -> None:
        for publisher, info in zip(self.infos, self.calibration, strict=True):
            info.header.stamp = stamp(nanoseconds)
            info.header.frame_id = "camera_left"
            patiently(publisher, info)
        stamps = nanoseconds, nanoseconds + right_later_ns
        for publisher, pixels, at in zip(self.images, (left, right), stamps, strict=True):
            patiently(publisher, image(pixels, at))


def patiently(publisher: Any, message: Any, seconds: float = 60.0) -> None:
    """Publish; a reliable publisher fails while readers on a busy machine lag behind."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            publisher.publish(message)
            return
        except RCLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
