"""Where and with how many threads to compute."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import cv2
from threadpoolctl import threadpool_limits

from hydranet_ros.errors import HydraNetError

if TYPE_CHECKING:
    import torch


def set_threads(count: int) -> None:
    """Let OpenCV, BLAS, OpenMP and, where it is loaded, torch compute with `count` threads each.

    The one place where threads are set, by nodes and commands alike. One is fastest for one frame
    at a time: the products are small, and two threads beside other work wait for each other ten
    times longer than one computes.
    """
    cv2.setNumThreads(count)
    threadpool_limits(count)
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
