"""Two runs side by side: one sentence, one table, and plots with both."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from hydranet_ros.evaluation.conclusion import COMPARED, ODOMETRIES, SAME, judged
from hydranet_ros.evaluation.output import ResultsFolder
from hydranet_ros.evaluation.plots import COLOURS, SPARE, TRUTH, figure
from hydranet_ros.evaluation.record import RunRecord
from hydranet_ros.evaluation.report import page_head
from hydranet_ros.geometry import lie

SHADES = COLOURS["fused"], SPARE[0]  # of the first run, and of the second
Names = tuple[str, str]


class Row(NamedTuple):
    """One figure of both runs."""

    key: str
    label: str
    first: float
    second: float

    @property
    def times(self) -> float:
        """How many times better the second run is; below 1 it is worse."""
        return self.first / self.second if self.second > 0.0 else float("inf")


def compared(first: RunRecord, second: RunRecord) -> list[Row]:
    """What both have a figure of: of what is fused, then of the odometry, then of the gyro."""
    rows = []
    for name in ("fused", *ODOMETRIES):
        one, other = first.figures.get(name), second.figures.get(name)
        if one is None or other is None:
            continue
        for key, (label, unit) in COMPARED.items():
            before, after = one.get(key), other.get(key)
            if before is not None and after is not None:
                called = ODOMETRIES.get(name, name)
                rows.append(Row(f"{name}.{key}", f"{called}: {label} ({unit})", before, after))
    for name in first.rotations.keys() & second.rotations.keys():
        means = [
            float(np.rad2deg(np.linalg.norm(each.rotations[name].phi, axis=1)).mean())
            for each in (first, second)
        ]
        rows.append(Row(f"{name}.mean_deg", "gyro: frame to frame (deg)", *means))
    return rows


def write_comparison(
    folder: ResultsFolder, names: Names, first: RunRecord, second: RunRecord
) -> Path:
    """Write comparison.html with its pictures inside; return its path."""
    rows = compared(first, second)
    parts = [
        *page_head(f"{names[0]} and {names[1]}"),
        f'<p class="result">{escape(_sentence(names, rows))}</p>',
        _table(names, rows),
    ]
    if first.title != second.title:
        parts.append(
            f"<p>The runs are of different recordings: {escape(first.title)}, and "
            f"{escape(second.title)}.</p>"
        )
    plots = (
        ("Trajectories", "From above; fused, or the odometry.", _top_down(names, first, second)),
        ("Errors over distance", "Drift of the same.", _drift(names, first, second)),
        (
            "Calibration",
            "NEES of rotations over frames, over its ideal.",
            _nees(names, first, second),
        ),
    )
    for title, text, plot in plots:
        if plot is not None:
            data = b64encode(folder.png(plot)).decode("ascii")
            parts += [
                f"<section><h2>{title}</h2><p>{text}</p>",
                f'<img alt="{title}" src="data:image/png;base64,{data}"></section>',
            ]
    return folder.text("comparison.html", "\n".join([*parts, "</body></html>", ""]))


def _sentence(names: Names, rows: list[Row]) -> str:
    if not rows:
        return "The two runs have no figure in common: is the truth known in both?"
    row = max(rows, key=lambda each: abs(float(np.log(max(each.times, 1e-9)))))
    return (
        f"{row.label} is {row.second:.3g} in {names[1]} and {row.first:.3g} in {names[0]}: "
        f"{judged(row.times)}."
    )


def _table(names: Names, rows: list[Row]) -> str:
    if not rows:
        return ""
    cells = []
    for row in rows:
        kind = "better" if row.times > 1.0 + SAME else "worse" if row.times < 1.0 - SAME else ""
        numbers = f"<td>{row.first:.4g}</td><td>{row.second:.4g}</td>"
        times = f'<td class="{kind}">{row.times:.3g}</td>'
        cells.append(f"<tr><td>{escape(row.label)}</td>{numbers}{times}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names, "times better"))
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(cells)}</table></div>'


def _shown(record: RunRecord) -> tuple[np.ndarray, np.ndarray | None] | None:
    """The path that a run ends with, and the true one; from their starts."""
    paths = record.from_start()
    truth = paths.pop("ground truth", None)
    name = "fused" if "fused" in paths else next(iter(paths), None)
    return None if name is None else (paths[name], truth)


def _top_down(names: Names, first: RunRecord, second: RunRecord) -> Figure | None:
    shown = [(name, _shown(each)) for name, each in zip(names, (first, second), strict=True)]
    if all(each is None for _, each in shown):
        return None
    plot, (axes,) = figure(6.0)
    for (name, each), shade in zip(shown, SHADES, strict=True):
        if each is not None:
            T, truth = each
            if truth is not None:
                axes.plot(truth[:, 0, 3], truth[:, 2, 3], color=TRUTH, linewidth=2.4, alpha=0.4)
            axes.plot(T[:, 0, 3], T[:, 2, 3], color=shade, linewidth=1.5, label=name)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("right (m)")
    axes.set_ylabel("forward (m)")
    axes.legend(frameon=False)
    return plot


def _drift(names: Names, first: RunRecord, second: RunRecord) -> Figure | None:
    plot, (position, angle) = figure(4.8, rows=2)
    drawn = False
    for name, record, shade in zip(names, (first, second), SHADES, strict=True):
        each = _shown(record)
        if each is None or each[1] is None or len(each[1]) < 2:
            continue
        T, truth = each
        assert truth is not None
        steps = np.linalg.norm(np.diff(truth[:, :3, 3], axis=0), axis=1)
        distance = np.concatenate([[0.0], np.cumsum(steps)])
        error = lie.se3_inverse(T) @ truth
        degrees = np.rad2deg(np.linalg.norm(lie.so3_log(error[:, :3, :3]), axis=1))
        position.plot(distance, np.linalg.norm(error[:, :3, 3], axis=1), color=shade, label=name)
        angle.plot(distance, degrees, color=shade, label=name)
        drawn = True
    position.set_ylabel("position error (m)")
    angle.set_ylabel("rotation error (deg)")
    angle.set_xlabel("distance (m)")
    if drawn:
        position.legend(frameon=False)
    return plot if drawn else None


def _nees(names: Names, first: RunRecord, second: RunRecord) -> Figure | None:
    plot, (axes,) = figure(3.0)
    drawn = False
    axes.axhline(1.0, color="#222222", linewidth=1.2, label="ideal")
    for name, record, shade in zip(names, (first, second), SHADES, strict=True):
        for (source, each), style in zip(record.blocks.items(), ("o-", "s--", "^:"), strict=False):
            label = f"{name}: {ODOMETRIES.get(source, 'gyro')}"
            axes.plot(
                list(each), [v / 3.0 for v in each.values()], style, color=shade, label=label
            )
            drawn = True
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("frames")
    axes.set_ylabel("NEES / 3")
    axes.legend(frameon=False, fontsize=9)
    return plot if drawn else None
