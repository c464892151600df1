"""Our gyro and the five-point method side by side: the same frames, one run, any sources.

    python benchmarks/gyro_against_five_point.py DATA/euroc DATA/seven_scenes DATA/tum/fr1_xyz
    python benchmarks/gyro_against_five_point.py DATA/robot --camera camera_info.yaml --json

The five-point method is that of `evaluation/five_point.py`. Errors are over blocks of 1, 10 and
50 frames in which both have every rotation. A folder with imu.csv and without truth is compared
with the integrated rates of its IMU, as its images are stamped, and once more with the offset of
stamps at which the two agree best. NEES is by summed covariances, and by those of
`RelativeRotation.then`, in which the persistent part adds up as it does. Times are
medians with one thread, images in memory.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from hydranet_ros.datasets.source import Source, open_source, true_trajectory
from hydranet_ros.datasets.tum import read_samples
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.five_point import (
    FIVE_POINT,
    FivePoint,
    lasting_nees,
    rotation_comparison,
)
from hydranet_ros.evaluation.output import progress
from hydranet_ros.evaluation.record import on_frames
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL, StereoCamera
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import Trajectory
from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro
from hydranet_ros.settings import configured

LENGTHS = (1, 10, 50)

# The robot with an IMU: how its camera looks (down, left), how long it stands still at first,
# which turns count (below them it drives straight), and how fast it goes where it drives: 0.5
# counts per row of wheel.csv are 4 cm/s.
DOWN_RAD, LEFT_RAD = 0.36, 0.021
STANDING_NS = 3_000_000_000
TURNS_DEG = 0.2, 4.0
DRIVING_COUNTS = 0.5
OFFSETS_MS = range(-60, 61, 5)


@dataclass
class Measured:
    """What both methods have said of a source, frame by frame."""

    ours: list[RelativeRotation] = field(default_factory=list)
    five_point: list[Array] = field(default_factory=list)  # from frame to frame; NaN: none
    ours_ms: list[float] = field(default_factory=list)
    five_point_ms: list[float] = field(default_factory=list)


def measure(source: Source, config: GyroConfig) -> Measured:
    """Both methods over a source that is read once."""
    left = source.camera.left if isinstance(source.camera, StereoCamera) else source.camera
    gyro, other, found = VisualGyro(source.camera, config), FivePoint(left), Measured()
    for i, frame in enumerate(progress(source, len(source), source.name)):
        start = time.perf_counter()
        rotation = gyro.update(frame)
        middle = time.perf_counter()
        C = other.update(frame.left)
        end = time.perf_counter()
        if i == 0:
            continue
        if rotation is not None:
            found.ours.append(rotation)
        found.five_point.append(np.full((3, 3), np.nan) if C is None else C)
        found.ours_ms.append(1e3 * (middle - start))
        found.five_point_ms.append(1e3 * (end - middle))
    return found


# --- figures -------------------------------------------------------------------------------------


def figures(source: Source, truth: Trajectory, found: Measured) -> dict[str, Any]:
    """Errors of both over blocks that both have, the NEES of ours, and times."""
    five = np.array(found.five_point).reshape(-1, 3, 3)
    stamps = source.stamps_ns
    C, _, _ = on_frames(found.ours, truth, stamps)
    result: dict[str, Any] = {
        "frames": len(source),
        "without": [int(np.isnan(each[:, 0, 0]).sum()) for each in (C, five)],
        "ms": [float(np.median(each)) for each in (found.ours_ms, found.five_point_ms)],
    }
    compared = rotation_comparison(found.ours, {FIVE_POINT: five}, truth, stamps, LENGTHS)
    for length, each in compared.items():
        sides = {name: list(each[name].values()) for name in ("mean_deg", "median_deg")}
        result[f"over_{length}"] = each | sides
    ours_10, five_10 = result["over_10"]["mean_deg"]
    result["ratio_over_10"] = ours_10 / five_10 if ours_10 is not None and five_10 else None
    return result


def _of(statistic: Any, values: Array) -> float | None:
    return float(statistic(values)) if len(values) else None


# --- a robot with an IMU, without truth ----------------------------------------------------------


def mounting() -> Array:
    """C_b_c: the camera in the base (x forward, z up), turned down and to the left."""
    left, down = lie.so3_exp([0.0, 0.0, LEFT_RAD]), lie.so3_exp([0.0, DOWN_RAD, 0.0])
    turned: Array = left @ down @ T_BASE_OPTICAL[:3, :3]
    return turned


def imu_reference(folder: Path, stamps_ns: Array, offset_ns: int = 0) -> Trajectory:
    """The camera's orientation at the images, by the IMU's rates less their bias.

    `offset_ns` is how much earlier than its stamp an image was taken.
    """
    stamps, rates = read_samples(folder / "imu.csv", 3)
    rates = rates - rates[stamps - stamps[0] < STANDING_NS].mean(axis=0)
    steps = np.diff(stamps) * 1e-9
    turns = lie.so3_exp(0.5 * (rates[1:] + rates[:-1]) * steps[:, None])
    C_w_b = np.empty((len(stamps), 3, 3))
    C_w_b[0] = np.eye(3)
    for i, turn in enumerate(turns):
        C_w_b[i + 1] = C_w_b[i] @ turn
    imu = Trajectory(lie.se3_from(C_w_b @ mounting(), np.zeros(3)), stamps, "the IMU")
    T_w_c = imu.at(stamps_ns - offset_ns)
    known = np.flatnonzero(np.isfinite(T_w_c).all(axis=(1, 2)))
    return Trajectory(T_w_c[known], stamps_ns[known], "the IMU")


def stamp_offset_ms(folder: Path, source: Source, found: Measured) -> int:
    """How much earlier than stamped the images were taken, by the least mean error."""

    def error(offset_ms: int) -> float:
        truth = imu_reference(folder, source.stamps_ns, offset_ms * 1_000_000)
        C, _, C_imu = on_frames(found.ours, truth, source.stamps_ns)
        angles = np.linalg.norm(lie.so3_log(C @ lie.so3_inverse(C_imu)), axis=1)
        return float(np.nanmean(angles))

    return min(OFFSETS_MS, key=error)


def robot_figures(
    folder: Path, source: Source, truth: Trajectory, found: Measured
) -> dict[str, Any]:
    """Yaw of turns against the IMU's after one best scale, and what pitch drifts by per frame."""
    C, _, C_imu = on_frames(found.ours, truth, source.stamps_ns)
    five = np.array(found.five_point).reshape(-1, 3, 3)
    known = np.isfinite(C).all((1, 2)) & np.isfinite(five).all((1, 2))
    known &= np.isfinite(C_imu).all((1, 2))
    driving = _driving(folder, source)[known]
    imu = _base_turns(C_imu[known])
    turning = (np.abs(imu[:, 2]) > TURNS_DEG[0]) & (np.abs(imu[:, 2]) < TURNS_DEG[1])
    straight = driving & (np.abs(imu[:, 2]) <= TURNS_DEG[0])
    offset_ms = stamp_offset_ms(folder, source, found)
    at_offset = imu_reference(folder, source.stamps_ns, offset_ms * 1_000_000)
    result: dict[str, Any] = {
        "turns": int(turning.sum()),
        "straight": int(straight.sum()),
        "stamp_offset_ms": offset_ms,
        "nees_lasting_at_offset": [
            lasting_nees(found.ours, at_offset, source.stamps_ns, length) for length in LENGTHS
        ],
    }
    for name, rotations in (("ours", C[known]), ("five_point", five[known])):
        base = _base_turns(rotations)
        yaw, expected = base[turning, 2], imu[turning, 2]
        scale = _best_scale(yaw, expected)
        result[name] = {
            "yaw_median_deg": _of(np.median, np.abs(scale * yaw - expected)),
            "scale": scale,
            "pitch_bias_deg": _of(np.mean, (base - imu)[straight, 1]),
            "pitch_bias_median_deg": _of(np.median, (base - imu)[straight, 1]),
            "pitch_bias_with_turns_deg": _of(np.mean, (base - imu)[driving, 1]),
        }
    return result


def _base_turns(C_2_1: Array) -> Array:
    """How far the base has turned about its x, y, z, in deg, by rotations of the camera."""
    return np.asarray(np.rad2deg(lie.so3_log(lie.so3_inverse(C_2_1))) @ mounting().T)


def _best_scale(values: Array, expected: Array) -> float:
    """The s of least sum |s v - e|, the median of e/v with weights |v|: outliers have no pull."""
    used = np.abs(values) > 1e-6
    ratios, weights = expected[used] / values[used], np.abs(values[used])
    if not len(ratios):
        return 1.0
    order = np.argsort(ratios)
    half = np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())
    return float(ratios[order][half])


def _driving(folder: Path, source: Source) -> Array:
    """Whether the robot goes ahead or back from a frame to the next, not only turns."""
    stamps, counts = read_samples(folder / "wheel.csv", 4)
    forward = counts.mean(axis=1)
    rows = np.searchsorted(stamps, source.stamps_ns).clip(0, len(forward) - 1)
    means = [forward[a : max(b, a + 1)].mean() for a, b in pairwise(rows)]
    return np.abs(means) > DRIVING_COUNTS


# --- command line --------------------------------------------------------------------------------

HEADER = (
    "| source | frames, none | mean / median deg | over 10 | over 50 | NEES 1, 10, 50 "
    "| with what persists | ms | ours / five-point over 10 |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown: of each source ours, then five-point."""
    rows = [HEADER]
    for name, each in results.items():
        for i, method in enumerate(("ours", "five-point")):
            one, ten, fifty = (each[f"over_{length}"] for length in LENGTHS)
            nees, lasting = (
                ", ".join(_text(o[key], ".1f") for o in (one, ten, fifty)) if not i else ""
                for key in ("nees", "nees_lasting")
            )
            ratio = _text(each["ratio_over_10"], ".2f") if not i else ""
            rows.append(
                f"| {name}, {method} | {each['frames']}, {each['without'][i]} "
                f"| {_text(one['mean_deg'][i])} / {_text(one['median_deg'][i])} "
                f"| {_text(ten['mean_deg'][i])} | {_text(fifty['mean_deg'][i])} "
                f"| {nees} | {lasting} | {each['ms'][i]:.1f} | {ratio} |"
            )
    for name, each in results.items():
        for method in ("ours", "five_point") if "robot" in each else ():
            robot = each["robot"]
            if method == "ours":
                nees = ", ".join(_text(n, ".1f") for n in robot["nees_lasting_at_offset"])
                rows.append(
                    f"\n{name}: images agree best with the IMU {robot['stamp_offset_ms']} ms "
                    f"before their stamps; NEES with what persists is {nees} then"
                )
            yaw, scale, mean, median, turns = robot[method].values()
            rows.append(
                f"\n{name}, {method}: yaw in {robot['turns']} turns, median error {_text(yaw)} "
                f"deg after scale {_text(scale)}; pitch bias driving straight "
                f"({robot['straight']} frames) {_text(mean)}, median {_text(median)}, with turns "
                f"{_text(turns)} deg/frame"
            )
    return "\n".join(rows)


def _text(value: float | None, style: str = ".3f") -> str:
    return "-" if value is None else format(value, style)


def compare(path: str, options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(path)
    own = not (folder / "images.txt").is_file()
    source = open_source(
        path,
        max_frames=options.max_frames,
        cameras=options.cameras,
        camera=None if own else options.camera,
    )
    truth = true_trajectory(source)
    robot = truth is None and (folder / "imu.csv").is_file()
    if robot:
        truth = imu_reference(folder, source.stamps_ns)
    if truth is None:
        raise HydraNetError(f"{path}: has no truth and no imu.csv to compare with")
    config = configured(GyroConfig(cameras=options.cameras), None, options.assignments)
    found = measure(source, config)
    result = figures(source, truth, found)
    if robot and (folder / "wheel.csv").is_file():
        result["robot"] = robot_figures(folder, source, truth, found)
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--camera", help="calibration of folders with images.txt")
    parser.add_argument("--cameras", choices=("mono", "stereo"), default="mono")
    parser.add_argument("--max-frames", type=int)
    parser.add_argument("--set", dest="assignments", action="append", default=[],
                        metavar="NAME=VALUE", help="a setting of the gyro")  # fmt: skip
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    try:
        results = {path: compare(path, options) for path in options.sources}
    except HydraNetError as error:
        parser.exit(2, f"{error}\n")
    print(json.dumps(results, indent=2) if options.json else table(results))


if __name__ == "__main__":
    main()
