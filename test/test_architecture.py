"""Hold the house plan true: imports point one way, and ROS and torch stay in their rooms."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hydranet_ros

PACKAGE = Path(hydranet_ros.__file__).parent

# Lower rooms know nothing of higher ones.
STOREYS = [
    {"devices", "errors", "files", "lie", "settings", "share"},
    {"camera", "estimates", "trajectory", "metrics", "fast_dds"},
    {"flow", "flow_torch", "network", "stereo_vo", "fusion", "simulation", "sensor_messages"},
    {"training", "gyro", "pipeline", "sources", "bags", "report"},
    {"experiments", "demo", "commands"},
    {"cli", "ros"},
]
STOREY = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}
ROS = {"rclpy", "cv_bridge", "ament_index_python", "tf2_ros", "message_filters"}
NEEDS_TORCH = {"devices", "flow_torch", "network", "training", "experiments"}

FILES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def top_level(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def own_rooms(path: Path) -> set[str]:
    own = {name.split(".")[1] for name in imports(path) if name.startswith("hydranet_ros.")}
    return own - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        assert not imports(path)
        return
    assert room(path) in STOREY, f"{room(path)} has no storey: add it to the plan"
    for imported in own_rooms(path) - {room(path)}:
        assert STOREY[imported] <= STOREY[room(path)], f"{path} must not import {imported}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_ros_stays_in_its_room(path: Path) -> None:
    modules = top_level(path)
    foreign = {name for name in modules if name in ROS or name.endswith(("_msgs", "_srvs"))}
    assert room(path) == "ros" or not foreign


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_stays_in_its_rooms(path: Path) -> None:
    assert room(path) in NEEDS_TORCH or "torch" not in top_level(path)
