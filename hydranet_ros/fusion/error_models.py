"""Error models of the sources: what a covariance leaves out, made up for before it is believed.

The error of a source over a time t is taken as the sum of

    white         the published covariance, times a factor: it averages out
    persistent    a rate error with standard deviation s that lasts for tau seconds. Over t > tau
                  its integral has the variance 2 tau s^2 t, as white noise of that density has,
                  and over t < tau the variance (s t)^2
    turn scale    a share of the turned angle: wrong focal length, wrong track, slip in turns
    distance      a share of the way: wrong wheel radius, wrong baseline
    floor         per root of time, never per message: what a source sends more often is not more

An edge of the window stands for its share of a drift over many edges, so the window weighs by the
long run: the persistent part enters with 2 tau s^2 t (`covariance`). A test of a single edge sees
(s t)^2 of it only (`step_covariance`): NIS by the long run would call every source too careful.
Shares of angle and way are correlated over a turn (about 1 rad) and over some metres: their
variance is share^2 |angle| 1 rad and share^2 |way| 10 m, which again does not depend on how many
messages tell of it, and (share |angle|)^2 and (share |way|)^2 over a shorter step. What is the
same all the time belongs into a calibration state.

Of sources that look at images a single step shows less than what is published, as that is
calibrated on sums over many frames, and against references that have noise of their own (.02 deg
per frame on KITTI). `step_share` is what is left of it in the difference of odometry and rotation
over a frame. It was fitted on KITTI 06 (own) and on the recorded odometry of 00 with our gyro
(visual), and looked at on 09, and on 02, 05 and 09 with the paper's network: mean NIS of rotations
is .7 to 1.05 of its dimension, of odometry .6 to .75. Only NIS is told by it, nothing is weighed.

Where the numbers are from:

    own       our stereo odometry publishes a calibrated covariance
    visual    fitted on the recorded odometry of KITTI 06, 07 and 08, which nothing else here uses:
              per root of 0.1 s, rotation errors of .05 deg over 1 step grow to .06, .09 and .06
              over 100 and .07, .12 and .07 over 300 steps, where twice its stated sigma is .05
    wheels    stated physics of a skid-steered robot: slip of a few per cent in turns; .06 deg per
              root of a second on straights, chosen with simulated wheels on KITTI 06 (09 hardly
              cares)
    gyro      this package's visual gyro: its covariances are made to be honest when summed over
              1 to 50 frames, so they are believed; .3 % per turned angle is what a focal length
              is known to. `since_reference` shares the errors of the rotations frame to frame:
              only the latter are fused
    gyro_beside_own
              our gyro and our stereo odometry look at the same pixels: on KITTI 06 and 09 their
              errors are correlated by .7 frame to frame and by .4 to .7 over 50 frames, and of two
              such that are equally good the second adds little. 16 was chosen on these two: the
              worst of seven figures is 1.005 of VO alone (8: 1.011, 40: 1.001, and the gain is
              less), the mean .996
    hydranet  the paper's network: errors average out 2 to 4 times more slowly than independent
              ones would, and grow with the rotation in turns; it has a bias that wanders
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting

# Floors of odometry are standard deviations over this time, and grow with its root: however many
# messages a source sends, the floor is the same.
FLOOR_S = 0.1
# Over what angle and way a share of them stays the same.
SCALE_RAD, SCALE_M = 1.0, 10.0
# A rotation that is larger than so many times the expected one, and this, is not taken for a turn.
TURN_FACTOR, TURN_RAD = 2.0, np.deg2rad(1.0)


@dataclass(frozen=True)
class OdometryModel(Configuration):
    """Sigma <- scale Sigma + floor^2 dt / 0.1 s + 2 tau drift^2 dt + shares, for one odometry."""

    scale: float = setting(4.0, "factor on the covariances of motions", 1e-9)
    floor_m: float = setting(0.03, "least standard deviation of a translation over 0.1 s")
    floor_deg: float = setting(0.03, "least standard deviation of a rotation over 0.1 s")
    drift_deg_s: float = setting(0.0, "standard deviation of a turn rate error that persists")
    drift_s: float = setting(2.0, "how long it persists, in seconds", 1e-3)
    turn_share: float = setting(0.0, "standard deviation of a turn of 1 rad, as a share of it")
    distance_share: float = setting(0.0, "standard deviation of 10 m of way, as a share of it")
    step_share: float = setting(1.0, "share of the variance that a single motion shows", 1e-6)

    def covariance(self, motion: RelativePose) -> Array:
        """(6, 6), as it is believed in the long run."""
        return self._covariance(motion, max)

    def step_covariance(self, motion: RelativePose) -> Array:
        """(6, 6) of this one motion, of which an error that lasts is a small part."""
        return self.step_share * self._covariance(motion, min)

    def _covariance(self, motion: RelativePose, extent: Callable[[float, float], float]) -> Array:
        """`extent` of a motion and of what an error lasts for: the larger, or the smaller."""
        seconds = motion.seconds
        angle = float(np.linalg.norm(lie.so3_log(motion.T_2_1[:3, :3])))
        way = float(np.linalg.norm(motion.T_2_1[:3, 3]))
        times = seconds / FLOOR_S
        metres = self.floor_m**2 * times + self.distance_share**2 * way * extent(way, SCALE_M)
        radians = np.deg2rad(self.floor_deg) ** 2 * times
        radians += self.turn_share**2 * angle * extent(angle, SCALE_RAD)
        radians += (
            np.deg2rad(self.drift_deg_s) ** 2 * seconds * extent(seconds, 2.0 * self.drift_s)
        )
        return self.scale * motion.Sigma_2_1 + np.diag([metres] * 3 + [radians] * 3)


@dataclass(frozen=True)
class RotationModel(Configuration):
    """Sigma <- inflation Sigma + floor^2 + (scale_noise angle)^2, for rotations from images.

    The floor is per pair of images: errors of flow do not grow with the time between them.

    The angle is the rotation's own, unless the motion is known not to have turned so far: a wrong
    rotation must not excuse itself by its size.
    """

    floor_deg: float = setting(0.005, "least standard deviation of a rotation")
    inflation: float = setting(
        1.0, "factor on covariances, because errors are correlated in time", 1.0
    )
    scale_noise: float = setting(
        0.003, "standard deviation per rotation angle, for errors in turns"
    )
    bias_sigma_deg_s: float = setting(
        0.0, "standard deviation of a bias of the rate before it is observed; 0: there is none"
    )
    bias_walk_deg_s: float = setting(
        0.06, "random walk of the bias, per square root of a second", 1e-9
    )

    step_share: float = setting(1.0, "share of the variance that a single rotation shows", 1e-6)

    def covariance(self, rotation: RelativeRotation, expected_rad: float | None = None) -> Array:
        """(3, 3), as it is believed in the long run.

        What a rotation tells of itself as persistent, P over t seconds, is a rate error that lasts
        for tau: s^2 = P / t^2, and 2 tau s^2 t = P 2 tau / t. `expected_rad` is the angle that
        another source or the prior expects.
        """
        Sigma = rotation.Sigma_2_1
        if rotation.persistent is not None:
            more = max(2.0 * rotation.persistent_s / rotation.seconds, 1.0) - 1.0
            Sigma = Sigma + more * rotation.persistent
        return self.inflation * Sigma + self._own(rotation, expected_rad)

    def step_covariance(
        self, rotation: RelativeRotation, expected_rad: float | None = None
    ) -> Array:
        """(3, 3) of this one rotation: as published, with floor and scale."""
        return self.step_share * (rotation.Sigma_2_1 + self._own(rotation, expected_rad))

    def _own(self, rotation: RelativeRotation, expected_rad: float | None) -> Array:
        angle = float(np.linalg.norm(lie.so3_log(rotation.C_2_1)))
        if expected_rad is not None and angle > TURN_FACTOR * expected_rad + TURN_RAD:
            angle = expected_rad
        own = np.deg2rad(self.floor_deg) ** 2 + (self.scale_noise * angle) ** 2
        return own * np.eye(3)


# --- two dimensions ------------------------------------------------------------------------------
# A vehicle on wheels does not leave the ground. Its motion across the ground, and its roll and
# pitch, are nothing but for slopes, bumps and suspension: independent from step to step, with
# BUMP_M per root of 0.1 s and SLOPE of the way in z, TILT_DEG per root of 0.1 s in roll and pitch.
# Stated for roads and floors: a slope that changes by 5 deg within a second is 1.5 sigma.
BUMP_M, SLOPE, TILT_DEG = 0.005, 0.02, 1.0
UP = np.array([0.0, 0.0, 1.0])  # of a base


def hold_to_ground(motion: RelativePose, up: Array) -> RelativePose:
    """The motion with the covariance of ground; `up` (3,) is up in the frame of the motion.

    Where wheels say more of an axis, that is left as it is.
    """
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
