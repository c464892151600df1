"""Where torch computes, by name."""

from __future__ import annotations

import torch

from hydranet_ros.errors import HydraNetError


def choose_device(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:N`, or `auto`: CUDA where there is any."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name != "cpu" and name.partition(":")[0] != "cuda":
        raise HydraNetError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if name != "cpu" and not torch.cuda.is_available():
        raise HydraNetError(
            f"device {name!r} is asked for but torch has no CUDA here: use device 'cpu' or 'auto'"
        )
    try:
        device = torch.device(name)
    except RuntimeError:
        raise HydraNetError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise HydraNetError(
            f"device {name!r} is asked for but there are {torch.cuda.device_count()}: use 'cuda'"
        )
    return device
