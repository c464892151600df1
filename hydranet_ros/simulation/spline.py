"""Smooth curves in time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry.lie import Array

_BASIS = np.array([[1, 4, 1, 0], [-3, 0, 3, 0], [3, -6, 3, 0], [-1, 3, -3, 1]]) / 6.0


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
