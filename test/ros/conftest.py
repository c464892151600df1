"""Every test process talks to itself only: its own domain, loopback, its own log folder.

Images have the shared memory that the launch files give them.
"""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from hydranet_ros.ros import environment

os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 100)
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
if find_spec("rclpy"):
    os.environ.update(environment.fast_dds_profile())
os.environ.setdefault("ROS_LOG_DIR", tempfile.mkdtemp(prefix="hydranet_ros_log_"))


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was never trained: any will do to compare nodes with the core."""
    torch = pytest.importorskip("torch", reason="rotations from images need torch")
    from hydranet_ros.gyro.config import preset
    from hydranet_ros.gyro.network import HydraNet
    from hydranet_ros.gyro.weights import Provenance, Weights, save_weights

    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "untrained.safetensors"
    model = HydraNet(preset("default")).eval()
    save_weights(path, Weights(model, provenance=Provenance(flow_method="dis")))
    return path
