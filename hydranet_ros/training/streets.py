"""Simulated streets to train on: cameras, drives, weather and scenes drawn at random.

The ranges are wider than any one data set: what a network has seen it need not extrapolate to.
Streets to calibrate on are of a style that training does not know, dimmer, noisier and busier:
the real world will be as new to the network as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.simulation.config import StreetConfig

_MOTIONS: tuple[Literal["car", "robot", "handheld"], ...] = ("car", "robot", "handheld")
_BASELINE_M = 0.5
_STRANGE = 100_000  # number of the first strange street
FIRST_EXACT = 200_000  # number of the first street whose exact flow is learned from
STREETS_PER_TEXTURE = 20  # textures take longer to make than a drive to render


def random_street(seed: int, number: int, frames: int) -> StreetConfig:
    """Street `number` of a seed; equal arguments give equal streets, whatever was drawn before."""
    rng = np.random.default_rng([seed, number])
    motion = _MOTIONS[int(rng.choice(3, p=[0.7, 0.12, 0.18]))]
    width, height, camera = _camera(rng)
    shaking = rng.uniform(0.0, 3.0) if motion == "car" else rng.uniform(0.1, 1.2)
    return StreetConfig(
        seed=int(rng.integers(2**31)),
        frames=frames,
        rate_hz=float(rng.uniform(8.0, 15.0)),
        width=width,
        height=height,
        camera=camera,
        motion=motion,
        speed_m_s=_speed(rng, motion),
        speed_variation=float(rng.uniform(0.0, 0.8)),
        max_heading_deg=float(rng.choice([0.0, 20.0, 75.0], p=[0.2, 0.2, 0.6])),
        wobble=float(shaking),
        lever_m=float(rng.uniform(-0.5, 2.5)) if motion == "car" else 0.0,
        mount_yaw_deg=float(rng.normal(0.0, 2.0)),
        mount_pitch_deg=float(rng.normal(0.0, 2.0)),
        mount_roll_deg=float(rng.normal(0.0, 1.0)),
        moving_cars=int(rng.integers(0, 9)),
        crossing_cars=int(rng.integers(0, 4)),
        clutter=float(rng.uniform(0.0, 1.0)),
        texture_seed=1000 * seed + number // STREETS_PER_TEXTURE,
        texture_contrast=float(rng.uniform(0.4, 1.6)),
        blur_sigma_px=float(rng.uniform(0.2, 0.9)),
        shutter_s=float(rng.uniform(0.0, 0.03)) if rng.random() < 0.15 else 0.0,
        gain=float(np.exp(rng.uniform(-0.7, 0.4))),
        gamma=float(rng.uniform(0.6, 1.5)),
        gain_drift=float(rng.uniform(0.0, 0.3)) if rng.random() < 0.3 else 0.0,
        noise_sigma=float(rng.uniform(0.3, 4.0)),
    )


def strange_street(seed: int, number: int, frames: int) -> StreetConfig:
    """A street of the style to calibrate on; of other numbers than those to learn from."""
    rng = np.random.default_rng([seed, number, 1])
    return replace(
        random_street(seed, _STRANGE + number, frames),
        moving_cars=int(rng.integers(4, 15)),
        crossing_cars=int(rng.integers(1, 6)),
        texture_contrast=float(rng.uniform(0.2, 0.5)),
        blur_sigma_px=float(rng.uniform(0.8, 1.5)),
        shutter_s=float(rng.uniform(0.005, 0.03)),
        gain=float(np.exp(rng.uniform(-1.2, -0.3))),
        gamma=float(rng.uniform(0.4, 2.2)),
        gain_drift=float(rng.uniform(0.0, 0.4)),
        noise_sigma=float(rng.uniform(2.0, 6.0)),
    )


def _speed(rng: np.random.Generator, motion: str) -> float:
    if rng.random() < 0.08:  # waiting at a light
        return float(rng.uniform(0.0, 0.3))
    return float(rng.uniform(1.0, 24.0) if motion == "car" else rng.uniform(0.2, 2.5))


def _camera(rng: np.random.Generator) -> tuple[int, int, StereoCamera]:
    """Half of them see a street as KITTI's do, the others less, or more of sky and ground."""
    if rng.random() < 0.5:
        width, height, focal = 620, 188, rng.uniform(340.0, 380.0)
    else:
        width, height = 4 * int(rng.integers(110, 151)), 4 * int(rng.integers(45, 91))
        focal = rng.uniform(300.0, 520.0)
    centre = width * rng.uniform(0.46, 0.54), height * rng.uniform(0.44, 0.56)
    camera = Camera(float(focal), float(focal), float(centre[0]), float(centre[1]))
    return width, height, StereoCamera(camera, _BASELINE_M)
