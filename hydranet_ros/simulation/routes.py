"""Where one may go in a building, and what motions along it are made of: smooth curves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import BuildingConfig, Carrier
from hydranet_ros.simulation.drive import Wobble

_BASIS = np.array([[1, 4, 1, 0], [-3, 0, 3, 0], [3, -6, 3, 0], [-1, 3, -3, 1]]) / 6.0
BEFORE_S = 1.0  # how long motions begin before time 0 and go on after the last frame
_HEIGHTS_M: dict[Carrier, tuple[float, float]] = {
    "car": (1.2, 1.5),
    "robot": (0.2, 1.1),
    "skid": (0.25, 0.8),
    "hand": (1.0, 1.7),
    "drone": (0.5, 2.0),
    "feet": (1.3, 1.8),
}
SPEEDS_M_S: dict[Carrier, tuple[float, float]] = {
    "car": (1.0, 5.0),
    "robot": (0.2, 1.2),
    "skid": (0.3, 1.5),
    "hand": (0.2, 0.9),
    "drone": (0.3, 2.0),
    "feet": (0.7, 1.6),
}


@dataclass(frozen=True, eq=False)
class Route:
    """Where a building may be moved through: a tube of free space, and what is worth looking at.

    A hand moves about in a box instead of along the tube where there is one.
    """

    points: Array  # (n, 3): corners of a line on the floor
    margin_m: float  # to either side of the line
    ceiling_m: float  # the lowest above the line
    closed: bool = False
    box: tuple[Array, Array] | None = None  # lowest and highest x, y, z
    target: Array | None = None


def camera_height(config: BuildingConfig, route: Route, rng: np.random.Generator) -> float:
    """Above the floor: as asked for, or as suits the carrier; well below the ceiling."""
    low, high = _HEIGHTS_M[config.motion]
    drawn = rng.uniform(low, high)
    wanted = drawn if config.camera_height_m is None else config.camera_height_m
    return float(min(wanted, route.ceiling_m - 0.4))


def draw_speed(config: BuildingConfig, rng: np.random.Generator) -> float:
    """A speed of the carrier in m/s, as fast as the configuration has it."""
    return float(rng.uniform(*SPEEDS_M_S[config.motion]) * config.speed)


def corners_of(route: Route, length_m: float, aside_m: float) -> Array:
    """Corners of a line of a length: there and back, on the right of the middle, or round."""
    points = route.points
    legs = [points[:-1], points[:0:-1]] if not route.closed else [points]
    once = np.concatenate(legs)
    around = float(np.linalg.norm(np.diff(np.vstack([once, once[:1]]), axis=0), axis=-1).sum())
    times = int(np.ceil(max(length_m, 0.1) / max(around, 0.1))) + 1
    line = np.concatenate([once] * times)
    along = np.roll(line, -1, axis=0) - np.roll(line, 1, axis=0)
    # At a dead end the neighbours coincide: its right is that of the way there.
    stuck = np.linalg.norm(along[:, [0, 2]], axis=-1) < 1e-6
    along[stuck] = (line - np.roll(line, 1, axis=0))[stuck]
    along /= np.maximum(np.linalg.norm(along[:, [0, 2]], axis=-1, keepdims=True), 1e-9)
    right = np.stack([along[:, 2], np.zeros(len(line)), -along[:, 0]], axis=-1)
    right[stuck] = 0.0
    return np.asarray(line + aside_m * right)


def resample(corners: Array, spacing_m: float, length_m: float) -> Array:
    """Points at equal distances along a line of corners."""
    steps = np.linalg.norm(np.diff(corners, axis=0), axis=-1)
    s = np.concatenate([[0.0], np.cumsum(steps)])
    keep = np.concatenate([[True], steps > 1e-9])
    at = np.arange(0.0, length_m + spacing_m, spacing_m)
    at = np.minimum(at, s[-1])
    return np.stack([np.interp(at, s[keep], corners[keep, k]) for k in range(3)], axis=-1)


def random_walk(
    rng: np.random.Generator, count: int, dimensions: int, step: float, bound: float
) -> Array:
    """(count, dimensions): steps of a standard deviation, pulled back towards 0 by a bound."""
    out = np.zeros((count, dimensions))
    for k in range(1, count):
        pull = min(1.0, (step / bound) ** 2) if bound > 0.0 else 1.0
        out[k] = (1.0 - pull) * out[k - 1] + rng.normal(0.0, step, dimensions)
    return np.clip(out, -2.5 * bound, 2.5 * bound)


class Shaking:
    """Small rotations and shifts as functions of time or of the distance covered."""

    def __init__(
        self, rng: np.random.Generator, frequency: float, degrees: float, metres: float
    ) -> None:
        self._signals = [Wobble(rng, frequency) for _ in range(6)]
        self._scale = np.array([*[np.radians(degrees)] * 3, *[metres] * 3])

    def __call__(self, at: Array) -> tuple[Array, Array]:
        """(..., 3) yaw, pitch, roll in rad; (..., 3) metres."""
        values = np.stack([signal(at) for signal in self._signals], axis=-1) * self._scale
        return values[..., :3], values[..., 3:]


# --- smooth curves in time -----------------------------------------------------------------------


class Spline:
    """A uniform cubic B-spline: two continuous derivatives, within the hull of its points.

    Point k has its greatest weight at time k step; before the first and after the last point the
    curve ends smoothly in them.
    """

    def __init__(self, points: ArrayLike, step: float) -> None:
        inner = np.asarray(points, dtype=np.float64)
        self._points = np.concatenate([inner[:1], inner[:1], inner, inner[-1:], inner[-1:]])
        self._step = step

    def __call__(self, time: ArrayLike, derivative: int = 0) -> Array:
        """The curve at (...) times, or a derivative of it up to the second: (..., dimensions)."""
        place = np.asarray(time, dtype=np.float64) / self._step + 1.0
        place = np.clip(place, 0.0, len(self._points) - 3.0 - 1e-9)
        first = place.astype(np.intp)
        t = (place - first)[..., None]
        one, zero = np.ones_like(t), np.zeros_like(t)
        powers = (
            [one, t, t**2, t**3],
            [zero, one, 2.0 * t, 3.0 * t**2],
            [zero, zero, 2.0 * one, 6.0 * t],
        )[derivative]
        weights = np.concatenate(powers, axis=-1) @ _BASIS / self._step**derivative
        around = self._points[first[..., None] + np.arange(4)]  # (..., 4, dimensions)
        return np.asarray((weights[..., None] * around).sum(axis=-2))


def ease(time: Array, duration: Array, ramp: Array) -> Array:
    """From 0 to 1 within a duration: the speed rises and falls along raised cosines."""
    t = np.clip(time, 0.0, duration)
    late = t > 0.5 * duration
    t = np.where(late, duration - t, t)
    rising = np.minimum(t, ramp)
    done = 0.5 * (rising - ramp / np.pi * np.sin(np.pi * rising / ramp)) + (t - rising)
    share = done / (duration - ramp)
    return np.asarray(np.where(late, 1.0 - share, share))
