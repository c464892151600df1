"""Odometry of any source to relative motions.

A motion is the difference of two poses in a row, or the twist times the time between them: wheels
that only know their speed leave the pose at zero. Where the covariance of a motion is, sources
disagree:

    twist             Sigma = twist covariance * dt^2
    twist_per_frame   Sigma = twist covariance, not divided by dt^2 as it should be (rtabmap)
    pose_accumulated  Sigma = Sigma_2 - Ad(T_2_1) Sigma_1 Ad(T_2_1)^T of the pose covariances
    constant          by parameter, for sources that send none

Covariances are read axis by axis. Zero says that it was not filled in: the parameters `sigma_m`
and `sigma_deg` stand in, per root of 0.1 s. A large variance on some axes says that nothing is
known along them (z, roll and pitch of wheels), on all axes that the source is lost. So do a
quaternion of length 0 and numbers that are not finite. None of these is a motion; where the pose
itself is sound, the next motion begins there.

A jump that no vehicle can make is a wrong message or a restart, and so is a motion that the twist
contradicts, where pose and twist of the source have agreed before. The next message tells which:
if it goes on from the pose before the jump, the message in between was wrong, if it goes on from
the jump, that was a restart. If both may be, there is no motion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.error_models import FLOOR_S
from hydranet_ros.fusion.twist_agreement import (
    OdometrySample,
    TwistAgreement,
    pose_motion,
    se3_log_of,
    twist_motion,
)
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array, se3_adjoint
from hydranet_ros.geometry.odometer import LOST_VARIANCE
from hydranet_ros.settings import Configuration, setting

CovarianceMode = Literal["twist", "twist_per_frame", "pose_accumulated", "constant"]
# A smaller variance of a velocity is not meant: nothing measures that well.
NOT_FILLED_IN = 1e-10  # (m/s)^2, (rad/s)^2
# Standard deviation of a motion along an axis of which nothing is known, m and rad per second.
UNKNOWN_SPEED = np.array([30.0] * 3 + [3.0] * 3)
# A pose that does not move in so many messages, while the twist says that it should.
STUCK_AFTER, MOVING = 5, 0.02  # m/s, rad/s


@dataclass(frozen=True)
class OdometryInputConfig(Configuration):
    """How odometry is read. How far it is believed is said by the fusion's error models."""

    source: Literal["auto", "pose", "twist"] = setting(
        "auto", "motions from poses or from twists; auto: from twists where the pose stands still"
    )
    covariance: CovarianceMode = setting("twist", "where the covariance of a motion is")
    sigma_m: float = setting(
        0.05, "standard deviation of a translation over 0.1 s, where none is sent", 1e-6
    )
    sigma_deg: float = setting(
        0.1, "standard deviation of a rotation over 0.1 s, where none is sent", 1e-6
    )
    max_speed: float = setting(70.0, "faster is a jump, in m/s", 1e-3)
    max_turn_rate_deg: float = setting(400.0, "faster is a jump, in deg/s", 1e-3)
    max_interval_s: float = setting(5.0, "poses further apart are not a motion", 1e-3)


class OdometryReader:
    """Turn each sample into the motion since the one before."""

    def __init__(self, config: OdometryInputConfig | None = None) -> None:
        self.config = config or OdometryInputConfig()
        self._last: OdometrySample | None = None
        self._suspect: OdometrySample | None = None  # came after it, and was not believed
        self._agreement = TwistAgreement()
        self._stuck = 0
        self.notes: set[str] = set()
        """What was assumed of the source, to be warned about."""

    def clear(self) -> None:
        """Forget the last pose: the next motion begins with the next sample."""
        self._last = self._suspect = None

    def read(self, now: OdometrySample) -> RelativePose | None:
        """T_2_1 of the child frame; None at a start, a BadInput where nothing was measured."""
        last, suspect = self._last, self._suspect
        self._last, self._suspect = now, None
        if last is None or last.child != now.child:
            return None
        if self.config.covariance in ("twist", "twist_per_frame"):
            _refuse_lost(now.Sigma_twist)
        seconds = now.seconds_since(last)
        if seconds > self.config.max_interval_s:
            raise BadInput("far apart", f"poses are {seconds:.3f} s apart: not a motion")
        return self._motion(self._believed(last, suspect, now), now)

    def _believed(
        self, last: OdometrySample, suspect: OdometrySample | None, now: OdometrySample
    ) -> OdometrySample:
        """Which earlier pose this one goes on from; a BadInput where that cannot be told."""
        doubt, rule = self._doubt(last, now), self._agreement.is_rule
        self._agreement.count(last, now)
        if rule and not self._agreement.is_rule:  # nobody can tell what happened meanwhile
            raise BadInput("contradiction", "poses and twists do not agree any more: not used")
        if suspect is None:
            if doubt is not None:
                self._last, self._suspect = last, now
                raise doubt
            return last
        other = self._doubt(suspect, now)
        if doubt is not None and other is not None:
            self._last, self._suspect = last, now
            raise doubt
        if doubt is None and other is None:
            raise BadInput("jump", "pose may go on from before a jump or from after it: not used")
        return last if doubt is None else suspect

    def _doubt(self, last: OdometrySample, now: OdometrySample) -> BadInput | None:
        """Why one pose does not lead to the other, if so."""
        config, dt = self.config, now.seconds_since(last)
        parts = np.split(se3_log_of(self._between(last, now)), 2)
        metres, radians = (float(np.linalg.norm(part)) for part in parts)
        degrees = float(np.rad2deg(radians))
        # Not finite is no speed either.
        if not (metres <= config.max_speed * dt and degrees <= config.max_turn_rate_deg * dt):
            return BadInput("jump", f"pose jumps by {metres:.3g} m and {degrees:.3g} deg")
        if config.source == "auto" and self._agreement.contradicts(last, now):
            return BadInput(
                "contradiction",
                f"pose moves by {metres:.3g} m and {degrees:.3g} deg in {dt:.3g} s, its twist "
                "says else: one of them is wrong",
            )
        return None

    def _between(self, last: OdometrySample, now: OdometrySample) -> Array:
        """T_2_1 from the poses, or from the twists."""
        T_2_1 = pose_motion(last, now)
        return twist_motion(last, now) if self._is_twist_used(T_2_1, now.twist) else T_2_1

    def _motion(self, last: OdometrySample, now: OdometrySample) -> RelativePose:
        config, dt = self.config, now.seconds_since(last)
        self._note_twist_use(last, now)
        T_2_1 = self._between(last, now)
        Sigma = self._filled_in(self._covariance(last, now, T_2_1, dt), dt)
        if config.source == "auto" and not self._stuck:
            Sigma = Sigma + self._agreement.spread(last, now)
        try:
            return RelativePose(T_2_1, Sigma, last.stamp_ns, now.stamp_ns)
        except ValueError as error:
            raise BadInput(
                "covariance",
                f"with odometry.covariance {config.covariance!r}, {error}: choose another of "
                f"{', '.join(get_args(CovarianceMode))}",
            ) from None

    def _is_twist_used(self, T_2_1: Array, twist: Array) -> bool:
        """Whether the twist is the motion: by parameter, or as the pose stands while it moves."""
        if self.config.source != "auto":
            return self.config.source == "twist"
        stands = bool(np.abs(T_2_1 - np.eye(4)).max() < 1e-9)
        return stands and bool(np.linalg.norm(twist) > MOVING)

    def _note_twist_use(self, last: OdometrySample, now: OdometrySample) -> None:
        used = self._is_twist_used(pose_motion(last, now), now.twist)
        stuck = self.config.source == "auto" and used
        self._stuck = self._stuck + 1 if stuck else 0
        if self._stuck == STUCK_AFTER:
            self.notes.add("the pose never moves, the twist does: motions are taken from twists")

    def _covariance(
        self, last: OdometrySample, now: OdometrySample, T_2_1: Array, dt: float
    ) -> Array:
        mode = self.config.covariance
        if mode == "twist":
            return now.Sigma_twist * dt**2
        if mode == "twist_per_frame":
            return now.Sigma_twist
        if mode == "constant":
            return np.zeros((6, 6))  # to be filled in
        adjoint = se3_adjoint(T_2_1)
        grown = now.Sigma_b_w - adjoint @ last.Sigma_b_w @ adjoint.T
        if float(np.diagonal(grown).max()) >= LOST_VARIANCE:
            raise BadInput("not measured", "pose covariance grew by 9999: no motion was measured")
        return grown

    def _filled_in(self, Sigma: Array, dt: float) -> Array:
        """Axis by axis: what was not filled in, and what is unknown."""
        config, out = self.config, Sigma.copy()
        own = np.array([config.sigma_m] * 3 + [np.deg2rad(config.sigma_deg)] * 3)
        variances = np.diagonal(Sigma)
        empty = variances <= NOT_FILLED_IN * dt**2
        unknown = variances >= UNKNOWN_SPEED**2 * dt**2
        if config.covariance == "pose_accumulated":
            empty &= variances == 0.0
        for axes, value in ((empty, own**2 * dt / FLOOR_S), (unknown, (UNKNOWN_SPEED * dt) ** 2)):
            out[axes, :] = out[:, axes] = 0.0
            out[axes, axes] = value[axes]
        if empty.any() and config.covariance != "constant":
            self.notes.add(
                "covariances are zero: odometry.sigma_m and odometry.sigma_deg are used instead"
            )
        return out


def _refuse_lost(Sigma_twist: Array) -> None:
    """Where nothing is known along any axis, or the numbers are none."""
    variances = np.diagonal(Sigma_twist)
    if np.isfinite(Sigma_twist).all() and float(variances.min()) < LOST_VARIANCE:
        return
    raise BadInput(
        "not measured", f"variance {variances.min():g} in the twist: no motion was measured"
    )
