"""Shared fixtures: where the real data is, and deterministic property tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# A shell in the background ignores SIGINT, and processes inherit that: tests send it to theirs.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real recordings: $HYDRANET_DATA, or ../shared/data beside the project."""
    folder = Path(os.environ.get("HYDRANET_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set HYDRANET_DATA")
    return folder


@pytest.fixture(scope="session")
def recordings(data: Path) -> Path:
    """The folder of recorded VO and network outputs."""
    folder = data / "kitti_fusion"
    if not folder.is_dir():
        pytest.skip(f"no recordings at {folder}")
    return folder
