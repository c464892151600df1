"""Every test process talks to itself only: its own domain, loopback, its own log folder.

Images have the shared memory that the launch files give them.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

from hydranet_ros.ros import environment


def free_domain() -> tuple[int, IO[bytes]]:
    """A domain that no other test process on this machine is in, and the lock that keeps it."""
    for step in range(100):
        domain = 1 + (os.getpid() + step) % 100
        lock = (Path(tempfile.gettempdir()) / f"hydranet_ros_test_domain_{domain}").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return domain, lock
    raise RuntimeError("a hundred test processes are in all of the domains")


DOMAIN, LOCK = free_domain()
atexit.register(LOCK.close)
os.environ["ROS_DOMAIN_ID"] = str(DOMAIN)
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
if find_spec("rclpy"):
    os.environ.update(environment.fast_dds_profile())
# Launch files start nodes with the python3 of the environment.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
if "ROS_LOG_DIR" not in os.environ:
    os.environ["ROS_LOG_DIR"] = tempfile.mkdtemp(prefix="hydranet_ros_log_")
    atexit.register(shutil.rmtree, os.environ["ROS_LOG_DIR"], ignore_errors=True)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was never trained: any will do to compare nodes with the core."""
    torch = pytest.importorskip("torch", reason="rotations from images need torch")
    from hydranet_ros.gyro.config import preset
    from hydranet_ros.gyro.network import HydraNet
    from hydranet_ros.gyro.weights import Weights, save_weights
    from hydranet_ros.gyro.weights_file import Provenance

    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "untrained.safetensors"
    model = HydraNet(preset("default")).eval()
    save_weights(path, Weights(model, provenance=Provenance(flow_method="dis")))
    return path
