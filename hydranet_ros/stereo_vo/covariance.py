"""From the solver's covariance to one that a filter may believe.

The solver's (sum J^T Sigma_y^-1 J)^-1 is right if tracks are independent, the camera is what its
calibration says and a stamp is the instant of the exposure. It already contains the measured scale
of the residuals, the noise of both frames, and errors of a stereo match that persist from frame to
frame. Three things remain.

1. Neighbouring tracks err alike (moving shadows, what no smooth field describes): the covariance
   is multiplied by the measured scatter of the residuals summed over image patches against the
   scatter of independent ones, where that is larger, averaged over some frames.

2. The calibration errs alike in every frame: what self-calibration does not know of theta,
   P = G Sigma_theta G^T with G = d xi / d theta; and what no image shows, the scale of distances
   (baseline, focal length) and the direction of the axis (principal point), Q = sigma^2 |t|^2 I.
   Such errors add up over n frames as n^2 Q, white ones as n Sigma. Whoever sums covariances gets
   n times that of a frame, so a frame gets

       Sigma + tau_P P + tau_Q Q.

   Q is right over tau_Q = 50 frames: over 100 it is half of what it should be, over one much too
   large, but only for the translation. Of P, which changes while it is being estimated, less is
   persistent. An axis that is wrong by a small rotation delta turns the axis of turns as well:
   the rotation phi is off by delta x phi, so it gets tau_A sigma_A^2 (|phi|^2 I - phi phi^T).

3. A stamp is not the exposure: triggers, exposure times and the interpolation of a reference are
   some milliseconds apart, in which a shaking camera turns. What shakes faster than the frame rate
   shows in the rotations themselves, as a part that is white from frame to frame. Differences of
   high order leave nothing of smooth motion, however lively, and of white angles with variance a^2
   the n-th leaves binomial(2 n, n) a^2. So a long difference tells, over many frames, which share
   of the second differences is shake, and the second differences tell how strong it is at the
   moment. White motion cannot be interpolated, so both poses get a^2 (times shake_share^2) per
   axis. A camera that moves smoothly gets nothing. On KITTI 09 a is 0.006 to 0.025 degrees per
   axis, of the size by which VO and the official ground truth differ there. That the difference
   is this, and not an error of the tracks, is an inference; below 10 Hz real motion looks white
   too, and the covariance of the rotation is then too large.
"""

from __future__ import annotations

from collections import deque
from math import comb

import numpy as np

from hydranet_ros.geometry.lie import Array

# Second differences averaged for the shake at the moment: it comes and goes within metres of road.
_RECENT = 3
# Order of the differences that tell shake from smooth motion, and frames their average goes over.
_ORDER = 10
_LONG = 100
# Share of a new frame in the averaged clustering: one frame's value is good to about a third.
_CLUSTER_GAIN = 0.05
# Frames over which errors of the calibration are summed to their right size, as if white: of what
# self-calibration estimates, and of what it cannot see. From KITTI 06 and rendered cameras.
_ESTIMATED_FRAMES = 4
_UNSEEN_FRAMES = 50
# Of the direction of the axis in rotations: a principal point is known to a pixel or two. From
# six rendered cameras whose principal points are 1 px off: without it their NEES over 10 frames
# is 8 to 17.
_AXIS_SIGMA_RAD, _AXIS_FRAMES = 2e-3, 5


class CovarianceModel:
    """Completes the solver's covariances; remembers the last few motions."""

    def __init__(self, shake_share: float, scale_sigma: float) -> None:
        self.scale_sigma = scale_sigma
        self.vibration = Vibration(shake_share)
        self._clustering = 1.0
        self._frames = 0

    def complete(
        self, covariance: Array, persistent: Array, clustering: float, rate: Array, seconds: float
    ) -> Array:
        """The (6, 6) covariance of a motion at (6,) `rate` (twist per second) over `seconds`.

        `persistent` is the part of its errors that is the same in every frame.
        """
        self._frames += 1
        self._clustering += _CLUSTER_GAIN * (clustering - self._clustering)
        out = covariance * max(self._clustering, 1.0)
        out += min(self._frames, _ESTIMATED_FRAMES) * persistent
        unseen = self.scale_sigma * seconds * float(np.linalg.norm(rate[:3]))
        out[:3, :3] += _UNSEEN_FRAMES * unseen**2 * np.eye(3)
        phi = seconds * rate[3:]
        across = float(phi @ phi) * np.eye(3) - np.outer(phi, phi)
        out[3:, 3:] += _AXIS_FRAMES * _AXIS_SIGMA_RAD**2 * across
        known = float(np.trace(covariance[3:, 3:])) / 3.0 / seconds**2
        out[3:, 3:] += self.vibration.variance(rate[3:], known) * seconds**2 * np.eye(3)
        return 0.5 * (out + out.T)


class Vibration:
    """The part of the rotation that is white from frame to frame."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._rates: deque[Array] = deque(maxlen=_ORDER + 1)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._count = 0
        self._fast, self._all = 0.0, 0.0

    def variance(self, rate: Array, known: float) -> float:
        """Take the next (3,) angular rate, of noise variance `known`; return the shake's variance.

        Per axis of a relative rotation, as a squared rate: both poses' shares.
        """
        self._rates.append(rate)
        self._recent.append(_white(list(self._rates)[-3:]))
        if len(self._rates) > _ORDER:
            self._count = min(self._count + 1, _LONG)
            noise = known * comb(2 * _ORDER, _ORDER) / comb(2 * _ORDER + 2, _ORDER + 1)
            self._fast += (_white(list(self._rates)) - noise - self._fast) / self._count
            self._all += (self._recent[-1] - self._all) / self._count
        now = float(np.mean(self._recent))
        # Until the long differences exist, the longest there is says how much may be shake.
        fast, every = (self._fast, self._all) if self._count else (_white(list(self._rates)), now)
        share = min(max(fast, 0.0) / max(every, 1e-30), 1.0)
        return 2.0 * self.share**2 * share * now


def _white(rates: list[Array]) -> float:
    """The variance of white angles that would make the highest difference of these rates."""
    order = len(rates) - 1
    difference = np.diff(np.stack(rates), n=order, axis=0)[0]
    return float(np.mean(difference**2)) / comb(2 * order + 2, order + 1)
