"""ROS parameters from configuration dataclasses: a default, a text and a bound exist once.

A field `window_size` of a section `fusion` is the parameter `fusion.window_size`. Setting a
parameter makes a whole configuration, so it is refused with the configuration's own words. What
is given at the start and not known is refused too.
"""

from __future__ import annotations

import difflib
import re
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
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
from hydranet_ros.settings import Configuration, Setting, read_yaml, renamed, update, walk

Config = TypeVar("Config", bound=Configuration)

NODES = (
    *("hydranet_node", "stereo_vo_node", "fusion_node", "hydranet_all"),
    *("player_node", "recorder_node"),
)
# How alike names must be for one to be meant by the other.
ALIKE = 0.75

# What the nodes of this package have between them. A file may set all of it for all nodes (`/**`).
SECTIONS = {
    *("nodes", "autostart", "threads", "cameras", "input", "rgbd", "imu", "gyro", "vo"),
    *("frames", "path", "odometry", "fusion", "output"),
}
QOS_OVERRIDES = "qos_overrides."  # declared by rclpy when a topic is opened


def descriptor(item: Setting) -> ParameterDescriptor:
    """What `ros2 param describe` and rqt show of a setting."""
    described = ParameterDescriptor(description=item.text)
    constraints = [f"one of {', '.join(item.choices)}"] if item.choices else []
    constraints += [] if item.live else ["only while the node is unconfigured"]
    described.additional_constraints = "; ".join(constraints)
    low, high = item.low, item.high
    if low is None and high is None:
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
    changes nothing, the post-set callback applies what was accepted. What is not `live` may be
    set while `in_use` says that nothing depends on it.
    """

    def __init__(
        self,
        node: Node,
        kind: type[Config],
        changed: Callable[[Config], None] | None = None,
        in_use: Callable[[], bool] = lambda: True,
    ) -> None:
        self._node, self._changed, self._in_use = node, changed, in_use
        self._names = {item.name: item for item in walk(kind)}
        # What files and `-p` say of this node. rclpy keeps it, and has no other way to ask.
        given: Mapping[str, Parameter[Any]] = node._parameter_overrides
        for item in self._names.values():
            self._declare(item, given.get(item.name))
        try:
            self._refuse_unknown(kind(), given)
            self.config = update(kind(), self._values())
        except ValueError as error:
            raise HydraNetError(f"parameter {error}") from None
        node.add_pre_set_parameters_callback(self._converted)
        node.add_on_set_parameters_callback(self._validate)
        node.add_post_set_parameters_callback(self._apply)

    def _declare(self, item: Setting, given: Parameter[Any] | None) -> None:
        value = item.default if given is None else _like(item.default, given.value)
        try:
            self._node.declare_parameter(
                item.name, _plain(value), descriptor(item), ignore_override=True
            )
        except (ParameterException, ValueError) as error:
            raise HydraNetError(f"parameter {item.name}: {_one_line(error)}") from None

    def _refuse_unknown(self, base: Config, given: Mapping[str, Parameter[Any]]) -> None:
        for name, parameter in given.items():
            if self._node.has_parameter(name) or name.startswith(QOS_OVERRIDES):
                continue
            section = name.partition(".")[0]
            others = section in SECTIONS and not hasattr(base, section)
            if others and (new := renamed(name)) is not None:
                raise ValueError(f"{name} is not known: it is {new} since 1.0")
            if others:
                self._node.get_logger().warning(f"parameter {name} is of another node")
            else:
                update(base, {name: parameter.value})

    def _values(self) -> dict[str, Any]:
        return {name: self._node.get_parameter(name).value for name in self._names}

    def _known(self, parameters: list[Parameter[Any]]) -> dict[str, Any]:
        return {each.name: _listed(each.value) for each in parameters if each.name in self._names}

    def _converted(self, parameters: list[Parameter[Any]]) -> list[Parameter[Any]]:
        """Numbers as people and `ros2 param load` write them: 1 for 1.0, and the text 1e-06."""
        return [self._number(each) for each in parameters]

    def _number(self, given: Parameter[Any]) -> Parameter[Any]:
        item, value = self._names.get(given.name), given.value
        if item is None or item.kind is not float or type(value) not in (int, str):
            return given
        try:
            return Parameter(given.name, Parameter.Type.DOUBLE, float(value))
        except ValueError:
            return given

    def _validate(self, parameters: list[Parameter[Any]]) -> SetParametersResult:
        known = self._known(parameters)
        try:
            update(self.config, known)
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        fixed = [name for name in known if self._is_new(name, known[name])]
        if fixed and self._in_use():
            reason = f"{fixed[0]} can be set only while the node is unconfigured"
            return SetParametersResult(successful=False, reason=reason)
        return SetParametersResult(successful=True)

    def _is_new(self, name: str, value: Any) -> bool:
        """Whether this would change what is not live."""
        now = self._node.get_parameter(name).value
        return not self._names[name].live and bool(_plain(now) != _plain(value))

    def _apply(self, parameters: list[Parameter[Any]]) -> None:
        new = self._known(parameters)
        if new:
            self.config = update(self.config, new)
            if self._changed is not None:
                self._changed(self.config)


def _like(default: Any, value: Any) -> Any:
    """A whole number for a float, as people write it; lists of them too."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, tuple) and default and value is not None and not isinstance(value, str):
        return [_like(default[0], each) for each in value]
    return value


def _listed(value: Any) -> Any:
    """A list for an array, as it comes in messages."""
    return value.tolist() if isinstance(value, array) else value


def _plain(value: Any) -> Any:
    """As rclpy takes it: a list for a tuple or an array."""
    return value if isinstance(value, (bool, int, float, str)) else list(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# --- files of parameters, before a node reads them -----------------------------------------------


def file_parameter(path: str, node: str, name: str) -> Any:
    """What a file of parameters says of one; None where it does not."""
    found = None
    for pattern, section in read_yaml(path).items():
        if pattern.rpartition("/")[2] in (node, "**") and isinstance(section, Mapping):
            value = _nested(section.get("ros__parameters"), name)
            found = found if value is None else value
    return found


def _nested(values: Any, name: str) -> Any:
    if not isinstance(values, Mapping):
        return None
    first, _, rest = name.partition(".")
    return values.get(name, _nested(values.get(first), rest) if rest else None)


def refuse_misspelt(path: str) -> None:
    """Refuse sections whose names are nearly those of our nodes: nobody would ever read them.

    Sections of other nodes are theirs, and so are those of ours by another name, as long as it
    has ours in it: fusion_node_2, front_fusion_node.
    """
    for name in _node_names(read_yaml(path)):
        if any(re.fullmatch(rf"(\w+_)?{node}(_?\d+|_\w+)?", name) for node in NODES):
            continue
        near = difflib.get_close_matches(name, NODES, 1, ALIKE)
        if near:
            raise HydraNetError(f"{path}: no node is called {name!r}: did you mean {near[0]!r}?")


def given_files(words: Sequence[str]) -> list[str]:
    """The files of parameters on a command line of ROS."""
    return [file for option, file in pairwise(words) if option == "--params-file"]


def _node_names(document: Mapping[str, Any]) -> Iterator[str]:
    """The last part of each section's name; a namespace may hold the sections of its nodes."""
    for pattern, section in document.items():
        yield str(pattern).rpartition("/")[2]
        if isinstance(section, Mapping) and "ros__parameters" not in section:
            yield from (str(name) for name in section)
