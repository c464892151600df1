"""What Fast DDS needs for large images: more shared memory than its default.

A message that finds the shared memory full is lost. A best-effort reader never gets it; a reliable
one gets it again when the publisher next tells what it has sent, which for small messages, such as
a camera_info, is every three seconds.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from hydranet_ros.share import share_file

PROFILE = "config/fastdds.xml"
SEGMENT = 512 * 1024  # bytes of shared memory by default
# Where Fast DDS 3 looks for its profiles, and where version 2 did; 3 warns of the old name.
VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
FIRST_RCLPY_WITH_3 = 9  # Kilted


def variable() -> str:
    """The one that the Fast DDS of this ROS 2 reads."""
    new, old = VARIABLES
    return new if int(version("rclpy").split(".")[0]) >= FIRST_RCLPY_WITH_3 else old


def profile() -> dict[str, str]:
    """The environment for processes with large images; what the user has chosen stays."""
    if any(name in os.environ for name in VARIABLES):
        return {}
    return {variable(): str(share_file(PROFILE))}


def missing_profile(message_bytes: int, middleware: str) -> str | None:
    """Advice, where images of so many bytes outgrow the shared memory of Fast DDS."""
    if 2 * message_bytes <= SEGMENT or "fastrtps" not in middleware:
        return None
    if any(Path(os.environ.get(name, "/nowhere")).is_file() for name in VARIABLES):
        return None
    return (
        f"images of {message_bytes // 1024} kB outgrow the 512 kB of shared memory that Fast DDS "
        "has by default: best-effort inputs lose some, reliable ones may wait for seconds. In the "
        f"camera's process and here, export {variable()}={share_file(PROFILE)}"
    )
