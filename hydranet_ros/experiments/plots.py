"""Figures that several experiments draw; they need matplotlib, but no display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry.lie import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADE = "tab:blue"
AXES = ("x", "y", "z")


def grid(rows: int, columns: int, width: float = 4.0, height: float = 3.0) -> tuple[Figure, Any]:
    """A figure and its (rows, columns) axes; not pyplot, which keeps a global state."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise HydraNetError(
            "figures need matplotlib: pip install 'hydranet_ros[report]'"
        ) from None
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
