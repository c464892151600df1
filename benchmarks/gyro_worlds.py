"""The gyro in simulated worlds: one camera, two, without memory, beside the five-point method.

    python benchmarks/gyro_worlds.py [--frames 80] [--seed 100] [--set NAME=VALUE] [--json]

Twelve worlds, which differ in place, in what carries the camera, in its height, mounting and field
of view, and in noise. Errors are over blocks of 1, 10 and 40 frames: of each method the geometric
mean over the worlds of its mean error, in degrees, and the median over the worlds of its NEES by
summed covariances (3 is ideal). Settings of the memory are chosen here; other seeds are other
worlds of the same kinds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from hydranet_ros.datasets.source import SimulatedWorld, true_trajectory
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.five_point import FIVE_POINT, FivePoint, rotation_comparison
from hydranet_ros.evaluation.output import progress
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.memory import MemoryConfig
from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro, open_predictor
from hydranet_ros.settings import configured, update
from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import BuildingConfig, StreetConfig
from hydranet_ros.simulation.street import Street

LENGTHS = (1, 10, 40)
ONE, TWO, WITHOUT = "one camera", "two cameras", "one camera, without memory"


def pair(width: int, height: int, focal: float, baseline_m: float) -> StereoCamera:
    """Two cameras with their principal points in the middle."""
    return StereoCamera(Camera(focal, focal, 0.5 * width, 0.5 * height), baseline_m)


def worlds(frames: int, seed: int) -> Iterator[SimulatedWorld]:
    """Rooms, halls and a street, by what carries the camera."""
    narrow, wide = pair(480, 360, 420.0, 0.1), pair(480, 360, 250.0, 0.1)
    kinds: list[dict[str, Any]] = [
        {"place": "office", "motion": "robot"},
        {"place": "office", "motion": "skid", "mount_pitch_deg": -20.0},
        {"place": "office", "motion": "hand", "rate_hz": 30.0, "camera": narrow},
        {"place": "room", "motion": "robot", "camera_height_m": 0.3, "rate_hz": 15.0},
        {"place": "room", "motion": "hand", "rate_hz": 20.0, "noise_sigma": 3.0},
        {"place": "hall", "motion": "drone", "rate_hz": 20.0, "camera": wide},
        {"place": "hall", "motion": "robot", "mount_roll_deg": 90.0},
        {"place": "desk", "motion": "hand", "rate_hz": 30.0, "camera": narrow},
        {"place": "stairs", "motion": "feet", "rate_hz": 20.0},
        {"place": "car_park", "motion": "car", "camera": wide},
        {"place": "car_park", "motion": "skid", "rate_hz": 15.0, "shutter_s": 0.01},
    ]
    for number, fields in enumerate(kinds):
        config = update(BuildingConfig(seed + number, frames), fields)
        yield SimulatedWorld(f"{config.place} by {config.motion}", Building(config))
    street = StreetConfig(seed + 11, frames=frames)
    yield SimulatedWorld("street by car", Street(street))


def measured(source: SimulatedWorld, config: GyroConfig) -> dict[str, dict[int, dict[str, float]]]:
    """By method and length the mean error and the NEES in one world, which is rendered once."""
    assert isinstance(source.camera, StereoCamera)
    left, predictor = source.camera.left, open_predictor(config)
    config = replace(config, cameras="mono")
    gyros = {
        ONE: VisualGyro(left, config, predictor),
        TWO: VisualGyro(source.camera, replace(config, cameras="stereo"), predictor),
        WITHOUT: VisualGyro(left, replace(config, memory=MemoryConfig(frames=0)), predictor),
    }
    said: dict[str, list[RelativeRotation]] = {name: [] for name in gyros}
    five, found = FivePoint(left), []
    for frame in progress(source, len(source), source.name):
        found.append(five.update(frame.left))
        for name, gyro in gyros.items():
            rotation = gyro.update(frame)
            if rotation is not None:
                said[name].append(rotation)
    steps = np.array([np.full((3, 3), np.nan) if C is None else C for C in found[1:]])
    truth = true_trajectory(source)
    assert truth is not None
    result: dict[str, dict[int, dict[str, float]]] = {FIVE_POINT: {}}
    for name, rotations in said.items():
        compared = rotation_comparison(
            rotations, {FIVE_POINT: steps}, truth, source.stamps_ns, LENGTHS
        )
        result[name] = {}
        for length, each in compared.items():
            result[name][length] = {"deg": each["mean_deg"]["ours"], "nees": each["nees"]}
            result[FIVE_POINT][length] = {"deg": each["mean_deg"][FIVE_POINT], "nees": np.nan}
    return result


def summary(found: dict[str, dict[str, dict[int, dict[str, float]]]]) -> dict[str, Any]:
    """Over the worlds, by method and length; NaN where a world has no block."""
    methods: dict[str, Any] = {}
    for name in (ONE, TWO, WITHOUT, FIVE_POINT):
        methods[name] = {}
        for length in LENGTHS:
            each = [world[name][length] for world in found.values()]
            deg, nees = (np.array([e[key] for e in each], dtype=float) for key in ("deg", "nees"))
            known = deg[np.isfinite(deg)]
            methods[name][length] = {
                "deg": float(np.exp(np.mean(np.log(known)))) if len(known) else np.nan,
                "nees": float(np.nanmedian(nees)) if np.isfinite(nees).any() else np.nan,
            }
    return methods


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=80, help="of each world")
    parser.add_argument("--seed", type=int, default=100, help="of the first world")
    parser.add_argument("--set", dest="assignments", action="append", default=[],
                        metavar="NAME=VALUE", help="a setting of the gyro")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print every world too, as JSON")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    try:
        config = configured(GyroConfig(), assignments=options.assignments)
    except (HydraNetError, ValueError) as error:
        parser.error(str(error))
    found = {}
    for source in worlds(options.frames, options.seed):
        found[source.name] = measured(source, config)
    methods = summary(found)
    if options.json:
        print(json.dumps({"worlds": found, "all": methods}, indent=1))
        return
    print("| degrees (NEES) over | " + " | ".join(map(str, LENGTHS)) + " |")
    print("|---" * (len(LENGTHS) + 1) + "|")
    for name, lengths in methods.items():
        cells = [
            f"{each['deg']:.4f}" + ("" if np.isnan(each["nees"]) else f" ({each['nees']:.2f})")
            for each in lengths.values()
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
