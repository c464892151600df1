"""The pages: `make docs` builds them offline. Reference pages are written from the code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate

from hydranet_ros import __version__

project = "hydranet_ros"
author = "hydranet_ros maintainers"
copyright = "the hydranet_ros maintainers, Apache-2.0"
release = version = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"hydranet_ros {__version__}"
nitpicky = True


def setup(app: Any) -> None:
    """Write the reference before the pages are read."""
    generate.write(HERE / "reference")
