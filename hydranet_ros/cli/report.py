"""`hydranet report RUN [OTHER]`: the report of a run again, or two runs side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydranet_ros.cli.arguments import add_command, add_json
from hydranet_ros.errors import HydraNetError, printable, require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands

EXAMPLES = """\
  hydranet report out/09                        write out/09/report.html again
  hydranet report out/before out/after          compare two runs: comparison.html
  hydranet report out/06 out/06_wheels --out compared --json
"""


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "report",
        run,
        "write the report of a run again, or compare two runs",
        "Write the report of a folder of hydranet run --out again, from what it has left there. "
        "With two folders, put the second beside the first: one table, and plots with both.",
        EXAMPLES,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="of hydranet run --out")
    parser.add_argument("other", type=Path, metavar="OTHER", nargs="?", help="to be compared")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the page goes (default: RUN, and for two runs the current folder)",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Read, draw, write, print."""
    require("the report", "matplotlib")
    from hydranet_ros.evaluation.comparison import compared, write_comparison
    from hydranet_ros.evaluation.conclusion import conclusion, gains
    from hydranet_ros.evaluation.output import ResultsFolder
    from hydranet_ros.evaluation.record_file import read_record
    from hydranet_ros.evaluation.report import write_report

    record = read_record(options.run_folder)
    if options.other is None:
        place = ResultsFolder(options.out or options.run_folder)
        with place.whole() as whole:
            write_report(whole, record)
        figures: dict[str, Any] = {
            key: {"alone": gain.alone, "fused": gain.fused, "times": gain.times}
            for key, gain in gains(record.figures).items()
        }
        told = [conclusion(record), f"written to {place.path / 'report.html'}"]
    else:
        if options.other.resolve() == options.run_folder.resolve():
            raise HydraNetError(f"{options.other}: is the same run: give another one")
        names = _names(options.run_folder, options.other)
        other = read_record(options.other)
        place = ResultsFolder(options.out or Path())
        page = write_comparison(place, names, record, other)
        rows = compared(record, other)
        figures = {
            row.key: {names[0]: row.first, names[1]: row.second, "times": row.times}
            for row in rows
        }
        width = max([24, *(len(row.label) + 2 for row in rows)])
        told = [f"{'':<{width}}{names[0]:>14}{names[1]:>14}  times better"]
        told += [
            f"{row.label:<{width}}{row.first:>14.4g}{row.second:>14.4g}{row.times:>14.3g}"
            for row in rows[:8]
        ]
        told.append(f"written to {page}")
    print(json.dumps(figures) if options.json else "\n".join(printable(line) for line in told))


def _names(one: Path, other: Path) -> tuple[str, str]:
    """What the runs are called: by their folders, as far as these differ."""
    names = one.resolve().name, other.resolve().name
    return names if names[0] != names[1] else (str(one), str(other))
