"""`hydranet bench`: how long each part of the method takes on this machine."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from hydranet_ros.cli.arguments import (
    STREET,
    add_command,
    add_frames,
    add_json,
    add_network,
    add_settings,
    add_source,
    chosen_settings,
    dumped,
    network_settings,
    open_chosen,
    refused_frames,
    whole_number,
)

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.datasets.source import Source
    from hydranet_ros.geometry.camera import Frame
    from hydranet_ros.gyro.comparison import AnyPredictor
    from hydranet_ros.pipeline import Pipeline, PipelineConfig

EXAMPLES = """\
  hydranet bench                                the simulated street at the size of KITTI's images
  hydranet bench dataset/sequences/09 --frames 200 --threads 1
  hydranet bench drive.mcap --device cuda --json
"""
REFERENCE = "Farneback (OpenCV)"
WARM = 3  # frames that are not counted
KITTI_SIZE = 1226, 370


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "bench",
        run,
        "time the parts of the method on this machine",
        "Time the visual gyro, stereo visual odometry, and all of it with the fusion, one "
        f"frame after the other, and {REFERENCE} on the full image to compare with. End "
        "other work first.",
        EXAMPLES,
    )
    add_source(parser)
    add_frames(parser, least=2 * WARM, default=50)
    parser.add_argument(
        "--threads",
        type=whole_number(),
        metavar="N",
        help="of OpenCV, BLAS and torch (default: 1)",
    )
    add_network(parser)
    add_settings(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Load the frames, time each part, print."""
    from hydranet_ros.pipeline import PipelineConfig

    config = chosen_settings(options, PipelineConfig(), network_settings(options))
    if dumped(options, config):
        return
    from hydranet_ros.evaluation.output import progress
    from hydranet_ros.gyro.visual_gyro import open_predictor

    if options.threads is not None:
        gyro = replace(config.gyro, threads=options.threads)
        config = replace(config, gyro=gyro)
    threads = config.gyro.threads
    source = _source(options)
    count = min(options.frames, len(source))
    frames = list(progress(islice(source, count), count, "load"))
    predictor = open_predictor(config.gyro)
    parts = _parts(source, config, predictor)
    times = {name: _times_ms(part.update, frames) for name, part in parts.items()}
    times[REFERENCE] = _times_ms(_reference(frames), frames)
    height, width = frames[0].left.shape
    figures: dict[str, Any] = {
        "image": [width, height],
        "frames": len(frames),
        "device": predictor.device_name,
        "opencv_threads": threads,
        "ms": {name: _percentiles(each) for name, each in times.items()},
    }
    print(json.dumps(figures) if options.json else _text(figures))


def _source(options: argparse.Namespace) -> Source:
    if options.source == STREET:
        from hydranet_ros.datasets.source import SimulatedStreet

        return SimulatedStreet(options.frames, KITTI_SIZE)
    return open_chosen(options)


def _parts(source: Source, config: PipelineConfig, predictor: AnyPredictor) -> dict[str, Pipeline]:
    from hydranet_ros.pipeline import Pipeline

    mono, stereo = (
        replace(config, gyro=replace(config.gyro, cameras=cameras))
        for cameras in ("mono", "stereo")
    )
    configs = {
        "gyro, one camera": replace(mono, parts="rotation"),
        "gyro, both cameras": replace(stereo, parts="rotation"),
        "stereo odometry": replace(config, parts="vo"),
        "all, with the fusion": replace(stereo, parts="all"),
    }
    return {name: Pipeline(source.camera, each, predictor) for name, each in configs.items()}


def _reference(frames: list[Frame]) -> Callable[[Frame], object]:
    from hydranet_ros.gyro.flow import farneback

    before = [frames[0].left]

    def flow(frame: Frame) -> None:
        farneback(before[0], frame.left)
        before[0] = frame.left

    return flow


def _times_ms(work: Callable[[Frame], object], frames: list[Frame]) -> list[float]:
    """Of each frame but the first ones."""
    times = []
    for frame in frames:
        start = time.perf_counter()
        with refused_frames("bench", frame.stamp_ns):
            work(frame)
        times.append(1e3 * (time.perf_counter() - start))
    return times[WARM:]


def _percentiles(times: list[float]) -> dict[str, float]:
    import numpy as np

    return {f"p{p}": round(float(np.percentile(times, p)), 2) for p in (50, 95)}


def _text(figures: dict[str, Any]) -> str:
    width, height = figures["image"]
    reference = figures["ms"][REFERENCE]["p50"]
    lines = [
        f"{width}x{height} pixels, {figures['frames']} frames; network on {figures['device']}, "
        f"OpenCV with {figures['opencv_threads']} threads",
        f"{'':<24}{'median ms':>10}{'p95 ms':>10}{'of ' + REFERENCE:>24}",
    ]
    for name, each in figures["ms"].items():
        share = each["p50"] / reference
        lines.append(f"{name:<24}{each['p50']:>10.1f}{each['p95']:>10.1f}{share:>24.2f}")
    return "\n".join(lines)
