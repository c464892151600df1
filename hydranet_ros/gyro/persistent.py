"""The part of a rotation's error that the next ones share.

Noise differs from frame to frame. What a calibration has wrong does not: as long as the camera
moves in the same way it turns every estimate by the same amount, so over many frames it grows with
their number and not with its root. It is not in the residuals either, since motion and depths take
it up. So it is stated, from what calibrations are like:

    P = (focal_share)^2 phi phi^T + (flow_share |flow|)^2 I,

phi the rotation about the axes across the view, |flow| the RMS flow in normalised units. A focal
length that is 1 % too long makes a rotation across the view 1 % too small, whatever the scene. A
distortion that is left, or a rolling shutter, changes the flow by a share of itself, different in
each part of the image, and a part of that turns the rotation.

The shares are assumed, not measured: 1 % of a focal length, and 0.003 of the flow, of 0.002, 0.003
and 0.005 that were tried by the NEES over 1, 10 and 50 frames of KITTI 09, with 06 in view. So is
`PERSISTENT_S`: 1 s, where 3 s made KITTI 09 more cautious over 50 frames. Nothing was learnt from
simulated calibrations. A third of the share, 0.001, has a NEES nearer to 3 over 10 and 50 frames
of 09 (2.1, 2.6 instead of 1.3, 1.2), but beside our own odometry the fusion then believes the gyro
too much (rotation 1.015 of odometry alone on 09 instead of 1.005).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.grid import GridFlow
from hydranet_ros.settings import Configuration, setting

PERSISTENT_S = 1.0
"""Seconds for which such an error lasts: as long as a camera moves in one way."""

_LEAST_RAD = 1e-7  # keeps a covariance definite where nothing moves


@dataclass(frozen=True)
class PersistentConfig(Configuration):
    """How well the camera is calibrated."""

    focal_share: float = setting(0.01, "standard deviation of the focal length, as a share", 0, 1)
    flow_share: float = setting(
        0.003, "of flow that distortion or a rolling shutter leave: what turns the rotation", 0, 1
    )


def with_persistent(
    rotation: RelativeRotation, flow: GridFlow, config: PersistentConfig
) -> RelativeRotation:
    """A rotation whose covariance has the persistent part beside its own."""
    across = lie.so3_log(rotation.C_2_1) * (1.0, 1.0, 0.0)
    size = (config.flow_share * _rms(flow)) ** 2 + _LEAST_RAD**2
    P = config.focal_share**2 * np.outer(across, across) + size * np.eye(3)
    return added(rotation, P)


def added(rotation: RelativeRotation, persistent: Array) -> RelativeRotation:
    """A rotation with this much more covariance, which persists."""
    return replace(
        rotation,
        Sigma_2_1=rotation.Sigma_2_1 + persistent,
        persistent=persistent,
        persistent_s=PERSISTENT_S,
    )


def _rms(flow: GridFlow) -> float:
    known = flow.mask if flow.trusted is None else flow.mask & flow.trusted
    squares = np.einsum("irc,irc->rc", flow.flow, flow.flow)[known]
    return float(np.sqrt(squares.mean())) if squares.size else 0.0
