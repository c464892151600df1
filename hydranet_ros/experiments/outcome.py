"""What an experiment leaves behind: figures, tables, plots, its configuration, and a verdict."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hydranet_ros import __version__
from hydranet_ros.errors import HydraNetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, object]
Expected = Mapping[str, tuple[float, float]]
"""The least and the greatest value of each figure that is held."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Figures by name, what a person reads, and what is written beside it."""

    figures: dict[str, float]
    report: str
    settings: dict[str, Any]
    expected: Expected = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    plots: dict[str, Callable[[], Figure]] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """The figures that are not what is expected, in words."""
        faults = []
        for name, (low, high) in self.expected.items():
            value = self.figures.get(name, float("nan"))
            if isnan(value) or not low <= value <= high:
                faults.append(f"{name} is {value:.4g}, expected {low:g} to {high:g}")
        return faults

    def check(self) -> None:
        """Raise where a figure is not what is expected, or nothing is."""
        if not self.expected:
            raise HydraNetError("--check: no figures are stored for these settings: leave it off")
        faults = self.faults()
        if faults:
            raise HydraNetError(f"{len(faults)} figures differ: {'; '.join(faults)}")


def write_outcome(folder: Path, name: str, outcome: Outcome) -> None:
    """Write results.json, config.yaml, TABLE.csv and PLOT.png and .pdf.

    All but timing.json is the same for the same configuration on the same machine.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        results = {"experiment": name, "figures": outcome.figures}
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        settings = {"version": __version__, "experiment": name, **outcome.settings}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        if outcome.timing:
            (folder / "timing.json").write_text(json.dumps(outcome.timing, indent=2) + "\n")
        for title, rows in outcome.tables.items():
            _write_csv(folder / f"{title}.csv", rows)
        for title, draw in outcome.plots.items():
            _write_plot(folder / title, draw())
    except OSError as error:
        raise HydraNetError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _write_plot(path: Path, figure: Figure) -> None:
    figure.savefig(path.with_suffix(".png"), dpi=150)
    # Without a date, so that equal figures are equal files.
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
