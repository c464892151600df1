"""Time every flow method at 1226x370, and say how good its flow on the canonical grid is.

    python benchmarks/flow.py [--data KITTI_FOLDER] [--pairs 20] [--device cpu]

Printed are the median milliseconds per frame from image to grid (in a sequence, so each image is
warped once), the ratio to OpenCV's Farneback at full resolution, and the error in pixels of a
camera with f = 719: on the simulated street the median and mean distance to the exact flow of what
stays visible, on a KITTI folder with poses the median distance from the true epipolar lines.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro import flow
from hydranet_ros.gyro.flow import DisConfig, FlowConfig, FlowEstimator
from hydranet_ros.gyro.grid import CanonicalGrid, CanonicalView, GridFlow
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

Method = Callable[[flow.Image, flow.Image], GridFlow]
Score = Callable[[int, GridFlow], Array]  # index of the pair, its flow -> (n,) errors in pixels

FOCAL_PX = 719.0
FULL = "full"
BASELINE = "farneback"
# OpenCV's presets; their stride holds for images of any size.
EVERY = 10**9
PRESETS = {
    "ultrafast": DisConfig(2, 8, 4, 12, 0, patches=EVERY),
    "fast": DisConfig(2, 8, 4, 16, 5, patches=EVERY),
    "medium": DisConfig(1, 8, 3, 25, 5, patches=EVERY),
}


@dataclass(frozen=True)
class Drive:
    """Consecutive images of one camera, and what is known about the flow between them."""

    camera: Camera
    images: list[flow.Image]
    score: Score


def camera_view(camera: Camera, image: flow.Image) -> CanonicalView:
    """On the grid that holds all that the camera sees, as the gyro has it."""
    height, width = image.shape
    grid = CanonicalGrid().covering(camera, (height, width))
    return CanonicalView(camera, (height, width), grid)


def simulated(pairs: int) -> Drive:
    street = Street(StreetConfig(width=1226, height=370, frames=pairs + 1))
    images = [street.render(k).left for k in range(pairs + 1)]
    view = camera_view(street.camera.left, images[0])
    truth = []
    for k in range(pairs):
        exact = street.flow(k, k + 1)
        visible = np.repeat(exact.visible[..., None].astype(np.float32), 2, axis=-1)
        share = view.camera_flow_to_grid(visible).flow[0] * street.camera.left.fx
        truth.append((view.camera_flow_to_grid(exact.vectors).flow, share > 0.99))

    def score(k: int, found: GridFlow) -> Array:
        expected, visible = truth[k]
        return np.linalg.norm(found.flow - expected, axis=0)[found.mask & visible] * FOCAL_PX

    return Drive(street.camera.left, images, score)


def recorded(folder: str, pairs: int) -> Drive:
    source = KittiFolder(folder, max_frames=pairs + 1)
    images = [frame.left for frame in source]
    centres = camera_view(source.camera.left, images[0]).grid.centres
    rays = np.dstack([centres, np.ones(centres.shape[:2])])

    def score(k: int, found: GridFlow) -> Array:
        if source.T_w_c is None:
            return np.full(1, np.nan)
        T_2_1 = lie.se3_inverse(source.T_w_c[k + 1]) @ source.T_w_c[k]
        lines = np.cross(T_2_1[:3, 3], rays @ T_2_1[:3, :3].T)
        ends = rays + np.dstack([*found.flow, np.zeros(centres.shape[:2])])
        across = np.sum(lines * ends, axis=-1) / np.linalg.norm(lines[..., :2], axis=-1)
        return np.abs(across[found.mask]) * FOCAL_PX

    return Drive(source.camera.left, images, score)


def methods(drive: Drive, device: str) -> dict[tuple[str, str], Method]:
    """By name and by pixels per cell."""
    view = camera_view(drive.camera, drive.images[0])

    def full(solve: Callable[[flow.Image, flow.Image], flow.Field]) -> Method:
        return lambda a, b: view.camera_flow_to_grid(solve(a, b))

    def canonical(config: FlowConfig, on: str = "cpu") -> Method:
        return FlowEstimator(drive.camera, view.image_shape, config, view.grid, on)

    found: dict[tuple[str, str], Method] = {(BASELINE, FULL): full(flow.farneback)}
    for k in (2, 3, 4):
        found[BASELINE, f"{k}"] = canonical(FlowConfig(BASELINE, k))
    for k in (3, 4):
        config = FlowConfig("farneback_torch", k)
        found[f"farneback_torch {device}", f"{k}"] = canonical(config, device)
    for name, preset in PRESETS.items():
        found[f"dis {name}", FULL] = full(lambda a, b, preset=preset: flow.dis(a, b, preset))
        for k in (3, 4, 6):
            found[f"dis {name}", f"{k}"] = canonical(FlowConfig("dis", k, dis=preset))
    for k in (2, 3, 4):
        found["dis", f"{k}"] = canonical(FlowConfig("dis", k))
    return found


def measure(drive: Drive, method: Method) -> tuple[float, Array]:
    """Median seconds per frame after the first, and the errors of all pairs."""
    seconds, errors = [], []
    for k, (previous, current) in enumerate(pairwise(drive.images)):
        start = time.perf_counter()
        found = method(previous, current)
        seconds.append(time.perf_counter() - start)
        errors.append(drive.score(k, found))
    return float(np.median(seconds[1:])), np.concatenate(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a folder of KITTI odometry; default: the simulated street")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--device", default="cpu", help="of farneback_torch")
    arguments = parser.parse_args()
    pairs = max(arguments.pairs, 2)
    drive = recorded(arguments.data, pairs) if arguments.data else simulated(pairs)
    height, width = drive.images[0].shape
    print(f"{len(drive.images) - 1} pairs of {width}x{height} pixels")
    print(f"{'method':24} {'px/cell':>7} {'ms':>7} {'ratio':>6} {'median px':>9} {'mean px':>8}")
    baseline: float | None = None
    for (name, size), method in methods(drive, arguments.device).items():
        seconds, errors = measure(drive, method)
        baseline = baseline or seconds
        print(
            f"{name:24} {size:>7} {1e3 * seconds:7.1f} {seconds / baseline:6.3f} "
            f"{np.median(errors):9.3f} {np.mean(errors):8.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
