"""`hydranet run SOURCE`: the method over a sequence of frames, offline and repeatable."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from hydranet_ros import __version__, lie, metrics
from hydranet_ros.commands.evaluate import table
from hydranet_ros.commands.output import progress, write_run
from hydranet_ros.errors import HydraNetError
from hydranet_ros.lie import Array
from hydranet_ros.metrics import TrajectoryErrors
from hydranet_ros.pipeline import Odometer
from hydranet_ros.sources import STREET, Source, open_source
from hydranet_ros.stereo_vo import Lost, StereoVO

EXAMPLES = """\
examples:
  hydranet run --only vo                                    the simulated street
  hydranet run dataset/sequences/09 --only vo --out out/09
  hydranet run dataset/sequences/09 --only vo --max-frames 200 --json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "run",
        help="run over a folder of images, or the simulated street",
        description=(
            "Run stereo visual odometry over the frames of SOURCE: a folder in KITTI's layout "
            "(image_0, image_1, calib.txt, times.txt), or 'street', the simulated one."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", default=STREET)
    parser.add_argument("--only", choices=("vo",), default="vo", help="the part to run")
    parser.add_argument(
        "--poses",
        metavar="FILE",
        help="the true poses (default: SOURCE/poses.txt, or ../../poses/NN.txt beside it)",
    )
    parser.add_argument("--max-frames", type=_positive, metavar="N", help="stop after N frames")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the results there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 2")
    return int(text)


def run(options: argparse.Namespace) -> None:
    """Read, track, evaluate, write, print. An interruption keeps what is done."""
    source = open_source(options.source, options.poses, options.max_frames)
    vo = StereoVO(source.camera)
    odometer, milliseconds = Odometer(), list[float]()
    interrupted = False
    try:
        for frame in progress(source, len(source), "visual odometry"):
            result = vo.update(frame.left, frame.right, frame.stamp_ns)
            if result.lost is Lost.SWAPPED_CAMERAS and not odometer.steps:
                raise HydraNetError(f"{options.source}: {result.lost.value}")
            odometer.add(result)
            if result.ok:
                milliseconds.append(result.statistics.milliseconds)
    except KeyboardInterrupt:
        interrupted = True
    if not odometer.stamps_ns:
        raise KeyboardInterrupt
    figures = summary(odometer, source)
    ms_median = float(np.median(milliseconds)) if milliseconds else None
    if options.out is not None:
        settings = {
            "version": __version__,
            "source": source.name,
            "frames": len(odometer.stamps_ns),
            "camera": asdict(source.camera),
            "stereo_vo": asdict(vo.config),
        }
        stamps = np.array(odometer.stamps_ns, dtype=np.int64)
        timing = {"ms_median": ms_median}
        write_run(options.out, {"vo": np.array(odometer.T_w_c)}, stamps, figures, settings, timing)
    if options.json:
        keys = ("frames", "lost")
        print(json.dumps({**{k: figures[k] for k in keys}, "ms_median": ms_median, **figures}))
    else:
        print(report(figures, ms_median, options.out))
    if interrupted:
        raise KeyboardInterrupt


def summary(odometer: Odometer, source: Source) -> dict[str, Any]:
    """The figures that do not depend on the machine."""
    figures: dict[str, Any] = {"frames": len(odometer.stamps_ns), "lost": odometer.lost}
    if source.T_w_c is not None:
        figures["vo"] = errors(odometer, source.T_w_c).as_dict()
    return figures


def errors(odometer: Odometer, T_w_c_gt: Array) -> TrajectoryErrors:
    """Errors from the first true pose on; NLL and NEES over the motions that were measured."""
    truth = T_w_c_gt[: len(odometer.T_w_c)]
    found = metrics.evaluate(np.array(odometer.T_w_c), truth, alignment="first")
    if not odometer.steps:
        return found
    index = {stamp: i for i, stamp in enumerate(odometer.stamps_ns)}
    first = [index[step.stamp_1_ns] for step in odometer.steps]
    last = [index[step.stamp_2_ns] for step in odometer.steps]
    T_gt = lie.se3_inverse(truth[last]) @ truth[first]
    T_est = np.array([step.T_2_1 for step in odometer.steps])
    Sigma = np.array([step.Sigma_2_1 for step in odometer.steps])
    nll, nees = metrics.mean_nll_and_nees(lie.se3_log(T_est @ lie.se3_inverse(T_gt)), Sigma)
    return replace(found, nll=nll, nees=nees)


def report(figures: dict[str, Any], ms_median: float | None, out: Path | None) -> str:
    """What a person wants to read."""
    lines = [f"{figures['frames']} frames, {figures['lost']} lost"]
    if ms_median is not None:
        lines.append(f"{ms_median:.1f} ms per frame, {1e3 / ms_median:.0f} frames per second")
    if "vo" in figures:
        lines.append(table(figures["vo"]))
    else:
        lines.append("no true poses found: nothing to compare with (--poses FILE)")
    if out is not None:
        lines.append(f"written to {out}")
    return "\n".join(lines)
