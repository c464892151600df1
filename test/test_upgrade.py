"""Names of version 0.1 fail with what to write instead."""

from __future__ import annotations

import pytest
from command_line import exit_code

from hydranet_ros.errors import HydraNetError
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.pipeline import PipelineConfig
from hydranet_ros.ros.environment import RENAMED_ARGUMENTS, LaunchArguments
from hydranet_ros.settings import _RENAMED, renamed, update, walk


@pytest.mark.parametrize("name", [*_RENAMED, "flow.method", "flow.dis.tolerance_px"])
def test_an_old_setting_fails_with_the_new_one(name: str) -> None:
    """And the new one is there."""
    new = renamed(name)
    assert new is not None
    names = {item.name for item in walk(PipelineConfig)} | {
        f"fusion.{item.name}" for item in walk(FusionConfig)
    }
    first = new.partition(" ")[0].rstrip(",")
    nodes_own = first.startswith(("input.", "odometry."))  # tested where nodes are
    assert nodes_own or first in names
    if name not in names:
        with pytest.raises(ValueError, match=r"is not known: it is .* since 1\.0") as refused:
            update(PipelineConfig(), {name: 1})
        assert new in str(refused.value)


@pytest.mark.parametrize("name", RENAMED_ARGUMENTS)
def test_an_old_launch_argument_fails_with_the_new_one(name: str) -> None:
    with pytest.raises(HydraNetError) as refused:
        LaunchArguments({}).refuse_unknown([f"{name}:=x"], ["cameras", "odometry", "odom"])
    assert f"argument {name} is not known: it is {RENAMED_ARGUMENTS[name]}" in str(refused.value)


@pytest.mark.parametrize(
    ("option", "new"), [(["--max-frames", "5"], "--frames"), (["--mono"], "--cameras mono")]
)
def test_an_old_option_fails_with_the_new_one(
    option: list[str], new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("run", *option) == 2
    error = capsys.readouterr().err
    assert f"{option[0]} is {new} since 1.0" in error
    assert error.count("\n") == 1
