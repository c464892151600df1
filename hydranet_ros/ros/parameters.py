"""ROS parameters from configuration dataclasses: a default, a text and a bound exist once.

A field `window_size` of a nested field `fusion` is the parameter `fusion.window_size`. Whoever
sets a parameter gets the dataclass's own answer, because every set makes a whole configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import Field, fields, is_dataclass
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
from hydranet_ros.settings import default_of

Config = TypeVar("Config")


def walk(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """The name of every parameter of a configuration, and the field that it fills."""
    for item in fields(kind):
        default = default_of(item)
        if is_dataclass(default):
            yield from walk(type(default), f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", item


def build(kind: type[Config], values: dict[str, Any], prefix: str = "") -> Config:
    """Make a configuration from parameter values; a ValueError names what is wrong."""
    made: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        name, default = f"{prefix}{item.name}", default_of(item)
        if is_dataclass(default):
            made[item.name] = build(type(default), values, f"{name}.")
        else:
            value = values[name]
            made[item.name] = tuple(value) if isinstance(default, tuple) else value
    try:
        return kind(**made)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def descriptor(item: Field[Any]) -> ParameterDescriptor:
    """What `ros2 param describe` and rqt show of a field."""
    about = item.metadata
    described = ParameterDescriptor(description=about["description"], read_only=about["read_only"])
    low, high, default = about["low"], about["high"], default_of(item)
    if about["choices"]:
        described.additional_constraints = f"one of {', '.join(about['choices'])}"
    elif isinstance(default, bool) or (low is None and high is None):
        pass
    elif isinstance(default, int):
        span = IntegerRange(from_value=_whole(low, -(2**31)), to_value=_whole(high, 2**31 - 1))
        described.integer_range = [span]
    elif isinstance(default, float):
        largest = sys.float_info.max
        low, high = (-largest if low is None else low), (largest if high is None else high)
        span = FloatingPointRange(from_value=float(low), to_value=float(high))
        described.floating_point_range = [span]
    return described


def _whole(bound: float | None, otherwise: int) -> int:
    return otherwise if bound is None else int(bound)


class Parameters(Generic[Config]):
    """The parameters of a node as one frozen configuration, `config`, that is always valid."""

    def __init__(
        self, node: Node, kind: type[Config], changed: Callable[[Config], None] | None = None
    ) -> None:
        self._node, self._kind, self._changed = node, kind, changed
        self._names = dict(walk(kind))
        for name, item in self._names.items():
            self._declare(name, item)
        try:
            self.config = build(kind, self._values())
        except ValueError as error:
            raise HydraNetError(f"parameter {error}") from None
        node.add_on_set_parameters_callback(self._validate)

    def _declare(self, name: str, item: Field[Any]) -> None:
        default = default_of(item)
        value = list(default) if isinstance(default, tuple) else default
        try:
            self._node.declare_parameter(name, value, descriptor(item))
        except ParameterException as error:
            raise HydraNetError(f"parameter {name}: {_one_line(error)}") from None

    def _values(self) -> dict[str, Any]:
        return {name: self._node.get_parameter(name).value for name in self._names}

    def _validate(self, parameters: list[Parameter[Any]]) -> SetParametersResult:
        """Accept what makes a valid configuration, and tell the node about it."""
        new = {each.name: each.value for each in parameters if each.name in self._names}
        if not new:
            return SetParametersResult(successful=True)
        try:
            config = build(self._kind, {**self._values(), **new})
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self.config = config
        if self._changed is not None:
            self._changed(config)
        return SetParametersResult(successful=True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
