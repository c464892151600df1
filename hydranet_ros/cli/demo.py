"""`hydranet demo`: the real nodes over ROS 2, on the simulated street or your own recording."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydranet_ros.cli.arguments import (
    CAMERAS,
    STREET,
    add_command,
    add_frames,
    add_json,
    add_settings,
    chosen_settings,
    dumped,
    number,
    open_chosen,
)
from hydranet_ros.errors import FileError, printable, require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.cli.demo_nodes import DemoConfig
    from hydranet_ros.datasets.source import Source
    from hydranet_ros.evaluation.output import ResultsFolder

EXAMPLES = """\
  hydranet demo                                       the simulated street
  hydranet demo --source dataset/sequences/09 --frames 200 --out demo_09
  hydranet demo --source kitti_09 --weights mine.safetensors
"""
FRAMES = 100
ROWS = {"vo": "VO alone", "fused": "fused"}
COLUMNS = {
    "ate_m": "ATE (m)",
    "ate_deg": "ATE (deg)",
    "devkit_pct": "segments (%)",
    "f2f_deg": "step (deg)",
    "nees": "NEES of 3",
}


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "demo",
        run,
        "run the ROS 2 nodes on the simulated street, and show what comes out",
        "Play a sequence over ROS 2 through hydranet_node, stereo_vo_node and fusion_node, "
        "each a process of its own, record what they publish, and compare it with the truth. "
        "Writes a bag (mcap), plots and report.html.",
        EXAMPLES,
    )
    parser.add_argument(
        "--source", default=STREET, metavar="DIR|BAG", help="default: the simulated street"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo"
    )
    add_frames(parser, least=3, default=FRAMES)
    parser.add_argument(
        "--rate",
        type=number(above=0.0, most=1000.0),
        default=1.0,
        metavar="R",
        help="times the recorded speed",
    )
    parser.add_argument(
        "--cameras",
        choices=CAMERAS,
        help="rotations from the left camera alone, in less time, or from both (default: stereo)",
    )
    parser.add_argument("--weights", metavar="FILE", help="other weights than those that ship")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N")
    add_settings(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Check, prepare the input, run the nodes, read what they published, show it."""
    from hydranet_ros.cli.demo_nodes import DemoConfig, Session, run_nodes

    names = ("cameras", "weights", "device")
    shorthands = {f"gyro.{name}": getattr(options, name) for name in names}
    config = chosen_settings(options, DemoConfig(), shorthands)
    if dumped(options, config):
        return
    folder = _check(options, config)
    from hydranet_ros.evaluation.recorded import read_recorded_run, summary
    from hydranet_ros.evaluation.report import write_report

    source = open_chosen(options)
    seconds = float(source.stamps_ns[-1] - source.stamps_ns[0]) * 1e-9
    session = Session(options.out / "logs", options.rate, seconds, config)
    with tempfile.TemporaryDirectory(dir=options.out, prefix=".") as scratch:
        played = _prepare(source, Path(scratch) / "played")
        recorded = Path(scratch) / "recorded"
        run_nodes(session, played, recorded)
        figures, record = summary(read_recorded_run(recorded), source)
        _keep(recorded, options.out / "recorded")
    with folder.whole() as place:
        page = write_report(place, record)
        place.json("metrics.json", figures)
    print(json.dumps(figures) if options.json else _text(figures, options.out / page.name))


def _check(options: argparse.Namespace, config: DemoConfig) -> ResultsFolder:
    """Refuse what would fail later, before anything is rendered; the folder of the results."""
    require("this command", "rclpy", "rosbags", "matplotlib")
    from hydranet_ros.evaluation.output import ResultsFolder
    from hydranet_ros.gyro.visual_gyro import DEFAULT_WEIGHTS

    weights = Path(config.gyro.weights) if config.gyro.weights else DEFAULT_WEIGHTS
    if not weights.is_file():
        raise FileError(weights, "is missing: give the weights of a network with --weights FILE")
    folder = ResultsFolder(options.out)
    folder.folder("logs")
    try:
        tempfile.TemporaryFile(dir=options.out).close()
    except OSError as error:
        raise FileError(options.out, f"cannot be written: {error.strerror}") from None
    return folder


def _prepare(source: Source, path: Path) -> Path:
    """A bag of the input, made beforehand: rendering would take the nodes' time."""
    from hydranet_ros.datasets.bag_files import write_bag
    from hydranet_ros.datasets.bag_messages import message_count, recorded
    from hydranet_ros.evaluation.output import progress

    write_bag(path, progress(recorded(source), message_count(source), "prepare", "message"))
    return path


def _keep(bag: Path, place: Path) -> None:
    """Put the bag of this run where the one of the last run was."""
    if (place / "metadata.yaml").is_file():
        shutil.rmtree(place)
    try:
        bag.rename(place)
    except OSError as error:
        raise FileError(place, f"cannot be written: {error.strerror}") from None


def _text(figures: dict[str, Any], page: Path) -> str:
    """VO alone and fused against the truth, how the run went, and where the rest is."""
    from hydranet_ros.evaluation.recorded import sentence
    from hydranet_ros.evaluation.tables import comparison_table

    table = "no true poses are known: nothing to compare with"
    if "vo" in figures:
        table = comparison_table(figures, ROWS, COLUMNS, width=14, digits=3)
    places = printable(f"see {page}, and the bag {page.parent}/recorded")
    return "\n".join([table, sentence(figures), places])
