"""What users install: wheel and sdist are whole, and work in a fresh environment."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import venv
import xml.etree.ElementTree as ElementTree
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

import hydranet_ros

PACKAGE = ROOT / "hydranet_ros"
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
NODES = sorted(path.stem for path in (PACKAGE / "ros").glob("*_node.py"))
EXECUTABLES = {"hydranet", "hydranet_all", *NODES}
REQUIRED = {"hydranet_ros", "numpy", "cv2", "yaml", "tqdm"}
# Rooms that need nothing but what `pip install .` brings.
CORE = [[room] for room in ("geometry", "stereo_vo", "fusion", "simulation", "pipeline")]
NOT_BROUGHT = ("scipy", "torch", "numba", "matplotlib", "rosbags", "viser", "rclpy")
# The ROS wheels prepare a process once; a child in another environment has to do it again.
WHEELS_GUARD = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
LOCAL = ("--no-index", "--no-deps", "--no-build-isolation")

LOOK_UP = (
    "from ament_index_python.packages import get_package_share_directory as share;"
    "print(share('hydranet_ros'))"
)
# Each module is imported first, so that none leans on what another has loaded.
IMPORT_ALL = """
import importlib, json, pkgutil, sys, traceback
import hydranet_ros

def attempt(name):
    for loaded in [key for key in sys.modules if key.partition(".")[0] == "hydranet_ros"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return {"missing": error.name, "error": traceback.format_exc()}
    except Exception as error:
        asks = "pip install" in str(error)
        return {"missing": str(error) if asks else None, "error": traceback.format_exc()}
    return {"missing": None, "error": None}

place, paths = hydranet_ros.__file__, hydranet_ros.__path__
names = [module.name for module in pkgutil.walk_packages(paths, "hydranet_ros.")]
results = {name: attempt(name) for name in ["hydranet_ros", *names]}
print(json.dumps({"file": place, "modules": results}))
"""


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout.strip()


def copy_source(folder: Path) -> Path:
    """A copy of the project without hidden files, environments and build results."""
    results = ("build", "dist", "install", "log", "out", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", *results))
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def build_wheel(source: Path, folder: Path) -> Path:
    command = [sys.executable, *PIP, "wheel", *LOCAL, f"--wheel-dir={folder}", str(source)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def wheel_files(wheel: Path) -> dict[str, bool]:
    """What pip puts under the prefix and into site-packages, and whether one may execute it."""
    with zipfile.ZipFile(wheel) as archive:
        modes = {item.filename: item.external_attr >> 16 for item in archive.infolist()}
    return {
        re.sub(r"^[^/]*\.data/data/", "", name): mode & 0o111 == 0o111
        for name, mode in modes.items()
        if ".dist-info/" not in name
    }


# --- what is built -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_source(folder / "source"), folder / "dist")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    source = copy_source(folder / "source")
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def test_the_wheel_has_every_file(wheel: Path, tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    expected = {name for name in files(source) if name.startswith("hydranet_ros/")}
    expected |= {"share/hydranet_ros/package.xml"}
    expected |= {"share/ament_index/resource_index/packages/hydranet_ros"}
    for folder in ("launch", "config"):
        expected |= {f"share/hydranet_ros/{folder}/{name}" for name in files(source / folder)}
    expected |= {f"lib/hydranet_ros/{name}" for name in EXECUTABLES}
    assert {"hydranet_ros/py.typed", "hydranet_ros/weights/default.safetensors"} <= expected
    assert set(wheel_files(wheel)) == expected


def test_the_sdist_has_every_file(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {item.name.partition("/")[2] for item in archive.getmembers() if item.isfile()}
    assert files(copy_source(tmp_path / "source")) - held == set()


def test_the_sdist_makes_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    assert wheel_files(build_wheel(sdist, tmp_path)) == wheel_files(wheel)


def test_ros2_run_may_execute_what_the_wheel_has_for_it(wheel: Path) -> None:
    executable = {name for name, may_execute in wheel_files(wheel).items() if may_execute}
    assert executable == {f"lib/hydranet_ros/{name}" for name in EXECUTABLES}


def test_requirements_are_ranges_and_constraints_are_pins(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([^;\n]+)", metadata, re.MULTILINE)
    assert "torch>=2.4" in required
    assert not [requirement for requirement in required if "==" in requirement]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    names = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in required}
    assert {name for name in names if not name.startswith("ros-")} <= pinned


def test_make_installs_nothing_without_the_constraints() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = [line for line in makefile.splitlines() if "pip install" in line]
    assert installs
    assert all("-c constraints.txt" in line for line in installs)


# --- what is installed ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Installed:
    """The wheel in an environment of its own, used from a folder without the source."""

    prefix: Path
    elsewhere: Path

    @property
    def environment(self) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if name != WHEELS_GUARD}
        others = os.environ.get("AMENT_PREFIX_PATH", sys.prefix)
        return {
            **known,
            "AMENT_PREFIX_PATH": f"{self.prefix}{os.pathsep}{others}",
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "ROS_DOMAIN_ID": str(1 + os.getpid() % 100),
            "ROS_LOG_DIR": str(self.elsewhere / "log"),
        }

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.prefix / "bin" / words[0], *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.elsewhere,
            env={**self.environment, **environment},
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A fresh environment sees the dependencies of this one, but not its hydranet_ros.

    A path in a .pth file is searched; .pth files that lie there, as the one of an editable
    install does, are not read.
    """
    folder = tmp_path_factory.mktemp("installed")
    fresh = Installed(folder / "environment", folder / "elsewhere")
    fresh.elsewhere.mkdir()
    venv.create(fresh.prefix, symlinks=True)
    (site,) = fresh.prefix.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "dependencies.pth").write_text("\n".join(here), encoding="utf-8")
    done = fresh.run("python", *PIP, "install", *LOCAL, "--ignore-installed", str(wheel))
    assert done.returncode == 0, done.stderr
    return fresh


@pytest.fixture(scope="module")
def imported(installed: Installed) -> dict[str, dict[str, Any]]:
    """Every module of the installed package: what it misses, and its error."""
    done = installed.run("python", "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["file"]).is_relative_to(installed.prefix)
    return found["modules"]


def test_all_modules_are_found(imported: dict[str, dict[str, Any]]) -> None:
    assert sorted(imported) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_every_module_imports(imported: dict[str, dict[str, Any]], module: str) -> None:
    missing, error = imported[module]["missing"], imported[module]["error"]
    if missing is not None and missing.partition(".")[0] not in REQUIRED:
        pytest.skip(f"{module}: {missing} is not installed")
    assert error is None, error


def test_the_core_imports_without_what_pip_does_not_bring(installed: Installed) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({NOT_BROUGHT!r}))\n{IMPORT_ALL}"
    done = installed.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["modules"]
    core = {
        name: each["error"]
        for name, each in found.items()
        if name.split(".")[1:2] in CORE and not name.endswith("_numba")
    }
    assert len(core) > 60
    assert not {name: error for name, error in core.items() if error is not None}


def commands_in(text: str) -> list[str]:
    """The commands that a help text lists."""
    return re.findall(r"^ {4}([a-z][a-z0-9-]*)(?=\s|$)", text, re.MULTILINE)


def test_every_command_prints_its_help(installed: Installed) -> None:
    def show(words: tuple[str, ...]) -> str:
        done = installed.run("hydranet", *words, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(" ".join(["usage: hydranet", *words]))
        return done.stdout

    commands = [(name,) for name in commands_in(show(()))]
    assert {("run",), ("train",), ("experiment",)} <= set(commands)
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(show, commands))
        nested = [
            (*command, name)
            for command, text in zip(commands, texts, strict=True)
            for name in commands_in(text)
        ]
        assert ("experiment", "kitti") in nested
        list(pool.map(show, nested))


def test_an_experiment_runs(installed: Installed, recordings: Path) -> None:
    pytest.importorskip("torch", reason="experiments need torch")
    pytest.importorskip("safetensors", reason="experiments need safetensors")
    pytest.importorskip("matplotlib", reason="experiments plot with matplotlib")
    words = ("experiment", "kitti", "--quick", "--json", "--out", "kitti")
    done = installed.run("hydranet", *words, HYDRANET_DATA=str(recordings.parent))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert any((installed.elsewhere / "kitti").iterdir())


def test_executables_are_where_shells_and_ros2_run_look(installed: Installed) -> None:
    for folder in ("bin", "lib/hydranet_ros"):
        places = {name: installed.prefix / folder / name for name in EXECUTABLES}
        absent = {name for name, place in places.items() if not os.access(place, os.X_OK)}
        assert not absent, folder


def test_ros2_run_finds_the_package(installed: Installed) -> None:
    pytest.importorskip("ament_index_python", reason="no ROS 2 here: ament index is absent")
    code = "from ament_index_python import get_package_prefix as p; print(p('hydranet_ros'))"
    done = installed.run("python", "-c", code)
    assert done.stdout.strip() == str(installed.prefix), done.stderr


def test_a_node_starts_from_where_ros2_run_finds_it(installed: Installed) -> None:
    pytest.importorskip("rclpy", reason="no ROS 2 here: rclpy is absent")
    node = installed.prefix / "lib" / "hydranet_ros" / "fusion_node"
    with subprocess.Popen(
        [node, "--ros-args", "--log-level", "debug"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=installed.elsewhere,
        env=installed.environment,
    ) as process:
        timeout = threading.Timer(40.0, process.kill)
        timeout.start()
        assert process.stderr is not None
        log = []
        for line in process.stderr:
            log.append(line)
            if "Calling timer" in line:  # it spins
                process.send_signal(signal.SIGINT)
                break
        log.append(process.stderr.read())
        process.wait()
        timeout.cancel()
    assert process.returncode == 0, "".join(log)
    assert "Traceback" not in "".join(log)


# --- the ament index -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["wheel", "editable"])
def test_pip_registers_the_marker_and_the_share_files(tmp_path: Path, options: list[str]) -> None:
    pytest.importorskip("ament_index_python", reason="no ROS 2 here: ament index is absent")
    source, prefix = copy_source(tmp_path / "source"), tmp_path / "prefix"
    install = [sys.executable, *PIP, "install", *LOCAL, "--ignore-installed"]
    subprocess.run([*install, f"--prefix={prefix}", *options, str(source)], check=True)
    share = python(LOOK_UP, AMENT_PREFIX_PATH=str(prefix))
    assert share == str(prefix / "share" / "hydranet_ros")
    assert (Path(share) / "package.xml").read_bytes() == (ROOT / "package.xml").read_bytes()
    for folder in ("launch", "config"):
        # pip compiles what ends in .py, wherever it puts it.
        places = ROOT / folder, Path(share) / folder
        expected, held = ({path.name for path in place.glob("[!._]*")} for place in places)
        assert held == expected
    for folder in ("bin", "lib/hydranet_ros"):
        assert all(os.access(prefix / folder / name, os.X_OK) for name in EXECUTABLES)


def test_this_environment_finds_the_package() -> None:
    pytest.importorskip("ament_index_python", reason="no ROS 2 here: ament index is absent")
    assert (Path(python(LOOK_UP)) / "package.xml").is_file()


# --- package.xml ---------------------------------------------------------------------------------


def test_one_version_everywhere() -> None:
    """It stands in the package; setup.py reads it there, and the others are held to it."""
    version = hydranet_ros.__version__
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    assert package.findtext("version") == version
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    changelog = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(version)} \(", changelog, re.MULTILINE)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "docs/conf.py"):
        assert version not in (ROOT / name).read_text(encoding="utf-8")
    asked = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert asked.stdout.splitlines()[-1] == version


def test_package_xml_is_read_by_colcon() -> None:
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    assert package.get("format") == "3"
    # colcon takes a package with an invalid address for plain Python, in silence.
    maintainer = package.find("maintainer")
    assert maintainer is not None
    assert "@" in maintainer.get("email", "")


def test_package_xml_names_the_ros_packages_that_are_imported() -> None:
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    declared = {element.text for element in package.findall("exec_depend")}
    imported = set()
    for path in (*(PACKAGE / "ros").glob("*.py"), *(ROOT / "launch").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    ros = imported - sys.stdlib_module_names - {"hydranet_ros", "cv2", "numpy", "torch", "yaml"}
    names = {"tf2_ros": "tf2_ros_py"}  # the package of the module
    assert {names.get(module, module) for module in ros} <= declared
