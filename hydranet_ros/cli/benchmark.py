"""`hydranet benchmark DIR`: every method over every sequence below a folder, against the truth."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydranet_ros import __version__
from hydranet_ros.cli.arguments import (
    add_command,
    add_frames,
    add_json,
    add_network,
    add_out,
    add_settings,
    chosen_settings,
    dumped,
    network_settings,
    whole_number,
)
from hydranet_ros.errors import FileError, HydraNetError

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.datasets.source import Source
    from hydranet_ros.evaluation.benchmark import BenchmarkSequence
    from hydranet_ros.geometry.camera import Frame
    from hydranet_ros.pipeline import PipelineConfig

EXAMPLES = """\
  hydranet benchmark                                  simulated street, office and hall
  hydranet benchmark dataset --out out/benchmark      KITTI, EuRoC, TUM, 7-Scenes, bags below it
  hydranet benchmark dataset --frames 200 --jobs 4
  hydranet benchmark --baseline docs/results/simulation.json
"""


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "benchmark",
        run,
        "measure every method over the sequences of a folder",
        "Measure, over every sequence with truth below DIR: the visual gyro beside the five-point "
        "method, stereo or RGB-D odometry, its fusion with the gyro, simulated wheels and their "
        "fusion. Tells errors, NEES over 1, 10 and 100 frames, lost frames and time. Without DIR, "
        "over the simulation. With --baseline the exit code is 1 where a figure is worse than in "
        "an earlier run.",
        EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", help="where sequences are")
    parser.add_argument(
        "--baseline", metavar="FILE", help="benchmark.json of an earlier run, to compare with"
    )
    parser.add_argument("--time", action="store_true", help="compare times with the baseline too")
    parser.add_argument(
        "--jobs",
        type=whole_number(),
        default=1,
        metavar="N",
        help="sequences at the same time; their times disturb each other (default: %(default)s)",
    )
    add_network(parser, cameras="mono")
    add_frames(parser)
    add_settings(parser)
    add_out(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Find, measure, compare, write, print; 1 where something is worse than before."""
    from hydranet_ros.pipeline import PipelineConfig

    config = chosen_settings(options, PipelineConfig(), network_settings(options))
    if dumped(options, config):
        return 0
    before = None if options.baseline is None else _baseline(Path(options.baseline))
    sequences = _sequences(options.folder)
    from hydranet_ros.evaluation import benchmark_page
    from hydranet_ros.evaluation.benchmark import regressions
    from hydranet_ros.evaluation.output import ResultsFolder

    folder = None if options.out is None else ResultsFolder(options.out)
    found: dict[str, Any] = {"version": __version__, "sequences": {}, "left_out": {}}
    for sequence, outcome in _outcomes(sequences, config, options):
        place = "left_out" if isinstance(outcome, str) else "sequences"
        found[place][sequence.name] = outcome
    if not found["sequences"]:
        name, reason = next(iter(found["left_out"].items()))
        raise HydraNetError(f"no sequence could be measured; {name}: {reason}")
    worse = [] if before is None else regressions(found, before, options.time)
    if folder is not None:
        benchmark_page.write(folder, found, worse)
    if options.json:
        print(json.dumps(found | {"regressions": worse}))
    else:
        print(benchmark_page.text(found))
        if before is not None:
            print("\n".join(["", *(worse or [_as_before(options.time)])]))
        if folder is not None:
            print(f"written to {folder.path}")
    return int(bool(worse))


def _as_before(with_time: bool) -> str:
    from hydranet_ros.evaluation.benchmark_page import tolerances_text

    times = "times by 50 %" if with_time else "times are not compared"
    return f"nothing is worse than in the baseline ({tolerances_text()}; {times})"


def _sequences(folder: str | None) -> list[BenchmarkSequence]:
    from hydranet_ros.evaluation.benchmark import find_sequences, simulated_sequences

    if folder is None:
        return simulated_sequences()
    if not Path(folder).is_dir():
        raise HydraNetError(f"{folder}: is not a folder")
    found = find_sequences(Path(folder))
    if not found:
        raise HydraNetError(
            f"{folder}: no sequence is below it, in the layout of KITTI, EuRoC, TUM or 7-Scenes, "
            "or as a rosbag2"
        )
    return found


def _baseline(path: Path) -> dict[str, Any]:
    from hydranet_ros.files import read_text

    try:
        known = json.loads(read_text(path))
        for each in known["sequences"].values():
            each["frames"], each["methods"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileError(path, "is not the benchmark.json of an earlier run") from None
    return dict(known)


def _outcomes(
    sequences: list[BenchmarkSequence], config: PipelineConfig, options: argparse.Namespace
) -> Iterator[tuple[BenchmarkSequence, dict[str, Any] | str]]:
    """The figures of each sequence, or why there are none."""
    if options.jobs == 1 or len(sequences) == 1:
        for sequence in sequences:
            yield sequence, measured_or_reason(sequence, options.frames, config)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(options.jobs, len(sequences)), context) as pool:
        waiting = [
            pool.submit(measured_or_reason, sequence, options.frames, config)
            for sequence in sequences
        ]
        for sequence, future in zip(sequences, waiting, strict=True):
            yield sequence, future.result()


def measured_or_reason(
    sequence: BenchmarkSequence, frames: int | None, config: PipelineConfig
) -> dict[str, Any] | str:
    """The figures of a sequence; the reason where it cannot be measured."""
    import cv2

    from hydranet_ros.evaluation.benchmark import measured
    from hydranet_ros.evaluation.output import progress

    def shown(source: Source) -> Iterator[Frame]:
        return progress(source, len(source), sequence.name)

    try:
        return measured(sequence, frames, config, shown)
    except HydraNetError as error:
        return str(error)
    except (ValueError, ArithmeticError, cv2.error) as error:  # a frame that an estimator refuses
        return f"a frame is refused: {' '.join(str(error).split())}"
