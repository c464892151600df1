"""How cameras move through buildings: cars, robots, hands, drones, feet.

The frame is the building's: x right, y down, z ahead, the floor at y = 0. Every motion gives the
exact pose of its carrier at any time, a little before the first and after the last frame too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import BuildingConfig
from hydranet_ros.simulation.drive import rotation_of
from hydranet_ros.simulation.free_motions import Drone, Hand
from hydranet_ros.simulation.routes import (
    BEFORE_S,
    Route,
    Shaking,
    Spline,
    camera_height,
    corners_of,
    draw_speed,
    ease,
    random_walk,
    resample,
)

_FASTEST_TURN_RAD_S = 1.6


class Motion(Protocol):
    """The pose of what carries the camera."""

    def pose(self, time_s: ArrayLike) -> Array:
        """Carrier to building at (...) times: (..., 4, 4); optical axes, level and ahead."""


def make_motion(config: BuildingConfig, route: Route, rng: np.random.Generator) -> Motion:
    """The motion of a configuration along a route; at speed 0 it stays where it would begin."""
    moving = _make_motion(config if config.speed else replace(config, speed=1.0), route, rng)
    return moving if config.speed else _Still(moving.pose(0.0))


class _Still:
    def __init__(self, pose: Array) -> None:
        self._pose = pose

    def pose(self, time_s: ArrayLike) -> Array:
        """The same at all times."""
        return np.broadcast_to(self._pose, (*np.shape(time_s), 4, 4)).copy()


def _make_motion(config: BuildingConfig, route: Route, rng: np.random.Generator) -> Motion:
    kind = config.motion
    if kind == "hand" and route.box is not None:
        return Hand(config, route.box, route.target, rng)
    if kind == "drone":
        return Drone(config, route, rng)
    if kind in ("robot", "skid") and rng.random() < 0.6:
        return TurnAndGo(config, route, rng)
    return Follower(config, route, rng)


class TurnAndGo:
    """A robot that turns on the spot, drives straight, and stands still now and then."""

    def __init__(self, config: BuildingConfig, route: Route, rng: np.random.Generator) -> None:
        height = camera_height(config, route, rng)
        speed = max(draw_speed(config, rng), 1e-3)
        turning = max(float(rng.uniform(0.4, 2.0)) * config.speed, 1e-3)
        corners = corners_of(route, speed * (config.duration_s + 2.0 * BEFORE_S), 0.0)
        self._table = _legs(rng, corners, speed, turning, config.duration_s + 2.0 * BEFORE_S)
        rough = 1.0 if config.motion == "robot" else 2.0
        # By distance, so that a robot that stands does not shake.
        self._shaking = Shaking(rng, 2.0, 0.25 * rough * config.wobble, 0.002 * config.wobble)
        self._up = np.array([0.0, -height, 0.0])
        self._start_s = BEFORE_S + rng.uniform(0.0, 1.0)

    def pose(self, time_s: ArrayLike) -> Array:
        """Carrier to building at (...) times: (..., 4, 4)."""
        t = np.asarray(time_s, dtype=np.float64) + self._start_s
        table = self._table
        k = np.clip(np.searchsorted(table[:, 0], t, side="right") - 1, 0, len(table) - 1)
        row = table[k]
        share = ease(t - row[..., 0], row[..., 1], row[..., 2])[..., None]
        state = row[..., 3:8] + share * row[..., 8:13]  # x, y, z, heading, distance
        angles, shift = self._shaking(state[..., 4])
        rotation = rotation_of(state[..., 3] + angles[..., 0], angles[..., 1], angles[..., 2])
        return lie.se3_from(rotation, state[..., :3] + self._up + shift)


def _legs(
    rng: np.random.Generator, corners: Array, speed: float, turning: float, duration_s: float
) -> Array:
    """(legs, 13): start, duration, ramp, then x y z heading distance, and by how much they grow.

    A leg either turns or drives; pauses lie between some of them.
    """
    rows: list[Array] = []
    steps = np.diff(corners, axis=0)
    heading = float(np.arctan2(steps[0, 0], steps[0, 2])) + rng.uniform(-1.0, 1.0)
    at, time, covered = corners[0], 0.0, 0.0
    for step in steps:
        length = float(np.linalg.norm(step))
        if length < 1e-6:
            continue
        wanted = float(np.arctan2(step[0], step[2]))
        turn = (wanted - heading + np.pi) % (2.0 * np.pi) - np.pi
        for move, angle in ((np.zeros(3), turn), (step, 0.0)):
            far = float(np.linalg.norm(move))
            size = max(far / speed, abs(angle) / turning)
            if size < 1e-3:
                continue
            ramp = min(0.4, size)  # a duration of size + ramp has the wanted top speed
            more = far + 0.2 * abs(angle)
            grow = (*move, angle, more)
            rows.append(np.array([time, size + ramp, ramp, *at, heading, covered, *grow]))
            time, at, heading = time + size + ramp, at + move, heading + angle
            covered += more
            if rng.random() < 0.4:
                time += rng.exponential(0.8)
        if time > duration_s:
            break
    return np.array(rows)


class Follower:
    """Follows the route along a smooth line, looking ahead: cars, robots, feet, walking hands."""

    def __init__(self, config: BuildingConfig, route: Route, rng: np.random.Generator) -> None:
        kind = config.motion
        self._height = camera_height(config, route, rng)
        speed = max(draw_speed(config, rng), 1e-3)
        self._omega = 2.0 * np.pi * np.array([0.05, 0.11, 0.21]) * rng.uniform(0.8, 1.2, 3)
        self._phase = rng.uniform(0.0, 2.0 * np.pi, 3)
        self._uneven = float(rng.uniform(0.0, 0.95))
        duration = config.duration_s + 2.0 * BEFORE_S + 12.0  # the clock runs unevenly
        spacing = max(0.5 * route.margin_m, 0.3)
        length = speed * duration
        corners = corners_of(route, length, 0.45 * route.margin_m)
        points = resample(corners, spacing, length + 4.0 * spacing)
        along = Spline(points, 1.0)(np.arange(len(points)) + 0.5, 1)
        heading = np.unwrap(np.arctan2(along[:, 0], along[:, 2]))
        # Slow enough for its sharpest turn.
        sharpest = float(np.abs(np.diff(heading)).max(initial=1e-3))
        step = max(spacing / speed, sharpest / (_FASTEST_TURN_RAD_S * min(config.speed, 1.0)))
        speed = spacing / step
        self._place, self._heading = Spline(points, step), Spline(heading[:, None], step)
        looking = {"car": 0.5, "robot": 1.0, "skid": 2.0, "feet": 12.0}.get(kind, 18.0)
        count = int(duration / 0.8) + 3
        walk = random_walk(rng, count, 3, 0.7 * looking, looking) * [1.0, 0.35, 0.2]
        self._looking = Spline(np.radians(walk), 0.8)
        self._steps = kind in ("feet", "hand")
        rough = {"car": 0.3, "robot": 0.25, "skid": 0.6}.get(kind, 0.35)
        frequency = 1.2 if self._steps else 1.5
        shift = 0.02 if self._steps else 0.003
        scale = config.wobble
        self._shaking = Shaking(rng, frequency, rough * scale, shift * scale)
        self._stride = rng.uniform(0.6, 0.8) * scale, speed

    def pose(self, time_s: ArrayLike) -> Array:
        """Carrier to building at (...) times: (..., 4, 4)."""
        t = self._clock(np.asarray(time_s, dtype=np.float64))
        stride, speed = self._stride
        angles, shift = self._shaking(t * speed)
        angles = angles + self._looking(t)
        place = self._place(t) - [0.0, self._height, 0.0] + shift
        if self._steps and stride > 0.0:  # every step lifts the head, every second sways it
            phase = 2.0 * np.pi * t * speed / stride
            place = place + np.stack(
                [0.012 * np.sin(0.5 * phase), 0.02 * np.cos(phase), np.zeros_like(phase)], axis=-1
            )
        heading = self._heading(t)[..., 0]
        rotation = rotation_of(heading + angles[..., 0], angles[..., 1], angles[..., 2])
        return lie.se3_from(rotation, place)

    def _clock(self, time_s: Array) -> Array:
        """Time that runs unevenly, now and then almost not: stop and go."""
        weight = self._uneven * np.array([0.4, 0.35, 0.25]) / self._omega
        angle = self._omega * time_s[..., None] + self._phase
        vary = np.sum(weight * (np.cos(self._phase) - np.cos(angle)), axis=-1)
        return np.asarray(time_s + vary + 2.0 * BEFORE_S)
