"""The errors this package raises about its input; misuse of an API is a plain ValueError.

Every message is one line that names what was read and what to do about it, because the command
line prints it as it is and a node logs it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from types import ModuleType
from typing import Literal


def printable(text: str) -> str:
    r"""One line that a terminal shows as it is: ESC becomes \x1b, a line feed \n.

    Names of files and topics come from strangers; what they hold must not move the cursor.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class HydraNetError(Exception):
    """Bad data or a bad environment: something the user can mend."""

    def __str__(self) -> str:
        return printable(super().__str__())


class FileError(HydraNetError):
    """A file that cannot be used: `FILE[:LINE]: reason`."""

    def __init__(self, path: str | PathLike[str], reason: str, line: int | None = None) -> None:
        # The arguments, not the message: an exception is pickled as its class and its `args`, and
        # this one crosses from worker processes.
        super().__init__(path, reason, line)
        self.path, self.reason, self.line = path, reason, line

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else f"{self.path}"
        return printable(f"{where}: {self.reason}")


class BadInput(HydraNetError):  # noqa: N818 - it is the input that is bad
    """A message that cannot be used; a node logs the first of each `kind`, and counts them all."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        return printable(self.reason)


@dataclass(frozen=True)
class Finding:
    """What an examination has found of `subject`: an error stops something, a note does not."""

    level: Literal["ok", "note", "warning", "error"]
    subject: str
    text: str
    remedy: str = ""


# How to get the libraries that only a part of the package needs.
REMEDIES = {
    "torch": "pip install 'hydranet_ros[learning]'",
    "numba": "pip install 'hydranet_ros[fast]'",
    "safetensors": "pip install safetensors",
    "rosbags": "pip install 'hydranet_ros[bags]'",
    "matplotlib": "pip install 'hydranet_ros[report]'",
    "viser": "pip install 'hydranet_ros[view]'",
    "rclpy": "source a ROS 2 installation, or pip install 'hydranet_ros[kilted]'",
}


@cache
def compiled_loops(module: str) -> ModuleType | None:
    """A module of loops that numba compiles; None where numba is not installed."""
    return import_module(module) if find_spec("numba") is not None else None


def require(purpose: str, *libraries: str) -> None:
    """Raise a HydraNetError that names the remedies, where libraries for `purpose` are missing."""
    missing = [library for library in libraries if find_spec(library) is None]
    if missing:
        remedies = "; ".join(dict.fromkeys(REMEDIES[library] for library in missing))
        raise HydraNetError(f"{purpose} needs {', '.join(missing)}: {remedies}")
