"""Real nodes in the test's own process: real topics, and their counts within reach."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from ros.node_processes import Bench

from hydranet_ros.ros.conversions import odometry_message, stamp_ns
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.lifecycle import ManagedNode


@contextmanager
def spinning(*nodes: ManagedNode[Any]) -> Iterator[None]:
    """Configure, activate and spin nodes in a thread; end them in any case."""
    executor, done = SingleThreadedExecutor(), threading.Event()

    def spin() -> None:
        while not done.is_set():
            executor.spin_once(timeout_sec=0.05)

    thread = threading.Thread(target=spin, daemon=True)
    try:
        for node in nodes:
            node.trigger_configure()
            node.trigger_activate()
            executor.add_node(node)
        thread.start()
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join(timeout=5.0)
        executor.shutdown(timeout_sec=5.0)
        for node in nodes:
            node.end()


def overrides(**values: Any) -> list[Parameter[Any]]:
    """Parameters by name; `__` stands for the dot of a nested one."""
    return [Parameter(name.replace("__", "."), value=value) for name, value in values.items()]


class DrivenFusion:
    """A fusion node that hears of a car: a metre forward ten times a second."""

    def __init__(
        self, bench: Bench, name: str, node: FusionNode | None = None, **parameters: Any
    ) -> None:
        self.bench, self.steps, self.began_ns = bench, 0, 10**12
        self.node = node or FusionNode(
            namespace=name, parameter_overrides=overrides(fusion__max_wait_s=0.0, **parameters)
        )
        self.odometry = bench.publisher(Odometry, f"/{name}/vo/odometry")
        self.fused = bench.hear(Odometry, f"/{name}/fused/odometry")

    def step(self) -> int:
        """Go on, and tell; the stamp."""
        self.steps += 1
        T, covariance = np.eye(4), np.eye(6) * 1e-2
        T[0, 3] = self.steps
        nanoseconds = self.began_ns + self.steps * 10**8
        frames = "odom", "base_link"
        self.odometry.publish(
            odometry_message(nanoseconds, frames, T, covariance, np.zeros(6), covariance)
        )
        return nanoseconds

    def drive(self, steps: int) -> float:
        """Go on; where the last fused pose is then."""
        ready = self.odometry.get_subscription_count
        assert self.bench.spin_until(lambda: ready() and self.node.active, 10.0)
        for _ in range(steps):
            last = self.step()
        assert self.bench.spin_until(
            lambda: self.fused and stamp_ns(self.fused[-1].header.stamp) == last, 10.0
        )
        return float(self.fused[-1].pose.pose.position.x)


def topics(node: Node) -> list[str]:
    """What a node subscribes to, by full names."""
    return sorted(each.topic_name for each in node.subscriptions)


def counted(bench: Bench, node: ManagedNode[Any], kind: str, count: int = 1) -> bool:
    """Whether a node comes to warn so often of a kind."""
    return bench.spin_until(lambda: node.warn.counts[kind] >= count, 10.0)


def finite(message: Any) -> bool:
    """Whether every number of a message is finite."""
    if isinstance(message, float):
        return bool(np.isfinite(message))
    if isinstance(message, np.ndarray):
        return bool(np.isfinite(message).all())
    if isinstance(message, list | tuple):
        return all(finite(each) for each in message)
    if hasattr(message, "get_fields_and_field_types"):
        return all(finite(getattr(message, name)) for name in message.get_fields_and_field_types())
    return True
