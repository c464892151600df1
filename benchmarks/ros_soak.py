"""Loop a replay through the nodes for half an hour, and watch memory and latency.

    python benchmarks/ros_soak.py KITTI_FOLDER [--minutes 30] [--rate 10] [--frames 200]

Stamps go back at the end of every loop, as those of a looping bag do. Printed once a minute are
the latency from image to fused odometry, the memory of each node, and how long the machine takes
for one and the same work (OpenCV's Farneback, one thread, nodes at rest): a latency that grows
with it is the machine's. The growth of memory is taken from the end of the second minute, when all
buffers have their size. Exit code 1 if it is 5 % or more.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice

import cv2
import numpy as np
from ros_nodes import NODES, Bench, add_options, running
from timing import times_ms

from hydranet_ros.datasets.source import open_source
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.gyro.flow import farneback

MOST_GROWTH = 0.05
WARM_MINUTES = 2.0


def memories(bench: Bench) -> dict[str, float]:
    """Of each node, by its diagnostics."""
    return {name: float(bench.diagnostics[name]["memory (MB)"]) for name in NODES}


def machine_ms(first: Frame, second: Frame) -> float:
    """How fast the machine is just now: the time of a work that is always the same."""
    return float(np.median(times_ms(lambda _: farneback(first.left, second.left), 5, warm=0)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=10.0, help="in Hz")
    options = parser.parse_args()
    source = open_source(options.source, max_frames=options.frames)
    frames = list(islice(source, options.frames))
    stamped = [(10**12 + round(i * 1e9 / options.rate), f) for i, f in enumerate(frames)]
    settled: dict[str, float] | None = None
    cv2.setNumThreads(1)
    columns = "  ".join(f"{name} MB" for name in NODES)
    print(f"minute  loops  p50 ms  p95 ms  machine ms  {columns}")
    with running(source, frames[0].left.shape, options) as bench:
        began, printed, loops = time.monotonic(), 0.0, 0
        while (minutes := (time.monotonic() - began) / 60.0) < options.minutes:
            playback = bench.play(stamped, options.rate)
            loops += 1
            now = memories(bench)
            if settled is None and minutes >= min(WARM_MINUTES, 0.5 * options.minutes):
                settled = now
            if minutes >= printed:
                printed += 1.0
                mb = "  ".join(f"{now[name]:{len(name) + 3}.1f}" for name in NODES)
                p50, p95 = playback.percentile_ms(50), playback.percentile_ms(95)
                machine = machine_ms(frames[0], frames[1])
                row = f"{minutes:6.1f}  {loops:5d}  {p50:6.1f}  {p95:6.1f}  {machine:10.1f}  {mb}"
                print(row, flush=True)
        now = memories(bench)
    growth = {name: now[name] / (settled or now)[name] - 1.0 for name in NODES}
    print("growth of memory: " + ", ".join(f"{n} {100 * g:+.1f} %" for n, g in growth.items()))
    return int(max(growth.values()) >= MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
