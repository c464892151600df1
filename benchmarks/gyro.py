"""Time flow and network together, as a robot runs them, against the paper's flow and network.

    python benchmarks/gyro.py [KITTI_SEQUENCE] [--frames 100] [--threads 2]

Without a sequence, frames of the simulated street at KITTI's size are used. Ratios are of medians
measured in one run: ours (torch with one thread), OpenCV's Farneback on the full image, and the
paper's network.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import cv2
import numpy as np
from timing import times_ms

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.gyro.config import preset
from hydranet_ros.gyro.flow import farneback
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.predictor import Predictor
from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street


def load(sequence: str | None, count: int) -> tuple[Camera, list[np.ndarray]]:
    """Left images and their camera."""
    if sequence is not None:
        source = KittiFolder(sequence, max_frames=count)
        assert isinstance(source.camera, StereoCamera)
        return source.camera.left, [frame.left for frame in source]
    street = Street(StreetConfig(frames=min(count, 20), width=1226, height=370))
    return street.camera.left, [street.photograph(i) for i in range(len(street))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sequence", nargs="?")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    cv2.setNumThreads(arguments.threads)
    camera, images = load(arguments.sequence, arguments.frames)
    shape = images[0].shape[0], images[0].shape[1]
    pairs = list(pairwise(images))
    gyro = VisualGyro(camera, GyroConfig(device="cpu"))
    found = {
        "flow and network": times_ms(
            lambda i: gyro.update(Frame(i, images[i % len(images)])), arguments.frames
        ),
        "Farneback, full image": times_ms(
            lambda i: farneback(*pairs[i % len(pairs)]), arguments.frames
        ),
    }
    paper = Predictor(HydraNet(preset("paper")), device="cpu", threads=arguments.threads)
    small = np.zeros((1, *preset("paper").input_shape), dtype=np.float32)
    found["the paper's network"] = times_ms(
        lambda _: paper.predict_inputs(small), arguments.frames
    )
    medians = {name: float(np.median(times)) for name, times in found.items()}
    ours = medians["flow and network"]
    print(f"{shape[1]}x{shape[0]}, {arguments.threads} threads, median of {arguments.frames}")
    for name, value in medians.items():
        print(f"{name:24s} {value:7.1f} ms   {value / ours:5.2f} of ours")


if __name__ == "__main__":
    main()
