"""What a window assumes before anything is measured, from the settings of the fusion."""

from __future__ import annotations

import numpy as np

from hydranet_ros.fusion.calibration import HELD
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.normal_equations import Kernel
from hydranet_ros.fusion.window import WindowNoise
from hydranet_ros.geometry.lie import Array

# The first pose is the origin by definition; this only keeps the equations well conditioned.
ORIGIN_SIGMA = 1e-6
# After stamps went back, the pose is within this of where it was (m, rad): nothing is known.
RESTART_SIGMA = np.array([100.0] * 3 + [np.pi] * 3)
# Before any visual odometry, the speed is within this (m/s, rad/s).
START_SPEED = np.array([30.0] * 3 + [3.0] * 3)
# Where there is no bias but a place for it, it is held to this, in rad/s and per root second.
NO_BIAS = 1e-7


def assumptions(config: FusionConfig) -> tuple[WindowNoise, Kernel, Kernel]:
    """The noise of what is no measurement, and the kernels of odometry and rotations."""
    c, scales_off = config, np.full(3, (0.1 * HELD) ** 2)
    angular = np.deg2rad(c.angular_acceleration_deg)
    bias_walk = np.deg2rad(c.rotation_model.bias_walk_deg_s) if c.with_bias else NO_BIAS
    noise = WindowNoise(
        velocity_walk=np.array([c.acceleration**2] * 3 + [angular**2] * 3),
        bias_walk=float(bias_walk**2),
        scale_walk=c.calibration.walk if c.with_scales else scales_off,
        start_velocity=START_SPEED**2,
        max_gap_s=c.max_gap_s,
        imu_walk=float(np.deg2rad(c.imu.bias_walk_deg_s) ** 2),
        vertical=float(np.deg2rad(c.imu.gravity_sigma_deg) ** 2),
    )
    odometry = Kernel(c.odometry_kernel, c.kernel_sigma)
    return noise, odometry, Kernel(c.rotation_kernel, c.kernel_sigma)


def first_variances(config: FusionConfig, with_imu: bool) -> Array:
    """(9,) of bias, scales and bias of the IMU before anything is measured.

    With an IMU the scale of the gyro shows: a wide prior costs nothing.
    """
    c = config
    bias = np.deg2rad(c.rotation_model.bias_sigma_deg_s) if c.with_bias else NO_BIAS
    scales = c.calibration.sigmas if c.with_scales else np.full(3, HELD)
    if with_imu and c.with_scales:
        scales[0] = max(scales[0], c.calibration.nominal_sigma)
    imu = np.deg2rad(c.imu.bias_sigma_deg_s)
    return np.concatenate([np.full(3, bias), scales, np.full(3, imu)]) ** 2
