"""Run nodes as a process: start, spin, and end cleanly with an exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Any, NoReturn

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from hydranet_ros.errors import HydraNetError
from hydranet_ros.ros.environment import LAUNCHED
from hydranet_ros.ros.lifecycle import ManagedNode, RCLError
from hydranet_ros.ros.parameters import given_files, refuse_misspelt

SIGNAL_PERIOD_S = 0.1  # of looking for an interruption
ORPHAN_PERIOD_S = 0.5  # of looking for the process that has started this one
# A thread that comes back from OpenCV waits so long for another that is in Python. By Python's own
# 5 ms the median latency of three nodes in one process was 1 to 5 ms longer.
SWITCH_S = 0.0005


class Interruption:
    """SIGINT and SIGTERM: the first ends the node, further ones change nothing.

    `ros2 launch` and a terminal both send SIGINT, and the second must not break the clean end. A
    node that still starts has nothing to keep, and ends at once: to load torch may take long.
    """

    def __init__(self) -> None:
        self.came = False
        self.starting = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self.came = True
        if self.starting:
            leave(0)


def end_with_the_launch() -> None:
    """Interrupt this process when the launch that has started it is gone.

    `ros2 launch` interrupts its nodes when it is interrupted, not when it is terminated or killed.
    """
    parent = os.environ.get(LAUNCHED)
    if parent is None:
        return

    def watch() -> None:
        while str(os.getppid()) == parent:
            time.sleep(ORPHAN_PERIOD_S)
        os.kill(os.getpid(), signal.SIGINT)

    Thread(target=watch, name="parent", daemon=True).start()


def run(make: Callable[[], ManagedNode[Any]], arguments: list[str] | None = None) -> int:
    """Make a node and spin it until it is interrupted; the exit code is 0, 2 for bad input."""
    return run_together(lambda: [make()], arguments)


def run_together(
    make: Callable[[], Sequence[ManagedNode[Any]]],
    arguments: list[str] | None = None,
) -> int:
    """Make nodes of one process, and spin them by one executor."""
    sys.setswitchinterval(SWITCH_S)
    interruption = Interruption()
    end_with_the_launch()
    nodes: Sequence[ManagedNode[Any]] = []
    try:
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
        for file in given_files(sys.argv if arguments is None else arguments):
            refuse_misspelt(file)
        nodes = make()
        if not all(_started(node) for node in nodes if node.config.autostart):
            interruption.starting = False
            return 2
        _spin(nodes, interruption)
    except ExternalShutdownException:
        pass
    except (HydraNetError, RCLError) as error:
        interruption.starting = False
        # After a fault of our own the context is gone, and rclpy may trip over it.
        if not any(node.failed for node in nodes):
            print(" ".join(str(error).split()), file=sys.stderr)
            return 2
    finally:
        for node in nodes:
            node.end()
        # Executors are in circles of references, and hold what nodes had opened.
        gc.unfreeze()
        gc.collect()
        rclpy.try_shutdown()
    return 1 if any(node.failed for node in nodes) else 0


def leave(code: int) -> NoReturn:
    """End the process, with everything closed.

    Python would take torch apart first, which lasts seconds on a busy machine, and would end a
    worker in the middle of a frame by force.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _started(node: ManagedNode[Any]) -> bool:
    steps = (node.trigger_configure, node.trigger_activate)
    return all(step() == TransitionCallbackReturn.SUCCESS for step in steps)


def _spin(nodes: Sequence[ManagedNode[Any]], interruption: Interruption) -> None:
    interruption.starting = False
    executor = SingleThreadedExecutor()
    for node in nodes:
        executor.add_node(node)
    # What the start has made stays: to look through it again took 100 ms in the middle of a drive.
    gc.collect()
    gc.freeze()
    while not interruption.came:
        executor.spin_once(timeout_sec=SIGNAL_PERIOD_S)
    executor.shutdown()


# --- nodes that work by themselves until they are done -------------------------------------------


def run_until_stopped(
    name: str, work: Callable[[Event], None], arguments: list[str] | None = None
) -> int:
    """Work; bad input is one line and exit code 2, a signal sets the event and ends with 0."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    end_with_the_launch()
    rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    try:
        work(stop)
    except HydraNetError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    finally:
        rclpy.try_shutdown()
    return 0
