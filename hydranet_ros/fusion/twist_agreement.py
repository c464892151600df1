"""Whether pose and twist of an odometry say the same.

A message has the motion twice: as the difference of poses, and as the twist times the time between
them. Many sources leave the twist empty, or mean something else by it, so the two are compared
only where they have agreed for a while. Then a message in which they do not is a wrong one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

# What the two may differ by beyond their noise: a floor (m, rad), a velocity (m/s, rad/s), stamps
# that are not exact (s), a share of the motion, as wheels slip, and what comes of accelerations
# (m/s^2, rad/s^2) between the two messages that their mean leaves out.
FLOOR = np.array([0.01] * 3 + [0.003] * 3)
VELOCITY = np.array([0.3] * 3 + [0.1] * 3)
STAMPS_S, SHARE, SIGMAS = 3e-3, 0.1, 5.0
ACCELERATION = np.array([6.0] * 3 + [3.0] * 3)
# Over a longer time that is too much to be taken for agreement.
BRIEF_S = 0.15
# A pose that moves by less than this share of what its twist says hardly moves.
IDLE_SHARE = 0.1
# No vehicle is faster (m/s, rad/s): numbers beyond are none.
FASTEST = 1e3
# A variance of a velocity that says nothing.
UNKNOWN = 1e12
# It is a rule that they agree, if so many of the recent pairs do, and no fewer than this share.
RECENT, LEAST, LEAST_SHARE = 30, 5, 0.2
# It is none any more after so many pairs in a row that do not. For as many more, nobody can
# tell whether poses are good: the twist is not filled in any more, or the poses are wrong.
BROKEN = 10


@dataclass(frozen=True, eq=False)
class OdometrySample:
    """A pose T_w_b of frame `child` and its `twist`, with the covariances that came with them.

    `Sigma_b_w` is of the left perturbation of T_b_w; the twist (m/s, rad/s) is in `child`.
    """

    stamp_ns: int
    child: str
    T_w_b: Array
    Sigma_b_w: Array
    twist: Array
    Sigma_twist: Array

    def seconds_since(self, other: OdometrySample) -> float:
        """Between their stamps."""
        return (self.stamp_ns - other.stamp_ns) * 1e-9


def twist_motion(last: OdometrySample, now: OdometrySample) -> Array:
    """T_2_1 by the twists: their mean over the time in between."""
    mean = np.clip(0.5 * (last.twist + now.twist), -FASTEST, FASTEST)
    return lie.se3_exp(-mean * now.seconds_since(last))


def pose_motion(last: OdometrySample, now: OdometrySample) -> Array:
    """T_2_1 by the poses."""
    return lie.se3_inverse(now.T_w_b) @ last.T_w_b


class TwistAgreement:
    """Learns whether a source's poses and twists agree, and finds the messages where they do not.

    Two that agree count only where an empty twist would not: what stands still tells nothing.
    """

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._broken = self._doubted = 0

    @property
    def is_rule(self) -> bool:
        """Whether the two have agreed so far."""
        agreed = sum(self._recent)
        return agreed >= max(LEAST, LEAST_SHARE * len(self._recent))

    def count(self, last: OdometrySample, now: OdometrySample) -> None:
        """Learn from two messages in a row."""
        agree = _agree(last, now, _mean_twist(last, now))
        if agree and _agree(last, now, np.zeros(6)):
            return
        was_rule = self.is_rule
        self._recent.append(agree)
        self._broken = 0 if agree else self._broken + 1
        self._doubted = 0 if agree else max(self._doubted - 1, 0)
        if self._broken >= BROKEN:
            self._doubted = BROKEN if was_rule else self._doubted
            self._recent.clear()

    def contradicts(self, last: OdometrySample, now: OdometrySample) -> bool:
        """Whether one of two messages is wrong, of a source that has agreed so far."""
        return self.is_rule and not _agree(last, now, _mean_twist(last, now))

    def spread(self, last: OdometrySample, now: OdometrySample) -> Array:
        """(6, 6), what to add to a motion's covariance: by how much the two differ.

        Over a gap, while a pose that hardly moves may be one that nobody fills in, and for a while
        after they have ceased to agree.
        """
        # A twist that is no number says nothing: the whole motion is in doubt.
        twist, dt = np.nan_to_num(_mean_twist(last, now)), now.seconds_since(last)
        moved = np.linalg.norm(se3_log_of(pose_motion(last, now))[:3])
        idle = moved < IDLE_SHARE * np.linalg.norm(twist[:3]) * dt
        if not self._doubted and (dt <= BRIEF_S if self.is_rule else not idle):
            return np.zeros((6, 6))
        difference = _difference(last, now, twist)
        return np.outer(difference, difference)


def _agree(last: OdometrySample, now: OdometrySample, twist: Array) -> bool:
    """Whether the poses move as the twist says."""
    if not all((np.abs(each.twist) < FASTEST).all() for each in (last, now)):
        return False
    dt = now.seconds_since(last)
    noise = np.sqrt(2.0 * np.minimum(_variances(last), _variances(now))) * dt
    moved = np.abs(twist * dt).reshape(2, 3).max(axis=1).repeat(3)
    allowed = FLOOR + (VELOCITY + ACCELERATION * dt / 8.0) * dt
    allowed += SIGMAS * noise + (SHARE + STAMPS_S / dt) * moved
    return bool((np.abs(_difference(last, now, twist)) <= allowed).all())


def _difference(last: OdometrySample, now: OdometrySample, twist: Array) -> Array:
    """(6,) of the motion by the poses to the one by a twist."""
    return se3_log_of(pose_motion(last, now) @ lie.se3_exp(twist * now.seconds_since(last)))


def _mean_twist(last: OdometrySample, now: OdometrySample) -> Array:
    """Axis by axis, the surer one counts more."""
    one, two = _variances(last), _variances(now)
    share = one / (one + two)
    return np.clip((1.0 - share) * last.twist + share * now.twist, -FASTEST, FASTEST)


def _variances(sample: OdometrySample) -> Array:
    """(6,) of the twist, those that are none as large."""
    variances = np.diagonal(sample.Sigma_twist)
    known = np.isfinite(variances) & (variances >= 0.0)
    return np.clip(np.where(known, variances, UNKNOWN), 1e-6, UNKNOWN)


def se3_log_of(T: Array) -> Array:
    """The logarithm, not finite for poses beyond what numbers hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        return lie.se3_log(T)
