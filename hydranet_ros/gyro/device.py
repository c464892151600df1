"""Where and with how many threads to compute."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import cv2

from hydranet_ros.errors import HydraNetError

if TYPE_CHECKING:
    import torch


def set_threads(count: int) -> None:
    """Let OpenCV and, where it is loaded, torch compute with `count` threads each.

    One is fastest for one frame at a time: the products are small.
    """
    cv2.setNumThreads(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def check_device(name: str) -> None:
    """Raise a HydraNetError where a name is not that of a device."""
    if not re.fullmatch(r"auto|numpy|cpu|cuda(:\d+)?", name):
        raise HydraNetError(f"device must be auto, numpy, cpu, cuda or cuda:N, got {name!r}")


def choose_device(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:N` of torch, or `auto`: CUDA where there is any."""
    import torch

    check_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name != "cpu" and not torch.cuda.is_available():
        raise HydraNetError(
            f"device {name!r} is asked for but torch has no CUDA here: use device 'cpu' or 'auto'"
        )
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise HydraNetError(
            f"device {name!r} is asked for but there are {torch.cuda.device_count()}: use 'cuda'"
        )
    return device
