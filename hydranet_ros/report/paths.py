"""Plots of where it went."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hydranet_ros.geometry import lie
from hydranet_ros.report.record import RunRecord
from hydranet_ros.report.style import colour, figure


def top_down(record: RunRecord) -> Figure | None:
    """The trajectories from above: right and forward of the first camera."""
    if not record.trajectories:
        return None
    plot, (axes,) = figure(6.0)
    for name, T in record.from_start().items():
        truth = name == "ground truth"
        axes.plot(
            T[:, 0, 3],
            T[:, 2, 3],
            color=colour(name),
            linewidth=2.6 if truth else 1.5,
            alpha=0.45 if truth else 1.0,
            label=name,
            zorder=1 if truth else 2,
        )
    axes.plot(0.0, 0.0, "o", color="#222222", markersize=5)
    axes.annotate("start", (0.0, 0.0), textcoords="offset points", xytext=(6, 4))
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("right (m)")
    axes.set_ylabel("forward (m)")
    axes.legend(frameon=False)
    return plot


def pose_errors(record: RunRecord) -> Figure | None:
    """How far each trajectory is from the true one, over the distance driven."""
    paths = record.from_start()
    truth = paths.pop("ground truth", None)
    if truth is None or len(truth) < 2 or not paths:
        return None
    steps = np.linalg.norm(np.diff(truth[:, :3, 3], axis=0), axis=1)
    distance = np.concatenate([[0.0], np.cumsum(steps)])
    plot, (position, angle) = figure(4.8, rows=2)
    for name, T in paths.items():
        error = lie.se3_inverse(T) @ truth
        metres = np.linalg.norm(error[:, :3, 3], axis=1)
        degrees = np.rad2deg(np.linalg.norm(lie.so3_log(error[:, :3, :3]), axis=1))
        position.plot(distance, metres, color=colour(name), label=name)
        angle.plot(distance, degrees, color=colour(name), label=name)
    position.set_ylabel("position error (m)")
    angle.set_ylabel("rotation error (deg)")
    angle.set_xlabel("distance (m)")
    position.legend(frameon=False)
    return plot
