"""Real nodes in this process, told lies over real topics, and watched."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import rclpy
from faults.tally import DEGREES, METRES, MemoryPeak, Row, confident_and_wrong
from nav_msgs.msg import Odometry
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from ros.in_process import finite
from ros.node_processes import Bench, patiently

from hydranet_ros.geometry import lie
from hydranet_ros.ros.conversions import covariance_matrix, pose_matrix, stamp_ns
from hydranet_ros.ros.diagnostics import SubscriptionMonitor
from hydranet_ros.ros.lifecycle import ManagedNode

Truth = Callable[[int], np.ndarray]
LONGEST_WAIT_S = 20.0
# Fewer than a subscription's queue holds, so that nothing is lost unnoticed.
BURST = 40


class World:
    """Nodes that spin in a thread, a bench that feeds and hears them, a row to count in.

    `received` counts what comes to the nodes, by topic. Leaving it adds the peak of the memory,
    and an exception that ended the thread, to the row.
    """

    def __init__(self, row: Row, *nodes: Callable[[], ManagedNode[Any]]) -> None:
        self.row, self.bench = row, Bench("attacker")
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.nodes = [make() for make in nodes]
        self._executor = SingleThreadedExecutor()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._error = ""
        self._heard: list[tuple[list[Any], Callable[[Any], None] | None]] = []

    def __enter__(self) -> World:
        self._receive = receive = SubscriptionMonitor.receive

        def counting(monitor: SubscriptionMonitor) -> None:
            self.received[monitor.topic] += 1
            receive(monitor)

        SubscriptionMonitor.receive = counting  # type: ignore[method-assign]
        for node in self.nodes:
            node.trigger_configure()
            node.trigger_activate()
            self._executor.add_node(node)
        self._thread.start()
        self._memory = MemoryPeak()
        return self

    def __exit__(self, *_: object) -> None:
        self.row.memory_mb = max(self.row.memory_mb, self._memory.above_idle_mb)
        if self.crashed:
            self.row.crash(self._error or "the context was shut down")
        SubscriptionMonitor.receive = self._receive  # type: ignore[method-assign]
        self._executor.shutdown(timeout_sec=5.0)
        self._thread.join(timeout=5.0)
        for node in self.nodes:
            node.end()
        self.bench.executor.shutdown()
        self.bench.node.destroy_node()
        rclpy.try_shutdown()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass
        except Exception:  # noqa: BLE001, whatever it is, it is a crash
            self._error = traceback.format_exc()

    @property
    def crashed(self) -> bool:
        """Whether a node has raised, has failed, or its thread has ended."""
        failed = any(node.failed for node in self.nodes)
        return bool(self._error) or failed or not self._thread.is_alive()

    # --- sending ---------------------------------------------------------------------------------

    def publish(self, publisher: Any, message: Any) -> None:
        """Send a message; bytes may be such that nobody can receive them."""
        patiently(publisher, message)
        if not isinstance(message, bytes):
            self.sent[publisher.topic_name] += 1
        if sum(self.sent.values()) % BURST == 0:
            self.drain()

    def drain(self, seconds: float = LONGEST_WAIT_S) -> bool:
        """Wait until everything that was sent has come to the nodes."""
        deadline = time.monotonic() + seconds
        while any(self.received[topic] < count for topic, count in self.sent.items()):
            if self.crashed or time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def wait_for(self, condition: Callable[[], Any], seconds: float = LONGEST_WAIT_S) -> bool:
        """Spin the bench until a condition holds; False when the nodes have crashed before."""
        self.bench.spin_until(lambda: self.crashed or condition(), seconds)
        return bool(condition())

    # --- hearing ---------------------------------------------------------------------------------

    def hear(self, kind: type[Any], topic: str, judge: Callable[[Any], None] | None = None) -> Any:
        """A list of what is heard on a topic; each is judged by `judge` once."""
        heard = self.bench.hear(kind, topic)
        self._heard.append((heard, judge))
        return heard

    def judge(self, note: str) -> None:
        """Judge and forget what was heard: finite, and not confident where it is wrong."""
        for heard, judge in self._heard:
            for message in heard:
                if not finite(message):
                    self.row.non_finite += 1
                    self.row.notes.append(f"{note}: not finite: {message}")
                elif judge is not None:
                    judge(message)
            heard.clear()


def judge_odometry(row: Row, message: Odometry, T_w_b: np.ndarray, note: str) -> None:
    """Count a pose that is confident and wrong; ROS covariances are about the fixed axes."""
    pose, covariance = pose_matrix(message.pose.pose), covariance_matrix(message.pose.covariance)
    judge_pose(row, pose, covariance, T_w_b, f"{note}, {stamp_ns(message.header.stamp)} ns")


def judge_pose(
    row: Row, pose: np.ndarray, covariance: np.ndarray, truth: np.ndarray, note: str
) -> None:
    """Count a pose with a covariance about the fixed axes that is confident and wrong."""
    shift = pose[:3, 3] - truth[:3, 3]
    turn = lie.so3_log(pose[:3, :3] @ truth[:3, :3].T)
    moved = confident_and_wrong(shift, covariance[:3, :3], METRES)
    turned = confident_and_wrong(turn, covariance[3:, 3:], np.deg2rad(DEGREES))
    if moved or turned:
        row.wrong += 1
        sigma = np.sqrt(np.diagonal(covariance))
        row.notes.append(
            f"{note}: off by {np.linalg.norm(shift):.2f} m (sigma {sigma[:3].max():.3f} m) and "
            f"{np.rad2deg(np.linalg.norm(turn)):.2f} deg "
            f"(sigma {np.rad2deg(sigma[3:].max()):.3f} deg)"
        )
