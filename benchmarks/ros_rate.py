"""Find the rate at which the nodes drop their first frame, in one process or in three.

    python benchmarks/ros_rate.py KITTI_FOLDER [--processes one|three] [--frames 200]

Frames are sent from memory at each rate in turn to hydranet_node (stereo), stereo_vo_node and
fusion_node with the inputs of a live robot (newest frame first). Printed are the frames that the
nodes did not work on, and the latency from an image to the fused odometry of it.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from itertools import islice

from ros_nodes import Bench, add_options, running

from hydranet_ros.datasets.source import open_source
from hydranet_ros.geometry.camera import Frame

LEAD, LEAD_HZ = 5, 5.0


@dataclass(frozen=True)
class Row:
    """One rate."""

    rate_hz: float
    gyro: int
    vo: int
    fused: int
    p50_ms: float
    p95_ms: float
    behind_ms: float


def measure(bench: Bench, frames: list[Frame], rate_hz: float, start_ns: int) -> Row:
    """Play all frames at a rate, after some that make every node start again after the gap."""
    step = round(1e9 / rate_hz)
    lead = [(start_ns + i * step, frame) for i, frame in enumerate(frames[:LEAD])]
    bench.play(lead, LEAD_HZ)
    before = {name: bench.done(name) for name in ("hydranet_node", "stereo_vo_node")}
    stamped = [(start_ns + (LEAD + i) * step, frame) for i, frame in enumerate(frames)]
    playback = bench.play(stamped, rate_hz)
    gyro, vo = (len(frames) - (bench.done(name) - count) for name, count in before.items())
    fused = len(frames) - len(playback.latencies_s)
    p50, p95 = playback.percentile_ms(50), playback.percentile_ms(95)
    return Row(rate_hz, gyro, vo, fused, p50, p95, 1e3 * playback.behind_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser)
    parser.add_argument("--rates", default="10,15,20,25,30,40,50", help="in Hz, rising")
    options = parser.parse_args()
    source = open_source(options.source, max_frames=options.frames)
    frames = list(islice(source, options.frames))
    print(f"{len(frames)} frames of {options.source}, {os.cpu_count()} cores, load", end=" ")
    print(f"{os.getloadavg()[0]:.1f}; {options.reliability}, queue {options.queue}")
    print("rate Hz  gyro dropped  vo dropped  fused missing  p50 ms  p95 ms  sent late ms")
    first = None
    with running(source, frames[0].left.shape, options) as bench:
        measure(bench, frames[:20], 5.0, 10**9)  # warm
        for number, rate in enumerate(float(each) for each in options.rates.split(",")):
            row = measure(bench, frames, rate, (number + 1) * 1000 * 10**9)
            print(
                f"{rate:7.1f}  {row.gyro:12d}  {row.vo:10d}  {row.fused:13d}  {row.p50_ms:6.1f}"
                f"  {row.p95_ms:6.1f}  {row.behind_ms:12.1f}",
                flush=True,
            )
            if first is None and (row.gyro or row.vo):
                first = rate
                break
    print(f"first drop at {first:g} Hz" if first else "no drop at any of these rates")


if __name__ == "__main__":
    main()
