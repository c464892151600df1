"""Halls, car parks and stair wells: where one may go in them, and what they are built of."""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import BuildingConfig
from hydranet_ros.simulation.furniture import Kit
from hydranet_ros.simulation.places import Plan
from hydranet_ros.simulation.routes import Route
from hydranet_ros.simulation.scene import UP, Skin
from hydranet_ros.simulation.walls import Shell, close, level, on_wall, outside, wall

_STEP_UP_M, _STEP_ALONG_M, _STEPS = 0.17, 0.28, 10
_LINE_ABOVE_FLOOR_M = 0.006


def _around(half: Array, inset: float, rng: np.random.Generator) -> Array:
    """(4, 3) corners of a closed way along the walls of a hall, at least an inset off them."""
    reach = (half - inset) * rng.uniform(0.5, 1.0, 2)
    corners = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]) * reach
    return np.insert(np.roll(corners, int(rng.integers(4)), axis=0), 1, 0.0, axis=1)


def plan_hall(config: BuildingConfig, rng: np.random.Generator) -> Plan:
    """High and large, with racks, machines, columns and beams."""
    half = 0.5 * rng.uniform([14.0, 18.0], [30.0, 40.0])
    height = float(rng.uniform(5.0, 11.0))
    way = _around(half, 3.5, rng)
    route = Route(way, margin_m=1.2, ceiling_m=height - 0.8, closed=True)

    def build(kit: Kit) -> None:
        close(kit, Shell(-half, half, height, windows=(1, 3)))
        outside(kit, -half, half)
        _beams(kit, half, height)
        for z in np.arange(-half[1] + 3.0, half[1] - 2.0, 6.0):
            for side in (-1.0, 1.0):
                foot = np.array([side * (half[0] - 0.4), 0.0, z])
                kit.box(foot, 0.0, [0.35, height, 0.35], kit.skin("concrete", "metal"))
        for _ in range(int(14 * config.clutter)):
            x, z = kit.rng.uniform(-half + 1.0, half - 1.0)
            heading = float(kit.rng.choice([0.0, 0.5]) * np.pi)
            tall = kit.rng.uniform(2.2, min(5.0, height - 0.8))
            size = np.array([1.0, tall, kit.rng.uniform(2.6, 5.5)])
            kit.rack(np.array([x, 0.0, z]), heading, size)
        for _ in range(int(24 * config.clutter)):
            x, z = kit.rng.uniform(-half + 1.5, half - 1.5)
            heading = float(kit.rng.uniform(-np.pi, np.pi))
            (kit.machine, kit.carton)[int(kit.rng.random() < 0.4)](np.array([x, 0.0, z]), heading)
        _floor_lines(kit, way)

    return Plan(route, build)


def _beams(kit: Kit, half: Array, height_m: float) -> None:
    skin = kit.skin("metal", "concrete", "grain")
    for z in np.arange(-half[1] + 2.0, half[1] - 1.0, kit.rng.uniform(4.0, 7.0)):
        start = np.array([-half[0], -height_m + 0.6, z])
        across = np.array([2.0 * half[0], 0.0, 0.0])
        kit.builder.face(start + 0.6 * UP, across, -0.6 * UP, skin)
        under = np.array([0.0, 0.0, 0.25])
        kit.builder.face(start, across, under, skin, 0, -UP)


def _floor_lines(kit: Kit, corners: Array) -> None:
    """Painted lines that mark the way."""
    paint = kit.skin("plain", gain=1.2)
    for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        low = np.minimum(a, b)[[0, 2]] - 1.5
        high = np.maximum(a, b)[[0, 2]] + 1.5
        axis = int(np.argmax(high - low))
        for edge in (low[1 - axis], high[1 - axis] - 0.1):
            ends = low.copy(), high.copy()
            ends[0][1 - axis], ends[1][1 - axis] = edge, edge + 0.1
            # Crossing lines at heights of their own, so that neither flickers.
            level(kit, ends[0], ends[1], _LINE_ABOVE_FLOOR_M * (1 + axis), paint)


def plan_car_park(config: BuildingConfig, rng: np.random.Generator) -> Plan:
    """A low ceiling on pillars, rows of parked cars, lines on the floor."""
    bays, rows = int(rng.integers(6, 12)), int(rng.integers(2, 4))
    pitch = 5.2 * 2.0 + 6.4  # two rows of cars and the lane between them
    half = 0.5 * np.array([rows * pitch, bays * 2.6 + 8.0])
    height = float(rng.uniform(2.3, 3.0))
    lanes = -half[0] + pitch * (np.arange(rows) + 0.5)
    far = half[1] - 2.5
    first = int(rng.integers(rows - 1))
    x0, x1 = lanes[first], lanes[first + 1]
    way = np.array([[x0, 0.0, -far], [x0, 0.0, far], [x1, 0.0, far], [x1, 0.0, -far]])
    route = Route(way, margin_m=0.9, ceiling_m=height - 0.3, closed=True)

    def build(kit: Kit) -> None:
        windows = (0, 2) if kit.rng.random() < 0.5 else ()
        close(kit, Shell(-half, half, height, windows=windows))
        if windows:
            outside(kit, -half, half)
        paint, post = kit.skin("plain", gain=1.25), kit.skin("concrete", "plain")
        warning = kit.skin("stripes", per_m=120.0)
        for lane in lanes:
            for z in -half[1] + 4.0 + 2.6 * np.arange(bays + 1):
                for side in (-1.0, 1.0):
                    near, end = sorted((lane + side * 3.2, lane + side * 8.3))
                    ends = np.array([near, z - 0.05]), np.array([end, z + 0.05])
                    level(kit, *ends, _LINE_ABOVE_FLOOR_M, paint)
        for x in np.arange(-half[0], half[0] + 0.1, pitch):
            for z in -half[1] + 4.0 + 5.2 * np.arange(bays // 2 + 1):
                foot = np.array([x, 0.0, z])
                kit.box(foot, 0.0, [0.4, height, 0.4], post)
                kit.box(foot, 0.0, [0.43, 1.2, 0.43], warning)
        for lane in lanes:
            for z in -half[1] + 5.3 + 2.6 * np.arange(bays):
                for side in (-1.0, 1.0):
                    if kit.rng.random() < 0.25 + 0.7 * config.clutter:
                        foot = np.array([lane + side * 5.8, 0.0, z + kit.rng.normal(0.0, 0.08)])
                        heading = side * 0.5 * np.pi + np.pi * int(kit.rng.random() < 0.5)
                        kit.parked_car(foot, heading)
        _pipes(kit, half, height)

    return Plan(route, build)


def _pipes(kit: Kit, half: Array, height_m: float) -> None:
    """Ducts and beams under the ceiling."""
    for _ in range(4):
        x = float(kit.rng.uniform(-half[0] + 1.0, half[0] - 1.0))
        wide, tall = kit.rng.uniform([0.1, 0.08], [0.5, 0.2])
        skin, along = kit.skin("metal", "concrete"), np.array([0.0, 0.0, 2.0 * half[1]])
        corner = np.array([x, -height_m + tall, -half[1]])
        across, down = np.array([wide, 0.0, 0.0]), np.array([0.0, tall, 0.0])
        kit.builder.face(corner, across, along, skin, 0, -UP)
        kit.builder.face(corner - down, along, down, skin)
        kit.builder.face(corner - down + across, along, down, skin)


def plan_stairs(config: BuildingConfig, rng: np.random.Generator) -> Plan:
    """A well with two flights to a storey, side by side, and landings between them."""
    wide, landing = float(rng.uniform(1.1, 1.5)), float(rng.uniform(1.2, 1.8))
    run, rise = _STEPS * _STEP_ALONG_M, _STEPS * _STEP_UP_M
    flights = 4
    line = []
    for k in range(flights):
        ahead, x = k % 2 == 0, (-0.5 if k % 2 == 0 else 0.5) * wide
        ends = (0.0, run) if ahead else (run, 0.0)
        out = -0.5 * landing if ahead else 0.5 * landing
        line.append([x, -k * rise, ends[0] + out])
        early = -_STEP_ALONG_M if ahead else _STEP_ALONG_M  # so as to be above all steps
        line += [[x, -(k + share) * rise, ends[share] + early] for share in (0, 1)]
        line.append([x, -(k + 1) * rise, ends[1] - out])
    route = Route(np.array(line), 0.2, 2.2)
    height = flights * rise + 2.6

    def build(kit: Kit) -> None:
        low = np.array([-wide, -landing])
        high = np.array([wide, run + landing])
        close(kit, Shell(low, high, height))
        tread, riser = kit.surface("speckles", "concrete", "grain"), kit.skin("concrete", "grain")
        below = kit.surface("plain", "rough")
        for k in range(flights):
            _flight(kit, k, wide, (tread, riser, below))
            far = k % 2 == 0
            z = (run, run + landing) if far else (-landing, 0.0)
            ends = np.array([-wide, z[0]]), np.array([wide, z[1]])
            level(kit, *ends, (k + 1) * rise, tread)
            level(kit, *ends, (k + 1) * rise - 0.15, below, down=True)
            edge = run if far else 0.0
            start = np.array([-wide, -(k + 1) * rise + 0.15, edge])
            wall(kit, start, start * [-1.0, 1.0, 1.0], 0.15, riser)
            _hang(kit, k, wide, z, far)

    return Plan(route, build)


def _flight(kit: Kit, k: int, wide: float, skins: tuple[Skin, Skin, Skin]) -> None:
    """Steps, and the slope under them; every second flight comes back."""
    tread, riser, below = skins
    run, rise = _STEPS * _STEP_ALONG_M, _STEPS * _STEP_UP_M
    ahead = 1.0 if k % 2 == 0 else -1.0
    left = -wide if k % 2 == 0 else 0.0
    start = 0.0 if k % 2 == 0 else run
    across, up = np.array([wide, 0.0, 0.0]), _STEP_UP_M * UP
    along = np.array([0.0, 0.0, ahead * _STEP_ALONG_M])
    for step in range(_STEPS):
        foot = np.array([left, -k * rise, start]) + step * (along + up)
        kit.builder.face(foot + up, across, -up, riser)
        kit.builder.face(foot + up, across, along, tread)
    slope = _STEPS * (along + up)
    foot = np.array([left, -k * rise + 0.12, start])
    kit.builder.face(foot, across, slope, below)
    for x in (left + 0.02, left + wide - 0.02):  # a rail above the steps
        post = np.array([x, -k * rise - 0.95, start])
        rail = np.array([0.0, 0.06, 0.0])
        kit.builder.face(post, slope, rail, riser)


def _hang(kit: Kit, k: int, wide: float, z: tuple[float, float], far: bool) -> None:
    """A picture over a landing."""
    if kit.rng.random() < kit.blank:
        return
    at, inward = (z[1], -1.0) if far else (z[0], 1.0)
    start = np.array([-wide, -(k + 1) * _STEPS * _STEP_UP_M, at])
    size = kit.rng.uniform([0.4, 0.4], [1.2, 0.9])
    frame = start, np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, inward])
    on_wall(kit, *frame, np.array([wide + kit.rng.uniform(-0.3, 0.3), 1.5]), size, kit.picture())
