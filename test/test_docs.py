"""The pages build without a warning, and the reference is whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
pytest.importorskip("myst_parser", reason="the extra `docs` is not installed")
pytest.importorskip("furo", reason="the extra `docs` is not installed")
pytest.importorskip("rclpy", reason="parameters are read from the nodes")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as HTML, built from a copy, as if for the first time."""
    folder = tmp_path_factory.mktemp("pages")
    pages = shutil.copytree(
        ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("_build")
    )
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(pages), str(folder / "html")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    for page in pages:
        assert (site / page).with_suffix(".html").is_file()


def test_reference_is_of_the_code(site: Path) -> None:
    def text(name: str) -> str:
        return (site / "reference" / f"{name}.html").read_text(encoding="utf-8")

    for parameter in ("fusion.window_s", "gyro.memory.frames", "vo.scale_sigma"):
        assert parameter in text("parameters")
    for command in ("run", "fuse", "evaluate", "train", "demo"):
        assert f"hydranet {command}" in text("commands")
    assert "VisualGyro" in text("python")


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert 'src="http' not in html
        assert '<link rel="stylesheet" type="text/css" href="http' not in html
