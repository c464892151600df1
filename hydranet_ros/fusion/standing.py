"""Standing still, told by wheels, IMU and images together; and what holds the pose while it lasts.

    odometry   neither way nor turn over the last REST_S
    IMU        its rate is its bias, and neither rate nor acceleration spread
    images     the rotation is none within its noise

The vehicle stands where odometry is still and another agrees, and an IMU, where there is one, does
not say that it moves. So a crowd that passes does not turn it (odometry and IMU are still), and a
robot that is pushed with still wheels is not held (the IMU moves). Images with an IMU tell that it
does not turn, but not that it does not move: without odometry only the turn is held. With odometry
that moves nothing is held.

While it stands, neighbouring states are tied by a factor of no motion. What turns all the same,
the gyro of the IMU, then shows its bias. The factor is firm: by HELD_M and HELD_DEG per root of a
second, a minute of standing adds 0.8 mm and 0.008 deg. A motion that has just begun is too slow to
be noticed, though. So a step is tied loosely at first, by what could pass for standing (anything
up to STILL_M_S and STILL_RAD_S is as likely), and firmly once it stood for REST_S after it.
"""

from __future__ import annotations

import numpy as np

from hydranet_ros.fusion.gating import RelativeMotion, Turn
from hydranet_ros.fusion.imu import Rest
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

REST_S = 0.3
# Still odometry is slower: about a count of an encoder in half a second. Nothing drives so slowly.
STILL_M_S, STILL_RAD_S = 0.01, np.deg2rad(0.3)
# A rotation is none within so many sigmas, of at most this: one that is not sure says nothing.
SIGMAS, SURE_RAD = 3.0, np.deg2rad(0.2)
# The noise of MEMS sensors at rest is a tenth of these, what an idle motor shakes is about them.
RATE_SPREAD, ACCELERATION_SPREAD = 0.02, 0.2
HELD_M, HELD_DEG, FREE = 1e-4, 1e-3, 1e3


def odometry_stands(motions: list[tuple[RelativeMotion, float]]) -> bool:
    """Whether each of some motions, with their seconds, is none."""
    return bool(motions) and all(
        float(np.linalg.norm(motion.r)) <= STILL_M_S * seconds
        and float(np.linalg.norm(lie.so3_log(motion.C))) <= STILL_RAD_S * seconds
        for motion, seconds in motions
    )


def imu_stands(rest: Rest, bias: Array, Sigma_bias: Array) -> bool:
    """Whether an IMU neither turns nor shakes."""
    known = 3.0 * np.sqrt(np.diagonal(Sigma_bias)) + STILL_RAD_S
    shaken = rest.acceleration is not None and rest.acceleration_spread > ACCELERATION_SPREAD
    turned = bool((np.abs(rest.rate - bias) > known).any())
    return not (turned or shaken or rest.rate_spread > RATE_SPREAD)


def images_stand(turn: Turn) -> bool:
    """Whether a rotation is none, and sure of it."""
    sigmas = np.sqrt(np.diagonal(turn.covariance))
    phi = lie.so3_log(turn.C)
    return bool((sigmas < SURE_RAD).all() and (np.abs(phi) <= SIGMAS * sigmas).all())


def held(odometry: bool | None, imu: bool | None, images: bool | None) -> tuple[bool, bool]:
    """Whether it does not move, and whether it does not turn. None: a source does not know."""
    stands = bool(odometry and (imu or (imu is None and images)))
    return stands, stands or bool(odometry is None and imu and images)


def loosely(way: bool, turn: bool, seconds: float) -> Array:
    """(6,) variances of no motion, for a step after which it may move."""
    known = np.array([STILL_M_S * way] * 3 + [STILL_RAD_S * turn] * 3) * seconds
    return np.where(known > 0.0, known**2 / 3.0, FREE**2)


def firmly(loose: Array, seconds: float) -> Array:
    """(6,) variances of the same, once it stood after it."""
    known = np.array([HELD_M] * 3 + [np.deg2rad(HELD_DEG)] * 3)
    return np.where(loose < FREE**2, known**2 * seconds, loose)
