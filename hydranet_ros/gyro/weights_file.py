"""Files of weights: safetensors, with everything that made them as JSON in their metadata.

Read without torch. Every name, shape and type is checked before anything is allocated, and no code
from a file is ever run.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hydranet_ros.errors import FileError
from hydranet_ros.files import unreadable, whole_file
from hydranet_ros.gyro.config import Calibration, NetworkConfig
from hydranet_ros.settings import Configuration, complete, dump, setting

FORMAT_VERSION = 2  # 1: a body on a fixed grid, of version 0.1
_KEY, _DIGEST = "hydranet", "sha256"  # one key of the metadata: several have no order
# A header is parsed before it can be checked, and a file read before it is known to be sound.
LARGEST_HEADER, LARGEST_FILE = 1 << 20, 256 << 20
_SECTIONS = {"format_version", "network", "calibration", "provenance"}
FlowMethod = Literal["auto", "dis", "farneback", "farneback_torch"]
Tensors = Mapping[str, NDArray[Any]]
# The shape and the type of each tensor of a network.
Layout = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Provenance(Configuration):
    """Where weights come from: enough to make them again."""

    flow_method: Literal["unknown", "auto", "dis", "farneback", "farneback_torch"] = setting(
        "unknown", "flow they were trained on; a Predictor should get the same"
    )
    command: str = setting("", "the command that trained them")
    data: str = setting("", "what they were trained on, in words")
    seed: int = setting(0, "seed of the training", 0, 2**63 - 1)
    validation: Mapping[str, float] = setting({}, "figures on held-out data, with units", None)

    @property
    def flow(self) -> FlowMethod:
        """The flow to feed them with: what they were trained on, `auto` where that is unknown."""
        return "auto" if self.flow_method == "unknown" else self.flow_method


@dataclass(frozen=True)
class WeightsFile:
    """What a file holds."""

    config: NetworkConfig
    calibration: Calibration
    provenance: Provenance
    tensors: Tensors


def write_file(path: str | PathLike[str], content: WeightsFile) -> None:
    """Write a file, whole or not at all: an interrupted training leaves the old one."""
    description: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "network": dump(content.config),
        "calibration": dump(content.calibration),
        "provenance": dump(content.provenance),
    }
    description[_DIGEST] = _digest(description, content.tensors)
    data = save(dict(content.tensors), {_KEY: json.dumps(description, allow_nan=False)})
    with whole_file(path) as file:
        file.write(data)


def read_file(
    path: str | PathLike[str], layout: Callable[[Path, NetworkConfig], Layout]
) -> WeightsFile:
    """Read a file written by `write_file`; `layout` tells the tensors of a network."""
    path = Path(path)
    try:
        _check_header(path)
        with safe_open(path, framework="np") as file:
            description = _description(path, file.metadata() or {})
            config, calibration, provenance = _described(path, description)
            wanted = layout(path, config)
            _check_names(path, set(file.keys()), set(wanted))
            for name, (shape, _) in wanted.items():
                _same(path, name, "shape", tuple(file.get_slice(name).get_shape()), shape)
            tensors = {name: file.get_tensor(name) for name in wanted}
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    except (SafetensorError, TypeError) as error:  # a TypeError: a type that NumPy has not
        raise FileError(
            path, f"is not a safetensors file, or is damaged ({error}): fetch it again"
        ) from None
    for name, value in tensors.items():
        _same(path, name, "type", str(value.dtype), wanted[name][1])
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            raise FileError(path, f"tensor {name!r} is not finite: the training had diverged")
    if description.get(_DIGEST) != _digest(description, tensors):
        raise FileError(path, "was changed after it was made, or is damaged: fetch it again")
    return WeightsFile(config, calibration, provenance, tensors)


def _digest(description: Mapping[str, Any], tensors: Tensors) -> str:
    """Of everything that an estimate depends on."""
    content = {name: value for name, value in description.items() if name != _DIGEST}
    found = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).tobytes())
    return found.hexdigest()


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        start, size = file.read(8), file.seek(0, 2)
    if len(start) == 8 and struct.unpack("<Q", start)[0] > LARGEST_HEADER:
        raise FileError(path, "is not a safetensors file, or is damaged: fetch it again")
    if size > LARGEST_FILE:
        raise FileError(path, f"has {size >> 20} MB, at most {LARGEST_FILE >> 20} are read")


def _description(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if _KEY not in metadata:
        raise FileError(path, "has no description of its network: use a file of `hydranet train`")
    try:
        description: Any = json.loads(metadata[_KEY])
        version = description["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FileError(path, "has a damaged description of its network: fetch it again") from None
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise FileError(
            path,
            f"has format version {str(version)[:20]}, and this hydranet_ros reads "
            f"{FORMAT_VERSION}: use weights and package of the same release",
        )
    return dict(description)


def _described(
    path: Path, description: Mapping[str, Any]
) -> tuple[NetworkConfig, Calibration, Provenance]:
    try:
        if set(description) - {_DIGEST} != _SECTIONS:
            raise ValueError(
                f"its sections must be {sorted(_SECTIONS)}, got {sorted(description)}"
            )
        return (
            complete(NetworkConfig, description["network"]),
            complete(Calibration, description["calibration"]),
            complete(Provenance, description["provenance"]),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise FileError(path, f"describes no network that is known here: {error}") from None


def _check_names(path: Path, found: set[str], wanted: set[str]) -> None:
    for state, names in (("lacks", wanted - found), ("has", found - wanted)):
        if names:
            raise FileError(
                path,
                f"{state} tensor {min(names)!r} (and {len(names) - 1} more), against its own "
                "description: fetch or train it again",
            )


def _same(path: Path, name: str, what: str, got: object, want: object) -> None:
    if got != want:
        raise FileError(path, f"tensor {name!r} has {what} {got} instead of {want}")
