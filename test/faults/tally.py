"""What the fault suite counts: the table at its end, errors against the truth, memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

# Confident and wrong: so many sigmas off, and by more than this.
SIGMAS, METRES, DEGREES = 5.0, 0.5, 2.0
MOST_MB = 300.0
HEADINGS = (
    "kind of fault",
    "tried",
    "crashed",
    "non-finite",
    "confident and wrong",
    "memory peak above idle (MB)",
)


@dataclass
class Row:
    """One kind of fault, how often it was tried, and what came of it."""

    kind: str
    tried: int = 0
    crashed: int = 0
    non_finite: int = 0
    wrong: int = 0
    memory_mb: float = 0.0
    notes: list[str] = field(default_factory=list)
    """How to see each failure again."""

    @property
    def good(self) -> bool:
        """Whether nothing but `tried` is above its bound."""
        return not (self.crashed or self.non_finite or self.wrong) and self.memory_mb < MOST_MB

    def crash(self, note: str) -> None:
        """Count a node that ended, raised, or says nothing any more."""
        self.crashed += 1
        self.notes.append(note)

    def check(self) -> None:
        """Fail with the notes, where there is something to fail for."""
        assert self.good, "\n".join([str(self), *self.notes[:20]])

    def cells(self) -> tuple[str, ...]:
        """As in the table."""
        counts = (self.tried, self.crashed, self.non_finite, self.wrong)
        return self.kind, *map(str, counts), f"{self.memory_mb:.0f}"


class Report:
    """The rows of the table, in the order in which they were begun."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.sent = self.received = 0
        """Messages that were mutated, and how many of them came to a node."""

    def row(self, kind: str) -> Row:
        """The row of a kind of fault."""
        return self.rows.setdefault(kind, Row(kind))

    def lines(self) -> list[str]:
        """The table, and how many of the messages were really received."""
        table = [HEADINGS, *(row.cells() for row in self.rows.values())]
        widths = [max(len(cells[i]) for cells in table) for i in range(len(HEADINGS))]
        lines = ["  ".join(_aligned(cells, widths)) for cells in table]
        return [*lines, f"mutated messages: {self.sent} sent, {self.received} received"]


def _aligned(cells: tuple[str, ...], widths: list[int]) -> list[str]:
    first, *others = zip(cells, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]


# --- errors against the truth --------------------------------------------------------------------


def confident_and_wrong(error: np.ndarray, covariance: np.ndarray, bound: float) -> bool:
    """Whether a (3,) error is above the bound and, along some axis, above SIGMAS."""
    sigma = np.sqrt(np.maximum(np.diagonal(covariance), 1e-300))
    return bool(np.linalg.norm(error) > bound and (np.abs(error) / sigma).max() > SIGMAS)


# --- memory --------------------------------------------------------------------------------------


class MemoryPeak:
    """The most memory that a process has had since this was made, above what it had then."""

    def __init__(self, pid: int | None = None) -> None:
        self._folder = Path("/proc") / str(os.getpid() if pid is None else pid)
        (self._folder / "clear_refs").write_text("5")  # the peak counts from now on
        self._idle = self._mb("VmRSS")

    @property
    def above_idle_mb(self) -> float:
        """In MB."""
        return self._mb("VmHWM") - self._idle

    def _mb(self, name: str) -> float:
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
