"""The HTML page: everything in one file, the same bytes for the same run."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hydranet_ros.errors import require
from hydranet_ros.evaluation.conclusion import ODOMETRIES, SAME, conclusion, gains, odometry_of
from hydranet_ros.evaluation.output import ResultsFolder
from hydranet_ros.evaluation.record import RunRecord
from hydranet_ros.evaluation.tables import LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hydranet_ros.evaluation.acts import Outcome

# Around the section that depends on the machine.
TIMING_TITLE, TIMING_MARK = "Latency", "<!-- timing -->"
IN_SAMPLE = (
    "In-sample: settings were chosen with KITTI 06 and 09, EuRoC, TUM, 7-Scenes and the robot in "
    "view, and the weights that ship are trained on simulated worlds. Other recordings are not."
)
STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 1.5rem auto; color: #222;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 0.3rem; }
p { margin: 0.3rem 0; color: #555; } .result { font-size: 1.2rem; color: #222; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: 0.8rem 0; }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.better { color: #1f5fbf; font-weight: 600; } .worse { color: #b0305c; font-weight: 600; }
img { width: 100%; height: auto; } section { break-inside: avoid; }
pre { font-size: 0.8rem; overflow-x: auto; background: #f6f6f6; padding: 0.6rem; }
@media (max-width: 30rem) { body { font-size: 15px; } th, td { padding: 0.25rem 0.35rem; } }
@media print { body { max-width: none; } p { color: #222; } }
"""


def write_report(folder: ResultsFolder, record: RunRecord) -> Path:
    """Write report.html and its plots as plots/NAME.png; return the path of the page."""
    found = _plots(record)
    pictures = folder.folder("plots")
    plots = [(title, text, pictures.plot(name, plot)) for name, title, text, plot in found]
    return folder.text("report.html", _html(record, plots))


def write_acts(
    folder: ResultsFolder, titles: Mapping[int, str], outcomes: Mapping[int, Outcome]
) -> Path:
    """Write act_N.png of each act of the demonstration, and report.html with all of them."""
    passed = sum(each.passed for each in outcomes.values())
    parts = [
        *page_head("HydraNet demonstration"),
        f'<p class="result">{passed} of {len(outcomes)} acts reached their bound.</p>',
    ]
    for number, each in outcomes.items():
        data = b64encode(folder.plot(f"act_{number}", each.picture)).decode("ascii")
        kind, verdict = ("better", "PASS") if each.passed else ("worse", "FAIL")
        cells = "".join(
            f"<td>{escape(text)}</td>"
            for text in (f"{each.alone:.3g}", f"{each.fused:.3g}", f"{each.times:.3g}")
        )
        head = f"<th></th><th>{escape(each.alone_name)}</th><th>fused</th><th>times better</th>"
        label = _label(each.what, each.unit)
        parts += [
            f"<section><h2>{number}. {escape(titles[number])}</h2>",
            f'<div class="wide"><table><tr>{head}</tr><tr><td>{label}</td>{cells}</tr></table>',
            f'</div><p><span class="{kind}">{verdict}</span>: held to {escape(each.bound_text)}.'
            "</p>",
            f'<img alt="act {number}" src="data:image/png;base64,{data}"></section>',
        ]
    return folder.text("report.html", "\n".join([*parts, "</body></html>", ""]))


def _plots(record: RunRecord) -> list[tuple[str, str, str, Figure]]:
    """(file name, title, explanation, plot) of all that the record has the data for."""
    require("the report", "matplotlib")
    from hydranet_ros.evaluation import plots, run_plots

    found: list[tuple[str, str, str, Figure | None]] = [
        ("top_down", "Trajectories", "From above.", plots.top_down(record)),
        (
            "errors_over_time",
            "Errors over time",
            "Of the fused pose since the start, within three of its standard deviations.",
            run_plots.errors_over_time(record),
        ),
        ("pose_errors", "Errors over distance", "Drift.", plots.pose_errors(record)),
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
            "nees",
            "Calibration over 1, 10, 100 frames",
            "NEES of rotations chained over so many frames, over its ideal: 1 is right, above it "
            "the covariances are too small, below it too large.",
            run_plots.nees_over_frames(record),
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
        (
            "found",
            "Biases and scales",
            "Found by the fusion, with plus and minus three standard deviations.",
            run_plots.found(record),
        ),
        (
            "timeline",
            "What was lost or rejected, and why",
            "Each mark is a frame; how many there are stands behind the reason.",
            run_plots.timeline(record),
        ),
        ("timing", TIMING_TITLE, "From image to result.", plots.timing(record)),
    ]
    return [(name, title, text, plot) for name, title, text, plot in found if plot is not None]


def _html(record: RunRecord, plots: list[tuple[str, str, bytes]]) -> str:
    parts = [
        *page_head(record.title),
        f'<p class="result">{escape(conclusion(record))}</p>',
        _gains(record),
        f"<p>{IN_SAMPLE}</p>" if record.figures else "",
        *(f"<p>{escape(note)}</p>" for note in record.notes),
    ]
    for heading, text, image in plots:
        data = b64encode(image).decode("ascii")
        mark = TIMING_MARK if heading == TIMING_TITLE else ""
        parts += [
            f"{mark}<section><h2>{escape(heading)}</h2><p>{escape(text)}</p>",
            f'<img alt="{escape(heading)}" src="data:image/png;base64,{data}"></section>{mark}',
        ]
    if not record.events:
        parts.append("<p>Nothing was lost or rejected, as far as it was recorded.</p>")
    parts += [_figures(record), _settings(record.configuration)]
    return "\n".join([*parts, "</body></html>", ""])


def _settings(text: str) -> str:
    """The configuration, to be opened."""
    if not text:
        return ""
    return (
        "<section><h2>Configuration</h2><details><summary>config.yaml</summary>"
        f"<pre>{escape(text)}</pre></details></section>"
    )


def page_head(title: str) -> list[str]:
    """How every page begins."""
    title = escape(title)
    return [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
    ]


def _gains(record: RunRecord) -> str:
    """The table of alone, fused and times better."""
    rows = []
    for gain in gains(record.figures).values():
        kind = "better" if gain.times > 1.0 + SAME else "worse" if gain.times < 1.0 - SAME else ""
        times = f'<td class="{kind}">{gain.times:.3g}</td>'
        cells = f"<td>{_number(gain.alone)}</td><td>{_number(gain.fused)}</td>{times}"
        rows.append(f"<tr><td>{_label(gain.label, gain.unit)}</td>{cells}</tr>")
    if not rows:
        return ""
    alone = ODOMETRIES[odometry_of(record.figures) or "vo"]
    head = f"<th></th><th>{escape(alone)} alone</th><th>fused</th><th>times better</th>"
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _figures(record: RunRecord) -> str:
    """Every figure: a row for each, a column for each estimate."""
    if not record.figures:
        return ""
    keys = dict.fromkeys(key for row in record.figures.values() for key in row)
    names = [ODOMETRIES.get(name, name) for name in record.figures]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    rows = [
        f"<tr><td>{_label(*LABELS.get(key, (key, '')))}</td>"
        + "".join(f"<td>{_number(row.get(key))}</td>" for row in record.figures.values())
        + "</tr>"
        for key in keys
    ]
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>"
    return f'<section><h2>All figures</h2><div class="wide">{table}</div></section>'


def _label(text: str, unit: str) -> str:
    return escape(f"{text} ({unit})" if unit else text)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
