"""How cameras move through buildings: cars, robots, hands, drones, feet.

The frame is the building's: x right, y down, z ahead, the floor at y = 0. Every motion gives the
exact pose of its carrier at any time, a little before the first and after the last frame too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.drive import Wobble, rotation_of
from hydranet_ros.simulation.indoor_config import BuildingConfig, Carrier
from hydranet_ros.simulation.spline import Spline, ease

_BEFORE_S = 1.0  # how long motions begin before time 0 and go on after the last frame
_GRAVITY = 9.81
_FASTEST_TURN_RAD_S = 1.6
_HEIGHTS_M: dict[Carrier, tuple[float, float]] = {
    "car": (1.2, 1.5),
    "robot": (0.2, 1.1),
    "skid": (0.25, 0.8),
    "hand": (1.0, 1.7),
    "drone": (0.5, 2.0),
    "feet": (1.3, 1.8),
}
_SPEEDS_M_S: dict[Carrier, tuple[float, float]] = {
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


def camera_height(config: BuildingConfig, route: Route, rng: np.random.Generator) -> float:
    """Above the floor: as asked for, or as suits the carrier; well below the ceiling."""
    low, high = _HEIGHTS_M[config.motion]
    drawn = rng.uniform(low, high)
    wanted = drawn if config.camera_height_m is None else config.camera_height_m
    return float(min(wanted, route.ceiling_m - 0.4))


def _speed(config: BuildingConfig, rng: np.random.Generator) -> float:
    return float(rng.uniform(*_SPEEDS_M_S[config.motion]) * config.speed)


def _corners(route: Route, length_m: float, aside_m: float) -> Array:
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


def _resample(corners: Array, spacing_m: float, length_m: float) -> Array:
    """Points at equal distances along a line of corners."""
    steps = np.linalg.norm(np.diff(corners, axis=0), axis=-1)
    s = np.concatenate([[0.0], np.cumsum(steps)])
    keep = np.concatenate([[True], steps > 1e-9])
    at = np.arange(0.0, length_m + spacing_m, spacing_m)
    at = np.minimum(at, s[-1])
    return np.stack([np.interp(at, s[keep], corners[keep, k]) for k in range(3)], axis=-1)


def _random_walk(
    rng: np.random.Generator, count: int, dimensions: int, step: float, bound: float
) -> Array:
    """(count, dimensions): steps of a standard deviation, pulled back towards 0 by a bound."""
    out = np.zeros((count, dimensions))
    for k in range(1, count):
        pull = min(1.0, (step / bound) ** 2) if bound > 0.0 else 1.0
        out[k] = (1.0 - pull) * out[k - 1] + rng.normal(0.0, step, dimensions)
    return np.clip(out, -2.5 * bound, 2.5 * bound)


class _Shaking:
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


class TurnAndGo:
    """A robot that turns on the spot, drives straight, and stands still now and then."""

    def __init__(self, config: BuildingConfig, route: Route, rng: np.random.Generator) -> None:
        height = camera_height(config, route, rng)
        speed = max(_speed(config, rng), 1e-3)
        turning = max(float(rng.uniform(0.4, 2.0)) * config.speed, 1e-3)
        corners = _corners(route, speed * (config.duration_s + 2.0 * _BEFORE_S), 0.0)
        self._table = _legs(rng, corners, speed, turning, config.duration_s + 2.0 * _BEFORE_S)
        rough = 1.0 if config.motion == "robot" else 2.0
        # By distance, so that a robot that stands does not shake.
        self._shaking = _Shaking(rng, 2.0, 0.25 * rough * config.wobble, 0.002 * config.wobble)
        self._up = np.array([0.0, -height, 0.0])
        self._start_s = _BEFORE_S + rng.uniform(0.0, 1.0)

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
        speed = max(_speed(config, rng), 1e-3)
        self._omega = 2.0 * np.pi * np.array([0.05, 0.11, 0.21]) * rng.uniform(0.8, 1.2, 3)
        self._phase = rng.uniform(0.0, 2.0 * np.pi, 3)
        self._uneven = float(rng.uniform(0.0, 0.95))
        duration = config.duration_s + 2.0 * _BEFORE_S + 12.0  # the clock runs unevenly
        spacing = max(0.5 * route.margin_m, 0.3)
        length = speed * duration
        corners = _corners(route, length, 0.45 * route.margin_m)
        points = _resample(corners, spacing, length + 4.0 * spacing)
        along = Spline(points, 1.0)(np.arange(len(points)) + 0.5, 1)
        heading = np.unwrap(np.arctan2(along[:, 0], along[:, 2]))
        # Slow enough for its sharpest turn.
        sharpest = float(np.abs(np.diff(heading)).max(initial=1e-3))
        step = max(spacing / speed, sharpest / (_FASTEST_TURN_RAD_S * min(config.speed, 1.0)))
        speed = spacing / step
        self._place, self._heading = Spline(points, step), Spline(heading[:, None], step)
        looking = {"car": 0.5, "robot": 1.0, "skid": 2.0, "feet": 12.0}.get(kind, 18.0)
        count = int(duration / 0.8) + 3
        walk = _random_walk(rng, count, 3, 0.7 * looking, looking) * [1.0, 0.35, 0.2]
        self._looking = Spline(np.radians(walk), 0.8)
        self._steps = kind in ("feet", "hand")
        rough = {"car": 0.3, "robot": 0.25, "skid": 0.6}.get(kind, 0.35)
        frequency = 1.2 if self._steps else 1.5
        shift = 0.02 if self._steps else 0.003
        scale = config.wobble
        self._shaking = _Shaking(rng, frequency, rough * scale, shift * scale)
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
        return np.asarray(time_s + vary + 2.0 * _BEFORE_S)


class Drone:
    """Flies through the tube at changing heights, turns as it likes, tilts to accelerate."""

    def __init__(self, config: BuildingConfig, route: Route, rng: np.random.Generator) -> None:
        speed = max(_speed(config, rng), 1e-3)
        step = 0.9
        count = int((config.duration_s + 2.0 * _BEFORE_S) / step) + 6
        length = speed * step * count
        floor = _resample(_corners(route, length, 0.0), speed * step, length + 1.0)[:count]
        middle = camera_height(config, route, rng)
        reach = min(middle - 0.3, route.ceiling_m - 0.4 - middle)
        lift = _random_walk(rng, len(floor), 1, 0.5 * speed, 0.4 * max(reach, 0.0))[:, 0]
        lift = np.clip(lift, -max(reach, 0.0), max(reach, 0.0))
        aside = _random_walk(rng, len(floor), 2, 0.2 * speed, 0.3 * route.margin_m)
        aside = np.clip(aside, -0.65 * route.margin_m, 0.65 * route.margin_m)
        points = floor + np.stack([aside[:, 0], -middle - lift, aside[:, 1]], axis=-1)
        hovers = np.flatnonzero(rng.random(len(points)) < 0.12)
        for k in hovers:  # stands in the air for two steps, then catches up
            points[k + 1 : k + 3] = points[k]
        self._place = Spline(points, step)
        rate = float(rng.choice([0.1, 0.4, 1.0])) * config.speed
        yaw = rng.uniform(-np.pi, np.pi) + np.cumsum(rng.normal(0.0, rate * step, len(points)))
        self._yaw = Spline(yaw[:, None], step)
        gusts = config.wobble
        self._shaking = _Shaking(rng, 1.5, 0.8 * gusts, 0.01 * gusts)

    def pose(self, time_s: ArrayLike) -> Array:
        """Carrier to building at (...) times: (..., 4, 4)."""
        t = np.asarray(time_s, dtype=np.float64) + _BEFORE_S
        yaw = self._yaw(t)[..., 0]
        pull = self._place(t, 2) / _GRAVITY
        ahead = pull[..., 0] * np.sin(yaw) + pull[..., 2] * np.cos(yaw)
        right = pull[..., 0] * np.cos(yaw) - pull[..., 2] * np.sin(yaw)
        angles, shift = self._shaking(t)
        rotation = rotation_of(
            yaw + angles[..., 0],
            -np.arctan(ahead) + angles[..., 1],
            np.arctan(right) + angles[..., 2],
        )
        return lie.se3_from(rotation, self._place(t) + shift)


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
        speed = float(rng.uniform(*_SPEEDS_M_S["hand"])) * config.speed
        step = float(rng.uniform(0.35, 0.8))
        count = int((config.duration_s + 2.0 * _BEFORE_S) / step) + 4
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        places = _bounded_walk(rng, count, speed * step, half) * config.parallax
        self._place = Spline(middle + places, step)
        turning = float(rng.choice([4.0, 12.0, 25.0])) * min(config.speed, 2.0)
        wide = turning if target is not None else 2.0 * turning
        walk = _random_walk(rng, count, 3, 0.6 * turning, wide) * [1.0, 0.6, 0.5]
        if target is None:
            walk[:, 0] += np.degrees(rng.uniform(-np.pi, np.pi))
        self._looking = Spline(np.radians(walk), step)
        self._target = target
        tremor = config.wobble
        self._shaking = _Shaking(rng, 4.0, 0.12 * tremor, 0.0015 * tremor)

    def pose(self, time_s: ArrayLike) -> Array:
        """Carrier to building at (...) times: (..., 4, 4)."""
        t = np.asarray(time_s, dtype=np.float64) + _BEFORE_S
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
