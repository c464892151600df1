"""Bags of ROS 2 (sqlite3 and mcap), read and written without ROS, by the library rosbags."""

from __future__ import annotations

from importlib.util import find_spec

from hydranet_ros.errors import HydraNetError

# Whoever imports a module of this room comes by here first and gets one line instead of a trace.
if find_spec("rosbags") is None:
    raise HydraNetError("bags need the library rosbags: pip install rosbags")
