"""Draw the figures of the explanation pages: `python docs/figures.py` writes them beside these."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hydranet_ros.geometry import lie

HERE = Path(__file__).parent / "explanation"
BLUE, ORANGE, GREEN, GREY = "#1f5fbf", "#d9822b", "#2c8a4b", "#888888"


def persistent() -> Figure:
    """Growth of errors that are white, and of those that persist for a second."""
    t, step, tau, sigma = np.linspace(0.1, 10.0, 200), 0.1, 1.0, 0.02

    def growth(time: np.ndarray) -> np.ndarray:
        return 2.0 * tau**2 * (time / tau - 1.0 + np.exp(-time / tau))

    figure, axes = pyplot.subplots(figsize=(7.0, 3.4), layout="constrained")
    white = sigma * np.sqrt(t / step)
    lasting = sigma * np.sqrt(growth(t) / growth(np.array(step)))
    axes.plot(t, lasting, color=BLUE, label="persists for a second")
    axes.plot(t, sigma * t / step, color=GREY, linewidth=0.8, label="persists for ever")
    axes.plot(t, white, "--", color=ORANGE, label="white: covariances summed")
    axes.set_ylim(0.0, 1.1 * lasting.max())
    axes.set_xlabel("time (s), ten frames a second")
    axes.set_ylabel("standard deviation (deg)")
    axes.legend(frameon=False)
    return figure


def parallax() -> Figure:
    """Flow of a camera that turns and moves, and what a right and a wrong rotation leave of it."""
    rng = np.random.default_rng(3)
    x = rng.uniform((-0.8, -0.5), (0.8, 0.5), (70, 2))
    rays = np.column_stack([x, np.ones(len(x))])
    C, t = lie.so3_exp([0.01, 0.09, 0.0]), np.array([-0.02, -0.01, -0.25])
    seen = rays @ C.T + rng.uniform(0.1, 0.9, (len(x), 1)) * t
    after = seen[:, :2] / seen[:, 2:]
    epipole = t[:2] / t[2]
    figure, panels = pyplot.subplots(1, 3, figsize=(10.5, 2.9), sharey=True, layout="constrained")
    panels[0].set_title("flow")
    _arrows(panels[0], x, after, GREY)
    for panel, title, rotation in (
        (panels[1], "the right rotation taken off", C),
        (panels[2], "a wrong one taken off", lie.so3_exp([0.09, 0.02, 0.0])),
    ):
        turned = rays @ rotation.T
        start = turned[:, :2] / turned[:, 2:]
        _arrows(panel, start, after, BLUE if rotation is C else ORANGE)
        panel.plot(*epipole, "o", color=GREEN, markersize=7)
        panel.set_title(title)
    return figure


def _arrows(axes: Axes, start: np.ndarray, end: np.ndarray, colour: str) -> None:
    along = end - start
    axes.quiver(*start.T, *along.T, color=colour, angles="xy", scale_units="xy", scale=1.0)
    axes.set_xlim(-1.0, 1.0)
    axes.set_ylim(0.65, -0.65)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])


def window() -> Figure:
    """States at images, with what ties them."""
    figure, axes = pyplot.subplots(figsize=(9.0, 2.4), layout="constrained")
    states = np.arange(6.0)
    axes.plot(states, np.zeros(6), "o", color="black", markersize=11, zorder=3)
    share = np.linspace(0.0, 1.0, 31)
    arc = np.sin(np.pi * share)
    for a in states[:-1]:
        axes.plot(a + share, 0.42 * arc, color=GREEN)
        axes.plot(a + share, -0.30 * arc, color=ORANGE)
        axes.plot(a + share[::5], -0.30 * arc[::5], "|", color=ORANGE)
        axes.plot(a + share, -0.60 * arc, color=GREY, linestyle=":")
    axes.plot([-0.35, -0.12], [0.0, 0.0], color=BLUE, linewidth=6, solid_capstyle="butt")
    for y, text, colour in (
        (0.42, "rotation between two images", GREEN),
        (0.0, "state at an image", "black"),
        (-0.30, "odometry, preintegrated", ORANGE),
        (-0.60, "IMU, preintegrated", GREY),
    ):
        axes.text(5.25, y, text, color=colour, va="center")
    axes.text(-0.4, 0.14, "prior", color=BLUE, ha="center")
    axes.set_xlim(-0.8, 7.6)
    axes.set_ylim(-0.7, 0.55)
    axes.axis("off")
    return figure


def main() -> None:
    """Write them all."""
    for draw in (persistent, parallax, window):
        path = HERE / f"{draw.__name__}.png"
        draw().savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
