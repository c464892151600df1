"""Message classes by the names that bags give them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def message_class(name: str) -> Any | None:
    """The class of, say, `sensor_msgs/msg/Image`; None where its package is not installed."""
    package, kind, message = name.split("/")
    try:
        return getattr(import_module(f"{package}.{kind}"), message)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != package:
            raise
        return None
