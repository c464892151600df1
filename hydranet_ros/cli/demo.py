"""`hydranet demo`: the real nodes over ROS 2, on the simulated street or your own recording."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydranet_ros.datasets.source import STREET, Source, open_source
from hydranet_ros.errors import FileError, HydraNetError, require
from hydranet_ros.evaluation.output import progress

EXAMPLES = """\
examples:
  hydranet demo                                       the simulated street
  hydranet demo --source dataset/sequences/09 --frames 200 --out demo_09
  hydranet demo --source kitti_09 --weights mine.safetensors
"""
FRAMES = 100


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "demo",
        help="run the ROS 2 nodes on the simulated street, and show what comes out",
        description=(
            "Play a sequence over ROS 2 through hydranet_node, stereo_vo_node and fusion_node, "
            "each a process of its own, record what they say, and compare it with the truth. "
            "Writes a bag (mcap), plots and report.html."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--source", default=STREET, metavar="DIR|BAG", help="default: the simulated street"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo"
    )
    parser.add_argument(
        "--frames", type=int, default=FRAMES, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--rate", type=float, default=1.0, metavar="R", help="times the recorded speed"
    )
    parser.add_argument("--weights", metavar="FILE", help="other weights than those that ship")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--mono", action="store_true", help="rotations from the left camera alone, in less time"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check, prepare the input, run the nodes, read what they said, show it."""
    check(options)
    from hydranet_ros.cli.demo_nodes import Session, run_nodes
    from hydranet_ros.evaluation.recorded import read_heard, summary
    from hydranet_ros.evaluation.report import write_report

    source = open_source(options.source, max_frames=options.frames)
    seconds = float(source.stamps_ns[-1] - source.stamps_ns[0]) * 1e-9
    logs = options.out / "logs"
    session = Session(logs, options.rate, seconds, options.weights, options.device, options.mono)
    with _ending_on_hangup(), tempfile.TemporaryDirectory(dir=options.out, prefix=".") as folder:
        played = _prepare(source, Path(folder) / "played")
        recorded = Path(folder) / "recorded"
        run_nodes(session, played, recorded)
        figures, record = summary(read_heard(recorded), source)
        _keep(recorded, options.out / "recorded")
    page = write_report(options.out, record)
    (options.out / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures) if options.json else table(figures, page))


def check(options: argparse.Namespace) -> None:
    """Refuse what would fail later, before anything is rendered."""
    require("this command", "rclpy")
    if options.frames < 3:
        raise HydraNetError(f"--frames {options.frames}: must be at least 3")
    if not 0.0 < options.rate <= 1000.0:
        raise HydraNetError(f"--rate {options.rate}: must be above 0 and at most 1000")
    from hydranet_ros.evaluation.report import require_matplotlib
    from hydranet_ros.gyro.visual_gyro import DEFAULT_WEIGHTS

    weights = Path(options.weights) if options.weights else DEFAULT_WEIGHTS
    if not weights.is_file():
        raise FileError(weights, "is missing: give the weights of a network with --weights FILE")
    require_matplotlib()
    try:
        (options.out / "logs").mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=options.out).close()
    except OSError as error:
        raise HydraNetError(f"--out {options.out}: cannot be written: {error.strerror}") from None


def _prepare(source: Source, path: Path) -> Path:
    """A bag of the input, made beforehand: rendering would take the nodes' time."""
    from hydranet_ros.datasets.bag_files import write_bag
    from hydranet_ros.datasets.bag_messages import message_count, recorded

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


@contextmanager
def _ending_on_hangup() -> Iterator[None]:
    """End by SIGTERM and SIGHUP as by Ctrl-C, so that the nodes are ended too."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def table(figures: dict[str, Any], page: Path) -> str:
    """VO alone and fused against the truth, how the run went, and where the rest is."""
    from hydranet_ros.evaluation.recorded import sentence

    lines = []
    columns = {
        "ate_m": "ATE (m)",
        "ate_deg": "ATE (deg)",
        "devkit_pct": "segments (%)",
        "f2f_deg": "step (deg)",
        "nees": "NEES of 3",
    }
    if "vo" in figures:
        lines.append("".join(f"{cell:>14}" for cell in ("", *columns.values())))
        for name, label in (("vo", "VO alone"), ("fused", "fused")):
            values = [figures[name].get(key) for key in columns]
            cells = ["-" if value is None else f"{value:.3f}" for value in values]
            lines.append("".join(f"{cell:>14}" for cell in (label, *cells)))
    else:
        lines.append("no true poses are known: nothing to compare with")
    return "\n".join(
        [*lines, sentence(figures), f"see {page}, and the bag {page.parent}/recorded"]
    )
