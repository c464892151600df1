"""Hear what goes on in a running system, and print it as JSON: the facts and what is wrong.

    python -m hydranet_ros.ros.listening SECONDS

`hydranet doctor --topics` starts it. It publishes nothing, and hears every publisher, as its
subscriptions ask for no more than each of them offers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import GetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from rclpy.utilities import get_rmw_implementation_identifier

from hydranet_ros.ros.conversions import stamp_ns
from hydranet_ros.ros.examination import (
    CAMERA_INFO,
    CLOCK,
    COMPRESSED,
    IMAGE,
    IMU,
    ODOMETRY,
    POSE,
    SENSORS,
    TRANSFORMS,
    System,
    Topic,
    examine,
)

NAME = "hydranet_doctor"
LOOK_S = 0.5  # of looking who is there
# Until every publisher of a sensor was heard, it listens for so many times longer.
PATIENCE = 3.0
KEPT_STAMPS = 500
HEARD = (*SENSORS, POSE, CLOCK, TRANSFORMS)
OF_ROS = ("/rosout", "/parameter_events")
SUFFIXES = ("/compressed", "/compressedDepth")


class Listener(Node):
    """Subscribes to whatever it understands, and counts."""

    def __init__(self) -> None:
        super().__init__(NAME, start_parameter_services=False, enable_rosout=False)
        self.system = System(middleware=get_rmw_implementation_identifier())
        self._arrivals: dict[str, list[float]] = {}
        self._offsets: dict[str, list[float]] = {}
        self._asked: dict[str, Any] = {}
        self._clock_ns: int | None = None
        self._diagnostics = self.create_subscription(
            DiagnosticArray, "/diagnostics", self._on_diagnostics, 10
        )

    # --- who is there ----------------------------------------------------------------------------

    def look(self) -> None:
        """Find topics and nodes that are new, and hear them."""
        for name, kinds in self.get_topic_names_and_types():
            publishers = self.get_publishers_info_by_topic(name)
            if not publishers or name in OF_ROS or name == "/diagnostics":
                continue
            topic = self.system.topics.get(name)
            if topic is None:
                topic = self.system.topics[name] = Topic(name, kinds[0])
                self._listen(topic, publishers)
            topic.publishers = sorted({each.node_name for each in publishers})
        for node, space in self.get_node_names_and_namespaces():
            self._ask(f"{space.rstrip('/')}/{node}")

    def _listen(self, topic: Topic, publishers: list[Any]) -> None:
        if topic.kind not in HEARD:
            return
        package, _, name = topic.kind.split("/")
        try:
            message = getattr(import_module(f"{package}.msg"), name)
        except ImportError:  # tf2_msgs is not among the wheels
            return
        latched = all(
            each.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for each in publishers
        )
        profile = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
        if latched:
            profile = QoSProfile(
                depth=100,
                reliability=ReliabilityPolicy.RELIABLE,
                durability=DurabilityPolicy.TRANSIENT_LOCAL,
            )
        self.create_subscription(message, topic.name, lambda m: self._hear(topic, m), profile)

    def _ask(self, node: str) -> None:
        """Ask a node whether it uses simulated time."""
        if node == f"/{NAME}" or node.rpartition("/")[2].startswith("_"):
            return
        known = self._asked.setdefault(
            node, [self.create_client(GetParameters, f"{node}/get_parameters"), None]
        )
        client, future = known
        if future is None and client.service_is_ready():
            known[1] = client.call_async(GetParameters.Request(names=["use_sim_time"]))
        elif future is not None and future.done() and future.result() is not None:
            (value,) = future.result().values
            if value.type == ParameterType.PARAMETER_BOOL:
                self.system.sim_time[node] = value.bool_value

    def judge_connections(self) -> None:
        """Find listeners whom nobody serves, and those whose quality of service does not match."""
        system = self.system
        for name, kinds in self.get_topic_names_and_types():
            publishers = self.get_publishers_info_by_topic(name)
            others = [
                each
                for each in self.get_subscriptions_info_by_topic(name)
                if each.node_name != NAME
            ]
            for each in others:
                served = publishers or self._other_transport(name)
                if not served and kinds[0] in (*SENSORS[:3], ODOMETRY):
                    system.unheard.append((name, kinds[0], each.node_name))
                for publisher in publishers:
                    compatible, reason = qos_check_compatible(
                        publisher.qos_profile, each.qos_profile
                    )
                    if compatible == QoSCompatibility.ERROR:
                        words = " ".join(reason.removeprefix("ERROR: ").split()).rstrip(";")
                        system.mismatches.append(
                            (publisher.node_name, each.node_name, name, words)
                        )

    def _other_transport(self, name: str) -> bool:
        raw = name
        for suffix in SUFFIXES:
            raw = raw.removesuffix(suffix)
        return any(self.count_publishers(raw + suffix) for suffix in ("", *SUFFIXES))

    # --- what they say ---------------------------------------------------------------------------

    def _hear(self, topic: Topic, message: Any) -> None:
        topic.count += 1
        self._arrivals.setdefault(topic.name, []).append(time.monotonic())
        if topic.kind == CLOCK:
            self._clock_ns = stamp_ns(message.clock)
        elif topic.kind == TRANSFORMS:
            edges = {(t.header.frame_id.lstrip("/"), t.child_frame_id) for t in message.transforms}
            self.system.edges += sorted(edges - set(self.system.edges))
        else:
            self._stamp(topic, message)
            topic.last = FIELDS[topic.kind](message)

    def _stamp(self, topic: Topic, message: Any) -> None:
        stamp = stamp_ns(message.header.stamp)
        topic.frame = message.header.frame_id
        if stamp == 0:
            topic.zero_stamps += 1
            return
        now = time.time_ns() if self._clock_ns is None else self._clock_ns
        self._offsets.setdefault(topic.name, []).append((now - stamp) * 1e-9)
        if topic.stamps_ns and stamp <= topic.stamps_ns[-1]:
            topic.backwards += 1
        topic.stamps_ns = [*topic.stamps_ns[1 - KEPT_STAMPS :], stamp]

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.level == DiagnosticStatus.OK:
                self.system.told.pop(status.name, None)
            else:
                stops = status.level != DiagnosticStatus.WARN
                self.system.told[status.name] = stops, status.message

    @property
    def waits(self) -> bool:
        """Whether a publisher of a sensor, or a node that was asked, has not said anything yet."""
        silent = any(not each.count for each in self.system.of_kind(*SENSORS, CLOCK))
        asked = any(
            future is not None and node not in self.system.sim_time
            for node, (_, future) in self._asked.items()
        )
        return silent or asked or not self.system.topics

    def conclude(self) -> System:
        """Rates and offsets of what was heard."""
        for name, topic in self.system.topics.items():
            times = self._arrivals.get(name, [])
            if len(times) > 2:
                topic.rate_hz = (len(times) - 1) / max(times[-1] - times[0], 1e-9)
            if offsets := self._offsets.get(name):
                topic.offset_s = float(np.median(offsets))
        self.judge_connections()
        return self.system


# --- fields that are judged ----------------------------------------------------------------------


def _floats(values: Any) -> list[float]:
    return [float(each) for each in values]


def _axes(vector: Any) -> list[float]:
    return [vector.x, vector.y, vector.z]


def _image(m: Any) -> dict[str, Any]:
    size = {"width": m.width, "height": m.height}
    return {**size, "encoding": m.encoding, "bytes": len(m.data)}


def _camera_info(m: Any) -> dict[str, Any]:
    part = bool(m.binning_x > 1 or m.binning_y > 1 or m.roi.width or m.roi.height)
    matrices = {"k": _floats(m.k), "p": _floats(m.p), "d": _floats(m.d)}
    return {"width": m.width, "height": m.height, "part": part, **matrices}


def _pose(m: Any) -> dict[str, Any]:
    q = m.pose.pose.orientation
    return {"orientation": [q.w, *_axes(q)], "pose": _floats(m.pose.covariance)}


def _odometry(m: Any) -> dict[str, Any]:
    return {**_pose(m), "child": m.child_frame_id, "twist": _floats(m.twist.covariance)}


def _imu(m: Any) -> dict[str, Any]:
    return {"acceleration": _axes(m.linear_acceleration), "rate": _axes(m.angular_velocity)}


FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    IMAGE: _image,
    COMPRESSED: lambda m: {"format": m.format},
    CAMERA_INFO: _camera_info,
    ODOMETRY: _odometry,
    POSE: _pose,
    IMU: _imu,
}


def listen(seconds: float) -> System:
    """What is heard in so many seconds, or in more where somebody is silent."""
    node = Listener()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    begin = looked = time.monotonic()
    node.look()
    try:
        while (passed := time.monotonic() - begin) < seconds or (
            node.waits and passed < PATIENCE * seconds
        ):
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                node.look()
        return node.conclude()
    finally:
        executor.shutdown()
        node.destroy_node()


def main() -> int:
    """Listen, judge, print."""
    rclpy.init()
    try:
        system = listen(float(sys.argv[1]))
    except KeyboardInterrupt:
        return 130
    finally:
        rclpy.try_shutdown()
    topics = []
    for _, topic in sorted(system.topics.items()):
        facts = asdict(topic)
        del facts["stamps_ns"], facts["last"]
        topics.append(facts)
    print(json.dumps({"topics": topics, "findings": [asdict(each) for each in examine(system)]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
