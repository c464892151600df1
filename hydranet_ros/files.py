"""Text files in, and files out that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from hydranet_ros.errors import FileError

# Beside the file that is written, until it takes its place.
_UNFINISHED = ".{name}.{process}"


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file beside `path` to write to; it takes the place of `path` when all went well."""
    path = Path(path)
    temporary = path.with_name(_UNFINISHED.format(name=path.name, process=os.getpid()))
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_text(path: str | PathLike[str]) -> str:
    """Read a text file, or raise a FileError that says why not."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(path, "is not a text file") from None
