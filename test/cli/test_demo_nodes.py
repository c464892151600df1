"""The nodes of the demonstration as processes, without ROS: what they are given, how they end."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hydranet_ros.cli.demo_nodes import DemoConfig, ProcessGroup, parameters, stereo_stage
from hydranet_ros.errors import HydraNetError
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.gyro.visual_gyro import GyroConfig
from hydranet_ros.settings import update


def given(command: list[str]) -> list[str]:
    return [word for word in command if ":=" in word]


def test_nodes_are_given_what_differs_from_their_defaults() -> None:
    config = update(DemoConfig(), {"gyro.device": "cpu", "fusion.gyro.inflation": 9.0})
    found = stereo_stage(config).nodes
    fusion = {
        "fusion.odometry:='own'",
        "fusion.max_wait_s:=30.0",
        "fusion.gyro.inflation:=9.0",
    }
    assert fusion <= set(given(found["fusion_node"]))
    assert {"gyro.cameras:='stereo'", "gyro.device:='cpu'"} <= set(given(found["hydranet_node"]))
    assert "fusion.window_size:=10" not in fusion
    assert all(word.startswith("input.") for word in given(found["stereo_vo_node"]))
    assert parameters("fusion", FusionConfig()) == {}
    mono = replace(config, gyro=GyroConfig(cameras="mono"))
    alone = stereo_stage(mono).nodes["hydranet_node"]
    assert {"input.rectified:=true", "image:=left/image_rect"} <= set(given(alone))


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def test_processes_are_awaited_and_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    with ProcessGroup(tmp_path, dict(os.environ)) as nodes:
        nodes.start("forever", python("import time; print('ready'); time.sleep(600)"))
        nodes.wait_for_line("forever", "ready", 20.0)
        nodes.start("short", python("pass"))
        nodes.wait_for_end("short", 20.0)
        nodes.check_all()
    assert time.monotonic() - started < 30.0
    assert "KeyboardInterrupt" in nodes.log("forever").read_text()  # SIGINT was enough


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('[ERROR] [1.5] [node]: no weights')", "code 1: no weights"),
        ("raise SystemExit(3)", "code 3: it printed nothing"),
    ],
)
def test_a_process_that_fails_is_named_with_its_last_line(
    tmp_path: Path, code: str, why: str
) -> None:
    with ProcessGroup(tmp_path, dict(os.environ)) as nodes:
        nodes.start("some_node", python(code))
        with pytest.raises(HydraNetError, match=f"some_node ended with {why}"):
            nodes.wait_for_line("some_node", "ready", 20.0)


def test_what_takes_too_long_is_one_line(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, dict(os.environ)) as nodes:
        nodes.start("slow", python("import time; time.sleep(600)"))
        with pytest.raises(HydraNetError, match=r"not ready after 0\.1 s"):
            nodes.wait_for_line("slow", "ready", 0.1)
        with pytest.raises(HydraNetError, match=r"slow did not end in 0\.1 s"):
            nodes.wait_for_end("slow", 0.1)
