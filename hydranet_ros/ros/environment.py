"""What surrounds a node: its installed files, its command line, its DDS settings. No rclpy here.

Fast DDS and large images: a message that finds the shared memory full is lost. A best-effort
reader never gets it. A reliable one gets it again when the publisher next announces what it has
sent, which for small messages, such as a camera_info, is every three seconds.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from hydranet_ros.errors import FileError, HydraNetError

PACKAGE = "hydranet_ros"
PROFILE = "config/fastdds.xml"
SEGMENT = 512 * 1024  # bytes of shared memory by default
# Where Fast DDS 3 looks for its profiles, and where version 2 did; 3 warns of the old name.
VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
FIRST_RCLPY_WITH_3 = 9  # Kilted
# The ROS wheels set it when they have prepared a process; who inherits it is not prepared.
WHEELS_GUARD = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
# DDS: participant p of domain d has UDP ports 7400 + 250 d + 10 + 2 p and the next one. Domains
# above 101 reach into the ports that Linux gives away.
DOMAINS = range(1, 102)
PARTICIPANTS = 8

Value = str | int | float | bool | Sequence[str]


def share_file(name: str) -> Path:
    """The path of, say, `config/fastdds.xml`, installed or in the source tree."""
    source = Path(__file__).resolve().parents[2]  # an editable install, or the source tree itself
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    shares = [Path(prefix) / "share" / PACKAGE for prefix in prefixes if prefix]
    for folder in (source, *shares):
        if (folder / name).is_file():
            return folder / name
    raise FileError(name, f"is not installed with {PACKAGE}: install it again")


# --- Fast DDS ------------------------------------------------------------------------------------


def fast_dds_variable() -> str:
    """The environment variable that the Fast DDS of this ROS 2 reads."""
    new, old = VARIABLES
    return new if int(version("rclpy").split(".")[0]) >= FIRST_RCLPY_WITH_3 else old


def fast_dds_profile() -> dict[str, str]:
    """The environment for processes with large images; what the user has chosen stays."""
    if any(name in os.environ for name in VARIABLES):
        return {}
    return {fast_dds_variable(): str(share_file(PROFILE))}


def missing_profile(message_bytes: int, middleware: str) -> str | None:
    """Advice, where images of so many bytes outgrow the shared memory of Fast DDS."""
    if 2 * message_bytes <= SEGMENT or "fastrtps" not in middleware:
        return None
    if any(Path(os.environ.get(name, "/nowhere")).is_file() for name in VARIABLES):
        return None
    return (
        f"images of {message_bytes // 1024} kB outgrow the 512 kB of shared memory that Fast DDS "
        "has by default: best-effort inputs lose some, reliable ones may wait for seconds. In the "
        f"camera's process and here, export {fast_dds_variable()}={share_file(PROFILE)}"
    )


# --- nodes as processes --------------------------------------------------------------------------


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


def private_environment(logs: Path) -> dict[str, str]:
    """For processes that shall meet nobody else: this machine, a free domain, large buffers."""
    known = {name: value for name, value in os.environ.items() if name != WHEELS_GUARD}
    return {
        **known,
        "ROS_DOMAIN_ID": str(free_domain()),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_LOG_DIR": str(logs.resolve() / "ros"),
        **fast_dds_profile(),
        "PYTHONUNBUFFERED": "1",
    }


def free_domain() -> int:
    """A ROS domain that no process on this machine is in."""
    domains = list(DOMAINS)
    random.shuffle(domains)
    for domain in domains:
        if all(_is_free(7410 + 250 * domain + offset) for offset in range(2 * PARTICIPANTS)):
            return domain
    raise HydraNetError(
        f"no ROS domain from {DOMAINS[0]} to {DOMAINS[-1]} has its UDP ports free: end other nodes"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
