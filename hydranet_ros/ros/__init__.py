"""The nodes of this package.

A node's process can be interrupted from its first moment on: to import rclpy and torch takes
seconds, in which Python would answer with a traceback. There is nothing to keep yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def _is_node_process() -> bool:
    """Whether this process was started as a node, and not by a program that imports one."""
    if sys.argv[:1] == ["-m"]:  # while Python looks for the module to run
        return any(word.startswith(f"{__name__}.") for word in sys.orig_argv)
    return bool(sys.argv) and Path(sys.argv[0]).name.endswith("_node")


if _is_node_process():
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, lambda *_: os._exit(0))
