"""What commands show and leave behind: progress bars, and folders of results.

Every file is written whole or not at all, so a result that was there stays until the new one is
complete.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tqdm import tqdm

from hydranet_ros.errors import FileError
from hydranet_ros.files import whole_file, whole_folder
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import write_kitti, write_tum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")


def progress(items: Iterable[T], total: int | None, what: str, unit: str = "frame") -> Iterator[T]:
    """Show a bar on stderr while iterating, where stderr is a terminal."""
    yield from tqdm(items, total=total, desc=what, unit=unit, disable=not sys.stderr.isatty())


@contextmanager
def time_bar(seconds: float, what: str) -> Iterator[Callable[[], None]]:
    """A bar on stderr that shows how much of a known time has gone whenever it is called."""
    began = time.monotonic()
    shape = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total:.0f} s"
    with tqdm(
        total=seconds, desc=what, bar_format=shape, leave=False, disable=not sys.stderr.isatty()
    ) as bar:

        def tick() -> None:
            bar.update(min(time.monotonic() - began, seconds) - bar.n)

        yield tick


GREEN, RED = 32, 31


def coloured(text: str, colour: int) -> str:
    """A text in a colour, where stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{colour}m{text}\033[0m"


class ResultsFolder:
    """A folder that results are written into; it is made where it is missing.

    The same input gives the same bytes: no dates, no versions of libraries.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(self.path, f"cannot be written: {error.strerror}") from None

    @contextmanager
    def whole(self) -> Iterator[ResultsFolder]:
        """A folder to write several results into, which appear here together or not at all."""
        with whole_folder(self.path) as path:
            yield ResultsFolder(path)

    def folder(self, name: str) -> ResultsFolder:
        """A folder within."""
        return ResultsFolder(self.path / name)

    def data(self, name: str, content: bytes) -> Path:
        """Write bytes; return where."""
        with whole_file(self.path / name) as file:
            file.write(content)
        return self.path / name

    def text(self, name: str, content: str) -> Path:
        """Write a text file."""
        return self.data(name, content.encode())

    def json(self, name: str, content: Any) -> Path:
        """Write figures, indented."""
        return self.text(name, json.dumps(content, indent=2) + "\n")

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
        """Write comma-separated values, headed by the names of the columns."""
        lines = io.StringIO()
        writer = csv.writer(lines)
        writer.writerow(columns)
        writer.writerows(rows)
        return self.text(name, lines.getvalue())

    def trajectory(self, name: str, T_w_c: Array, stamps_ns: Iterable[int]) -> None:
        """Write NAME.txt (KITTI) and NAME.tum."""
        write_kitti(self.path / f"{name}.txt", T_w_c)
        write_tum(self.path / f"{name}.tum", T_w_c, stamps_ns)

    def plot(self, name: str, figure: Figure, dpi: float | Literal["figure"] = "figure") -> bytes:
        """Write NAME.png; return its bytes."""
        data = self.png(figure, dpi)
        self.data(f"{name}.png", data)
        return data

    def png(self, figure: Figure, dpi: float | Literal["figure"] = "figure") -> bytes:
        """The bytes of a picture, without a file."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        return buffer.getvalue()

    def vector_plot(self, name: str, figure: Figure) -> None:
        """Write NAME.pdf."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
        self.data(f"{name}.pdf", buffer.getvalue())
