"""`hydranet doctor` names faults of the machine that are put in on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code
from conftest import ROOT

from hydranet_ros.cli import installation
from hydranet_ros.ros.environment import WHEELS_GUARD

needs_ros = pytest.mark.skipif(find_spec("rclpy") is None, reason="no ROS 2 here")


def examined(environment: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and findings by subject of a doctor in another environment."""
    known = {name: value for name, value in os.environ.items() if name != WHEELS_GUARD}
    done = subprocess.run(
        [sys.executable, "-m", "hydranet_ros.cli", "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=known | environment,
    )
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["ok"] == (done.returncode == 0)
    return done.returncode, {each["subject"]: each for each in told["findings"]}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Libraries that end, or are cut off; variables of another machine; half of the weights."""
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "torch.py").write_text("import os; os._exit(3)\n", encoding="utf-8")
    (folder / "matplotlib.py").write_text("raise OSError('libfreetype.so.6')\n", encoding="utf-8")
    weights = (ROOT / "hydranet_ros/weights/default.safetensors").read_bytes()
    (folder / "half.safetensors").write_bytes(weights[: len(weights) // 2])
    environment = {
        "PYTHONPATH": str(folder),
        "RMW_IMPLEMENTATION": "rmw_fastrtps_dynamic_cpp",
        "ROS_DOMAIN_ID": "300",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "EVERYWHERE",
        "FASTDDS_DEFAULT_PROFILES_FILE": str(folder / "nowhere.xml"),
        "AMENT_PREFIX_PATH": "",
    }
    code, found = examined(environment, "--weights", str(folder / "half.safetensors"))
    assert code == 1
    return found


@pytest.mark.parametrize(
    ("subject", "level", "text", "remedy"),
    [
        ("torch", "error", "does not start", "pip install"),
        ("matplotlib", "error", "libfreetype.so.6", "pip install"),
        ("weights", "error", "damaged", "--weights"),
        pytest.param(
            "rclpy", "error", "which is not installed", "RMW_IMPLEMENTATION=", marks=needs_ros
        ),
        pytest.param("ROS_DOMAIN_ID", "error", "'300'", "ROS_DOMAIN_ID=0", marks=needs_ros),
        pytest.param(
            "ROS_AUTOMATIC_DISCOVERY_RANGE", "error", "EVERYWHERE", "LOCALHOST", marks=needs_ros
        ),
        pytest.param("shared memory", "error", "no such file", "fastdds.xml", marks=needs_ros),
        pytest.param("ament index", "warning", "does not find", "", marks=needs_ros),
    ],
)
def test_a_fault_of_the_machine_is_named(
    damaged: dict[str, Any], subject: str, level: str, text: str, remedy: str
) -> None:
    found = damaged[subject]
    assert found["level"] == level
    assert text in found["text"]
    assert remedy in found["remedy"]
    assert found["remedy"]
    assert damaged["numpy"]["level"] == "ok"  # what is sound beside it is told so


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['rclpy'] = sys.modules['numba'] = None\n", encoding="utf-8"
    )
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1')\n", encoding="utf-8")
    code, found = examined({"PYTHONPATH": str(tmp_path)})
    assert code == 1
    assert "libGL.so.1" in found["cv2"]["text"]
    assert found["weights"]["level"] == "error"
    for name in ("rclpy", "numba"):  # one can do without
        assert found[name]["level"] == "note"
        assert "is not installed" in found[name]["text"]
        assert "hydranet_ros[" in found[name]["remedy"]
    assert "ROS_DOMAIN_ID" not in found


def test_a_sound_machine_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("doctor") == 0
    said = capsys.readouterr().out
    assert "ok       weights: default.safetensors" in said
    assert "WRONG" not in said
    assert said.endswith("nothing is wrong that stops it\n")


def test_topics_need_ros(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)
    assert exit_code("doctor", "--topics") == 2
    assert capsys.readouterr().err.startswith("hydranet doctor: --topics needs rclpy")


@needs_ros
def test_shared_memory_that_is_full_or_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missing,) = installation._shared_memory(tmp_path / "shm")
    assert missing.level == "error"
    monkeypatch.setattr(installation, "SEGMENTS", 1 << 40)
    (full,) = installation._shared_memory(tmp_path)
    assert full.level == "warning"
    assert "--shm-size" in full.remedy
    assert installation.segment_size(ROOT / "config/fastdds.xml") == 32 << 20
