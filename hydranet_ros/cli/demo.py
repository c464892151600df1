"""`hydranet demo`: three acts that show the gain, by the real nodes over ROS 2."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydranet_ros.cli.arguments import (
    CAMERAS,
    add_address,
    add_command,
    add_frames,
    add_json,
    add_settings,
    chosen_settings,
    dumped,
    number,
    open_chosen,
    whole_number,
)
from hydranet_ros.errors import FileError, HydraNetError, printable, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.cli.demo_acts import Act
    from hydranet_ros.cli.demo_nodes import DemoConfig, LivePage
    from hydranet_ros.datasets.source import Source
    from hydranet_ros.evaluation.acts import Outcome
    from hydranet_ros.evaluation.output import ResultsFolder

EXAMPLES = """\
  hydranet demo                                       three acts in simulated worlds
  hydranet demo --act 2                               one of them
  hydranet demo --source dataset/sequences/09 --act 1 --frames 200     an act on your own data
  hydranet demo --source dataset/sequences/09 --frames 200 --out demo_09
"""
FRAMES = 100
NOT_REACHED = 1
LATE_MS = 500.0
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
        "three acts that show the gain, by the ROS 2 nodes on simulated worlds or your data",
        "Play simulated worlds over ROS 2 through the nodes, each a process of its own, record "
        "what they publish, and hold it against the truth, in three acts: (1) wheels that slip, "
        "a track 5 % wrong, and one camera; (2) stereo odometry through a dark tunnel and past a "
        "blank wall; (3) an IMU with a bias of 1 deg/s, and one camera. Exit code 1 where an act "
        "misses its bound. With --source and --act, the act is played with your images; wheels "
        "and IMU are simulated from the true poses. With --source alone, stereo odometry, gyro "
        "and fusion run as they are. Writes bags (mcap), pictures and report.html.",
        EXAMPLES,
    )
    parser.add_argument("--act", type=int, choices=(1, 2, 3), help="one act (default: all)")
    parser.add_argument(
        "--source", metavar="DIR|BAG", help="your own data instead of simulated worlds"
    )
    parser.add_argument("--poses", metavar="FILE", help="its true poses, where it has none")
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=1, metavar="N", help="of the worlds (default: 1)"
    )
    add_frames(parser, least=3)
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
    parser.add_argument("--no-view", action="store_true", help="no live page in the browser")
    add_address(parser)
    parser.add_argument("--weights", metavar="FILE", help="other weights than those that ship")
    parser.add_argument("--device", help="auto, numpy, cpu, cuda or cuda:N")
    add_settings(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int | None:
    """Check, then the acts, or one's own data as it is; 1 where an act misses its bound."""
    from hydranet_ros.cli.demo_nodes import DemoConfig

    names = ("cameras", "weights", "device")
    shorthands = {f"gyro.{name}": getattr(options, name) for name in names}
    config = chosen_settings(options, DemoConfig(), shorthands)
    if dumped(options, config):
        return 0
    folder = _check(options, config)
    if options.source is None or options.act is not None:
        return _acts(options, config, folder)
    _as_it_is(options, config, folder)
    return 0


# --- the acts ------------------------------------------------------------------------------------


def _acts(options: argparse.Namespace, config: DemoConfig, folder: ResultsFolder) -> int:
    """Play the acts one after the other; the next one is rendered meanwhile."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from hydranet_ros.cli.demo_acts import ACTS, prepare
    from hydranet_ros.ros.environment import private_environment

    acts = [act for act in ACTS if options.act in (None, act.number)]
    own = None if options.source is None else open_chosen(options, acts[0].cameras)
    outcomes: dict[int, Outcome] = {}
    environment = private_environment(options.out / "logs")
    page = _page(options, environment)
    with (
        tempfile.TemporaryDirectory(dir=options.out, prefix=".") as scratch,
        ProcessPoolExecutor(1, get_context("spawn"), _yield_to_nodes) as renderer,
        nullcontext() if page is None else page,
    ):
        bags = {act.number: Path(scratch) / f"played_{act.number}" for act in acts}
        if own is not None:
            prepare(acts[0].number, own, options.seed, bags[acts[0].number])
            ready = {}
        else:
            ready = {
                n: renderer.submit(prepare, n, None, options.seed, b) for n, b in bags.items()
            }
        _tell_page(options, page)
        for act in acts:
            _say(options, f"Act {act.number}. {act.title}")
            if act.number in ready:
                ready[act.number].result()
            played, watched = bags[act.number], page is not None
            outcomes[act.number] = _play(act, own, options, config, environment, played, watched)
            _say(options, f"  {outcomes[act.number].line()}")
    for drive, act in enumerate(acts, 1):
        _keep_shown(page, drive, options.out / f"recorded_{act.number}")
    from hydranet_ros.evaluation.report import write_acts

    with folder.whole() as place:
        report = write_acts(place, {act.number: act.title for act in acts}, outcomes)
        place.json("metrics.json", {str(n): each.as_dict() for n, each in outcomes.items()})
    if options.json:
        print(json.dumps({str(n): each.as_dict() for n, each in outcomes.items()}))
    else:
        print(_verdict(outcomes, options.out, report.name, page))
    return 0 if all(each.passed for each in outcomes.values()) else NOT_REACHED


def _yield_to_nodes() -> None:
    os.nice(19)


def _say(options: argparse.Namespace, line: str) -> None:
    if not options.json:
        print(printable(line), flush=True)


def _page(options: argparse.Namespace, environment: Mapping[str, str]) -> LivePage | None:
    """The live page, which starts at once; None where it is not wanted, or viser is missing."""
    from hydranet_ros.cli.demo_nodes import LivePage

    if options.no_view:
        return None
    try:
        require("the live page", "viser")
    except HydraNetError as error:
        print(printable(f"no live page: {error} (or --no-view)"), file=sys.stderr)
        return None
    return LivePage(options.out / "logs", environment, (options.host, options.port))


def _tell_page(options: argparse.Namespace, page: LivePage | None) -> None:
    if page is not None:
        line = printable(f"live page: {page.said()}")
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)


def _play(
    act: Act,
    own: Source | None,
    options: argparse.Namespace,
    config: DemoConfig,
    environment: Mapping[str, str],
    played: Path,
    watched: bool,
) -> Outcome:
    import numpy as np

    from hydranet_ros.cli.demo_nodes import Session, run_nodes
    from hydranet_ros.evaluation.recorded import ROTATION, read_recorded_run

    source = act.open(own, options.seed)
    seconds = float(source.stamps_ns[-1] - source.stamps_ns[0]) * 1e-9
    logs = options.out / "logs" / f"act_{act.number}"
    stage = act.stage(config)
    session = Session(logs, options.rate * act.pace, seconds, stage, environment, watched)
    recorded = played.with_name(f"recorded_{act.number}")
    run_nodes(session, played, recorded)
    run = read_recorded_run(recorded)
    outcome = act.judged(run, source, act.bound)
    late = run.latencies_ms(ROTATION)
    if len(late) and np.median(late) > LATE_MS:
        _say(
            options, f"  (this machine is busy: rotations came {np.median(late) / 1e3:.1f} s late)"
        )
    _keep(recorded, options.out / f"recorded_{act.number}")
    return outcome


def _verdict(outcomes: dict[int, Outcome], out: Path, report: str, page: LivePage | None) -> str:
    """The table, and where the rest is."""
    from hydranet_ros.evaluation.output import GREEN, RED, coloured

    lines = ["", f"{'act':<5}{'alone':>12} | {'fused':>12} | times better | bound"]
    for act, each in outcomes.items():
        alone, fused = (f"{value:.3g} {each.unit}" for value in (each.alone, each.fused))
        verdict = coloured("PASS", GREEN) if each.passed else coloured("FAIL", RED)
        row = f"{act:<5}{alone:>12} | {fused:>12} | {each.times:>12.3g} | {each.bound_text}"
        lines.append(f"{row:<76}{verdict}")
    numbers = ", ".join(str(act) for act in outcomes)
    seen = "" if page is None else f" (it was at {page.url})"
    lines += [
        printable(f"report: {out / report}"),
        printable(f"pictures: {out}/act_N.png, bags: {out}/recorded_N (N: {numbers})"),
        printable(f"the page again: hydranet view {out}/recorded_{min(outcomes)}{seen}"),
    ]
    return "\n".join(lines)


# --- one's own data as it is ---------------------------------------------------------------------


def _as_it_is(options: argparse.Namespace, config: DemoConfig, folder: ResultsFolder) -> None:
    """Stereo odometry, gyro and fusion over a source."""
    from hydranet_ros.cli.demo_nodes import Session, run_nodes, stereo_stage
    from hydranet_ros.evaluation.recorded import read_recorded_run, summary
    from hydranet_ros.evaluation.report import write_report
    from hydranet_ros.ros.environment import private_environment

    options.frames = options.frames or FRAMES
    source = open_chosen(options)
    seconds = float(source.stamps_ns[-1] - source.stamps_ns[0]) * 1e-9
    stage = stereo_stage(config)
    environment = private_environment(options.out / "logs")
    page = _page(options, environment)
    logs, watched = options.out / "logs", page is not None
    session = Session(logs, options.rate, seconds, stage, environment, watched)
    with tempfile.TemporaryDirectory(dir=options.out, prefix=".") as scratch:
        played = _prepare(source, Path(scratch) / "played")
        recorded = Path(scratch) / "recorded"
        with nullcontext() if page is None else page:
            _tell_page(options, page)
            run_nodes(session, played, recorded)
        figures, record = summary(read_recorded_run(recorded), source)
        _keep(recorded, options.out / "recorded")
    _keep_shown(page, 1, options.out / "recorded")
    with folder.whole() as place:
        report = write_report(place, record)
        place.json("metrics.json", figures)
    print(json.dumps(figures) if options.json else _text(figures, options.out / report.name))


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


def _keep_shown(page: LivePage | None, number: int, bag: Path) -> None:
    """Put what the page has shown beside the bag: hydranet view finds the pictures there."""
    from hydranet_ros.view.recorded import VIEW_FILE

    if page is not None and page.shown(number).is_file():
        page.shown(number).replace(bag / VIEW_FILE)


def _text(figures: dict[str, Any], page: Path) -> str:
    """VO alone and fused against the truth, how the run went, and where the rest is."""
    from hydranet_ros.evaluation.recorded import sentence
    from hydranet_ros.evaluation.tables import comparison_table

    table = "no true poses are known: nothing to compare with"
    if "vo" in figures:
        table = comparison_table(figures, ROWS, COLUMNS, width=14, digits=3)
    bag = page.parent / "recorded"
    places = printable(f"see {page}, the bag {bag}, and the page again: hydranet view {bag}")
    return "\n".join([table, sentence(figures), places])
