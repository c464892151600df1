"""Rooms, offices, desks: where one may go in them, and what they are built of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import BuildingConfig
from hydranet_ros.simulation.furniture import Kit
from hydranet_ros.simulation.routes import Route
from hydranet_ros.simulation.walls import Shell, close, outside


@dataclass(frozen=True, eq=False)
class Plan:
    """The free space of a place, and how to build the place around it."""

    route: Route
    build: Callable[[Kit], None]


def plan_room(config: BuildingConfig, rng: np.random.Generator) -> Plan:
    """A furnished room; the way leads around in its middle."""
    half = 0.5 * rng.uniform([3.5, 3.5], [9.0, 8.0])
    height = float(rng.uniform(2.4, 3.2))
    route = Route(
        _loop(rng, half - 1.1),
        margin_m=0.35,
        ceiling_m=height,
        closed=True,
        box=_hand_box(half - 1.0, height),
        target=np.array([*rng.uniform(-1.0, 1.0, 1), -1.0, *rng.uniform(-1.0, 1.0, 1)])
        * [half[0], rng.uniform(0.3, 1.4), half[1]]
        if rng.random() < 0.5
        else None,
    )
    sides = rng.permutation(4)

    def build(kit: Kit) -> None:
        windows = tuple(int(k) for k in sides[: kit.rng.integers(0, 3)])
        close(kit, Shell(-half, half, height, windows=windows))
        if windows:
            outside(kit, -half, half)
        furnish(kit, -half, half, config.clutter)

    return Plan(route, build)


def plan_desk(config: BuildingConfig, rng: np.random.Generator) -> Plan:
    """A desk with much on it in the middle of a room, seen from 0.3 to 2.5 m by a hand."""
    half = 0.5 * rng.uniform([4.5, 4.5], [7.0, 7.0])
    height = float(rng.uniform(2.4, 3.0))
    size = np.array([rng.uniform(1.2, 2.0), 0.74, rng.uniform(0.6, 0.9)])
    near = float(rng.uniform(0.2, 0.5))
    far = float(rng.uniform(0.6, 1.6))
    edge = 0.5 * size[2]
    box = (
        np.array([-0.9, -rng.uniform(1.4, 1.8), -edge - far]),
        np.array([0.9, -rng.uniform(0.9, 1.1), -edge + 0.25 - near]),
    )
    corners = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    reach = np.minimum(half - 0.7, np.array([0.5 * size[0], edge]) + 0.9)
    loop = np.insert(corners * reach, 1, 0.0, axis=1)
    target = np.array([rng.uniform(-0.3, 0.3), -0.8, 0.0])
    route = Route(loop, 0.25, height, closed=True, box=box, target=target)

    def build(kit: Kit) -> None:
        close(kit, Shell(-half, half, height))
        kit.table_of(np.zeros(3), 0.0, size)
        top = np.array([0.0, -size[1], 0.0])
        kit.monitor(top + np.array([kit.rng.uniform(-0.3, 0.3), 0.0, 0.5 * edge]), np.pi)
        kit.clutter(top, 0.0, size[[0, 2]], 8 + int(28 * config.clutter))
        furnish(kit, -half, half, config.clutter)

    return Plan(route, build)


def plan_office(config: BuildingConfig, rng: np.random.Generator) -> Plan:
    """A corridor along z with rooms on both sides; the way leads through some of them."""
    width, height = float(rng.uniform(1.7, 2.6)), float(rng.uniform(2.4, 3.0))
    rooms: list[tuple[float, Array, Array, float]] = []  # side, low, high, z of its door
    z = 1.5
    for _ in range(int(rng.integers(3, 6))):
        deep, wide = rng.uniform(3.4, 5.5), rng.uniform(3.2, 6.0)
        side = float(rng.choice([-1.0, 1.0]))
        inner, outer = 0.5 * width * side, (0.5 * width + deep) * side
        low, high = np.array([min(inner, outer), z]), np.array([max(inner, outer), z + wide])
        rooms.append((side, low, high, z + wide * float(rng.uniform(0.3, 0.7))))
        z += wide + rng.uniform(0.3, 3.0)
    length = z + float(rng.uniform(1.0, 6.0))
    line = [[0.0, 0.0, 0.8]]
    for side, low, high, door in rooms:
        inside = 0.5 * (low + high)
        beyond = side * (0.5 * width + 0.9)
        line += [[0.0, 0.0, door], [beyond, 0.0, door], [inside[0], 0.0, inside[1]]]
        line += [[beyond, 0.0, door], [0.0, 0.0, door]]
    line.append([0.0, 0.0, length - 0.9])
    route = Route(np.array(line), 0.22, min(height, 2.1))

    def build(kit: Kit) -> None:
        low, high = np.array([-0.5 * width, 0.0]), np.array([0.5 * width, length])
        doors = [(1, door) if side > 0.0 else (3, length - door) for side, _, _, door in rooms]
        close(kit, Shell(low, high, height, doors=tuple(doors)))
        for side, room_low, room_high, _ in rooms:
            away = 1 if side > 0.0 else 3
            shell = Shell(room_low, room_high, height, windows=(away,), open_sides=(4 - away,))
            close(kit, shell)
            furnish(kit, room_low, room_high, config.clutter)
        corners = [corner for _, a, b, _ in rooms for corner in (a, b)]
        outside(kit, np.min([low, *corners], axis=0), np.max([high, *corners], axis=0))
        furnish(kit, low, high, 0.3 * config.clutter)

    return Plan(route, build)


def _loop(rng: np.random.Generator, half: Array) -> Array:
    """(n, 3) corners around the middle, on the floor."""
    half = np.maximum(half, 0.25)
    angles = np.sort(rng.uniform(0.0, 2.0 * np.pi, 5)) + np.arange(5) * 1e-3
    radius = rng.uniform(0.45, 1.0, 5)
    x, z = radius * np.cos(angles) * half[0], radius * np.sin(angles) * half[1]
    return np.stack([x, np.zeros(5), z], axis=-1)


def _hand_box(half: Array, height_m: float) -> tuple[Array, Array]:
    reach = np.clip(half, 0.2, 1.5)
    low = np.array([-reach[0], -min(1.8, height_m - 0.5), -reach[1]])
    return low, np.array([reach[0], -0.9, reach[1]])


def furnish(kit: Kit, low: Array, high: Array, clutter: float) -> None:
    """Things along the walls, facing the room, and some in its middle; from low to high x, z."""
    rng, (wide, deep) = kit.rng, high - low
    by_wall = (kit.shelf, kit.cabinet, kit.sofa, kit.table, kit.plant, kit.carton)
    for _ in range(int(clutter * 4.0 * np.sqrt(wide * deep))):
        side, at = int(rng.integers(4)), rng.uniform(0.12, 0.88)
        off = 0.45
        x, z, heading = (
            (low[0] + at * wide, low[1] + off, 0.0),
            (high[0] - off, low[1] + at * deep, -0.5 * np.pi),
            (low[0] + at * wide, high[1] - off, np.pi),
            (low[0] + off, low[1] + at * deep, 0.5 * np.pi),
        )[side]
        by_wall[int(rng.integers(len(by_wall)))](np.array([x, 0.0, z]), heading)
    middle = (kit.table, kit.chair, kit.chair, kit.carton, kit.plant)
    for _ in range(int(clutter * 0.5 * wide * deep)):
        x, z = rng.uniform(low + 0.6, np.maximum(high - 0.6, low + 0.61))
        heading = float(rng.choice([0.0, 0.5, 1.0, 1.5]) * np.pi + rng.normal(0.0, 0.15))
        middle[int(rng.integers(len(middle)))](np.array([x, 0.0, z]), heading)
