"""Error models of the sources: what a covariance leaves out, made up for before it is believed.

Visual odometry of others is over-confident, and some sources send no covariance worth the name.
Our own odometry is calibrated and believed as it is. A network's rotation errors are not white:
over 100 frames they average out 2 to 4 times more slowly than independent ones would, and they
grow with the rotation in turns. So its covariance is inflated, and grows with the angle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting

# Floors of odometry are standard deviations over this time, and grow with its root: however many
# messages a source sends, the floor is the same.
FLOOR_S = 0.1
# A rotation that is larger than so many times the expected one, and this, is not taken for a turn.
TURN_FACTOR, TURN_RAD = 2.0, np.deg2rad(1.0)


@dataclass(frozen=True)
class OdometryModel(Configuration):
    """Sigma <- scale Sigma + floor^2 dt / 0.1 s, for the motions of one kind of odometry."""

    scale: float = setting(4.0, "factor on the covariances of motions", 1e-9)
    floor_m: float = setting(0.03, "least standard deviation of a translation over 0.1 s")
    floor_deg: float = setting(0.03, "least standard deviation of a rotation over 0.1 s")

    def covariance(self, motion: RelativePose) -> Array:
        """(6, 6), as it is believed."""
        floor = np.array([self.floor_m**2] * 3 + [np.deg2rad(self.floor_deg) ** 2] * 3)
        return self.scale * motion.Sigma_2_1 + np.diag(floor * (motion.seconds / FLOOR_S))


@dataclass(frozen=True)
class RotationModel(Configuration):
    """Sigma <- inflation Sigma + floor^2 + (scale_noise angle)^2, for the network's rotations.

    The floor is per pair of images: errors of flow do not grow with the time between them.

    The angle is the rotation's own, unless the motion is known not to have turned so far: a wrong
    rotation must not excuse itself by its size.
    """

    floor_deg: float = setting(0.005, "least standard deviation of a rotation")
    inflation: float = setting(
        16.0, "factor on covariances, because errors are correlated in time", 1.0
    )
    scale_noise: float = setting(0.5, "standard deviation per rotation angle, for errors in turns")

    def covariance(self, rotation: RelativeRotation, expected_rad: float | None = None) -> Array:
        """(3, 3), as it is believed, where another source or the prior expects some angle."""
        angle = float(np.linalg.norm(lie.so3_log(rotation.C_2_1)))
        if expected_rad is not None and angle > TURN_FACTOR * expected_rad + TURN_RAD:
            angle = expected_rad
        own = np.deg2rad(self.floor_deg) ** 2 + (self.scale_noise * angle) ** 2
        return self.inflation * rotation.Sigma_2_1 + own * np.eye(3)
