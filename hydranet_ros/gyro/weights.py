"""Weights in a file: safetensors, with everything that made them as JSON in its metadata.

Loading builds the network that the file describes, checks every name, shape and type against it,
and never runs code from the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hydranet_ros.errors import FileError
from hydranet_ros.files import whole_file
from hydranet_ros.gyro.config import Calibration, NetworkConfig
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.settings import Configuration, complete, dump, setting

FORMAT_VERSION = 1
_KEY = "hydranet"
_SECTIONS = {"format_version", "network", "calibration", "provenance"}


@dataclass(frozen=True)
class Provenance(Configuration):
    """Where weights come from: enough to make them again."""

    flow_method: Literal["unknown", "auto", "dis", "farneback", "farneback_torch"] = setting(
        "unknown", "flow they were trained on; a Predictor should get the same"
    )
    command: str = setting("", "the command that trained them")
    data: str = setting("", "what they were trained on, in words")
    seed: int = setting(0, "seed of the training")
    validation: Mapping[str, float] = setting({}, "figures on held-out data, with units", None)


@dataclass(frozen=True)
class Weights:
    """A network and what is stored beside it."""

    model: HydraNet
    calibration: Calibration = field(default_factory=Calibration)
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def flow_method(self) -> Literal["auto", "dis", "farneback", "farneback_torch"]:
        """The flow to feed them with: what they were trained on, `auto` where that is unknown."""
        known = self.provenance.flow_method
        return "auto" if known == "unknown" else known


def save_weights(path: str | PathLike[str], weights: Weights) -> None:
    """Write a file, whole or not at all: an interrupted training leaves the old one."""
    description = {
        "format_version": FORMAT_VERSION,
        "network": dump(weights.model.config),
        "calibration": dump(weights.calibration),
        "provenance": dump(weights.provenance),
    }
    tensors = {
        name: value.detach().to("cpu").contiguous()
        for name, value in weights.model.state_dict().items()
    }
    content = save(tensors, {_KEY: json.dumps(description, allow_nan=False)})
    with whole_file(path) as file:
        file.write(content)


def load_weights(path: str | PathLike[str]) -> Weights:
    """Read a file written by `save_weights`; the model is in evaluation mode, on the CPU."""
    path = Path(path)
    try:
        with path.open("rb"), safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            config, calibration, provenance = _description(path, metadata)
            model = _empty_model(path, config)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise FileError(
            path, f"is not a safetensors file, or is damaged ({error}): fetch it again"
        ) from None
    _check_tensors(path, tensors, model.state_dict())
    model.load_state_dict(tensors, assign=True)
    return Weights(model.eval(), calibration, provenance)


def _description(
    path: Path, metadata: Mapping[str, str]
) -> tuple[NetworkConfig, Calibration, Provenance]:
    if _KEY not in metadata:
        raise FileError(path, "has no description of its network: use a file of `hydranet train`")
    try:
        description: Any = json.loads(metadata[_KEY])
        version = description["format_version"]
    except (ValueError, KeyError, TypeError):
        raise FileError(path, "has a damaged description of its network: fetch it again") from None
    if version != FORMAT_VERSION:
        raise FileError(
            path,
            f"has format version {version!r}, and this hydranet_ros reads {FORMAT_VERSION}: "
            "use weights and package of the same release",
        )
    try:
        if set(description) != _SECTIONS:
            raise ValueError(
                f"its sections must be {sorted(_SECTIONS)}, got {sorted(description)}"
            )
        return (
            complete(NetworkConfig, description["network"]),
            complete(Calibration, description["calibration"]),
            complete(Provenance, description["provenance"]),
        )
    except (ValueError, TypeError) as error:
        raise FileError(path, f"describes no network that is known here: {error}") from None


def _empty_model(path: Path, config: NetworkConfig) -> HydraNet:
    """A model without memory, to be filled; sizes are checked before anything is allocated."""
    try:
        with torch.device("meta"):
            return HydraNet(config)
    except (ValueError, TypeError, RuntimeError) as error:
        raise FileError(path, f"describes a network that cannot be built: {error}") from None


def _check_tensors(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for state, names in (("lacks", set(wanted) - set(found)), ("has", set(found) - set(wanted))):
        if names:
            raise FileError(
                path,
                f"{state} tensor {min(names)!r} (and {len(names) - 1} more), against its own "
                "description: fetch or train it again",
            )
    for name, value in found.items():
        for what, got, want in (
            ("shape", tuple(value.shape), tuple(wanted[name].shape)),
            ("type", value.dtype, wanted[name].dtype),
        ):
            if got != want:
                raise FileError(path, f"tensor {name!r} has {what} {got} instead of {want}")
        if value.is_floating_point() and not value.isfinite().all():
            raise FileError(path, f"tensor {name!r} is not finite: the training had diverged")
