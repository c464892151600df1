"""The pages build without a warning, and the reference is whole."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from hydranet_ros.gyro.visual_gyro import GyroLost
from hydranet_ros.stereo_vo.result import Lost

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


def kinds_of_warnings() -> set[str]:
    """What nodes warn of: the first argument of each BadInput and of each `warn` or `_say`."""
    found = set()
    for path in (ROOT / "hydranet_ros").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name, kind = ast.unparse(node.func).rpartition(".")[2], node.args[0]
                constant = isinstance(kind, ast.Constant) and isinstance(kind.value, str)
                if name in ("BadInput", "warn", "_warn", "_say") and constant:
                    found.add(kind.value)
    return found


def test_every_warning_has_its_remedy_on_the_page() -> None:
    page = (ROOT / "docs" / "recipes" / "warnings.md").read_text(encoding="utf-8")
    said = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    kinds = kinds_of_warnings()
    assert len(kinds) > 20
    reasons = {each.value.partition(":")[0] for each in (*Lost, *GyroLost)}
    reasons -= {"too few features could be followed from the previous frame"}  # said in short
    missing = [each for each in sorted(kinds | reasons) if each not in said]
    assert missing == []


def test_links_between_pages_lead_somewhere(site: Path) -> None:
    """Every link within the pages, and from README and CONTRIBUTING into the repository."""
    anchors = {
        page: set(re.findall(r' id="([^"]+)"', page.read_text(encoding="utf-8")))
        for page in site.rglob("*.html")
    }
    broken = []
    for page in anchors:
        links = re.findall(r'<a [^>]*href="([^"]+)"', page.read_text(encoding="utf-8"))
        for link in links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            there = (page.parent / target).resolve() if target else page
            if not there.exists() or (anchor and anchor not in anchors.get(there, {anchor})):
                broken.append(f"{page.relative_to(site)}: {link}")
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            if not (ROOT / link).exists():
                broken.append(f"{name}: {link}")
    assert broken == []
