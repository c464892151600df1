"""Real nodes in the test's own process: real topics, and their counts within reach."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from ros.node_processes import Bench

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
