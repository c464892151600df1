"""Wheels of a skid-steered vehicle, from its true poses: what their odometry would have said.

Wheels know the way along the vehicle and its turn about the vertical. Their errors are

    turn       (1 + yaw_scale) (1 + s) of the true one: the effective track is not known, and slip
               s in turns wanders by `slip` with a length of `slip_rad` of turned angle
    way        (1 + distance_scale) of the true one: so is the radius of the wheels
    noise      white, per root of a metre and per root of a second
    the rest   z, roll and pitch are not measured

They have their own rate and their own stamps, between those of the camera.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.settings import Configuration, setting

# No driver says less of itself.
LEAST_M, LEAST_RAD = 1e-5, 1e-6


@dataclass(frozen=True)
class SimulatedWheelsConfig(Configuration):
    """How wrong the simulated wheels are. A skid-steered robot has several per cent in turns."""

    rate_hz: float = setting(50.0, "motions a second", 1.0, 1000.0)
    offset_s: float = setting(0.0037, "how far their stamps are from the camera's", 0.0, 1.0)
    yaw_scale: float = setting(0.06, "error of turns, as a share", -0.5, 0.5)
    distance_scale: float = setting(0.0, "error of the way, as a share", -0.5, 0.5)
    slip: float = setting(0.02, "standard deviation of the error in a turn, as a share")
    slip_rad: float = setting(1.0, "angle over which slip stays the same", 1e-3)
    noise_m: float = setting(0.005, "noise of the way, per root of a metre")
    noise_deg: float = setting(0.05, "noise of a turn, per root of a second")
    seed: int = setting(0, "of the noise", 0)


def simulate_wheels(
    T_w_c: Array, stamps_ns: Stamps, config: SimulatedWheelsConfig, up_c: Array
) -> Iterator[RelativePose]:
    """Motions of the camera by wheels below it; `up_c` (3,) is the vehicle's up in its frame.

    Between true poses, and up to a period beyond them, the velocity is constant. The covariance is
    what a driver would send: of noise alone, and large along the axes that wheels do not know.
    """
    rng = np.random.default_rng(config.seed)
    known = np.isfinite(T_w_c).all(axis=(1, 2))
    T_w_c, stamps = T_w_c[known], stamps_ns[known]
    period = 1e9 / config.rate_hz
    # Wheels run before the first frame and after the last: no frame lacks their motion.
    first = int(stamps[0] + config.offset_s * 1e9 % period - period)
    count = int(np.ceil((stamps[-1] - first) / period)) + 1
    times = first + np.round(np.arange(count) * period).astype(np.int64)
    poses = _interpolated(T_w_c, stamps, times)
    slip = config.slip * rng.normal()
    for i in range(1, len(times)):
        xi = lie.se3_log(lie.se3_inverse(poses[i]) @ poses[i - 1])
        dt = float(times[i] - times[i - 1]) * 1e-9
        turn = float(xi[3:] @ up_c)
        way = xi[:3] - (xi[:3] @ up_c) * up_c
        metres = float(np.linalg.norm(way))
        keep = np.exp(-abs(turn) / config.slip_rad)
        slip = keep * slip + config.slip * np.sqrt(1.0 - keep**2) * rng.normal()
        sigma_m = config.noise_m * np.sqrt(metres)
        sigma_rad = np.deg2rad(config.noise_deg) * np.sqrt(dt)
        told = np.zeros(6)
        told[:3] = way * (1.0 + config.distance_scale)
        if metres > 0.0:
            told[:3] += sigma_m * rng.normal() * way / metres
        told[3:] = turn * (1.0 + config.yaw_scale) * (1.0 + slip) * up_c
        told[3:] += sigma_rad * rng.normal() * up_c
        Sigma = _covariance(sigma_m, sigma_rad, up_c, dt)
        yield RelativePose(lie.se3_exp(told), Sigma, int(times[i - 1]), int(times[i]))


def vehicle_up(T_w_c: Array, up_c: Array) -> Array:
    """(3,), up of the vehicle in the frame of its camera, which may look up or down a little.

    It is across the mean direction of travel, and as near to `up_c` as that allows.
    """
    known = T_w_c[np.isfinite(T_w_c).all(axis=(1, 2))]
    way = (lie.se3_inverse(known[1:]) @ known[:-1])[:, :3, 3].sum(axis=0)
    length = float(np.linalg.norm(way))
    if length == 0.0:
        return up_c
    across = up_c - (up_c @ way) * way / length**2
    up: Array = across / np.linalg.norm(across)
    return up


def _covariance(sigma_m: float, sigma_rad: float, up_c: Array, dt: float) -> Array:
    """(6, 6): level ways and turns about `up_c` are known, the rest is anybody's guess."""
    along, level = np.outer(up_c, up_c), np.eye(3) - np.outer(up_c, up_c)
    Sigma = np.zeros((6, 6))
    sigma_m, sigma_rad = np.hypot(sigma_m, LEAST_M), np.hypot(sigma_rad, LEAST_RAD)
    Sigma[:3, :3] = sigma_m**2 * level + (30.0 * dt) ** 2 * along
    Sigma[3:, 3:] = sigma_rad**2 * along + (3.0 * dt) ** 2 * level
    return Sigma


def _interpolated(T_w_c: Array, stamps: Stamps, times: Stamps) -> Array:
    """T_w_c at other times, at constant velocity between the poses."""
    after = np.clip(np.searchsorted(stamps, times, side="right"), 1, len(stamps) - 1)
    share = (times - stamps[after - 1]) / (stamps[after] - stamps[after - 1])
    xi = lie.se3_log(lie.se3_inverse(T_w_c[after - 1]) @ T_w_c[after])
    moved: Array = T_w_c[after - 1] @ lie.se3_exp(share[:, None] * xi)
    return moved
