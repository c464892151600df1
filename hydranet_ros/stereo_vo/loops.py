"""Which inner loops there are: compiled by numba, or none."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


@lru_cache
def compiled() -> ModuleType | None:
    """The inner loops of stereo odometry; None where numba is not installed."""
    if find_spec("numba") is None:
        return None
    return import_module("hydranet_ros.stereo_vo.loops_numba")
