"""Start nodes from commands: as processes of their own, because commands work without ROS."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from hydranet_ros.errors import HydraNetError

# The ROS wheels set it when they have prepared a process; inherited, a child would not be.
WHEELS_GUARD = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"


def require_ros() -> None:
    """Say what is missing, where there is no ROS 2."""
    if find_spec("rclpy") is None:
        raise HydraNetError(
            "there is no ROS 2 here (no rclpy): source an installation, or "
            "pip install 'hydranet_ros[kilted]'"
        )


def node_command(name: str, parameters: dict[str, str | int | float | bool]) -> list[str]:
    """The command line of a node of this package, in this Python."""
    words = [sys.executable, "-m", f"hydranet_ros.ros.{name}"]
    if parameters:
        words.append("--ros-args")
    for key, value in parameters.items():
        words += ["-p", f"{key}:={_yaml(value)}"]
    return words


def _yaml(value: str | float | bool) -> str:
    """As `--ros-args -p` reads it; a text is quoted, lest 09 be a number."""
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    return str(value).lower()
