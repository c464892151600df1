"""What commands show and leave behind: progress bars and folders of results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray
from tqdm import tqdm

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import write_kitti, write_tum

T = TypeVar("T")


def progress(items: Iterable[T], total: int | None, what: str, unit: str = "frame") -> Iterator[T]:
    """Show a bar on stderr while iterating, where stderr is a terminal."""
    yield from tqdm(items, total=total, desc=what, unit=unit, disable=not sys.stderr.isatty())


def write_run(
    folder: Path,
    trajectories: dict[str, Array],
    stamps_ns: NDArray[np.int64],
    figures: dict[str, Any],
    settings: dict[str, Any],
    timing: dict[str, Any] | None = None,
) -> None:
    """Write NAME.txt (KITTI) and NAME.tum for each trajectory, metrics.json and config.yaml.

    All but `timing.json` is the same, byte for byte, for the same input.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, T_w_c in trajectories.items():
            write_kitti(folder / f"{name}.txt", T_w_c)
            write_tum(folder / f"{name}.tum", T_w_c, stamps_ns)
        (folder / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n")
        (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        if timing is not None:
            (folder / "timing.json").write_text(json.dumps(timing, indent=2) + "\n")
    except OSError as error:
        raise HydraNetError(f"--out {folder}: cannot be written: {error.strerror}") from None
