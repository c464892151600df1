"""`hydranet run SOURCE`: the method over a sequence of frames, offline and repeatable."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydranet_ros import __version__
from hydranet_ros.datasets.source import STREET, Source, open_source
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.output import progress, write_run
from hydranet_ros.evaluation.run import Results
from hydranet_ros.evaluation.tables import calibration_table, figures_table
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.gyro.visual_gyro import VisualGyro, open_predictor
from hydranet_ros.pipeline import OWN_SOURCES, Pipeline
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import Lost

EXAMPLES = """\
examples:
  hydranet run                                             the simulated street
  hydranet run dataset/sequences/09 --out out/09
  hydranet run recording.mcap --only vo --max-frames 200
  hydranet run dataset/sequences/09 --only rotation --cameras stereo --json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "run",
        help="run over a folder of images, a bag, or the simulated street",
        description=(
            "Run visual odometry, the visual gyro and their fusion over the frames of SOURCE: a "
            "folder in KITTI's layout (image_0, image_1, calib.txt, times.txt), a rosbag2, or "
            "'street', the simulated one."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", default=STREET)
    parser.add_argument("--only", choices=("vo", "rotation"), help="one part, without fusion")
    parser.add_argument(
        "--cameras",
        choices=("mono", "stereo"),
        default="mono",
        help="whose flow the network sees: the left camera's, or both (default: mono)",
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="of the network (default: those that ship)"
    )
    parser.add_argument("--device", default="auto", help="of the network: auto, cpu, cuda, cuda:N")
    parser.add_argument(
        "--poses",
        metavar="FILE",
        help="the true poses (default: SOURCE/poses.txt, or ../../poses/NN.txt beside it)",
    )
    parser.add_argument("--left-topic", metavar="TOPIC", help="of a bag (default: by its name)")
    parser.add_argument("--right-topic", metavar="TOPIC", help="of a bag (default: by its name)")
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
    topics = options.left_topic, options.right_topic
    source = open_source(options.source, options.poses, options.max_frames, *topics)
    results = Results(source, options.only)
    pipeline: Pipeline | None = None
    interrupted = False
    try:
        for frame in progress(source, len(source), options.only or "run"):
            pipeline = pipeline or open_pipeline(options, source, frame)
            start = time.perf_counter()
            step = pipeline.update(frame)
            results.add(step, 1e3 * (time.perf_counter() - start))
            swapped = step.vo is not None and step.vo.lost is Lost.SWAPPED_CAMERAS
            if swapped and not results.odometer.steps:
                raise HydraNetError(f"{options.source}: {Lost.SWAPPED_CAMERAS.value}")
    except KeyboardInterrupt:
        interrupted = True
    if pipeline is None or not results.stamps_ns:
        raise KeyboardInterrupt
    figures = results.figures()
    if options.out is not None:
        _write(options.out, results, figures, _settings(pipeline, source, results))
    if options.json:
        print(
            json.dumps({"frames": figures.pop("frames"), "ms_median": results.ms_median} | figures)
        )
    else:
        print(_text(results, figures, options.out))
    if interrupted:
        raise KeyboardInterrupt


def open_pipeline(options: argparse.Namespace, source: Source, frame: Frame) -> Pipeline:
    """The parts that are asked for."""
    vo = None if options.only == "rotation" else StereoVO(source.camera)
    if options.only == "vo":
        return Pipeline(vo)
    predictor = open_predictor(options.weights, options.device)
    height, width = frame.left.shape
    stereo = options.cameras == "stereo"
    gyro = VisualGyro(predictor, source.camera.left, (height, width), stereo)
    return Pipeline(vo, gyro, None if vo is None else SlidingWindowFusion(OWN_SOURCES))


def _settings(pipeline: Pipeline, source: Source, results: Results) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "version": __version__,
        "source": source.name,
        "frames": len(results.stamps_ns),
        "camera": asdict(source.camera),
    }
    if pipeline.vo is not None:
        settings["stereo_vo"] = asdict(pipeline.vo.config)
    if pipeline.gyro is not None:
        settings["gyro"] = pipeline.gyro.settings()
    if pipeline.fusion is not None:
        settings["fusion"] = asdict(pipeline.fusion.config)
    return settings


def _write(
    folder: Path, results: Results, figures: dict[str, Any], settings: dict[str, Any]
) -> None:
    timing = {"ms_median": results.ms_median}
    write_run(folder, results.trajectories(), results.stamps(), figures, settings, timing)
    if results.rotations:
        results.write_rotations(folder / "rotation.csv")
    if find_spec("matplotlib") is None:
        print("no report.html, which needs matplotlib: pip install matplotlib", file=sys.stderr)
    else:
        results.write_report(folder)


def _text(results: Results, figures: dict[str, Any], out: Path | None) -> str:
    """What a person wants to read."""
    lines = [f"{figures['frames']} frames" + _lost(figures)]
    if results.ms_median is not None:
        rate = 1e3 / results.ms_median
        lines.append(f"{results.ms_median:.1f} ms per frame, {rate:.0f} frames per second")
    if results.truth is None:
        lines.append("no true poses found: nothing to compare with (--poses FILE)")
    else:
        lines += [figures_table(figures)]
        if results.rotations:
            lines.append(calibration_table(results.rotations, results.truth))
    if out is not None:
        lines.append(f"written to {out}")
    return "\n".join(lines)


def _lost(figures: dict[str, Any]) -> str:
    return f", {figures['lost']} lost" if "lost" in figures else ""
