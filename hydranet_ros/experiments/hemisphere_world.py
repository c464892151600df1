"""A camera on a hemisphere that looks at a grid of landmarks: noisy pixels in, orientation out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.lie import Array

RADIUS_M = 25.0
SIDE = 6  # landmarks along an edge of the grid
CAMERA = Camera(500.0, 500.0, 250.0, 250.0)
NOISE_PX = 1.0


@dataclass(frozen=True)
class Preset:
    """What the paper's text and the authors' published figure disagree on."""

    name: str
    spacing_m: float
    test_deg: float
    """Range of the angle about x in the test set; +-60 in training."""
    sweep: bool
    """Test angles evenly spaced instead of random."""


PRESETS = {
    "paper": Preset("paper", spacing_m=1.0, test_deg=80.0, sweep=False),
    "published": Preset("published", spacing_m=3.0, test_deg=81.0, sweep=True),
}
TRAIN_DEG, TRAIN_OTHER_DEG, TEST_OTHER_DEG = 60.0, 45.0, 20.0


@dataclass(frozen=True, eq=False)
class Views:
    """Landmark coordinates (n, 72) as a network takes them, and C_c_w as quaternions."""

    coordinates: Tensor
    targets: Tensor
    polar_deg: Array
    camera_m: Array
    """Where the camera is in the world, (n, 3)."""

    def __len__(self) -> int:
        return len(self.targets)

    def inputs(self, numbers: Sequence[int]) -> Tensor:
        """(batch, 72)."""
        return self.coordinates[list(numbers)]


def landmarks(spacing_m: float) -> Array:
    """A planar grid of 6 x 6 points about the origin, (36, 3)."""
    along = spacing_m * (np.arange(SIDE) - (SIDE - 1) / 2.0)
    x, y = np.meshgrid(along, along)
    return np.stack([x.ravel(), y.ravel(), np.zeros(SIDE * SIDE)], axis=1)


def orientations(angles_deg: Array) -> Array:
    """C_c_w = Rz Ry Rx of angles (n, 3) about x, y and z: the camera looks at the origin."""
    axes = np.eye(3)
    x, y, z = (lie.so3_exp(np.radians(angles_deg[:, i, None]) * axes[i]) for i in range(3))
    return z @ y @ x


def least_covariances(C_c_w: Array, spacing_m: float) -> Array:
    """The Cramer-Rao bound (n, 3, 3): no unbiased estimate of C_c_w can be better than this."""
    turned = landmarks(spacing_m) @ lie.so3_inverse(C_c_w)
    seen = turned + np.array([0.0, 0.0, RADIUS_M])
    J = CAMERA.project_jacobian(seen) @ -lie.hat(turned)  # (n, 36, 2, 3)
    information = np.einsum("nkpi,nkpj->nij", J, J) / NOISE_PX**2
    least: Array = np.linalg.inv(information)
    return least


def views(angles_deg: Array, spacing_m: float, rng: np.random.Generator) -> Views:
    """Photograph the grid; coordinates are relative to the centre and of order 1."""
    C_c_w = orientations(angles_deg)
    seen = landmarks(spacing_m) @ lie.so3_inverse(C_c_w) + [0.0, 0.0, RADIUS_M]
    pixels = CAMERA.project(seen)
    pixels += NOISE_PX * rng.normal(size=pixels.shape)
    extent = CAMERA.fx * spacing_m * SIDE / 2.0 / RADIUS_M  # of the grid seen from above, px
    coordinates = (pixels - [CAMERA.cx, CAMERA.cy]) / extent
    return Views(
        torch.tensor(coordinates.reshape(len(pixels), -1), dtype=torch.float32),
        torch.tensor(lie.quaternion_from_matrix(C_c_w), dtype=torch.float32),
        angles_deg[:, 0],
        -lie.so3_inverse(C_c_w) @ [0.0, 0.0, RADIUS_M],
    )


def training_views(preset: Preset, count: int, rng: np.random.Generator) -> Views:
    """Angles uniform within +-60 deg about x and +-45 about y and z."""
    limits = np.array([TRAIN_DEG, TRAIN_OTHER_DEG, TRAIN_OTHER_DEG])
    return views(rng.uniform(-limits, limits, (count, 3)), preset.spacing_m, rng)


def test_views(preset: Preset, count: int, rng: np.random.Generator) -> Views:
    """Beyond the training range about x; within +-20 deg about y and z."""
    limits = np.array([preset.test_deg, TEST_OTHER_DEG, TEST_OTHER_DEG])
    angles = rng.uniform(-limits, limits, (count, 3))
    if preset.sweep:
        angles[:, 0] = np.linspace(-preset.test_deg, preset.test_deg, count)
    return views(angles, preset.spacing_m, rng)
