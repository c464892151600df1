"""Frame rate, latency, memory and start-up time against the size of the images.

    python benchmarks/scale.py [--sizes 320x240,640x480] [--cores 1,2] [--frames 40] [--out DIR]

Every row is a process of its own that may use so many cores, with as many threads. With one camera
it runs the gyro alone; with two, gyro, stereo odometry and fusion, one frame after the other.
Frames are those of the simulated street, rendered before. Memory is the largest that the process
had; the start is from nothing to the first result. CPU ms is the time of all cores for a frame:
other work on the machine changes it least. Beside them stands Farneback's flow by OpenCV on one
thread and 640x480 pixels, as the machine's own speed. With --out, table.md, figures.json and
plot.png are written there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = "320x240,640x480,1226x370,1280x720,1920x1200"
CAMERAS = ("mono", "stereo")
WARM = 5  # frames that are not counted
RENDERED = 6  # different frames; they are played to and fro
COLUMNS = (
    *("image", "cameras", "cores", "median ms", "p95 ms", "frames/s"),
    *("CPU ms", "memory MB", "start s"),
)


def size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def render(at: tuple[int, int], path: Path) -> None:
    """Write some frames and their camera."""
    import numpy as np

    from hydranet_ros.datasets.source import SimulatedStreet

    source = SimulatedStreet(RENDERED, at)
    frames = list(source)
    left, right = (
        np.stack([getattr(each, side) for each in frames]) for side in ("left", "right")
    )
    camera = source.camera
    lens = camera.left
    numbers = np.array([lens.fx, lens.fy, lens.cx, lens.cy, camera.baseline_m])
    np.savez(path, left=left, right=right, camera=numbers)


def case(path: Path, cameras: str, cores: int, count: int, began: float) -> dict[str, float]:
    """Time one case; `began` is when this process was asked for."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import numpy as np

    from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
    from hydranet_ros.gyro.visual_gyro import GyroConfig
    from hydranet_ros.pipeline import Pipeline, PipelineConfig

    stored = np.load(path)
    *lens, baseline = map(float, stored["camera"])
    gyro = GyroConfig(cameras=cameras, threads=cores)  # type: ignore[arg-type]
    config = PipelineConfig(parts="rotation" if cameras == "mono" else "all", gyro=gyro)
    pipeline = Pipeline(StereoCamera(Camera(*lens), baseline), config)
    order = [*range(RENDERED), *range(RENDERED - 2, 0, -1)]
    times, first, used = [], 0.0, 0.0
    for number in range(count + WARM):
        k = order[number % len(order)]
        frame = Frame(number * 100_000_000, stored["left"][k], stored["right"][k])
        if number == WARM:
            used = time.process_time()
        start = time.perf_counter()
        pipeline.update(frame)
        times.append(1e3 * (time.perf_counter() - start))
        if number == 1:
            first = time.time() - began
    used = time.process_time() - used
    p50, p95 = (float(np.percentile(times[WARM:], p)) for p in (50, 95))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return {
        "median ms": p50,
        "p95 ms": p95,
        "frames/s": 1e3 / float(np.mean(times[WARM:])),
        "CPU ms": 1e3 * used / count,
        "memory MB": memory,
        "start s": first,
    }


def reference_ms() -> float:
    """Farneback's flow by OpenCV on one thread, 640x480: the machine's own speed."""
    import cv2
    import numpy as np

    from hydranet_ros.gyro.flow import farneback

    cv2.setNumThreads(1)
    noise = np.random.default_rng(0).integers(0, 256, (480, 640), dtype=np.uint8)
    image = np.asarray(cv2.GaussianBlur(noise, (0, 0), 2.0), dtype=np.uint8)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        farneback(image, image)
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = [row[name] for name in COLUMNS[:3]]
        cells += [f"{row[name]:.{0 if name == 'memory MB' else 1}f}" for name in COLUMNS[3:]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")
    for cameras, colour in (("mono", "tab:green"), ("stereo", "tab:blue")):
        for cores, style in ((1, "--"), (2, "-")):
            chosen = [r for r in rows if (r["cameras"], r["cores"]) == (cameras, cores)]
            chosen.sort(key=lambda row: row["pixels"])
            if chosen:
                x, y = [r["pixels"] / 1e6 for r in chosen], [r["frames/s"] for r in chosen]
                label = f"{cameras}, {cores} core{'s' * (cores > 1)}"
                axes.plot(x, y, style, color=colour, marker="o", label=label)
    axes.axhline(30.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="image", ylabel="frames per second")
    places = sorted({row["pixels"]: row["image"] for row in rows}.items())
    axes.set_xticks([p / 1e6 for p, _ in places], [name for _, name in places], minor=False)
    axes.set_xticks([], minor=True)
    ticks = [5, 10, 20, 30, 50, 100]
    axes.set_yticks(ticks, [str(each) for each in ticks])
    axes.tick_params(axis="x", labelrotation=20)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--frames", type=int, default=40, metavar="N")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print figures instead of the table")
    parser.add_argument("--case", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        path, cameras, cores, count, began = options.case
        print(json.dumps(case(Path(path), cameras, int(cores), int(count), float(began))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.sizes.split(","):
            path = Path(scratch) / f"{name}.npz"
            render(size(name), path)
            for cameras in CAMERAS:
                for cores in map(int, options.cores.split(",")):
                    words = [sys.executable, __file__, "--case", str(path), cameras]
                    words += [str(cores), str(options.frames), str(time.time())]
                    done = subprocess.run(words, capture_output=True, text=True, check=True)
                    width, height = size(name)
                    about = {"image": name, "cameras": cameras, "cores": cores}
                    rows.append({**about, "pixels": width * height, **json.loads(done.stdout)})
                    print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    figures = {"machine": {"cores": os.cpu_count(), "farneback_ms": reference_ms()}, "rows": rows}
    speed = f"Farneback 640x480 on this machine: {figures['machine']['farneback_ms']:.1f} ms"  # type: ignore[index]
    print(json.dumps(figures) if options.json else f"{table(rows)}\n\n{speed}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(f"{table(rows)}\n\n{speed}\n")
        (options.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
        plot(rows, options.out / "plot.png")


if __name__ == "__main__":
    main()
