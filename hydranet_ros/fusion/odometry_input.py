"""Odometry of any source to relative motions.

A motion is the difference of two poses in a row. Where its covariance is, sources disagree:

    twist             Sigma = twist covariance * dt^2
    twist_per_frame   Sigma = twist covariance, not divided by dt^2 as it should be (rtabmap)
    pose_accumulated  Sigma = Sigma_2 - Ad(T_2_1) Sigma_1 Ad(T_2_1)^T of the pose covariances
    constant          by parameter, for sources that send none

A source says that it is lost by a variance of 9999 or more, by a quaternion of length 0 or by
numbers that are not finite; a jump that no vehicle can make is a restart. None of these is a
motion; where the pose itself is sound, the next motion begins there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import LOST_VARIANCE
from hydranet_ros.settings import Configuration, setting

CovarianceMode = Literal["twist", "twist_per_frame", "pose_accumulated", "constant"]


@dataclass(frozen=True)
class OdometryInputConfig(Configuration):
    """How odometry is read. How far it is believed is said by the fusion's error models."""

    covariance: CovarianceMode = setting("twist", "where the covariance of a motion is")
    sigma_m: float = setting(0.05, "constant: standard deviation of a translation", 1e-6)
    sigma_deg: float = setting(0.1, "constant: standard deviation of a rotation", 1e-6)
    max_speed: float = setting(70.0, "faster is a jump, in m/s", 1e-3)
    max_turn_rate_deg: float = setting(400.0, "faster is a jump, in deg/s", 1e-3)
    max_interval_s: float = setting(5.0, "poses further apart are not a motion", 1e-3)


@dataclass(frozen=True, eq=False)
class OdometrySample:
    """A pose T_w_b of frame `child`, with the covariances that came with it.

    `Sigma_b_w` is of the left perturbation of T_b_w, `Sigma_twist` of the velocity in `child`.
    """

    stamp_ns: int
    child: str
    T_w_b: Array
    Sigma_b_w: Array
    Sigma_twist: Array


class OdometryReader:
    """Turn each sample into the motion since the one before."""

    def __init__(self, config: OdometryInputConfig | None = None) -> None:
        self.config = config or OdometryInputConfig()
        self._last: OdometrySample | None = None

    def clear(self) -> None:
        """Forget the last pose: the next motion begins with the next sample."""
        self._last = None

    def read(self, now: OdometrySample) -> RelativePose | None:
        """T_2_1 of the child frame; None at a start, a BadInput where nothing was measured."""
        last, self._last = self._last, now
        if last is None or last.child != now.child:
            return None
        if self.config.covariance != "pose_accumulated":
            _refuse_lost(now.Sigma_twist)
        return self._motion(last, now)

    def _motion(self, last: OdometrySample, now: OdometrySample) -> RelativePose:
        config = self.config
        dt = (now.stamp_ns - last.stamp_ns) * 1e-9
        T_2_1 = lie.se3_inverse(now.T_w_b) @ last.T_w_b
        if dt > config.max_interval_s:
            raise BadInput("far apart", f"poses are {dt:.3f} s apart: not a motion")
        speed, turn = (
            float(np.linalg.norm(part)) / dt for part in np.split(lie.se3_log(T_2_1), 2)
        )
        if speed > config.max_speed or np.rad2deg(turn) > config.max_turn_rate_deg:
            raise BadInput(
                "jump", f"pose jumps by {speed * dt:.3g} m and {np.rad2deg(turn * dt):.3g} deg"
            )
        Sigma = self._covariance(last, now, T_2_1, dt)
        try:
            return RelativePose(T_2_1, Sigma, last.stamp_ns, now.stamp_ns)
        except ValueError as error:
            raise BadInput(
                "covariance",
                f"with odometry.covariance {config.covariance!r}, {error}: choose another of "
                f"{', '.join(get_args(CovarianceMode))}",
            ) from None

    def _covariance(
        self, last: OdometrySample, now: OdometrySample, T_2_1: Array, dt: float
    ) -> Array:
        config = self.config
        if config.covariance == "twist":
            return now.Sigma_twist * dt**2
        if config.covariance == "twist_per_frame":
            return now.Sigma_twist
        if config.covariance == "constant":
            sigma = np.array([config.sigma_m] * 3 + [np.deg2rad(config.sigma_deg)] * 3)
            return np.diag(sigma**2)
        adjoint = lie.se3_adjoint(T_2_1)
        grown = now.Sigma_b_w - adjoint @ last.Sigma_b_w @ adjoint.T
        if float(np.diagonal(grown).max()) >= LOST_VARIANCE:
            raise BadInput("not measured", "pose covariance grew by 9999: no motion was measured")
        return grown


def _refuse_lost(Sigma_twist: Array) -> None:
    variances = np.diagonal(Sigma_twist)
    if np.isfinite(Sigma_twist).all() and float(variances.max()) < LOST_VARIANCE:
        return
    raise BadInput(
        "not measured", f"variance {variances.max():g} in the twist: no motion was measured"
    )
