"""The HTML page: everything in one file, the same bytes for the same run."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hydranet_ros.errors import require
from hydranet_ros.evaluation.output import ResultsFolder
from hydranet_ros.evaluation.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; color: #222;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 0.4rem; }
table { border-collapse: collapse; margin: 1rem 0; } p { margin: 0.3rem 0; color: #555; }
th, td { padding: 0.25rem 0.9rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } img { max-width: 100%; }
"""


def write_report(folder: ResultsFolder, record: RunRecord) -> Path:
    """Write report.html and its plots as plots/NAME.png; return the path of the page."""
    found = _plots(record)
    pictures = folder.folder("plots")
    plots = [(title, text, pictures.plot(name, plot)) for name, title, text, plot in found]
    return folder.text("report.html", _html(record, plots))


def _plots(record: RunRecord) -> list[tuple[str, str, str, Figure]]:
    """(file name, title, explanation, plot) of all that the record has the data for."""
    require("the report", "matplotlib")
    from hydranet_ros.evaluation import plots

    found: list[tuple[str, str, str, Figure | None]] = [
        ("top_down", "Trajectories", "From above.", plots.top_down(record)),
        ("pose_errors", "Errors of the poses", "Drift.", plots.pose_errors(record)),
    ]
    for name in record.rotations:
        found += [
            (
                f"rotation_{_file_name(name)}",
                f"Rotation errors: {name}",
                "Frame to frame, with plus and minus three standard deviations.",
                plots.errors_with_bounds(record, name),
            ),
            (
                f"histogram_{_file_name(name)}",
                f"Errors over their standard deviations: {name}",
                "The line is the normal distribution.",
                plots.histograms(record, name),
            ),
            (
                f"sigma_{_file_name(name)}",
                f"Where the variance comes from: {name}",
                "Aleatoric: in the images. Epistemic: the model does not know such images.",
                plots.uncertainty(record, name),
            ),
        ]
    found += [
        (
            "calibration",
            "Calibration of the rotations",
            "On the line the covariances are right; above it on the left they are too small.",
            plots.calibration(record),
        ),
        (
            "nis",
            "Consistency of the fusion",
            "Normalised innovations squared, tested as they came.",
            plots.consistency(record),
        ),
        (
            "self_calibration",
            "What the calibration of the pair left wrong",
            "Found from the images alone: where a pixel is seen, less where it should be. The "
            "arrows are enlarged, as the one above says; the shades are their lengths.",
            plots.self_calibration(record),
        ),
        ("timing", "Latency", "From image to result.", plots.timing(record)),
    ]
    return [(name, title, text, plot) for name, title, text, plot in found if plot is not None]


def _html(record: RunRecord, plots: list[tuple[str, str, bytes]]) -> str:
    title = escape(record.title)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *(f"<p>{escape(note)}</p>" for note in record.notes),
        _table(record),
    ]
    for heading, text, image in plots:
        data = b64encode(image).decode("ascii")
        parts += [
            f"<h2>{escape(heading)}</h2><p>{escape(text)}</p>",
            f'<img alt="{escape(heading)}" src="data:image/png;base64,{data}">',
        ]
    return "\n".join([*parts, "</body></html>", ""])


def _table(record: RunRecord) -> str:
    if not record.figures:
        return ""
    columns = list(dict.fromkeys(key for row in record.figures.values() for key in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *columns))
    rows = [
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{_number(row.get(key))}</td>" for key in columns)
        + "</tr>"
        for name, row in record.figures.items()
    ]
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
