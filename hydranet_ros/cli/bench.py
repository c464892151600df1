"""`hydranet bench`: how long each part of the method takes on this machine."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from hydranet_ros.datasets.source import STREET, SimulatedStreet, Source, open_source
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.output import progress
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.gyro.flow import farneback
from hydranet_ros.gyro.visual_gyro import VisualGyro, open_predictor
from hydranet_ros.pipeline import OWN_SOURCES, Pipeline
from hydranet_ros.stereo_vo.odometry import StereoVO

EXAMPLES = """\
examples:
  hydranet bench                                the simulated street at the size of KITTI's images
  hydranet bench dataset/sequences/09 --frames 200 --threads 1
  hydranet bench drive.mcap --device cuda --json
"""
REFERENCE = "Farneback (OpenCV)"
WARM = 3  # frames that are not counted
KITTI_SIZE = 1226, 370


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "bench",
        help="time the parts of the method on this machine",
        description=(
            "Time the visual gyro, stereo visual odometry, and all of it with the fusion, one "
            f"frame after the other, and {REFERENCE} on the full image to compare with. End "
            "other work first."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", default=STREET)
    parser.add_argument("--frames", type=int, default=50, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of OpenCV (default: as many as cores)"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="of the network (default: those that ship)"
    )
    parser.add_argument("--device", default="auto", help="of the network: auto, cpu, cuda, cuda:N")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load the frames, time each part, print."""
    if options.frames < 2 * WARM:
        raise HydraNetError(f"--frames {options.frames}: must be at least {2 * WARM}")
    if options.threads is not None and options.threads < 1:
        raise HydraNetError(f"--threads {options.threads}: must be at least 1")
    threads = options.threads or os.cpu_count() or 1
    cv2.setNumThreads(threads)
    source = _source(options)
    count = min(options.frames, len(source))
    frames = list(progress(islice(source, count), count, "load"))
    predictor = open_predictor(options.weights, options.device)
    height, width = frames[0].left.shape

    def gyro(stereo: bool) -> VisualGyro:
        return VisualGyro(predictor, source.camera.left, (height, width), stereo)

    all_of_it = Pipeline(StereoVO(source.camera), gyro(True), SlidingWindowFusion(OWN_SOURCES))
    parts = {
        "gyro, one camera": Pipeline(gyro=gyro(False)),
        "gyro, both cameras": Pipeline(gyro=gyro(True)),
        "stereo odometry": Pipeline(StereoVO(source.camera)),
        "all, with the fusion": all_of_it,
    }
    times = {name: _times_ms(part.update, frames) for name, part in parts.items()}
    times[REFERENCE] = _times_ms(_reference(frames), frames)
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
        return SimulatedStreet(options.frames, KITTI_SIZE)
    return open_source(options.source, max_frames=options.frames)


def _reference(frames: list[Frame]) -> Callable[[Frame], object]:
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
        work(frame)
        times.append(1e3 * (time.perf_counter() - start))
    return times[WARM:]


def _percentiles(times: list[float]) -> dict[str, float]:
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
