"""Configurations: the one way they are declared, checked, read and written.

A configuration is a frozen dataclass. Each field says its default, what it means, its bounds, and
whether it may change while a node runs:

    @dataclass(frozen=True)
    class FusionConfig(Configuration):
        window_size: int = setting(10, "states in the window", 3)
        kernel: Literal["none", "huber"] = setting("huber", "robust kernel of odometry edges")
        flow: FlowConfig = section(FlowConfig)

`check` holds the values to the type hints and bounds whenever a configuration is made. `update`
takes nested or dotted mappings: YAML files, ROS parameters, weights metadata, `--set a.b=1`.
`dump` and `walk` give config.yaml, ROS descriptors and reference tables.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from math import isfinite
from os import PathLike
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from hydranet_ros.errors import FileError, HydraNetError, printable
from hydranet_ros.files import read_text

LARGEST_YAML = 1 << 18  # bytes
DEEPEST = 20  # of what is nested in a file

C = TypeVar("C", bound="Configuration")
T = TypeVar("T")


# --- declaring -----------------------------------------------------------------------------------


def setting(
    default: Any,
    text: str,
    low: float | None = 0.0,
    high: float | None = None,
    *,
    live: bool = True,
) -> Any:
    """Declare a field. Bounds are inclusive and hold for numbers, also within tuples.

    Most numbers must not be negative, so `low` is 0 unless another bound, or None, is given.
    `live` settings may change while a node runs.
    """
    metadata = {"text": text, "low": low, "high": high, "live": live}
    if isinstance(default, Mapping):  # each instance has its own
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type[T], **defaults: Any) -> T:
    """Declare a field that is a configuration itself, with some defaults replaced."""
    made: T = field(default_factory=lambda: kind(**defaults))
    return made


@dataclass(frozen=True)
class Configuration:
    """The base of all configurations: checked whenever one is made."""

    def __post_init__(self) -> None:
        check(self)
        self.validate()

    def validate(self) -> None:
        """Check what no field can tell alone; a ValueError begins with the field's name."""


@dataclass(frozen=True)
class Setting:
    """A leaf of a configuration: its dotted name and all that its declaration says."""

    name: str
    default: Any
    kind: Any  # the type hint
    text: str
    low: float | None
    high: float | None
    live: bool

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that a Literal allows; empty for other types."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def range_text(self) -> str:
        """The bounds in words, for numbers: ` from 1 to 3`; empty where there are none."""
        return _range(self.low, self.high) if _is_numeric(self.kind) else ""


def walk(kind: type[Configuration] | Configuration, prefix: str = "") -> Iterator[Setting]:
    """Every leaf of a configuration class, or of an instance with its values as defaults."""
    instance = kind() if isinstance(kind, type) else kind
    hints = _hints(type(instance))
    for item in fields(instance):
        value, name = getattr(instance, item.name), f"{prefix}{item.name}"
        if isinstance(value, Configuration):
            yield from walk(value, f"{name}.")
        elif _section_kind(type(instance), item.name) is None:
            about = item.metadata
            yield Setting(
                name,
                value,
                hints[item.name],
                about["text"],
                about["low"],
                about["high"],
                about["live"],
            )


_hints: Callable[[type], dict[str, Any]] = cache(get_type_hints)


def _section_kind(kind: type[Configuration], name: str) -> type[Configuration] | None:
    """The class of a field that is a configuration, or may be None instead of one."""
    hint = _hints(kind)[name]
    for each in (hint, *get_args(hint)):
        if isinstance(each, type) and issubclass(each, Configuration):
            return each
    return None


# --- checking ------------------------------------------------------------------------------------


def check(config: Configuration) -> None:
    """Raise a ValueError that names the first field with a wrong type or out of its bounds.

    Whole numbers for floats become floats, lists become tuples.
    """
    hints = _hints(type(config))
    for item in fields(config):
        value = getattr(config, item.name)
        try:
            checked = _checked(value, hints[item.name], item)
        except _WrongValue as wrong:
            raise ValueError(f"{item.name} must be {wrong}, got {_shown(value)}") from None
        if checked is not value:
            object.__setattr__(config, item.name, checked)


class _WrongValue(Exception):  # noqa: N818 - it carries what was expected, and stays in here
    """What the value should have been."""


def _checked(value: Any, kind: Any, item: Field[Any]) -> Any:
    """The value as the type hint has it, or a _WrongValue that says what was expected."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _WrongValue(f"one of {', '.join(map(str, arguments))}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (inner,) = (each for each in arguments if each is not type(None))
        return _checked(value, inner, item)
    if origin is tuple:
        return _checked_tuple(value, arguments, item)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _WrongValue("a mapping of names to values")
        return {key: _checked(each, arguments[1], item) for key, each in value.items()}
    if kind in (int, float):
        return _checked_number(value, kind, item)
    if kind is Any:
        return value
    if kind is str and isinstance(value, str) and "\0" in value:
        raise _WrongValue("a text without NUL")
    if not isinstance(value, kind):
        raise _WrongValue(_KINDS.get(kind, f"a {getattr(kind, '__name__', kind)}"))
    return value


def _checked_tuple(value: Any, arguments: tuple[Any, ...], item: Field[Any]) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise _WrongValue("a list")
    if arguments[-1] is Ellipsis:
        return tuple(_checked(each, arguments[0], item) for each in value)
    if len(value) != len(arguments):
        raise _WrongValue(f"a list of {len(arguments)}")
    return tuple(_checked(v, kind, item) for v, kind in zip(value, arguments, strict=True))


def _checked_number(value: Any, kind: type, item: Field[Any]) -> int | float:
    low, high = item.metadata.get("low"), item.metadata.get("high")
    expected = f"{_KINDS[kind]}{_range(low, high)}"
    # bool is an int to Python, not to somebody who counts.
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise _WrongValue(expected)
    try:
        if not isfinite(value) or (low is not None and value < low):
            raise _WrongValue(expected)
    except OverflowError:  # a whole number beyond every float
        raise _WrongValue(expected) from None
    if high is not None and value > high:
        raise _WrongValue(expected)
    return kind(value)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f" of at most {high:g}"
    return f" of at least {low:g}" if high is None else f" from {low:g} to {high:g}"


def _is_numeric(kind: Any) -> bool:
    return kind in (int, float) or any(_is_numeric(each) for each in get_args(kind))


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list in itself
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- names of version 0.1 ------------------------------------------------------------------------

_RENAMED = {
    "stereo": "gyro.cameras",
    "rectified": "input.rectified",
    "input.max_interval_s": "gyro.max_interval_s, or vo.max_interval_s of stereo_vo_node",
    "max_wait_s": "fusion.max_wait_s",
    "vo.calibration_share": "vo.scale_sigma",
    "fusion.vo_kernel": "fusion.odometry_kernel",
    **{name: f"gyro.{name}" for name in ("weights", "device", "half")},
    **{
        f"vo.{name}": f"odometry.{name}"
        for name in ("covariance", "sigma_m", "sigma_deg", "max_speed", "max_turn_rate_deg")
    },
    **{
        f"{section}.{name}": f"input.{name}"
        for section in ("vo", "rotation")
        for name in ("reliability", "depth", "silence_s")
    },
    **{
        f"fusion.vo_{name}": f"fusion.visual.{name} (or of own, wheels)"
        for name in ("scale", "floor_m", "floor_deg")
    },
    **{
        f"fusion.rotation_{name}": f"fusion.hydranet.{name} (or of gyro)"
        for name in ("floor_deg", "inflation", "scale_noise")
    },
    **{
        f"fusion.{name}": f"fusion.hydranet.{name} (or of gyro)"
        for name in ("bias_sigma_deg_s", "bias_walk_deg_s")
    },
}


def renamed(name: str) -> str | None:
    """What to write instead of a setting of version 0.1; None where it was none."""
    return f"gyro.{name}" if name.startswith("flow.") else _RENAMED.get(name)


# --- reading and writing -------------------------------------------------------------------------


def update(base: C, values: Mapping[str, Any], prefix: str = "") -> C:
    """Replace some fields of a configuration, and of those within it.

    Keys are names, or dotted paths. An unknown key is a ValueError that names the nearest known.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{prefix.rstrip('.') or 'it'} must be a mapping of names to values")
    known = {item.name for item in fields(base)}
    changes: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, _, rest = str(key).partition(".")
        if name not in known:
            new = renamed(f"{prefix}{key}")
            hint = _nearest(str(key), base, prefix) if new is None else f": it is {new} since 1.0"
            raise ValueError(f"{prefix}{key} is not known{hint}")
        nests = _section_kind(type(base), name) is not None
        if nests and not isinstance(value, Configuration) and (rest or value is not None):
            inner = {rest: value} if rest else value
            if not isinstance(inner, Mapping):
                raise ValueError(f"{prefix}{name} must be a mapping of names to values")
            nested.setdefault(name, {}).update(inner)
        elif rest and isinstance(getattr(base, name), Mapping):
            changes[name] = {**changes.get(name, getattr(base, name)), rest: value}
        elif rest:
            raise ValueError(f"{prefix}{key} is not known: {prefix}{name} has no parts")
        else:
            changes[name] = value
    for name, inner in nested.items():
        kind, old = _section_kind(type(base), name), getattr(base, name)
        assert kind is not None
        changes[name] = update(kind() if old is None else old, inner, f"{prefix}{name}.")
    try:
        return replace(base, **changes)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def _nearest(key: str, base: Configuration, prefix: str) -> str:
    """A hint: the known name that is most like an unknown one."""
    names = [each.name for each in walk(base)] + [item.name for item in fields(base)]
    found = difflib.get_close_matches(key, names, 1, 0.5)
    if not found:  # a right name in a wrong section
        last = key.rpartition(".")[2]
        found = [name for name in names if name.rpartition(".")[2] == last][:1]
    if found:
        return f": did you mean {prefix}{found[0]}?"
    return f": known are {', '.join(sorted({item.name for item in fields(base)}))}"


def complete(kind: type[C], values: Any) -> C:
    """Make a configuration from values for all of its fields: one that was stored."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{kind.__name__} must be an object, got {_shown(values)}")
    missing = sorted({item.name for item in fields(kind)} - set(values))
    if missing:
        raise ValueError(f"{kind.__name__} lacks {missing[0]}")
    made: dict[str, Any] = {}
    for item in fields(kind):
        inner, value = _section_kind(kind, item.name), values[item.name]
        made[item.name] = value if inner is None or value is None else complete(inner, value)
    for key in values:
        if key not in made:
            raise ValueError(f"{key} is not known{_nearest(str(key), kind(**made), '')}")
    return kind(**made)


def dump(config: Configuration) -> dict[str, Any]:
    """Plain nested values, as YAML and JSON have them."""
    return {item.name: _plain(getattr(config, item.name)) for item in fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, Configuration):
        return dump(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def to_yaml(config: Configuration, comment: str = "") -> str:
    """The text of a configuration file, headed by a comment."""
    lines = [f"# {printable(line)}".rstrip() for line in comment.splitlines()]
    return "\n".join([*lines, yaml.safe_dump(dump(config), sort_keys=False)])


class _Loader(yaml.SafeLoader):
    """YAML without aliases, by which a few lines become gigabytes, and without depth."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases (*name) are not read here: write the values out")
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"'{_shown(twice)}' is there twice")
        return super().construct_mapping(node, deep)


def from_yaml(text: str) -> Any:
    """Plain values; a ValueError says in a line what is wrong."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def read_yaml(path: str | PathLike[str]) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        values = from_yaml(read_text(path, LARGEST_YAML))
    except ValueError as error:
        raise FileError(path, f"is not YAML: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise FileError(path, "must be a mapping of names to values")
    return values


def configured(
    base: C, path: str | PathLike[str] | None = None, assignments: Sequence[str] = ()
) -> C:
    """`base`, then what a file says, then assignments `a.b=1` as of --set."""
    if path is not None:
        try:
            base = update(base, read_yaml(path))
        except ValueError as error:
            raise FileError(path, str(error)) from None
    for text in assignments:
        name, equals, value = text.partition("=")
        try:
            if not equals:
                raise ValueError("expected NAME=VALUE")
            base = update(base, {name.strip(): from_yaml(value)})
        except ValueError as error:
            raise HydraNetError(f"--set {text}: {error}") from None
    return base


def default_of(item: Field[Any]) -> Any:
    """The default of a field of a dataclass."""
    return item.default if item.default is not MISSING else item.default_factory()  # type: ignore[operator]


def is_section(item: Field[Any]) -> bool:
    """Whether a field is a configuration itself."""
    return is_dataclass(default_of(item))
