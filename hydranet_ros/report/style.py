"""How every plot looks: sizes, colours, and PNG bytes that are the same for the same figure."""

from __future__ import annotations

from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure

TRUTH, BAND = "#222222", "#c9d8ec"
COLOURS = {
    "ground truth": TRUTH,
    "vo": "#d1701f",
    "fused": "#1f5fbf",
    "hydranet": "#2f8f4e",
    "rotation": "#2f8f4e",
}
SPARE = ("#8a3fbf", "#b0305c", "#4a7a8c", "#7a6a1f")
AXES = ("x", "y", "z")
WIDTH_IN = 9.0


def colour(name: str) -> str:
    """Of a source, the same in every plot."""
    return COLOURS.get(name, SPARE[sum(name.encode()) % len(SPARE)])


def figure(height_in: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure that needs no display, and its axes row by row."""
    made = Figure(figsize=(WIDTH_IN, height_in), dpi=110, layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False).ravel().tolist()
    for each in axes:
        each.grid(True, color="#e3e3e3", linewidth=0.6)
        each.set_axisbelow(True)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return made, axes


def png(plot: Figure) -> bytes:
    """Without a date or a version in it."""
    buffer = BytesIO()
    plot.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
