"""Plots of how a run went: errors with sigmas, NEES over frames, what was lost, what was found."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from hydranet_ros.evaluation.plots import BAND, SPARE, colour, figure
from hydranet_ros.evaluation.record import RunRecord, Series

IDEAL, HONEST = 1.0, (0.5, 2.0)  # NEES over its degrees of freedom, and what is good enough
LONGEST_REASON = 44
CALLED = {"rotation": "gyro", "vo": "stereo odometry"}


def errors_over_time(record: RunRecord) -> Figure | None:
    """Errors of the fused pose over time, with three times their standard deviations."""
    if not record.errors:
        return None
    plot, rows = figure(1.0 + 2.0 * len(record.errors), rows=len(record.errors))
    for axes, (name, each) in zip(rows, record.errors.items(), strict=True):
        t, bound = record.seconds(each.stamps_ns), 3.0 * each.sigmas
        axes.fill_between(t, 0.0, bound, color=BAND, linewidth=0.0, label="3 sigma")
        axes.plot(t, each.values, color=colour("fused"), linewidth=1.2, label="fused")
        inside = float(np.mean(each.values <= bound))
        axes.set_title(f"{100.0 * inside:.1f} % within 3 sigma", fontsize=9, loc="right")
        axes.set_ylabel(name)
        most = max(float(each.values.max()), 1.5 * float(np.median(bound)), 1e-9)
        axes.set_ylim(0.0, 1.15 * most)
    rows[0].legend(frameon=False, loc="upper left")
    rows[-1].set_xlabel("time (s)")
    return plot


def nees_over_frames(record: RunRecord) -> Figure | None:
    """The NEES of rotations chained over blocks of frames, over its ideal of 3."""
    known = {name: each for name, each in record.blocks.items() if each}
    if not known:
        return None
    plot, (axes,) = figure(3.2)
    axes.axhspan(*HONEST, color="#eeeeee", label="half to twice the ideal")
    axes.axhline(IDEAL, color="#222222", linewidth=1.2, label="ideal")
    for name, each in known.items():
        shares = [value / 3.0 for value in each.values()]
        axes.plot(list(each), shares, "o-", color=colour(name), label=CALLED.get(name, name))
    lengths = sorted({length for each in known.values() for length in each})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    high *= 2.0  # room for the legend
    axes.set_ylim(low, high)
    ticks = [v for v in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if low <= v <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("frames")
    axes.set_ylabel("NEES / 3")
    axes.legend(frameon=False, ncols=2, fontsize=9, loc="upper left")
    return plot


def timeline(record: RunRecord) -> Figure | None:
    """When something was lost or rejected, a row for each source and reason."""
    if not record.events:
        return None
    rows: dict[str, list[float]] = {}
    for event in record.events:
        reason = f"{event.source}: {event.reason}"
        if len(reason) > LONGEST_REASON:
            reason = reason[: LONGEST_REASON - 3] + "..."
        rows.setdefault(reason, []).append(float(record.seconds(np.array(event.stamp_ns))))
    plot, (axes,) = figure(1.0 + 0.55 * len(rows))
    for row, (name, times) in enumerate(rows.items()):
        shade = colour({"gyro": "rotation"}.get(name.partition(":")[0], name.partition(":")[0]))
        axes.plot(times, [row] * len(times), "|", color=shade, markersize=12)
        label = f"{name} ({len(times)})"
        axes.annotate(
            label, (0.0, row), xycoords=("axes fraction", "data"), xytext=(3, 7),
            textcoords="offset points", fontsize=9,
        )  # fmt: skip
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.5, -0.9)
    axes.set_xlim(0.0, max(float(record.seconds(record.stamps_ns[-1:])[0]), 1e-3))
    axes.set_xlabel("time (s)")
    return plot


def found(record: RunRecord) -> Figure | None:
    """Biases and scales over time, each with three times its standard deviation."""
    if not record.found:
        return None
    plot, rows = figure(0.8 + 1.5 * len(record.found), rows=len(record.found))
    for axes, (name, each) in zip(rows, record.found.items(), strict=True):
        _with_band(axes, record, each)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_title(f"{each.values[-1]:+.3g} +- {each.sigmas[-1]:.2g}", fontsize=9, loc="right")
    rows[-1].set_xlabel("time (s)")
    return plot


def _with_band(axes: Axes, record: RunRecord, each: Series) -> None:
    t = record.seconds(each.stamps_ns)
    low, high = each.values - 3.0 * each.sigmas, each.values + 3.0 * each.sigmas
    axes.fill_between(t, low, high, color=BAND, linewidth=0.0)
    axes.plot(t, each.values, color=colour("fused"), linewidth=1.2)
    half = len(t) // 2
    settled = 1.3 * max(float(np.abs(low[half:]).max()), float(np.abs(high[half:]).max()), 1e-6)
    axes.set_ylim(-settled, settled)
    axes.axhline(0.0, color=SPARE[2], linewidth=0.8, linestyle=":")
