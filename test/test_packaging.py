"""The package is found through the ament index, however pip installed it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from conftest import ROOT

import hydranet_ros

SHARED = ("package.xml",)
LOOK_UP = (
    "from ament_index_python.packages import get_package_share_directory as share;"
    "print(share('hydranet_ros'))"
)


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the project without its environments and build results."""
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", "build", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, tmp_path / "source", ignore=ignored)
    return tmp_path / "source"


@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["wheel", "editable"])
def test_pip_registers_the_marker_and_the_share_files(
    tmp_path: Path, source: Path, options: list[str]
) -> None:
    pytest.importorskip("ament_index_python", reason="no ROS 2 here: ament index is absent")
    prefix = tmp_path / "prefix"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    local = ["--no-deps", "--no-build-isolation", "--ignore-installed", f"--prefix={prefix}"]
    subprocess.run([*pip, *local, *options, str(source)], check=True)
    share = python(LOOK_UP, AMENT_PREFIX_PATH=str(prefix))
    assert share == str(prefix / "share" / "hydranet_ros")
    for name in SHARED:
        assert (Path(share) / name).read_bytes() == (ROOT / name).read_bytes()
    for folder in ("launch", "config"):
        # pip compiles what ends in .py, wherever it puts it.
        places = ROOT / folder, Path(share) / folder
        expected, installed = ({path.name for path in place.glob("[!._]*")} for place in places)
        assert installed == expected
    assert (prefix / "bin" / "hydranet").exists()


def test_this_environment_finds_the_package() -> None:
    pytest.importorskip("ament_index_python", reason="no ROS 2 here: ament index is absent")
    assert (Path(python(LOOK_UP)) / "package.xml").read_bytes() == (
        ROOT / "package.xml"
    ).read_bytes()


def test_one_version_everywhere() -> None:
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    changelog = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    assert package.get("format") == "3"
    assert package.findtext("version") == hydranet_ros.__version__
    assert f'version="{hydranet_ros.__version__}"' in (ROOT / "setup.py").read_text(
        encoding="utf-8"
    )
    assert hydranet_ros.__version__ in changelog
    # colcon takes a package with an invalid address for plain Python, in silence.
    maintainer = package.find("maintainer")
    assert maintainer is not None
    assert "@" in maintainer.get("email", "")
