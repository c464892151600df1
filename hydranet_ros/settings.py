"""Configurations: frozen dataclasses whose fields carry a description and bounds.

`field(default=10, metadata=about("states in the window", 3))` says it once; `check` holds a
configuration to it, and ROS parameters are declared from it.
"""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from math import isfinite
from typing import Any


def about(
    text: str,
    low: float | None = 0.0,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    read_only: bool = False,
) -> dict[str, Any]:
    """Describe a field; bounds are inclusive, and only numbers have them.

    `read_only`: what cannot be changed while a node runs.
    """
    return {
        "description": text,
        "low": low,
        "high": high,
        "choices": choices,
        "read_only": read_only,
    }


def default_of(item: Field[Any]) -> Any:
    """The default of a field of a dataclass, which tells its type as well."""
    return item.default_factory() if callable(item.default_factory) else item.default


def check(config: Any) -> None:
    """Raise a ValueError that names the first field with a wrong type or out of its bounds."""
    for item in fields(config):
        if not is_dataclass(default_of(item)):
            _check_type(item, getattr(config, item.name))
            _check_bounds(item, getattr(config, item.name))


def _check_type(item: Field[Any], value: Any) -> None:
    kind = type(default_of(item))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return
    # bool is an int to Python, not to somebody who counts.
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{item.name} must be {_KINDS[kind]}{_bounds(item)}, got {value!r}")


def _check_bounds(item: Field[Any], value: Any) -> None:
    low, high, choices = (item.metadata.get(key) for key in ("low", "high", "choices"))
    if choices and value not in choices:
        raise ValueError(f"{item.name} must be one of {', '.join(choices)}, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    below = low is not None and value < low
    above = high is not None and value > high
    if not isfinite(value) or below or above:
        raise ValueError(
            f"{item.name} must be {_KINDS[type(default_of(item))]}{_bounds(item)}, got {value!r}"
        )


def _bounds(item: Field[Any]) -> str:
    low, high = item.metadata.get("low"), item.metadata.get("high")
    if type(default_of(item)) not in (int, float) or (low is None and high is None):
        return ""
    if low is None:
        return f" of at most {high:g}"
    return f" of at least {low:g}" if high is None else f" from {low:g} to {high:g}"


_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
}
