"""Odometry of any source to relative poses of the camera.

A motion is the difference of two poses in a row. Where its covariance is, sources disagree:

    twist             Sigma = twist covariance * dt^2
    twist_per_frame   Sigma = twist covariance, not divided by dt^2 as it should be (rtabmap)
    pose_accumulated  Sigma = Sigma_2 - Ad(T_2_1) Sigma_1 Ad(T_2_1)^T of the pose covariances
    constant          by parameter, for sources that tell none

A source says that it is lost by a variance of 9999 or more, by a quaternion of length 0 or by
numbers that are not finite; a jump that no vehicle can make is a restart. None of these is a
motion; where the pose itself is sound, the next motion begins there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from nav_msgs.msg import Odometry

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros.conversions import (
    LOST_VARIANCE,
    covariance_matrix,
    left_of_inverse,
    pose_matrix,
    stamp_ns,
)
from hydranet_ros.ros.qos import ReliableConfig
from hydranet_ros.settings import setting

MODES = ("twist", "twist_per_frame", "pose_accumulated", "constant")


@dataclass(frozen=True)
class VOInputConfig(ReliableConfig):
    """How odometry is read. Its scale and floor are fusion.vo_scale and fusion.vo_floor_*."""

    covariance: Literal["twist", "twist_per_frame", "pose_accumulated", "constant"] = setting(
        "twist", "where the covariance of a motion is"
    )
    sigma_m: float = setting(0.05, "constant: standard deviation of a translation", 1e-06)
    sigma_deg: float = setting(0.1, "constant: standard deviation of a rotation", 1e-06)
    max_speed: float = setting(70.0, "faster is a jump, in m/s", 0.001)
    max_turn_rate_deg: float = setting(400.0, "faster is a jump, in deg/s", 0.001)
    max_interval_s: float = setting(5.0, "poses further apart are not a motion", 0.001)


@dataclass(frozen=True, eq=False)
class _Pose:
    stamp_ns: int
    T_w_b: Array
    covariance: Array
    child: str


class VOReader:
    """Turn each message into the motion since the one before."""

    def __init__(self) -> None:
        self._last: _Pose | None = None

    def clear(self) -> None:
        """Forget the last pose."""
        self._last = None

    def read(self, message: Odometry, config: VOInputConfig) -> RelativePose | None:
        """T_2_1 of the child frame; None at a start, a BadInput where nothing was measured."""
        last, self._last = self._last, None  # an unsound pose begins nothing
        now = _Pose(
            stamp_ns(message.header.stamp),
            pose_matrix(message.pose.pose),
            covariance_matrix(message.pose.covariance),
            message.child_frame_id,
        )
        self._last = now
        twist = covariance_matrix(message.twist.covariance)
        if last is None or last.child != now.child:
            return None
        if config.covariance != "pose_accumulated":
            _refuse_lost(twist)
        return _motion(last, now, twist, config)


def _refuse_lost(twist: Array) -> None:
    variances = np.diagonal(twist)
    if np.isfinite(twist).all() and float(variances.max()) < LOST_VARIANCE:
        return
    raise BadInput(
        "not measured", f"variance {variances.max():g} in the twist: no motion was measured"
    )


def _motion(last: _Pose, now: _Pose, twist: Array, config: VOInputConfig) -> RelativePose:
    dt = (now.stamp_ns - last.stamp_ns) * 1e-9
    T_2_1 = lie.se3_inverse(now.T_w_b) @ last.T_w_b
    if dt > config.max_interval_s:
        raise BadInput("far apart", f"poses are {dt:.3f} s apart: not a motion")
    speed, turn = (float(np.linalg.norm(part)) / dt for part in np.split(lie.se3_log(T_2_1), 2))
    if speed > config.max_speed or np.rad2deg(turn) > config.max_turn_rate_deg:
        raise BadInput(
            "jump", f"pose jumps by {speed * dt:.3g} m and {np.rad2deg(turn * dt):.3g} deg"
        )
    Sigma = _covariance(last, now, T_2_1, twist, dt, config)
    try:
        return RelativePose(T_2_1, Sigma, last.stamp_ns, now.stamp_ns)
    except ValueError as error:
        raise BadInput(
            "covariance",
            f"with vo.covariance {config.covariance!r}, {error}: choose another of "
            f"{', '.join(MODES)}",
        ) from None


def _covariance(
    last: _Pose, now: _Pose, T_2_1: Array, twist: Array, dt: float, config: VOInputConfig
) -> Array:
    if config.covariance == "twist":
        return twist * dt**2
    if config.covariance == "twist_per_frame":
        return twist
    if config.covariance == "constant":
        sigma = np.array([config.sigma_m] * 3 + [np.deg2rad(config.sigma_deg)] * 3)
        return np.diag(sigma**2)
    before, after = (left_of_inverse(p.T_w_b[:3, :3], p.covariance) for p in (last, now))
    adjoint = lie.se3_adjoint(T_2_1)
    grown = after - adjoint @ before @ adjoint.T
    if float(np.diagonal(grown).max()) >= LOST_VARIANCE:
        raise BadInput("not measured", "the pose covariance grew by 9999: no motion was measured")
    return grown
