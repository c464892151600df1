"""Two dimensions: what ground says of the motion of a vehicle that wheels do not measure.

A vehicle on wheels does not leave the ground. Its motion across the ground, and its roll and
pitch, are nothing but for slopes, bumps and suspension: independent from step to step with

    z            `BUMP_M` per root of 0.1 s, and `SLOPE` of the way
    roll, pitch  `TILT_DEG` per root of 0.1 s

These are stated for roads and floors: a slope that changes by 5 deg within a second is one sigma
and a half. Where wheels say more of an axis, that is left as it is.
"""

from __future__ import annotations

import numpy as np

from hydranet_ros.fusion.error_models import FLOOR_S
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array

BUMP_M, SLOPE, TILT_DEG = 0.005, 0.02, 1.0
UP = np.array([0.0, 0.0, 1.0])  # of a base


def hold_to_ground(motion: RelativePose, up: Array) -> RelativePose:
    """The motion with the covariance of ground; `up` (3,) is up in the frame of the motion."""
    times, way = motion.seconds / FLOOR_S, float(np.linalg.norm(motion.T_2_1[:3, 3]))
    along, level = np.outer(up, up), np.eye(3) - np.outer(up, up)
    Sigma = np.zeros((6, 6))
    lift = BUMP_M**2 * times + (SLOPE * way) ** 2
    tilt = np.deg2rad(TILT_DEG) ** 2 * times
    Sigma[:3, :3] = _held(motion.Sigma_2_1[:3, :3], along, lift)
    Sigma[3:, 3:] = _held(motion.Sigma_2_1[3:, 3:], level, tilt)
    return RelativePose(motion.T_2_1, Sigma, motion.stamp_1_ns, motion.stamp_2_ns)


def _held(Sigma: Array, axes: Array, variance: float) -> Array:
    """Sigma, on the axes that the projector `axes` names no larger than a variance."""
    other = np.eye(3) - axes
    within = float(np.trace(axes @ Sigma) / np.trace(axes))
    held: Array = other @ Sigma @ other + min(within, variance) * axes
    return held
