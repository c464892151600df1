"""A run of the benchmark as tables: for a terminal, in Markdown, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from hydranet_ros.evaluation.benchmark import GYRO, LENGTHS, TOLERANCES
from hydranet_ros.evaluation.output import ResultsFolder

Row = Sequence[str]
ROTATIONS = "Rotation between frames"
POSES = "Odometry and fusion"
STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 1.5rem auto; color: #222;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { color: #555; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
td:nth-child(2) { white-space: nowrap; }
.worse { color: #b0305c; font-weight: 600; }
"""
HEADS: dict[str, Row] = {
    ROTATIONS: (
        *("sequence", "method", "frames", "lost", "deg, 1 frame", "10 frames", "100 frames"),
        *("NEES 1 / 10 / 100 (3 is ideal)", "ms"),
    ),
    POSES: (
        *("sequence", "method", "path m", "lost", "ATE m", "ATE deg", "KITTI %", "deg/100 m"),
        *("NEES 1 / 10 / 100 (6 is ideal)", "ms"),
    ),
}
NOTES = {
    ROTATIONS: "Mean error over blocks in which every method has every rotation.",
    POSES: "Mean absolute error (ATE) from the first true pose on; KITTI's segments where the "
    "path is long enough. Wheels are simulated from the true poses.",
}


def rows(run: Mapping[str, Any], table: str) -> Iterator[Row]:
    """The cells of one of the two tables."""
    for name, sequence in run["sequences"].items():
        for method, each in sequence["methods"].items():
            if ("deg_1" in each) != (table == ROTATIONS):
                continue
            nees = " / ".join(_short(each.get(f"nees_{length}")) for length in LENGTHS)
            nees = nees if method == GYRO or table == POSES else ""
            lost, ms = _cell(each["lost"], ".0f"), _cell(each.get("ms"), ".1f")
            if table == ROTATIONS:
                angles = (_cell(each[f"deg_{length}"], ".3f") for length in LENGTHS)
                yield (name, method, str(sequence["frames"]), lost, *angles, nees, ms)
            else:
                errors = _cell(each["ate_m"], ".3g"), _cell(each["ate_deg"], ".3g")
                parts = _cell(each["devkit_pct"], ".2f"), _cell(each["devkit_deg_per_100m"], ".2f")
                way = f"{sequence['path_m']:.0f}"
                yield (name, method, way, lost, *errors, *parts, nees, ms)


def _short(value: float | None) -> str:
    """Two digits, without an exponent."""
    return _cell(value, ".0f" if value is not None and value >= 100.0 else ".2g")


def _cell(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def text(run: Mapping[str, Any]) -> str:
    """Both tables, aligned."""
    lines: list[str] = []
    for table, head in HEADS.items():
        cells = [head, *rows(run, table)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines += [f"{table}:"]
        for row in cells:
            padded = [
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        lines.append("")
    lines += [f"left out: {name}: {reason}" for name, reason in run["left_out"].items()]
    return "\n".join(lines).rstrip()


def markdown(run: Mapping[str, Any]) -> str:
    """Both tables, as they stand on a page of the documentation."""
    parts = []
    for table, head in HEADS.items():
        parts += [f"## {table}", "", NOTES[table], "", _line(head), _line(["---"] * len(head))]
        parts += [_line(row) for row in rows(run, table)]
        parts.append("")
    parts += [f"Left out: {name}: {reason}" for name, reason in run["left_out"].items()]
    return "\n".join(parts).rstrip() + "\n"


def _line(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def html(run: Mapping[str, Any], worse: Sequence[str]) -> str:
    """The page, everything in one file."""
    title = f"hydranet benchmark, {run['version']}"
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="worse">{escape(line)}</p>' for line in worse),
    ]
    for table, head in HEADS.items():
        parts += [f"<h2>{escape(table)}</h2><p>{escape(NOTES[table])}</p>", '<div class="wide">']
        parts.append("<table>" + _html_row(head, "th"))
        parts += [_html_row(row, "td") for row in rows(run, table)]
        parts.append("</table></div>")
    parts += [
        f"<p>Left out: {escape(name)}: {escape(reason)}</p>"
        for name, reason in run["left_out"].items()
    ]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _html_row(cells: Row, kind: str) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def tolerances_text() -> str:
    """What counts as worse, in words."""
    return ", ".join(
        f"{name} by {100.0 * share:.0f} % + {amount:g}"
        for name, (share, amount) in TOLERANCES.items()
    )


def write(folder: ResultsFolder, run: Mapping[str, Any], worse: Sequence[str]) -> None:
    """Write benchmark.json, benchmark.md and benchmark.html."""
    folder.json("benchmark.json", run)
    folder.text("benchmark.md", f"# Benchmark, hydranet_ros {run['version']}\n\n{markdown(run)}")
    folder.text("benchmark.html", html(run, worse))
