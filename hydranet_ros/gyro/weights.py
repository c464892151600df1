"""The weights of a HydraNet in torch, saved to and loaded from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import torch

from hydranet_ros.errors import FileError
from hydranet_ros.gyro.config import Calibration, NetworkConfig
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.weights_file import (
    FlowMethod,
    Layout,
    Provenance,
    WeightsFile,
    read_file,
    write_file,
)


@dataclass(frozen=True)
class Weights:
    """A network and what is stored beside it."""

    model: HydraNet
    calibration: Calibration = field(default_factory=Calibration)
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def flow_method(self) -> FlowMethod:
        """The flow to feed them with."""
        return self.provenance.flow


def save_weights(path: str | PathLike[str], weights: Weights) -> None:
    """Write a file, whole or not at all: an interrupted training leaves the old one."""
    tensors = {
        name: value.detach().to("cpu").contiguous().numpy()
        for name, value in weights.model.state_dict().items()
    }
    config = weights.model.config
    write_file(path, WeightsFile(config, weights.calibration, weights.provenance, tensors))


def load_weights(path: str | PathLike[str]) -> Weights:
    """Read a file written by `save_weights`; the model is in evaluation mode, on the CPU."""
    found = read_file(path, layout)
    model = _empty_model(Path(path), found.config)
    tensors = {name: torch.from_numpy(value.copy()) for name, value in found.tensors.items()}
    model.load_state_dict(tensors, assign=True)
    return Weights(model.eval(), found.calibration, found.provenance)


def layout(path: Path, config: NetworkConfig) -> Layout:
    """Shape and type of every tensor of the network that a file describes."""
    state = _empty_model(path, config).state_dict()
    return {
        name: (tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for name, value in state.items()
    }


def _empty_model(path: Path, config: NetworkConfig) -> HydraNet:
    """A model without memory, to be filled; sizes are checked before anything is allocated."""
    try:
        with torch.device("meta"):
            return HydraNet(config)
    except (ValueError, TypeError, RuntimeError) as error:
        raise FileError(path, f"describes a network that cannot be built: {error}") from None
