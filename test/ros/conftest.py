"""Every test process talks to itself only: its own domain, loopback, its own log folder."""

from __future__ import annotations

import os
import tempfile

os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 100)
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ.setdefault("ROS_LOG_DIR", tempfile.mkdtemp(prefix="hydranet_ros_log_"))
