"""The commands that need ROS 2 say so where there is none."""

from __future__ import annotations

import sys

import pytest

from hydranet_ros.cli import __main__ as cli
from hydranet_ros.ros.environment import node_command


@pytest.mark.parametrize("command", ["play", "demo"])
def test_without_ros_it_is_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)
    assert cli.main([command]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hydranet {command}: this command needs rclpy")
    assert error.count("\n") == 1


def test_parameters_keep_their_types() -> None:
    command = node_command(
        "player_node", {"source": "09", "rate": 2.0, "loop": True, "n": 3, "all": ["it's", "b"]}
    )
    given = [word for word in command if ":=" in word]
    assert given == ["source:='09'", "rate:=2.0", "loop:=true", "n:=3", "all:=['it''s', 'b']"]
