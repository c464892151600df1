"""Chain relative motions into poses, with covariance, also over frames that have no motion."""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, compose_with_covariance
from hydranet_ros.geometry.lie import Array

# The first pose is the origin by definition; filters want a covariance that they can invert.
ORIGIN_VARIANCE = 1e-12
# A motion that was not measured, as odometry on topics says it.
LOST_VARIANCE = 9999.0


class Odometer:
    """Where the camera is: T_w_c with Sigma_c_w, the covariance of the left perturbation of T_c_w.

    Where no motion was measured, the last velocity is carried on for at most
    `max_extrapolation_s`.
    """

    def __init__(self, T_w_c: Array | None = None, max_extrapolation_s: float = 1.0) -> None:
        self.T_w_c = np.eye(4) if T_w_c is None else T_w_c
        self.Sigma_c_w = np.eye(6) * ORIGIN_VARIANCE
        self.stamp_ns: int | None = None
        self.max_extrapolation_s = max_extrapolation_s
        self._velocity = np.zeros(6)  # Log(T_2_1) per second

    def move(self, motion: RelativePose) -> None:
        """Take in a measured motion, which begins where the odometer is."""
        T_c_w = lie.se3_inverse(self.T_w_c)
        _, self.Sigma_c_w = compose_with_covariance(
            motion.T_2_1, motion.Sigma_2_1, T_c_w, self.Sigma_c_w
        )
        self.T_w_c = self.T_w_c @ lie.se3_inverse(motion.T_2_1)
        self._velocity = lie.se3_log(motion.T_2_1) / motion.seconds
        self.stamp_ns = motion.stamp_2_ns

    def extrapolate(self, stamp_ns: int) -> Array:
        """T_w_c at a later stamp, at the last velocity; the odometer itself stays."""
        if self.stamp_ns is None:
            return self.T_w_c
        dt = min((stamp_ns - self.stamp_ns) * 1e-9, self.max_extrapolation_s)
        extrapolated: Array = self.T_w_c @ lie.se3_exp(-self._velocity * dt)
        return extrapolated

    def lose(self) -> None:
        """Stay here; where the camera went since, and how fast it is, is not known."""
        self.Sigma_c_w = self.Sigma_c_w + np.eye(6) * LOST_VARIANCE
        self.stamp_ns, self._velocity = None, np.zeros(6)

    def restart(self, stamp_ns: int) -> None:
        """Go on from a frame that no motion leads to: extrapolated, with covariance 'lost'."""
        if self.stamp_ns is not None:
            self.T_w_c = self.extrapolate(stamp_ns)
            self.Sigma_c_w = self.Sigma_c_w + np.eye(6) * LOST_VARIANCE
        self.stamp_ns = stamp_ns


class OdometryPath:
    """A pose for every frame, from motions between some of them.

    A frame without a motion has the extrapolated pose. When a motion over several frames comes
    later (bad frames were bridged), the poses in between are put on its way.
    """

    def __init__(self, odometer: Odometer | None = None) -> None:
        self.odometer = odometer or Odometer()
        self.stamps_ns: list[int] = []
        self.T_w_c: list[Array] = []
        self.motions: list[RelativePose] = []
        self.lost = 0

    def add(self, stamp_ns: int, motion: RelativePose | None, bridged: bool = False) -> Array:
        """Take the next frame in; return T_w_c there. A `bridged` frame starts no motion."""
        if motion is not None:
            self._put_between(motion)
            self.odometer.move(motion)
            self.motions.append(motion)
        else:
            self.lost += bool(self.stamps_ns)
            if not bridged or not self.stamps_ns:
                self.odometer.restart(stamp_ns)
        self.stamps_ns.append(stamp_ns)
        self.T_w_c.append(self.odometer.extrapolate(stamp_ns))
        return self.T_w_c[-1]

    def _put_between(self, motion: RelativePose) -> None:
        first, xi = self.stamps_ns.index(motion.stamp_1_ns), lie.se3_log(motion.T_2_1)
        for i in range(first + 1, len(self.stamps_ns)):
            share = (self.stamps_ns[i] - motion.stamp_1_ns) * 1e-9 / motion.seconds
            self.T_w_c[i] = self.T_w_c[first] @ lie.se3_exp(-share * xi)


def chain(T_2_1: Array, start: Array) -> Array:
    """Accumulate frame-to-frame poses (N - 1, 4, 4) to T_w_c (N, 4, 4), beginning at `start`."""
    poses = np.empty((len(T_2_1) + 1, 4, 4))
    poses[0] = start
    steps = lie.se3_inverse(T_2_1)
    for i, step in enumerate(steps):
        poses[i + 1] = poses[i] @ step
    return poses
