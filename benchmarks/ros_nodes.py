"""What the benchmarks of the nodes share: start them, publish frames, receive fused odometry."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CameraInfo, Image

from hydranet_ros.cli.demo_nodes import ProcessGroup
from hydranet_ros.datasets.source import Source
from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry.camera import Frame, StereoCamera
from hydranet_ros.ros.conversions import image_message, stamp_ns, time_message
from hydranet_ros.ros.environment import node_command, private_environment

NODES = ("hydranet_node", "stereo_vo_node", "fusion_node")
SIDES = ("left", "right")
ROTATION = "hydranet_node/relative_rotation"


def start_nodes(nodes: ProcessGroup, options: Namespace) -> None:
    """The nodes with the inputs of a live robot, in one process or in one for each.

    With wheels there is one camera, and no odometry of ours.
    """
    live = {"input.reliability": options.reliability, "input.queue": options.queue}
    net = {"gyro.cameras": options.cameras, "gyro.weights": options.weights}
    net |= {"gyro.device": options.device}
    left = {"image": "left/image_rect", "camera_info": "left/camera_info"}
    rotations = {f"relative_rotation{part}": f"{ROTATION}{part}" for part in ("", "/interval")}
    given: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "stereo_vo_node": (dict(live), {}),
        "hydranet_node": ({**live, **net}, left if options.cameras == "mono" else {}),
        "fusion_node": ({"fusion.odometry": "wheels" if options.wheels else "own"}, rotations),
    }
    if options.wheels:
        del given["stereo_vo_node"]
    if options.processes == "one":
        words: dict[str, Any] = {"hydranet_all:nodes": list(given)}
        moved: dict[str, str] = {}
        for name, (parameters, remaps) in given.items():
            words |= {f"{name}:{key}": value for key, value in parameters.items()}
            moved |= {f"{name}:{old}": new for old, new in remaps.items()}
        nodes.start("hydranet_all", node_command("hydranet_all", words, moved))
        return
    for name, (parameters, remaps) in given.items():
        nodes.start(name, node_command(name, parameters, remaps))


@dataclass
class Playback:
    """What came of one run."""

    sent: dict[int, float] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    behind_s: float = 0.0

    def percentile_ms(self, percentile: float) -> float:
        """Of the latency from image to fused odometry."""
        found = np.percentile(self.latencies_s, percentile) if self.latencies_s else np.nan
        return 1e3 * float(found)


class Bench:
    """A stereo camera and a subscriber of the results in one node."""

    def __init__(self, source: Source, shape: tuple[int, int]) -> None:
        self.node = rclpy.create_node("bench")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        deep = QoSProfile(depth=100)
        create = self.node.create_publisher
        self._images = [create(Image, f"{side}/image_rect", deep) for side in SIDES]
        self._infos = [create(CameraInfo, f"{side}/camera_info", deep) for side in SIDES]
        self._calibration = [_info(source, shape, side == "right") for side in SIDES]
        self.playback = Playback()
        self.diagnostics: dict[str, dict[str, str]] = {}
        self.node.create_subscription(Odometry, "fused/odometry", self._on_odometry, deep)
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, deep)

    def _on_odometry(self, message: Odometry) -> None:
        sent = self.playback.sent.get(stamp_ns(message.header.stamp))
        if sent is not None:
            self.playback.latencies_s.append(time.monotonic() - sent)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for each in message.status:
            self.diagnostics[each.name.lstrip("/")] = {v.key: v.value for v in each.values}

    def spin(self, seconds: float) -> None:
        """Run callbacks for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0:
            self._executor.spin_once(timeout_sec=left)

    def wait_for_nodes(self, hearers: int, timeout_s: float = 180.0) -> None:
        """Wait until all subscribe to this node and to each other."""
        until = time.monotonic() + timeout_s
        while not (
            all(p.get_subscription_count() >= hearers for p in (self._images[0], self._infos[0]))
            and all(p.get_subscription_count() for p in (self._images[1], self._infos[1]))
            and self._subscribers("stereo_vo_node", "vo/odometry")
            and self._subscribers("hydranet_node", ROTATION)
            and self._subscribers("hydranet_node", f"{ROTATION}/interval")
        ):
            if time.monotonic() > until:
                raise HydraNetError(f"the nodes did not start in {timeout_s:g} s")
            self.spin(0.2)

    def _subscribers(self, node: str, topic: str) -> int:
        """How many subscribe to a topic of a node, by its diagnostics."""
        return int(self.diagnostics.get(node, {}).get(f"listeners of /{topic}", "0"))

    def play(self, frames: Iterable[tuple[int, Frame]], rate_hz: float) -> Playback:
        """Publish frames at a rate; callbacks run in between."""
        self.playback = Playback()
        began = time.monotonic()
        for count, (nanoseconds, frame) in enumerate(frames):
            due = began + count / rate_hz
            self.spin(max(due - time.monotonic(), 1e-4))
            self.playback.behind_s = max(self.playback.behind_s, time.monotonic() - due)
            self._publish(nanoseconds, frame)
        self.spin(2.5)  # the last results, and diagnostics about them
        return self.playback

    def _publish(self, nanoseconds: int, frame: Frame) -> None:
        self.playback.sent[nanoseconds] = time.monotonic()
        for publisher, info in zip(self._infos, self._calibration, strict=True):
            info.header.stamp = time_message(nanoseconds)
            publisher.publish(info)
        for publisher, pixels in zip(self._images, (frame.left, frame.right), strict=True):
            message = image_message(pixels)
            message.header.stamp = time_message(nanoseconds)
            message.header.frame_id = "camera_left"
            publisher.publish(message)

    def done(self, node: str) -> int:
        """Frames that a node has processed, by its diagnostics."""
        return int(self.diagnostics.get(node, {}).get("done", "0"))


def _info(source: Source, shape: tuple[int, int], right: bool) -> CameraInfo:
    pair = source.camera if isinstance(source.camera, StereoCamera) else None
    c = source.camera if pair is None else pair.left
    info = CameraInfo(height=shape[0], width=shape[1], distortion_model="plumb_bob")
    info.k = [c.fx, 0.0, c.cx, 0.0, c.fy, c.cy, 0.0, 0.0, 1.0]
    tx = -c.fx * pair.baseline_m if right and pair is not None else 0.0
    info.p = [c.fx, 0.0, c.cx, tx, 0.0, c.fy, c.cy, 0.0, 0.0, 0.0, 1.0, 0.0]
    info.header.frame_id = "camera_left"
    return info


@contextmanager
def running(
    source: Source, shape: tuple[int, int], options: Namespace, kind: type[Bench] = Bench
) -> Iterator[Bench]:
    """The nodes and a bench, in a domain of their own."""
    with TemporaryDirectory(prefix="ros_bench_") as folder:
        variables = private_environment(Path(folder))
        if not options.profile:
            variables = {k: v for k, v in variables.items() if "PROFILES_FILE" not in k}
        os.environ.update(variables)
        with ProcessGroup(Path(folder), variables) as nodes:
            rclpy.init()
            try:
                start_nodes(nodes, options)
                bench = kind(source, shape)
                bench.wait_for_nodes(hearers=1 if options.processes == "one" else 2)
                yield bench
                nodes.check_all()
            finally:
                rclpy.shutdown()


def add_options(parser: ArgumentParser, source: str | None = None) -> None:
    """What every benchmark of the nodes asks for; `source` is the default one."""
    nargs = {} if source is None else {"nargs": "?", "default": source}
    what = "a KITTI folder, a bag, or 'street'"
    parser.add_argument("source", metavar="SOURCE", help=what, **nargs)
    parser.add_argument("--weights", default="", metavar="FILE", help="default: those that ship")
    parser.add_argument("--frames", type=int, default=200, metavar="N")
    parser.add_argument("--reliability", default="reliable", choices=("reliable", "best_effort"))
    parser.add_argument(
        "--cameras", default="stereo", choices=("stereo", "mono"), help="of the gyro"
    )
    parser.add_argument("--device", default="auto", help="of the network")
    parser.add_argument("--processes", default="one", choices=("one", "three"))
    parser.set_defaults(wheels=False)
    parser.add_argument("--queue", type=int, default=1, help="frames that may wait")
    parser.add_argument(
        "--no-profile", dest="profile", action="store_false", help="Fast DDS as it comes"
    )
