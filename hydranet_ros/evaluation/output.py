"""What commands show and leave behind: progress bars, and folders of results.

Every file is written whole or not at all, so a result that was there stays until the new one is
complete.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
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
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        self.data(f"{name}.png", buffer.getvalue())
        return buffer.getvalue()

    def vector_plot(self, name: str, figure: Figure) -> None:
        """Write NAME.pdf."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
        self.data(f"{name}.pdf", buffer.getvalue())
