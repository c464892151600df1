"""Hold the house plan true: imports point one way, no cycles, ROS and torch in their rooms."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "hydranet_ros"

# Lower rooms know nothing of higher ones.
STOREYS: list[set[str]] = [
    {"settings", "errors", "files"},
    {"geometry"},
    {"gyro", "stereo_vo", "fusion", "simulation"},
    {"pipeline", "datasets", "training", "evaluation"},
    {"experiments", "view", "cli", "ros"},
]
STOREY = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}
PUBLIC_NAMES = "__init__"  # of the package itself: it names what users import from any room

ROS = {"rclpy", "cv_bridge", "ament_index_python", "tf2_ros", "message_filters", "launch_ros"}
ROS_SUFFIXES = ("_msgs", "_srvs", "_interfaces")
TORCH = {"torch", "torchvision", "safetensors"}
TORCH_ROOMS = {"gyro", "training", "experiments"}
VAGUE = {"utils", "util", "helpers", "helper", "manager", "managers", "common"}

MOST_MODULES = 224
MOST_IN_ROS = 24
MOST_NODE_LINES = 140
FEWEST_LINES = 40
MAY_BE_SHORT = {"cli/__main__.py"}

# Everybody who starts a command or a fusion node loads these.
LIGHT = (
    "hydranet_ros",
    "hydranet_ros.fusion",
    "hydranet_ros.pipeline",
    "hydranet_ros.cli.__main__",
)
HEAVY = ("torch", "matplotlib", "rosbags", "scipy.stats")


# --- the checker ---------------------------------------------------------------------------------


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def room(package: Path, path: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def imports(package: Path, path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever the import stands."""
    here = (package.name, *path.relative_to(package).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else ()
            start = ".".join((*base, node.module) if node.module else base)
            yield from (f"{start}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            words = (word.value for word in node.args if isinstance(word, ast.Constant))
            yield from (word for word in words if isinstance(word, str))


def top_level(package: Path, path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(package, path)}


def room_graph(package: Path) -> dict[str, dict[str, str]]:
    """For each room the rooms that it imports, and one file that does."""
    graph: dict[str, dict[str, str]] = {}
    rooms = {room(package, path) for path in modules(package)} - {PUBLIC_NAMES}
    for path in modules(package):
        name = room(package, path)
        if name == PUBLIC_NAMES:
            continue
        found = graph.setdefault(name, {})
        for imported in imports(package, path):
            parts = imported.split(".")
            if parts[0] == package.name and len(parts) > 1 and parts[1] in rooms - {name}:
                found.setdefault(parts[1], str(path.relative_to(package)))
    return graph


def cycles(graph: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """The groups of rooms that reach each other (strongly connected components)."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph.get(waiting.pop(), {}).keys() - seen
            seen |= new
            waiting += new
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in seen if start in reached[other]))
        for start, seen in reached.items()
        if start in seen
    }
    return [list(group) for group in sorted(groups)]


def broken_rules(package: Path) -> list[str]:
    """What a package does against the plan of the rooms; one line each."""
    graph = room_graph(package)
    broken = [f"{name} has no storey: add it to the plan" for name in graph.keys() - STOREY.keys()]
    for name, imported in graph.items():
        for other, where in imported.items():
            if STOREY.get(name, 99) < STOREY.get(other, -1):
                broken.append(f"{where}: {name} must not import {other}, which stands above it")
    for group in cycles(graph):
        edges = [
            f"{graph[name][other]} imports {other}"
            for name in group
            for other in group
            if other in graph[name]
        ]
        broken.append(f"cycle between {', '.join(group)}: {'; '.join(edges)}")
    known = {package.name + "." + name for name in (*graph, "__version__")}
    for folder in sorted({path.parent for path in modules(package)}):
        if not (folder / "__init__.py").is_file():
            broken.append(f"{folder.relative_to(package)} has no __init__.py")
    for path in modules(package):
        file, name, top = path.relative_to(package), room(package, path), top_level(package, path)
        ros = {each for each in top if each in ROS or each.endswith(ROS_SUFFIXES)}
        if ros and name != "ros":
            broken.append(f"{file}: {', '.join(sorted(ros))} outside ros/")
        if top & TORCH and name not in TORCH_ROOMS:
            broken.append(f"{file}: {', '.join(sorted(top & TORCH))} outside its rooms")
        own = [each for each in imports(package, path) if each.partition(".")[0] == package.name]
        if {".".join(each.split(".")[:2]) for each in own} - known:
            broken.append(f"{file}: import from the room, not from the public names")
        if VAGUE & {part.removesuffix(".py") for part in file.parts}:
            broken.append(f"{file}: name it after what it holds")
    return broken


# --- the house -----------------------------------------------------------------------------------


def test_the_rooms_follow_the_plan() -> None:
    broken = broken_rules(PACKAGE)
    assert not broken, "\n".join(broken)


def test_scipy_is_for_tests_only() -> None:
    """It is as large as all else that `pip install .` brings but OpenCV."""
    users = [path for path in modules(PACKAGE) if "scipy" in top_level(PACKAGE, path)]
    assert users == []


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_house_is_small() -> None:
    count, in_ros = len(modules(PACKAGE)), len(modules(PACKAGE / "ros"))
    assert count <= MOST_MODULES
    assert in_ros <= MOST_IN_ROS


def test_a_file_holds_a_whole_thought() -> None:
    thin = {
        str(path.relative_to(PACKAGE)): lines(path)
        for path in modules(PACKAGE)
        if path.name != "__init__.py" and lines(path) < FEWEST_LINES
    }
    assert thin.keys() <= MAY_BE_SHORT, thin


def test_nodes_read_alone() -> None:
    nodes = {path.name: lines(path) for path in (PACKAGE / "ros").glob("*_node.py")}
    assert nodes
    long = {name: count for name, count in nodes.items() if count > MOST_NODE_LINES}
    assert not long


def loaded_by(module: str) -> list[str]:
    """What of the heavy libraries an import of one module loads."""
    code = (
        f"import json, sys; before = set(sys.modules); import {module}; "
        f"print(json.dumps([name for name in {HEAVY!r} if name in set(sys.modules) - before]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", LIGHT)
def test_heavy_libraries_wait_until_they_are_used(module: str) -> None:
    assert loaded_by(module) == []


def test_a_fusion_node_loads_no_heavy_library() -> None:
    pytest.importorskip("rclpy", reason="no ROS 2 here: rclpy is absent")
    assert loaded_by("hydranet_ros.ros.fusion_node") == []


# --- the checker can fail ------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small package in which all is well."""
    package = tmp_path / "hydranet_ros"
    for name, text in {
        "__init__.py": "from hydranet_ros.fusion import window\n",
        "errors.py": "",
        "geometry/__init__.py": "",
        "geometry/lie.py": "import numpy\nfrom hydranet_ros import errors\n",
        "gyro/__init__.py": "",
        "gyro/network.py": "import torch\nfrom hydranet_ros.geometry.lie import exp\n",
        "fusion/__init__.py": "",
        "fusion/window.py": "from hydranet_ros.geometry import lie\n",
        "ros/__init__.py": "",
        "ros/fusion_node.py": "import rclpy\nfrom hydranet_ros.fusion.window import Window\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    assert broken_rules(package) == []
    return package


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("geometry/lie.py", "import hydranet_ros.fusion.window", "geometry must not import"),
        ("geometry/lie.py", "def f():\n    from hydranet_ros import fusion", "must not import"),
        ("errors.py", "from hydranet_ros.geometry.lie import exp", "errors must not import"),
        ("errors.py", "from .geometry.lie import exp", "errors must not import"),
        ("fusion/window.py", "from ..gyro import network\nimport rclpy", "rclpy outside ros/"),
        ("fusion/window.py", "from nav_msgs.msg import Odometry", "nav_msgs outside ros/"),
        ("fusion/window.py", "import torch.nn", "torch outside its rooms"),
        ("attic/ghost.py", "", "attic has no __init__.py"),
        ("attic/__init__.py", "", "attic has no storey"),
        ("errors.py", "importlib.import_module('hydranet_ros.fusion')", "errors must not import"),
        ("ros/fusion_node.py", "from hydranet_ros import Fusion", "import from the room"),
        ("ros/fusion_node.py", "import hydranet_ros as hn", "import from the room"),
        ("fusion/utils.py", "", "name it after what it holds"),
        ("common/__init__.py", "", "name it after what it holds"),
    ],
)
def test_the_checker_sees(house: Path, file: str, text: str, complaint: str) -> None:
    (house / file).parent.mkdir(exist_ok=True)
    (house / file).write_text(text, encoding="utf-8")
    assert any(complaint in line for line in broken_rules(house)), broken_rules(house)


def test_the_checker_sees_a_cycle_within_a_storey(house: Path) -> None:
    typing = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hydranet_ros import gyro"
    )
    (house / "fusion/window.py").write_text(typing, encoding="utf-8")
    assert broken_rules(house) == []
    (house / "gyro/network.py").write_text("import hydranet_ros.fusion", encoding="utf-8")
    (line,) = broken_rules(house)
    assert line.startswith("cycle between fusion, gyro: ")
    assert "gyro/network.py imports fusion" in line


def test_the_checker_sees_what_is_put_into_a_copy_of_the_house(tmp_path: Path) -> None:
    copy = tmp_path / "hydranet_ros"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    before = set(broken_rules(copy))
    (copy / "training" / "__init__.py").unlink()
    (copy / "geometry" / "lie.py").write_text("import hydranet_ros.cli.run", encoding="utf-8")
    new = "\n".join(set(broken_rules(copy)) - before)
    assert "training has no __init__.py" in new
    assert "geometry/lie.py: geometry must not import cli" in new
    assert "cycle between" in new


def test_the_tests_that_are_named_for_faults_are_there() -> None:
    page = (ROOT / "test" / "faults" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) > 50
    for file, name in named:
        text = (ROOT / "test" / file).read_text(encoding="utf-8")
        assert f"\ndef {name}(" in text, f"{file} has no {name}"
