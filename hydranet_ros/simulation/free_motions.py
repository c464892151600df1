"""Motions with six degrees of freedom: drones and hands."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import BuildingConfig
from hydranet_ros.simulation.drive import rotation_of
from hydranet_ros.simulation.routes import (
    BEFORE_S,
    SPEEDS_M_S,
    Route,
    Shaking,
    Spline,
    camera_height,
    corners_of,
    draw_speed,
    random_walk,
    resample,
)

_GRAVITY = 9.81
_MOST_TILT = 0.5  # tangent of the angle
_STEP_S = 0.9  # between the points of what a drone does besides following its route


class Drone:
    """Flies through the tube at changing heights, turns as it likes, tilts to accelerate."""

    def __init__(self, config: BuildingConfig, route: Route, rng: np.random.Generator) -> None:
        # Slower where it is tight, or its turns would be wilder than a drone's.
        speed = max(min(draw_speed(config, rng), 0.5 + 1.5 * route.margin_m), 1e-3)
        duration = config.duration_s + 2.0 * BEFORE_S
        # Points so close together that corners are cut by less than the margin.
        spacing = min(_STEP_S * speed, max(route.margin_m, 0.3))
        length = speed * (duration + 4.0 * _STEP_S)
        floor = resample(corners_of(route, length, 0.0), spacing, length)
        hovering = rng.random(len(floor)) < 0.06 * spacing / (_STEP_S * speed)
        stay = np.where(hovering, max(round(2.0 * speed / spacing), 3), 1)
        self._path = Spline(np.repeat(floor, stay, axis=0)[: len(floor)], spacing / speed)
        middle = camera_height(config, route, rng)
        reach = max(min(middle - 0.3, route.ceiling_m - 0.4 - middle), 0.0)
        count = int(duration / _STEP_S) + 6
        lift = random_walk(rng, count, 1, 0.5 * speed, 0.4 * reach).clip(-reach, reach)[:, 0]
        bound = 0.6 * route.margin_m
        aside = random_walk(rng, count, 2, 0.2 * speed, 0.5 * bound).clip(-bound, bound)
        away = np.stack([aside[:, 0], -middle - lift, aside[:, 1]], axis=-1)
        self._away = Spline(away, _STEP_S)
        rate = float(rng.choice([0.1, 0.4, 1.0])) * config.speed
        yaw = rng.uniform(-np.pi, np.pi) + np.cumsum(rng.normal(0.0, rate * _STEP_S, count))
        self._yaw = Spline(yaw[:, None], _STEP_S)
        gusts = config.wobble
        self._shaking = Shaking(rng, 1.5, 0.8 * gusts, 0.01 * gusts)

    def pose(self, time_s: ArrayLike) -> Array:
        """Carrier to building at (...) times: (..., 4, 4)."""
        t = np.asarray(time_s, dtype=np.float64) + BEFORE_S
        yaw = self._yaw(t)[..., 0]
        pull = (self._path(t, 2) + self._away(t, 2)) / _GRAVITY
        pull = _MOST_TILT * np.tanh(pull / _MOST_TILT)
        ahead = pull[..., 0] * np.sin(yaw) + pull[..., 2] * np.cos(yaw)
        right = pull[..., 0] * np.cos(yaw) - pull[..., 2] * np.sin(yaw)
        angles, shift = self._shaking(t)
        rotation = rotation_of(
            yaw + angles[..., 0],
            -np.arctan(ahead) + angles[..., 1],
            np.arctan(right) + angles[..., 2],
        )
        return lie.se3_from(rotation, self._path(t) + self._away(t) + shift)


class Hand:
    """Held in a hand that moves about in a box, mostly looking at something."""

    def __init__(
        self,
        config: BuildingConfig,
        box: tuple[Array, Array],
        target: Array | None,
        rng: np.random.Generator,
    ) -> None:
        low, high = box
        speed = float(rng.uniform(*SPEEDS_M_S["hand"])) * config.speed
        step = float(rng.uniform(0.35, 0.8))
        count = int((config.duration_s + 2.0 * BEFORE_S) / step) + 4
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        places = _bounded_walk(rng, count, speed * step, half) * config.parallax
        self._place = Spline(middle + places, step)
        turning = float(rng.choice([4.0, 12.0, 25.0])) * min(config.speed, 2.0)
        wide = turning if target is not None else 2.0 * turning
        walk = random_walk(rng, count, 3, 0.6 * turning, wide) * [1.0, 0.6, 0.5]
        if target is None:
            walk[:, 0] += np.degrees(rng.uniform(-np.pi, np.pi))
        self._looking = Spline(np.radians(walk), step)
        self._target = target
        tremor = config.wobble
        self._shaking = Shaking(rng, 4.0, 0.12 * tremor, 0.0015 * tremor)

    def pose(self, time_s: ArrayLike) -> Array:
        """Carrier to building at (...) times: (..., 4, 4)."""
        t = np.asarray(time_s, dtype=np.float64) + BEFORE_S
        place, looking = self._place(t), self._looking(t)
        angles, shift = self._shaking(t)
        angles = angles + looking
        if self._target is not None:
            away = self._target - place
            level = np.hypot(away[..., 0], away[..., 2])
            towards = np.arctan2(away[..., 0], away[..., 2]), np.arctan2(-away[..., 1], level)
            angles = angles + np.stack([*towards, np.zeros_like(level)], axis=-1)
        rotation = rotation_of(angles[..., 0], angles[..., 1], angles[..., 2])
        return lie.se3_from(rotation, place + shift)


def _bounded_walk(rng: np.random.Generator, count: int, step_m: float, half: Array) -> Array:
    """(count, 3) within +-half: from one place to the next at a speed, as a hand does."""
    out = [rng.uniform(-half, half)]
    goal = rng.uniform(-half, half)
    while len(out) < count:
        way = goal - out[-1]
        far = float(np.linalg.norm(way))
        if far < step_m or far < 1e-9:
            goal = rng.uniform(-half, half)
            out.append(out[-1] if rng.random() < 0.3 else out[-1] + 0.5 * way)
        else:
            out.append(out[-1] + way * (step_m / far))
    return np.array(out[:count])
