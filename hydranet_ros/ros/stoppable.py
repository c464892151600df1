"""Run a node that works by itself until it is done, or until a signal stops it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from threading import Event

import rclpy
from rclpy.signals import SignalHandlerOptions

from hydranet_ros.errors import HydraNetError


def run_until_stopped(
    name: str, work: Callable[[Event], None], arguments: list[str] | None = None
) -> int:
    """Work; bad input is one line and exit code 2, a signal sets the event and ends with 0."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    try:
        work(stop)
    except HydraNetError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    finally:
        rclpy.try_shutdown()
    return 0
