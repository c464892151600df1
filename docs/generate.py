"""Write the pages of the reference that follow from the code: parameters, commands, names.

python docs/generate.py
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import hydranet_ros as hn
from hydranet_ros.cli import __main__ as cli
from hydranet_ros.settings import Configuration, Setting, walk

NODES = {
    "hydranet_node": "HydraNetNodeConfig",
    "stereo_vo_node": "StereoVONodeConfig",
    "fusion_node": "FusionNodeConfig",
    "player_node": "PlayerConfig",
    "recorder_node": "RecorderConfig",
}
WIDTH = "92"  # columns of a command's help


def write(folder: Path) -> None:
    """Write the generated pages into a folder; one that has not changed is left alone."""
    for name, text in (
        ("parameters.md", parameters()),
        ("commands.md", commands()),
        ("python.md", python_names()),
    ):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# --- parameters ----------------------------------------------------------------------------------


def parameters() -> str:
    """Every parameter of every node, with its default, its range and what it means."""
    parts = [
        "# Parameters",
        "The same names hold for `ros2 param set`, parameter files, launch arguments and `--set` "
        "of the commands. *Live* ones may change while a node runs.",
    ]
    for node, name in NODES.items():
        config: type[Configuration] = getattr(import_module(f"hydranet_ros.ros.{node}"), name)
        parts += [f"## {node}", "| parameter | default | meaning |"]
        rows = ["|---|---|---|", *(_row(item) for item in walk(config))]
        parts[-1] += "\n" + "\n".join(rows)
    return "\n\n".join(parts) + "\n"


def _row(item: Setting) -> str:
    allowed = " | ".join(map(str, item.choices)) or item.range_text.strip()
    rules = ", ".join(each for each in (allowed, "live" if item.live else "") if each)
    default = "" if item.default in ("", (), None) else f"`{item.default}`"
    cells = (f"`{item.name}`", default, item.text + (f" (*{rules}*)" if rules else ""))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# --- commands ------------------------------------------------------------------------------------


def commands() -> str:
    """The help of every command."""
    os.environ["COLUMNS"] = WIDTH
    (actions,) = (a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    parts = [
        "# Commands",
        "Bad input is one line that names the file, the line and the reason, and exit code 2. "
        "Ctrl-C ends every command within three seconds.",
    ]
    for name, parser in actions.choices.items():
        parts += [f"## hydranet {name}", f"```text\n{parser.format_help().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


# --- names ---------------------------------------------------------------------------------------


def python_names() -> str:
    """What may be imported from `hydranet_ros`, with its docstring."""
    parts = [
        "# Python names",
        "`import hydranet_ros as hn` loads neither NumPy nor torch nor ROS; a name is loaded when "
        "it is used. Names that are not listed here may change.",
    ]
    for name in hn.__all__:
        parts += list(_described(name, getattr(hn, name)))
    return "\n\n".join(parts) + "\n"


def _described(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}"
    if inspect.ismodule(value):
        yield f"Module `{value.__name__}`.\n\n{_text(value)}"
        return
    config = inspect.isclass(value) and issubclass(value, Configuration)
    plain = not (inspect.isclass(value) and issubclass(value, Exception))
    if plain and not config:  # the settings of a configuration stand under Parameters
        yield f"```python\nhn.{name}{_signature(value)}\n```"
    yield f"From `{value.__module__}`.\n\n{_text(value)}"
    if inspect.isclass(value) and not config:
        yield from _members(value)


def _members(kind: type) -> Iterator[str]:
    rows = []
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, (classmethod, staticmethod)):
            function = function.__func__
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        call = "" if isinstance(member, property) else "()"
        rows.append(f"| `{name}{call}` | {_cell(function.__doc__)} |")
    if rows:
        yield "| | |\n|---|---|\n" + "\n".join(rows)


def _cell(docstring: str) -> str:
    line = inspect.cleandoc(docstring).splitlines()[0].replace("|", "\\|")
    return f"{line}" if "<" not in line else f"`{line}`"


def _signature(value: Any) -> str:
    given = inspect.signature(value)
    plain = [each.replace(annotation=each.empty) for each in given.parameters.values()]
    return str(given.replace(parameters=plain, return_annotation=given.empty))


def _text(value: Any) -> str:
    return f"```text\n{inspect.getdoc(value)}\n```"


if __name__ == "__main__":
    write(Path(__file__).parent / "reference")
