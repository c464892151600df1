"""Plots of how the run went: consistency of the fusion, and time."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import chi2

from hydranet_ros.report.record import RunRecord
from hydranet_ros.report.style import colour, figure

LEVEL = 0.95


def consistency(record: RunRecord) -> Figure | None:
    """NIS of each source over time, with the bound below which 95 % should be."""
    sources = {name: each for name, each in record.consistency.items() if len(each.nis)}
    if not sources:
        return None
    plot, rows = figure(1.0 + 2.2 * len(sources), rows=len(sources))
    for axes, (name, each) in zip(rows, sources.items(), strict=True):
        dof = each.degrees_of_freedom
        bound = float(chi2.ppf(LEVEL, dof))
        below = float(np.mean(each.nis <= bound))
        axes.plot(record.seconds(each.stamps_ns), each.nis, ".", color=colour(name), markersize=3)
        axes.axhline(bound, color="#222222", linewidth=1.0)
        axes.axhline(dof, color="#222222", linewidth=0.8, linestyle=":")
        axes.set_ylim(0.0, max(2.0 * bound, float(np.percentile(each.nis, 98))))
        axes.set_ylabel(f"NIS of {name}")
        title = f"mean {each.nis.mean():.2f} of {dof}, {100.0 * below:.1f} % below the 95 % bound"
        axes.set_title(title, fontsize=9, loc="right")
    rows[-1].set_xlabel("time (s)")
    return plot


def timing(record: RunRecord) -> Figure | None:
    """Latencies frame by frame, and their distribution."""
    known = {name: values for name, values in record.latencies_ms.items() if len(values)}
    if not known:
        return None
    plot, (over_time, shares) = figure(3.4, columns=2)
    for name, values in known.items():
        p50, p95 = np.percentile(values, [50, 95])
        label = f"{name}: p50 {p50:.0f}, p95 {p95:.0f} ms"
        over_time.plot(values, color=colour(name), linewidth=0.8)
        share = (np.arange(len(values)) + 1.0) / len(values)
        shares.plot(np.sort(values), share, color=colour(name), label=label)
    over_time.set_xlabel("frame")
    over_time.set_ylabel("latency (ms)")
    over_time.set_ylim(bottom=0.0)
    shares.set_xlabel("latency (ms)")
    shares.set_ylabel("share of frames")
    shares.set_xlim(left=0.0)
    shares.legend(frameon=False, loc="lower right")
    return plot
