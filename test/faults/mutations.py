"""Messages gone wrong: any field of any message, by a seeded choice."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from rclpy.serialization import serialize_message

from hydranet_ros.ros.conversions import stamp_ns, time_message

Random = np.random.Generator

FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, -1e300, 5e-324, 1e18, -1.0, 9999.0)
FACTORS = (-1.0, 1e3, 1e6, 1e-6)
TEXTS = ("", "somebody_else", "base_link", "odom", "camera_left", "/", "a b\n\x1b[31m", "ä" * 300)
LONG_TEXT = "x" * 100_000
ENCODINGS = ("", "mono8", "bgr8", "rgba8", "mono16", "16UC1", "32FC1", "64FC4", "yuv422", "nv12")
ENCODINGS += ("bayer_rggb8", "bayer_gbrg16", "8UC1", "8UC1000000", "jpeg", "-1", "MONO8", "yuv411")
MODELS = ("", "plumb_bob", "equidistant", "rational_polynomial", "fisheye", "none")
LIMITS = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "uint8": (0, 255)}
SECOND = 1_000_000_000
HOUR = 3600 * SECOND
SHIFTS = (-HOUR, -SECOND, -50_000_000, -1, 0, 1, SECOND // 2, HOUR, SECOND**2)
ABSOLUTE = ((0, 0), (0, 1), (2**31 - 1, SECOND - 1), (-(2**31), 0), (5, 2**32 - 1), (-1, SECOND))


def mutated(rng: Random, message: Any) -> Any:
    """A copy with one to three fields gone wrong; some as bytes that no publisher would write."""
    out = deepcopy(message)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(out))
        parent, name, kind = places[rng.integers(len(places))]
        _spoil(rng, parent, name, kind)
    return _scrambled(rng, serialize_message(out)) if rng.random() < 0.02 else out


def mutated_stamp(rng: Random, message: Any) -> Any:
    """A copy with a stamp that is not its own."""
    out, stamp = deepcopy(message), stamp_ns(message.header.stamp)
    if rng.random() < 0.3:
        sec, nanosec = ABSOLUTE[rng.integers(len(ABSOLUTE))]
        out.header.stamp.sec, out.header.stamp.nanosec = sec, nanosec
    else:
        shifted = stamp + SHIFTS[rng.integers(len(SHIFTS))]
        out.header.stamp = time_message(min(max(shifted, 0), (2**31 - 1) * SECOND))
    return out


def _scrambled(rng: Random, data: bytes) -> bytes:
    """Cut off, or with some bytes of the strings and the numbers replaced."""
    if rng.random() < 0.3:
        return data[: rng.integers(4, len(data))]
    out = bytearray(data)
    for at in rng.integers(4, len(data), 4):
        out[at] = rng.integers(256)
    return bytes(out)


def _places(message: Any) -> Iterator[tuple[Any, str, str]]:
    """Every field that is no message itself: its message, its name, its type."""
    for name, kind in message.get_fields_and_field_types().items():
        value = getattr(message, name)
        if hasattr(value, "get_fields_and_field_types"):
            yield from _places(value)
        else:
            yield message, name, kind


def _spoil(rng: Random, parent: Any, name: str, kind: str) -> None:
    value = getattr(parent, name)
    if kind == "double":
        setattr(parent, name, _wrong_number(rng, value))
    elif kind == "string":
        setattr(parent, name, _wrong_text(rng, name))
    elif kind in LIMITS:
        setattr(parent, name, _wrong_integer(rng, value, *LIMITS[kind]))
    elif kind == "boolean":
        setattr(parent, name, not value)
    elif kind == "sequence<uint8>":
        setattr(parent, name, _wrong_bytes(rng, bytes(value)))
    elif kind == "sequence<double>":
        setattr(parent, name, _wrong_length(rng))
    elif "double[" in kind:
        setattr(parent, name, _wrong_matrix(rng, np.array(value)))
    else:
        raise NotImplementedError(kind)


def _wrong_number(rng: Random, value: float) -> float:
    if value and rng.random() < 0.4:
        return float(value * FACTORS[rng.integers(len(FACTORS))])
    return float(FLOATS[rng.integers(len(FLOATS))])


def _wrong_text(rng: Random, name: str) -> str:
    if rng.random() < 0.01:
        return LONG_TEXT
    choices = {"encoding": ENCODINGS, "distortion_model": MODELS}.get(name, TEXTS)
    return str(choices[rng.integers(len(choices))])


def _wrong_integer(rng: Random, value: int, least: int, most: int) -> int:
    choices = (least, most, 0, 1, value - 1, value + 1, 2 * value, value // 2, 100_000)
    return int(min(max(choices[rng.integers(len(choices))], least), most))


def _wrong_bytes(rng: Random, data: bytes) -> bytes:
    cut = int(rng.integers(len(data) + 1))
    choices = (b"", b"garbage", data[:cut], data[:-1], data + b"\0", rng.bytes(min(cut, 5000)))
    return choices[rng.integers(len(choices))]


def _wrong_length(rng: Random) -> list[float]:
    length = int(rng.choice((0, 1, 4, 5, 8, 12, 14, 15, 1000)))
    return [_wrong_number(rng, 1.0) for _ in range(length)]


def _wrong_matrix(rng: Random, values: np.ndarray) -> np.ndarray:
    """One number, some, or all; a covariance also by axis, or no longer symmetric."""
    size, way = int(np.sqrt(len(values))), rng.integers(6)
    if way == 0:
        values[:] = _wrong_number(rng, 1.0)
    elif way == 1:
        values[rng.integers(len(values), size=3)] = _wrong_number(rng, 1.0)
    elif way == 2 and size**2 == len(values):
        axes = rng.integers(size, size=2)
        values.reshape(size, size)[axes, axes] = rng.choice((0.0, -1e-6, 1e-12, 1e6, 1e12, 9999.0))
    elif way == 3:
        values[rng.integers(1, len(values))] += rng.choice((1e-3, 1.0, -10.0))
    elif way == 4:
        values *= rng.choice((0.0, -1.0, 1e6, 1e-12))
    else:
        at = rng.integers(len(values))
        values[at] = _wrong_number(rng, float(values[at]))
    return values
