"""The examples run: code of README, pages and docstrings, and every command line that is shown."""

from __future__ import annotations

import argparse
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import ROOT

pytest.importorskip("torch", reason="the visual gyro needs torch")

import hydranet_ros as hn
from hydranet_ros.cli import __main__ as cli
from hydranet_ros.geometry.trajectory import write_tum
from hydranet_ros.gyro.flow import FlowConfig
from hydranet_ros.settings import update

GENERATED = ("commands.md", "parameters.md", "python.md")  # of the code; not in a new checkout
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.name not in GENERATED
}
CODE = [
    pytest.param(page, code, id=f"{page}-{number}")
    for page, text in PAGES.items()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
]
# Modules, or names in modules, with an example in their docstring.
DOCUMENTED = [
    "hydranet_ros",
    "hydranet_ros.gyro.visual_gyro.VisualGyro",
    "hydranet_ros.evaluation.record.evaluate",
    "hydranet_ros.settings",
]
HEAVY = ("numpy", "scipy", "cv2", "torch", "rclpy", "yaml")


def documented(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, member = name.rpartition(".")
        return getattr(import_module(module), member)


def indented(text: str) -> list[str]:
    """The blocks of a docstring that are indented, as code is."""
    blocks = re.split(r"\n(?=\S)", inspect.cleandoc(text))
    found = (re.search(r"\n\n((?:(?:    .*)?\n?)+)$", block) for block in blocks)
    return [inspect.cleandoc(each[1]) for each in found if each and each[1].strip()]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples take for given: images, measurements, files in the folder."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (370, 1226), dtype=np.uint8)
    T_w_c = np.tile(np.eye(4), (5, 1, 1))
    T_w_c[:, 2, 3] = np.arange(5)
    T_w_c[:, 0, 3] = np.arange(5) ** 2
    monkeypatch.chdir(tmp_path)
    for name in ("fused.tum", "gt.tum"):
        write_tum(tmp_path / name, T_w_c, np.arange(5) * 10**8)
    T_2_1 = hn.lie.se3_exp([0.0, 0.0, -1.0, 0.0, 0.01, 0.0])
    return {
        "FlowConfig": FlowConfig,
        "image_1": image,
        "image_2": np.roll(image, 3, axis=1),
        "T_2_1": T_2_1,
        "Sigma_vo": np.eye(6) * 1e-4,
        "C_2_1": T_2_1[:3, :3],
        "Sigma_hn": np.eye(3) * 1e-6,
        "stamp_1_ns": 0,
        "stamp_2_ns": 10**8,
        **{name: getattr(hn, name) for name in hn.__all__},
    }


def execute(code: str, where: str, names: dict[str, Any]) -> None:
    exec(compile(code, where, "exec", dont_inherit=True), names)


@pytest.mark.parametrize(("page", "code"), CODE)
def test_code_of_the_pages_runs(page: str, code: str, names: dict[str, Any]) -> None:
    execute(code, page, names)
    if "for state in" in code:
        assert names["state"].stamp_ns == names["stamp_2_ns"]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_code_of_docstrings_runs(name: str, names: dict[str, Any]) -> None:
    owner = documented(name)
    blocks = indented(owner.__doc__)
    assert blocks, f"{name} has no example any more"
    module = sys.modules[getattr(owner, "__module__", name)]
    for code in blocks:
        given = {**vars(module), **names, "__name__": "example"}
        execute(code, name, given)
        if "rotation" in code:
            assert given["rotation"].C_2_1.shape == (3, 3)


# --- command lines -------------------------------------------------------------------------------


def command_lines(text: str) -> list[list[str]]:
    """Words of every line that begins with hydranet; explanations follow # or two spaces."""
    whole = re.sub(r" *\\\n *", " ", text)
    pattern = r"^ *(?:\.venv/bin/hydranet|hydranet|torchrun .* hydranet_ros\.cli) (.*)$"
    lines = re.findall(pattern, whole, re.MULTILINE)
    return [re.split(r" +#|  +", line)[0].split() for line in lines]


def helps() -> str:
    """The text of every command's help."""
    (actions,) = (a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return "\n".join(parser.epilog or "" for parser in actions.choices.values())


FENCED = "\n".join(
    block for text in PAGES.values() for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
)
SHOWN = command_lines(FENCED) + command_lines(helps())


CONFIGURATIONS = {
    "hydranet_node": "HydraNetNodeConfig",
    "stereo_vo_node": "StereoVONodeConfig",
    "fusion_node": "FusionNodeConfig",
}


def test_configurations_of_the_pages_are_yaml() -> None:
    blocks = [
        each
        for text in PAGES.values()
        for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    ]
    assert len(blocks) >= 3
    ours = 0
    for block in blocks:
        for name, node in yaml.safe_load(block).items():
            assert node.keys() == {"ros__parameters"}
            kind = CONFIGURATIONS.get(name.rpartition("/")[2])
            if kind is not None:  # as a node would start with it
                module = pytest.importorskip(f"hydranet_ros.ros.{name.rpartition('/')[2]}")
                update(getattr(module, kind)(), node["ros__parameters"])
                ours += 1
    assert ours >= 2


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].split()) <= 800


def test_command_lines_are_found() -> None:
    assert len(SHOWN) > 40
    assert ["run", "--only", "vo"] in SHOWN


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_command_lines_that_are_shown_are_understood(words: list[str]) -> None:
    options = cli.parser().parse_args(words)
    assert options.command == words[0]


# --- public names --------------------------------------------------------------------------------


def test_public_names_are_there() -> None:
    assert set(hn.__all__) <= set(dir(hn))
    assert hn.__all__ == sorted(hn.__all__)
    for name in hn.__all__:
        value = getattr(hn, name)
        home = value.__name__ if name == "lie" else value.__module__
        assert home.startswith("hydranet_ros.")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = hn.Nothing  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, hydranet_ros as hn; dir(hn); "
        f"print([name for name in {HEAVY!r} if name in sys.modules]); "
        "hn.Fusion, hn.Pipeline, hn.VisualGyro, hn.evaluate, hn.open_source; "
        "print([name for name in ('torch', 'rclpy', 'matplotlib', 'rosbags', 'scipy.stats') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
