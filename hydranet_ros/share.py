"""Find the files of launch/ and config/, installed or in the source tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hydranet_ros.errors import FileError

PACKAGE = "hydranet_ros"


def share_file(name: str) -> Path:
    """The path of, say, `config/fastdds.xml`."""
    source = Path(__file__).resolve().parents[1]  # an editable install, or the source tree itself
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    shares = [Path(prefix) / "share" / PACKAGE for prefix in prefixes if prefix]
    for folder in (source, *shares):
        if (folder / name).is_file():
            return folder / name
    raise FileError(name, f"is not installed with {PACKAGE}: install it again")
