"""The command lines of nodes: started as processes, because commands work without ROS."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from hydranet_ros.errors import HydraNetError

# The ROS wheels set it when they have prepared a process; inherited, a child would not be.
WHEELS_GUARD = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"

Value = str | int | float | bool | Sequence[str]


def require_ros() -> None:
    """Say what is missing, where there is no ROS 2."""
    if find_spec("rclpy") is None:
        raise HydraNetError(
            "there is no ROS 2 here (no rclpy): source an installation, or "
            "pip install 'hydranet_ros[kilted]'"
        )


def node_command(
    name: str, parameters: Mapping[str, Value], remaps: Mapping[str, str] | None = None
) -> list[str]:
    """The command line of a node of this package, in this Python."""
    words = [sys.executable, "-m", f"hydranet_ros.ros.{name}", "--ros-args"]
    for key, value in parameters.items():
        words += ["-p", f"{key}:={_yaml(value)}"]
    for old, new in (remaps or {}).items():
        words += ["-r", f"{old}:={new}"]
    return words


def _yaml(value: Value) -> str:
    """As `--ros-args -p` reads it; a text is quoted, lest 09 be a number."""
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    if isinstance(value, Sequence):
        return f"[{', '.join(_yaml(each) for each in value)}]"
    return str(value).lower()
