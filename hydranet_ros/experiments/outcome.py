"""What an experiment leaves behind: figures, tables, plots, its settings, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from hydranet_ros import __version__
from hydranet_ros.errors import HydraNetError, require
from hydranet_ros.evaluation.output import ResultsFolder
from hydranet_ros.geometry.lie import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


def write_outcome(path: Path, name: str, outcome: Outcome) -> None:
    """Write results.json, config.yaml, TABLE.csv and PLOT.png and .pdf.

    All but timing.json is the same for the same configuration on the same machine.
    """
    folder = ResultsFolder(path)
    folder.json("results.json", {"experiment": name, "figures": outcome.figures})
    settings = {"version": __version__, "experiment": name, **outcome.settings}
    folder.text("config.yaml", yaml.safe_dump(settings, sort_keys=False))
    if outcome.timing:
        folder.json("timing.json", outcome.timing)
    for title, rows in outcome.tables.items():
        columns = list(rows[0]) if rows else []
        folder.table(f"{title}.csv", columns, ([row[key] for key in columns] for row in rows))
    for title, draw in outcome.plots.items():
        figure = draw()
        folder.plot(title, figure, dpi=150)
        folder.vector_plot(title, figure)


# --- figures that several experiments draw -------------------------------------------------------

SHADE = "tab:blue"
AXES = ("x", "y", "z")


def grid(rows: int, columns: int, width: float = 4.0, height: float = 3.0) -> tuple[Figure, Any]:
    """A figure and its (rows, columns) axes; not pyplot, which keeps a global state."""
    require("a figure", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def sigma_shades(axes: Axes, x: Array, mean: Array, sigma: Array, most: int = 3) -> None:
    """A mean, and one shade for each standard deviation about it."""
    for count in range(1, most + 1):
        axes.fill_between(
            x, mean - count * sigma, mean + count * sigma, color=SHADE, alpha=0.2, linewidth=0
        )
    axes.plot(x, mean, color=SHADE, linewidth=1.0)


def boxes(values: Mapping[str, Sequence[float] | Array], label: str, log: bool = False) -> Figure:
    """One box per name, whiskers at 1.5 quartile ranges."""
    figure, ((axes,),) = grid(1, 1, 6.0, 3.5)
    axes.boxplot(list(values.values()), showfliers=False)
    axes.set_xticks(range(1, len(values) + 1), list(values), rotation=15)
    axes.set_ylabel(label)
    if log:
        axes.set_yscale("log")
    return figure


def error_bands(
    x: Array,
    errors_deg: Array,
    bands_deg: Mapping[str, Array],
    label: str,
    limit: float | None = None,
) -> Figure:
    """Errors (n, 3) about each axis over x, with +-3 sigma (n, 3) of each covariance.

    Up to a limit; by default there is room for all errors.
    """
    figure, axes = grid(3, 1, 8.0, 2.2)
    if limit is None:
        limit = 1.2 * float(np.abs(errors_deg).max())
    order = np.argsort(x, kind="stable")
    for i, each in enumerate(axes[:, 0]):
        for (name, sigma), color in zip(
            bands_deg.items(), ("tab:blue", "tab:orange"), strict=False
        ):
            band = 3.0 * sigma[order, i]
            each.fill_between(x[order], -band, band, color=color, alpha=0.3, label=name, lw=0)
        each.plot(x[order], errors_deg[order, i], ".", color="black", markersize=2)
        each.set_ylim(-limit, limit)
        each.set_ylabel(f"error about {AXES[i]}, deg")
    axes[0, 0].legend(loc="upper right")
    axes[-1, 0].set_xlabel(label)
    return figure
