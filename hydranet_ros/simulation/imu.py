"""An IMU on a camera, from its true poses: what its gyro and accelerometer would have said.

Between the true poses rotation and position are splines with continuous accelerations. The gyro
has a bias that walks, a scale error and white noise, the accelerometer gravity and white noise.
All is in the axes of the camera.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hydranet_ros.fusion.imu import STANDARD_GRAVITY, ImuSample
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.settings import Configuration, setting
from hydranet_ros.simulation import splines


@dataclass(frozen=True)
class SimulatedImuConfig(Configuration):
    """How wrong the simulated IMU is: a small MEMS sensor."""

    rate_hz: float = setting(100.0, "samples a second", 1.0, 1000.0)
    bias_deg_s: tuple[float, float, float] = setting(
        (0.3, -0.2, 0.4), "bias of the gyro about x y z", None
    )
    bias_walk_deg_s: float = setting(0.002, "random walk of the bias, per root of a second")
    scale: float = setting(0.002, "error of the gyro, as a share of the rate", -0.5, 0.5)
    noise_deg: float = setting(0.02, "noise of a turn, per root of a second")
    noise_m_s: float = setting(0.003, "noise of the acceleration, as m/s per root of a second")
    seed: int = setting(0, "of the noise", 0)


def simulate_imu(
    T_w_c: Array, stamps_ns: Stamps, config: SimulatedImuConfig, up_w: Array
) -> Iterator[ImuSample]:
    """Samples from the first true pose to the last; `up_w` (3,) is up in their world."""
    known = np.isfinite(T_w_c).all(axis=(1, 2))
    T_w_c, stamps = T_w_c[known], stamps_ns[known]
    seconds = (stamps - stamps[0]) * 1e-9
    dt = 1.0 / config.rate_hz
    times = np.arange(int(seconds[-1] / dt) + 1) * dt
    C_w_c, rates = splines.turning(seconds, T_w_c[:, :3, :3], times)
    force_w = splines.accelerations(seconds, T_w_c[:, :3, 3], times) + STANDARD_GRAVITY * up_w
    up_c = np.swapaxes(C_w_c, -1, -2) @ force_w[:, :, None]
    rng = np.random.default_rng(config.seed)
    walk = rng.normal(size=rates.shape) * config.bias_walk_deg_s * np.sqrt(dt)
    bias = np.deg2rad(np.array(config.bias_deg_s) + np.cumsum(walk, axis=0))
    gyro_noise = np.deg2rad(config.noise_deg) / np.sqrt(dt)
    told = rates * (1.0 + config.scale) + bias + gyro_noise * rng.normal(size=rates.shape)
    felt = up_c[:, :, 0] + config.noise_m_s / np.sqrt(dt) * rng.normal(size=rates.shape)
    for i, time in enumerate(times.tolist()):
        yield ImuSample(int(stamps[0]) + round(time * 1e9), told[i], felt[i])
