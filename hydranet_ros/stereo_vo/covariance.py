"""From the solver's covariance to one that a filter may believe.

The solver's (sum J^T Sigma_y^-1 J)^-1 is right if tracks are independent, the camera is what its
calibration says and a stamp is the instant of the exposure. It already contains the measured scale
of the residuals, the noise of both frames, and errors of a stereo match that persist from frame to
frame. Four things remain.

1. Neighbouring tracks err alike (moving shadows, what no smooth field describes), or cancel: the
   covariance is multiplied by the measured scatter of the residuals summed over image patches
   against what it should be, averaged over some frames. On seven rendered drives, cameras exact,
   NEES over one frame is then 4.5 to 8.5 (6 is ideal), P below included.

2. The calibration errs alike in every frame, and moves the motion by its derivative there: what
   self-calibration does not yet know of theta (focal lengths, radial terms, the right camera),

       P = G Sigma_theta G^T,    G = d xi / d theta,

   and what no image shows: the baseline, which stretches t, and the principal point of both
   images, which turns the camera's frame about x and y. With sigma the share of lengths and the
   angle that are not known (`vo.scale_sigma`),

       Q = sigma^2 D (b b^T + K K^T) D,    b = (t, 0),    K = columns x, y of (-hat(t) R, I - R).

   Such errors add up over n frames as n^2 Q, white ones as n Sigma. Whoever sums covariances gets
   n times that of a frame, so what goes on adding up must be in there tau times: D is sqrt(tau)
   for the translation, as a camera mostly goes on in its direction, with tau = 50: over 100 frames
   it is half of what it should be, over one much too large. It hardly goes on turning, and that a
   turn has another axis adds up to no more than over one turn: D is 1 for the rotation. P, which
   changes while it is being estimated, is in there once too. Of 1, 4 and 20 times P, and 1, 4 and
   50 times the rotation's part, these have NEES nearest to 3 to 12 over 1, 10 and 100 frames on
   rendered cameras; on KITTI 09 that hardly differs.

3. A stamp is not the exposure: triggers, exposure times and the interpolation of a reference are
   some milliseconds apart, in which a shaking camera turns. What shakes faster than the frame rate
   shows in the rotations themselves, as a part that is white from frame to frame. Differences of
   high order leave nothing of smooth motion, however lively, and of white angles with variance a^2
   the n-th leaves binomial(2 n, n) a^2. So a long difference tells, over many frames, which share
   of the second differences is shake, and the second differences tell how strong it is at the
   moment. What shakes does so all the time: medians tell, as a jolt would leave much in all
   differences over it. White motion cannot be interpolated, so both poses get a^2 (times
   shake_share^2) per axis. A camera that moves smoothly gets nothing. On KITTI 09 a is 0.006 to
   0.025 degrees per axis, of the size by which VO and the official ground truth differ there. That
   the difference is this, and not an error of the tracks, is an inference; below 10 Hz real motion
   looks white too, and the covariance of the rotation is then too large: on EuRoC ten times.

4. Cameras with depth read one row after the other, and do not trigger colour and depth together.
   A readout may take any share of the time between frames, which is 1/3 in the mean of squares:
   it adds G_r G_r^T / 3 with G_r = d xi / d readout. Depth and stamp are of any instant within
   it: where the motion changes by Delta from one interval to the next, it is off by a share of
   Delta that has variance 1/12. Both are stated, not fitted.
"""

from __future__ import annotations

from collections import deque
from math import comb

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.motion import MotionFit

# Changes of the motion averaged for what there is at the moment: it comes and goes within metres
# of road.
_RECENT = 3
# Order of the differences that tell shake from smooth motion, and frames their medians go over.
_ORDER = 10
_LONG = 100
# The median of a squared white vector over its mean: chi-square with 3 degrees of freedom.
_MEDIAN = 0.789
# Share of a new frame in the averaged clustering: one frame's value is good to about a third.
_CLUSTER_GAIN = 0.05
# Frames over which errors of the translation that no image shows are summed to their right size,
# as if white. From KITTI 06 and rendered cameras.
_UNSEEN_FRAMES = 50
# Mean square of a readout that takes 0 to 1 of the time between frames; variance of an instant.
_READOUT2, _INSTANT2 = 1.0 / 3.0, 1.0 / 12.0


class CovarianceModel:
    """Completes the solver's covariances; remembers the last few motions."""

    def __init__(self, shake_share: float, scale_sigma: float) -> None:
        self.scale_sigma = scale_sigma
        self.vibration = Vibration(shake_share)
        self._clustering = 1.0
        self._frames = 0
        self._rates: deque[Array] = deque(maxlen=_RECENT + 1)

    def complete(self, motion: MotionFit, Sigma_theta: Array, seconds: float) -> Array:
        """The (6, 6) covariance of a motion over `seconds`.

        `Sigma_theta` (17, 17) is that of what is known of the calibration.
        """
        self._frames += 1
        gain = max(1.0 / self._frames, _CLUSTER_GAIN)
        self._clustering += gain * (motion.clustering - self._clustering)
        out = self._clustering * motion.Sigma_2_1
        out += motion.by_theta @ Sigma_theta @ motion.by_theta.T
        out += self._unseen(motion.T_2_1)
        rate = lie.se3_log(motion.T_2_1) / seconds
        self._rates.append(rate)
        if motion.by_readout is not None:
            out += _READOUT2 * np.outer(motion.by_readout, motion.by_readout)
            out += _INSTANT2 * seconds**2 * self._changes()
        known = float(np.trace(motion.Sigma_2_1[3:, 3:])) / 3.0 / seconds**2
        out[3:, 3:] += self.vibration.variance(rate[3:], known) * seconds**2 * np.eye(3)
        return 0.5 * (out + out.T)

    def _unseen(self, T_2_1: Array) -> Array:
        """Q above: a turn of the frame makes R_d T R_d^-1 of T, so K is of I - Ad(T)."""
        by_unseen = np.zeros((6, 3))
        by_unseen[:3, 0] = T_2_1[:3, 3]
        by_unseen[:, 1:] = (np.eye(6) - lie.se3_adjoint(T_2_1))[:, 3:5]
        by_unseen[:3] *= np.sqrt(_UNSEEN_FRAMES)
        return np.asarray(self.scale_sigma**2 * by_unseen @ by_unseen.T)

    def _changes(self) -> Array:
        """Mean squares of the changes of the twist's rate in the last few frames, a diagonal."""
        if len(self._rates) < 2:
            return np.zeros((6, 6))
        return np.diag(np.mean(np.diff(np.stack(self._rates), axis=0) ** 2, axis=0))


class Vibration:
    """The part of the rotation that is white from frame to frame."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._rates: deque[Array] = deque(maxlen=_ORDER + 1)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        # Of the last frames: the longest differences, the second ones, the former's noise.
        self._fast: deque[float] = deque(maxlen=_LONG)
        self._all: deque[float] = deque(maxlen=_LONG)
        self._noise: deque[float] = deque(maxlen=_LONG)

    def variance(self, rate: Array, known: float) -> float:
        """Take the next (3,) angular rate, of noise variance `known`; return the shake's variance.

        Per axis of a relative rotation, as a squared rate: both poses' shares.
        """
        self._rates.append(rate)
        self._recent.append(_white(list(self._rates)[-3:]))
        now = float(np.mean(self._recent))
        # Until the long differences exist, the longest there is says how much may be shake.
        fast, every = _white(list(self._rates)), now
        if len(self._rates) > _ORDER:
            self._fast.append(fast)
            self._all.append(self._recent[-1])
            self._noise.append(known * comb(2 * _ORDER, _ORDER) / comb(2 * _ORDER + 2, _ORDER + 1))
            every = float(np.median(self._all)) / _MEDIAN
            fast = float(np.median(self._fast)) / _MEDIAN - float(np.median(self._noise))
        share = min(max(fast, 0.0) / max(every, 1e-30), 1.0)
        return 2.0 * self.share**2 * share * now


def _white(rates: list[Array]) -> float:
    """The variance of white angles that would make the highest difference of these rates."""
    order = len(rates) - 1
    difference = np.diff(np.stack(rates), n=order, axis=0)[0]
    return float(np.mean(difference**2)) / comb(2 * order + 2, order + 1)
