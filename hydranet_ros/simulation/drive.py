"""The line the street follows, and the drive along it.

The world frame w is the first left camera, or where it is turned in its mount, that camera turned
back: x right, y down, z forward; the ground is the plane y = camera height. Along the line, s is
the distance driven and d the distance to its right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import StreetConfig

STEP_M = 0.1  # between the points of the line
BEHIND_M, AHEAD_M = 40.0, 180.0  # street before the first and after the last camera
_MIN_RADIUS_M, _MAX_RADIUS_M = 20.0, 60.0
_CELL_M = 1.0  # of the ground map
_MAP_REACH_M = 40.0  # how far from the line the ground map follows it


class Wobble:
    """A smooth random signal of unit variance that is 0 at time 0: a few sines."""

    def __init__(self, rng: np.random.Generator, frequency_hz: float, tones: int = 5) -> None:
        self._omega = 2.0 * np.pi * frequency_hz * np.geomspace(0.3, 2.0, tones)
        self._omega *= rng.uniform(0.85, 1.15, tones)
        self._phase = rng.uniform(0.0, 2.0 * np.pi, tones)
        weight = 1.0 / np.sqrt(np.geomspace(0.3, 2.0, tones))
        self._weight = weight * np.sqrt(2.0 / np.sum(weight**2))

    def __call__(self, time_s: Array) -> Array:
        """The signal at (...) times."""
        angle = self._omega * time_s[..., None] + self._phase
        return np.asarray(np.sum(self._weight * (np.sin(angle) - np.sin(self._phase)), axis=-1))


class Line:
    """A smooth line on the ground that never crosses itself: its heading stays within bounds."""

    def __init__(self, rng: np.random.Generator, length_m: float, max_heading_rad: float) -> None:
        self.s = np.arange(-BEHIND_M, length_m + AHEAD_M + STEP_M, STEP_M)
        self.curvature = _curvature(rng, self.s, max_heading_rad)
        self.heading = _integral(self.curvature)
        self.x = _integral(np.sin(self.heading))
        self.z = _integral(np.cos(self.heading))
        at_start = [np.interp(0.0, self.s, v) for v in (self.x, self.z)]
        self.x, self.z = self.x - at_start[0], self.z - at_start[1]

    def locate(self, s: ArrayLike, d: ArrayLike = 0.0) -> tuple[Array, Array, Array]:
        """(x, z, heading) of the point at s along and d to the right; straight past the ends."""
        s, d = np.asarray(s, dtype=np.float64), np.asarray(d, dtype=np.float64)
        inside = np.clip(s, self.s[0], self.s[-1])
        heading = np.interp(inside, self.s, self.heading)
        sin, cos = np.sin(heading), np.cos(heading)
        x = np.interp(inside, self.s, self.x) + (s - inside) * sin + d * cos
        z = np.interp(inside, self.s, self.z) + (s - inside) * cos - d * sin
        return x, z, heading


def _integral(values: Array) -> Array:
    steps = 0.5 * STEP_M * (values[1:] + values[:-1])
    return np.concatenate([[0.0], np.cumsum(steps)])


def _curvature(rng: np.random.Generator, s: Array, max_heading_rad: float) -> Array:
    """Straights and turns in turn; a raised cosine eases every turn in and out."""
    out = np.zeros_like(s)
    if max_heading_rad == 0.0:
        return out
    at, heading = rng.uniform(6.0, 25.0), 0.0
    while at < s[-1]:
        angle = rng.uniform(-max_heading_rad, max_heading_rad) - heading
        length = 2.0 * abs(angle) * rng.uniform(_MIN_RADIUS_M, _MAX_RADIUS_M)
        if length > 1.0:
            phase = np.clip((s - at) / length, 0.0, 1.0)
            out += angle / length * (1.0 - np.cos(2.0 * np.pi * phase))
            heading += angle
        at += length + rng.uniform(8.0, 40.0)
    return out


class Drive:
    """Where the left camera is at any time: exact, smooth, at time 0 as its mount is."""

    def __init__(self, config: StreetConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._speed = config.mean_speed_m_s
        self._omega = 2.0 * np.pi * np.array([0.04, 0.09, 0.17]) * rng.uniform(0.8, 1.2, 3)
        self._phase = rng.uniform(0.0, 2.0 * np.pi, 3)
        platform = config.platform
        self._wobbles = [Wobble(rng, platform.frequency_hz) for _ in range(5)]
        mount = config.mount_yaw_deg, config.mount_pitch_deg, config.mount_roll_deg
        self._mount = rotation_of(*np.radians(mount))
        self.duration_s = (config.frames - 1) / config.rate_hz
        length = float(self.distance(np.array(self.duration_s)))
        self.line = Line(rng, length, np.radians(config.max_heading_deg))

    def distance(self, time_s: Array) -> Array:
        """s(t): the integral of speed (1 + variation sum_k w_k sin(omega_k t + phase_k))."""
        weight = self._config.speed_variation * np.array([0.4, 0.35, 0.25]) / self._omega
        angle = self._omega * np.asarray(time_s)[..., None] + self._phase
        vary = np.sum(weight * (np.cos(self._phase) - np.cos(angle)), axis=-1)
        return np.asarray(self._speed * (time_s + vary))

    def pose(self, time_s: ArrayLike) -> Array:
        """T_w_c at (...) times: (..., 4, 4)."""
        t = np.asarray(time_s, dtype=np.float64)
        platform, scale = self._config.platform, self._config.wobble
        yaw, pitch, roll, heave, sway = (wobble(t) * scale for wobble in self._wobbles)
        lever = self._config.lever_m
        x, z, heading = self.line.locate(self.distance(t) - lever, sway * platform.sway_m)
        x, z = x + lever * np.sin(heading), z + lever * np.cos(heading)
        rotation = rotation_of(
            heading + yaw * np.radians(platform.yaw_deg),
            pitch * np.radians(platform.pitch_deg),
            roll * np.radians(platform.roll_deg),
        )
        rotation = rotation @ self._mount
        return lie.se3_from(rotation, np.stack([x, heave * platform.heave_m, z], axis=-1))


def rotation_of(yaw: Array, pitch: ArrayLike = 0.0, roll: ArrayLike = 0.0) -> Array:
    """R = Exp(yaw y) Exp(pitch x) Exp(roll z): yaw turns to the right, pitch looks up."""
    yaw, pitch, roll = np.broadcast_arrays(yaw, pitch, roll)
    zero = np.zeros_like(yaw)
    about_y = lie.so3_exp(np.stack([zero, yaw, zero], axis=-1))
    about_x = lie.so3_exp(np.stack([pitch, zero, zero], axis=-1))
    about_z = lie.so3_exp(np.stack([zero, zero, roll], axis=-1))
    return about_y @ about_x @ about_z


class GroundMap:
    """(s, d) of every point of the ground: a grid around the line, bilinear between its nodes.

    Being a fixed function of the ground, it makes a texture that follows the street and yet
    stands still in the world.
    """

    def __init__(self, line: Line) -> None:
        self._x0 = float(np.floor(line.x.min() - _MAP_REACH_M))
        self._z0 = float(np.floor(line.z.min() - _MAP_REACH_M))
        nx = int(np.ceil((line.x.max() + _MAP_REACH_M - self._x0) / _CELL_M)) + 1
        nz = int(np.ceil((line.z.max() + _MAP_REACH_M - self._z0) / _CELL_M)) + 1
        self._grid = self._follow(line, nx, nz)

    def _follow(self, line: Line, nx: int, nz: int) -> Array:
        """(2, nz, nx): s and d against the nearest of the points one cell apart on the line."""
        x = self._x0 + _CELL_M * np.arange(nx)
        z = self._z0 + _CELL_M * np.arange(nz)
        grid = np.stack(np.broadcast_arrays(z[:, None], x[None, :]), axis=-1).copy()
        nearest = np.full((nz, nx), _MAP_REACH_M**2)
        reach = int(_MAP_REACH_M / _CELL_M)
        for k in range(0, line.s.size, round(_CELL_M / STEP_M)):
            i = int((line.x[k] - self._x0) / _CELL_M)
            j = int((line.z[k] - self._z0) / _CELL_M)
            window = np.s_[max(j - reach, 0) : j + reach, max(i - reach, 0) : i + reach]
            right, ahead = x[window[1]] - line.x[k], (z[window[0]] - line.z[k])[:, None]
            square = right**2 + ahead**2
            sin, cos = np.sin(line.heading[k]), np.cos(line.heading[k])
            d = right * cos - ahead * sin
            stretch = np.maximum(1.0 - line.curvature[k] * d, 0.2)
            s = line.s[k] + (right * sin + ahead * cos) / stretch
            nearer = square < nearest[window]
            nearest[window][nearer] = square[nearer]
            grid[window][nearer] = np.stack([s, d], axis=-1)[nearer]
        return np.ascontiguousarray(np.moveaxis(grid, -1, 0))

    def __call__(self, x: Array, z: Array) -> tuple[Array, Array, Array]:
        """(n,) ground points -> (2, n) (s, d), and its (2, n) derivatives by x and by z."""
        _, nz, nx = self._grid.shape
        gx = np.clip((x - self._x0) / _CELL_M, 0.0, nx - 1.001)
        gz = np.clip((z - self._z0) / _CELL_M, 0.0, nz - 1.001)
        ix, iz = gx.astype(np.intp), gz.astype(np.intp)
        fx, fz = gx - ix, gz - iz
        flat, node = self._grid.reshape(2, -1), iz * nx + ix
        a, b, c, e = (flat[:, node + step] for step in (0, 1, nx, nx + 1))
        twist = e - c - b + a
        by_x, by_z = (b - a) + fz * twist, (c - a) + fx * twist
        return a + fx * (b - a) + fz * by_z, by_x / _CELL_M, by_z / _CELL_M
