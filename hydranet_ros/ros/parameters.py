"""ROS parameters from configuration dataclasses: a default, a text and a bound exist once.

A field `window_size` of a section `fusion` is the parameter `fusion.window_size`. Setting a
parameter makes a whole configuration, so it is refused with the configuration's own words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import ParameterException
from rclpy.node import Node
from rclpy.parameter import Parameter

from hydranet_ros.errors import HydraNetError
from hydranet_ros.settings import Configuration, Setting, update, walk

Config = TypeVar("Config", bound=Configuration)


def descriptor(item: Setting) -> ParameterDescriptor:
    """What `ros2 param describe` and rqt show of a setting."""
    described = ParameterDescriptor(description=item.text, read_only=not item.live)
    low, high = item.low, item.high
    if item.choices:
        described.additional_constraints = f"one of {', '.join(item.choices)}"
    elif low is None and high is None:
        pass
    elif item.kind is int:
        span = IntegerRange(from_value=_whole(low, -(2**31)), to_value=_whole(high, 2**31 - 1))
        described.integer_range = [span]
    elif item.kind is float:
        largest = sys.float_info.max
        low, high = (-largest if low is None else low), (largest if high is None else high)
        span = FloatingPointRange(from_value=float(low), to_value=float(high))
        described.floating_point_range = [span]
    return described


def _whole(bound: float | None, otherwise: int) -> int:
    return otherwise if bound is None else int(bound)


class Parameters(Generic[Config]):
    """The parameters of a node as one frozen configuration, `config`, that is always valid.

    Setting parameters goes in two steps, as rclpy has it: the on-set callback validates and
    changes nothing, the post-set callback applies what was accepted.
    """

    def __init__(
        self, node: Node, kind: type[Config], changed: Callable[[Config], None] | None = None
    ) -> None:
        self._node, self._changed = node, changed
        self._names = {item.name: item for item in walk(kind)}
        for item in self._names.values():
            self._declare(item)
        try:
            self.config = update(kind(), self._values())
        except ValueError as error:
            raise HydraNetError(f"parameter {error}") from None
        node.add_on_set_parameters_callback(self._validate)
        node.add_post_set_parameters_callback(self._apply)

    def _declare(self, item: Setting) -> None:
        value = list(item.default) if isinstance(item.default, tuple) else item.default
        try:
            self._node.declare_parameter(item.name, value, descriptor(item))
        except ParameterException as error:
            raise HydraNetError(f"parameter {item.name}: {_one_line(error)}") from None

    def _values(self) -> dict[str, Any]:
        return {name: self._node.get_parameter(name).value for name in self._names}

    def _known(self, parameters: list[Parameter[Any]]) -> dict[str, Any]:
        return {each.name: each.value for each in parameters if each.name in self._names}

    def _validate(self, parameters: list[Parameter[Any]]) -> SetParametersResult:
        try:
            update(self.config, self._known(parameters))
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _apply(self, parameters: list[Parameter[Any]]) -> None:
        new = self._known(parameters)
        if new:
            self.config = update(self.config, new)
            if self._changed is not None:
                self._changed(self.config)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
