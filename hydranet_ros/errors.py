"""The errors this package raises about its input; misuse of an API is a plain ValueError.

Every message is one line that names what was read and what to do about it, because the command
line prints it as it is and a node logs it as it is.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path


class HydraNetError(Exception):
    """Bad data or a bad environment: something the user can mend."""


class FileError(HydraNetError):
    """A file that cannot be used: `FILE[:LINE]: reason`."""

    def __init__(self, path: str | PathLike[str], reason: str, line: int | None = None) -> None:
        # The arguments, not the message: an exception is pickled as its class and its `args`, and
        # this one crosses from worker processes.
        super().__init__(path, reason, line)
        self.path, self.reason, self.line = path, reason, line

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else f"{self.path}"
        return f"{where}: {self.reason}"


class BadInput(HydraNetError):  # noqa: N818 - it is the input that is bad
    """A message that cannot be used; a node logs the first of each `kind`, and counts them all."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        return self.reason


def read_text(path: str | PathLike[str]) -> str:
    """Read a text file, or raise a FileError that says why not."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(path, "is not a text file") from None
