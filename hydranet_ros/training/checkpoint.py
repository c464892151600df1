"""The state of a training in a file, so that an interruption costs no finished epoch."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from hydranet_ros.errors import FileError
from hydranet_ros.files import whole_file

NAME = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write whole or not at all."""
    with whole_file(folder / NAME) as file:
        torch.save(state, file)


def load(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The state, None where there is none yet; one of other settings is refused."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise FileError(path, f"cannot be read ({reason}): delete it to begin anew") from None
    if state.get("settings") != settings:
        raise FileError(
            path, "is of a training with other settings: choose another --out, or delete it"
        )
    return state
