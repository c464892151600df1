"""What a street is built of: houses, hedges, parked cars, trees, poles, bins, and what drives."""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.drive import BEHIND_M, Drive, Line, rotation_of
from hydranet_ros.simulation.scene import (
    UP,
    BodyPose,
    Builder,
    Facet,
    Skin,
    StreetScene,
    texel_map,
)
from hydranet_ros.simulation.textures import (
    FACADE_TILE_M,
    FACADES,
    KERB_M,
    LANE_M,
    ROAD_CENTRE_M,
    TEXTURES,
)

# Nothing fixed may stand closer to the line we drive on: houses, and what is at the kerb.
_HOUSES_CLEAR_M, _KERB_CLEAR_M = 4.2, 1.75
_CLEAR_OF_CROSSING_M = 3.0
_SHADOW_ABOVE_GROUND_M = 0.015
_FACADE_TEXELS_PER_M = 512 / FACADE_TILE_M
_SIDES = ("right", "left", "front", "back")


def build_scene(config: StreetConfig, drive: Drive, rng: np.random.Generator) -> StreetScene:
    """The whole street along a drive."""
    builder = Builder(config.platform.camera_height_m)
    crossings = _crossings(config, drive, rng)
    motions: list[BodyPose] = [lambda time_s: np.eye(4)]
    motions += [_crossing_motion(builder, drive.line, *crossing) for crossing in crossings]
    motions += _along_motions(config, builder, drive, rng)
    for body in range(1, len(motions)):
        car(builder, np.zeros(3), 0.0, rng, body)
    free = _Free(drive.line, [s for s, _, _ in crossings])
    for side in (-1.0, 1.0):
        _buildings(builder, drive.line, side, free, rng)
        _kerb_side(builder, drive.line, side, free, rng, config.clutter)
    return StreetScene(builder.facets, motions)


class _Free:
    """Tells whether a place is clear of the lane we drive in and of the crossing streets."""

    def __init__(self, line: Line, crossings: list[float]) -> None:
        self._lane = np.stack([line.x[::10], line.z[::10]], axis=-1)
        across = np.arange(-120.0, 121.0, 1.5)
        x, z, _ = line.locate(np.array(crossings)[:, None], across)
        self._crossing = np.stack([x, z], axis=-1).reshape(-1, 2)

    def __call__(self, points: Array, clear_m: float) -> bool:
        """Whether all (n, 2) points x, z are `clear_m` off our lane and off the crossings."""
        for obstacle, least in (
            (self._lane, clear_m),
            (self._crossing, _CLEAR_OF_CROSSING_M),
        ):
            gap = points[:, None, :] - obstacle[None]
            if gap.size and np.min(np.sum(gap**2, axis=-1)) < least**2:
                return False
        return True


def _outline(centre: Array, heading: float, size: Array) -> Array:
    """(n, 2) points x, z around and inside the base of a box."""
    rotation = rotation_of(np.asarray(heading))
    a, b = np.meshgrid(np.linspace(-0.5, 0.5, 7), np.linspace(-0.5, 0.5, 7))
    points = centre + a.reshape(-1, 1) * rotation[:, 0] * size[0]
    points = points + b.reshape(-1, 1) * rotation[:, 2] * size[2]
    return np.asarray(points[:, [0, 2]])


def _buildings(
    builder: Builder, line: Line, side: float, free: _Free, rng: np.random.Generator
) -> None:
    """Houses of varying width, height and set-back, with gaps and hedges between them."""
    s = -BEHIND_M
    while s < line.s[-1]:
        length = rng.uniform(5.0, 13.0)
        depth = rng.uniform(6.0, 9.0)
        setback = KERB_M + rng.uniform(1.6, 5.5)
        centre, heading = builder.on_ground(
            line, s + 0.5 * length, ROAD_CENTRE_M + side * (setback + 0.5 * depth)
        )
        size = np.array([depth, 3.0 * rng.integers(1, 6), length])  # whole floors
        shift = tuple(rng.uniform(0.0, 512.0, 2).round())
        gain, facade = rng.uniform(0.7, 1.25), TEXTURES[f"facade{rng.integers(FACADES)}"]
        kind = rng.random()
        if kind < 0.16:
            facade, shift = TEXTURES["leaves"], (shift[0], 0.0)
            size[1] = rng.uniform(0.9, 2.6)
        # The texture's last row meets the pavement whatever the height of the house.
        foot = (FACADE_TILE_M - size[1]) * _FACADE_TEXELS_PER_M
        skin = Skin(facade, per_m=_FACADE_TEXELS_PER_M, shift=(shift[0], foot), gain=gain)
        if kind < 0.88 and free(_outline(centre, heading, size), _HOUSES_CLEAR_M):
            street_side = "left" if side > 0.0 else "right"
            builder.box(centre, heading, size, dict.fromkeys((street_side, "front", "back"), skin))
        s += length + (rng.uniform(1.0, 7.0) if rng.random() < 0.3 else 0.0)


def _kerb_side(
    builder: Builder,
    line: Line,
    side: float,
    free: _Free,
    rng: np.random.Generator,
    clutter: float,
) -> None:
    """Parked cars at the kerb; poles, trees and bins on the pavement."""
    for s in np.arange(-BEHIND_M, line.s[-1], 6.2):
        draws = rng.random(3)
        at = s + rng.uniform(-0.5, 0.5)
        parked = ROAD_CENTRE_M + side * (KERB_M - 1.15)
        centre, heading = builder.on_ground(line, at, parked)
        size = np.array([1.8, 1.5, 4.3])
        if draws[0] < clutter and free(_outline(centre, heading, size), _KERB_CLEAR_M):
            car(builder, centre, heading, rng)
        walk = ROAD_CENTRE_M + side * (KERB_M + rng.uniform(0.4, 1.1))
        centre, heading = builder.on_ground(line, at + 3.1, walk)
        kind = int(draws[2] * 3.0)
        if draws[1] < clutter and free(_outline(centre, heading, np.full(3, 1.0)), _KERB_CLEAR_M):
            (_pole, _tree, _bin)[kind](builder, centre, heading, rng)


def car(
    builder: Builder, centre: Array, heading: float, rng: np.random.Generator, body: int = 0
) -> None:
    """A lower and an upper box, and the shade under them."""
    paint, length = rng.uniform(0.35, 1.4), rng.uniform(3.8, 4.7)
    width = rng.uniform(1.65, 1.85)
    flat = rng.uniform(0.0, 100.0)
    side = Skin(builder.textures["car side"], texels=(256.0, 64.0), gain=paint)
    end = Skin(builder.textures["car end"], texels=(128.0, 64.0), gain=paint)
    glass = Skin(builder.textures["car glass"], texels=(128.0, 32.0), gain=0.6 + 0.5 * paint)
    top = Skin(builder.textures["shade"], per_m=30.0, shift=(flat, flat), gain=3.2 * paint)
    shade = Skin(builder.textures["shade"], per_m=30.0, gain=0.8)
    rotation = rotation_of(np.asarray(heading))
    lifted = centre - rotation[:, 1] * 0.05
    builder.box(
        lifted,
        heading,
        np.array([width, 0.85, length]),
        dict(zip((*_SIDES, "top"), (side, side, end, end, top), strict=True)),
        body,
    )
    cabin = lifted - rotation[:, 1] * 0.85 - rotation[:, 2] * 0.06 * length
    builder.box(
        cabin,
        heading,
        np.array([0.86 * width, 0.55, 0.55 * length]),
        dict(zip((*_SIDES, "top"), (glass, glass, glass, glass, top), strict=True)),
        body,
    )
    shadow = centre - rotation[:, 1] * _SHADOW_ABOVE_GROUND_M
    corner = shadow - 0.55 * (rotation[:, 0] * width + rotation[:, 2] * length)
    builder.face(
        corner, rotation[:, 2] * 1.1 * length, rotation[:, 0] * 1.1 * width, shade, body, UP
    )


def _crossed(
    builder: Builder, foot: Array, heading: float, width: float, height: float, skin: Skin
) -> None:
    """Two upright rectangles through the same axis."""
    for turn in (0.0, 0.5 * np.pi):
        across = rotation_of(np.asarray(heading + turn))[:, 0] * width
        up = np.array([0.0, height, 0.0])
        builder.face(foot - up - 0.5 * across, across, up, skin)


def _pole(builder: Builder, foot: Array, heading: float, rng: np.random.Generator) -> None:
    skin = Skin(TEXTURES["bark"], per_m=40.0, gain=rng.uniform(0.6, 2.0))
    height = rng.uniform(3.0, 7.0)
    _crossed(builder, foot, heading, rng.uniform(0.1, 0.2), height, skin)
    if rng.random() < 0.6:
        sign = Skin(TEXTURES["car end"], texels=(128.0, 64.0), shift=(0.0, 32.0), gain=1.2)
        across = rotation_of(np.asarray(heading))[:, 0] * 0.8
        top = foot - np.array([0.0, min(height, 3.0), 0.0])
        builder.face(top - 0.5 * across, across, np.array([0.0, 0.6, 0.0]), sign)


def _tree(builder: Builder, foot: Array, heading: float, rng: np.random.Generator) -> None:
    """A trunk and two crossed crowns, each a decagon."""
    trunk, radius = rng.uniform(1.8, 2.8), rng.uniform(1.0, 1.7)
    bark = Skin(TEXTURES["bark"], per_m=64.0, gain=rng.uniform(0.6, 1.1))
    _crossed(builder, foot, heading, rng.uniform(0.2, 0.35), trunk + 0.5 * radius, bark)
    angles = np.arange(10) * 0.2 * np.pi
    tall = radius * rng.uniform(1.0, 1.5)
    middle = foot - np.array([0.0, trunk + 0.8 * tall, 0.0])
    gain, shift = rng.uniform(0.6, 1.3), rng.uniform(0.0, 256.0, 2)
    spread = rng.uniform(0.85, 1.0, angles.size)
    for turn in (0.2, 0.2 + 0.5 * np.pi):
        across = rotation_of(np.asarray(heading + turn))[:, 0]
        down = np.array([0.0, 1.0, 0.0])
        corners = middle + (spread * np.cos(angles))[:, None] * across * radius
        corners = corners + (spread * np.sin(angles))[:, None] * down * tall
        corners = _convex(corners, across, down)
        mapping = texel_map(middle, across * 42.0, down * 42.0, shift)
        builder.facets.append(Facet(corners, mapping, TEXTURES["leaves"], gain, None))


def _convex(corners: Array, across: Array, down: Array) -> Array:
    """Drop the corners at which an outline turns inwards."""
    flat = np.stack([corners @ across, corners @ down], axis=-1)
    keep = list(range(len(flat)))
    changed = True
    while changed:
        changed = False
        for k, middle in enumerate(keep):
            before, after = flat[keep[k - 1]], flat[keep[(k + 1) % len(keep)]]
            a, b = flat[middle] - before, after - flat[middle]
            if a[0] * b[1] - a[1] * b[0] <= 0.0:
                keep.pop(k)
                changed = True
                break
    return corners[keep]


def _bin(builder: Builder, foot: Array, heading: float, rng: np.random.Generator) -> None:
    skin = Skin(
        TEXTURES[f"facade{rng.integers(FACADES)}"],
        per_m=90.0,
        shift=tuple(rng.uniform(0.0, 512.0, 2)),
        gain=rng.uniform(0.5, 1.2),
    )
    size = rng.uniform([0.4, 0.7, 0.4], [0.9, 1.4, 1.2])
    builder.box(foot, heading, size, dict.fromkeys((*_SIDES, "top"), skin))


# --- what moves ----------------------------------------------------------------------------------


def _crossings(
    config: StreetConfig, drive: Drive, rng: np.random.Generator
) -> list[tuple[float, float, float]]:
    """(s of the crossing, time at which its car is on our line, signed speed across)."""
    out = []
    for k in range(config.crossing_cars):
        share = (k + rng.uniform(0.3, 0.7)) / config.crossing_cars
        time_s = share * drive.duration_s
        s = float(drive.distance(np.array(time_s))) + rng.uniform(16.0, 28.0)
        out.append((s, time_s, float(rng.choice([-1.0, 1.0]) * rng.uniform(4.0, 8.0))))
    return out


def _crossing_motion(
    builder: Builder, line: Line, s: float, time_0_s: float, speed: float
) -> BodyPose:
    def motion(time_s: float) -> Array:
        centre, heading = builder.on_ground(line, s, speed * (time_s - time_0_s))
        return lie.se3_from(rotation_of(np.asarray(heading + np.sign(speed) * np.pi / 2)), centre)

    return motion


def _along_motions(
    config: StreetConfig, builder: Builder, drive: Drive, rng: np.random.Generator
) -> list[BodyPose]:
    """The second car leads ours; the others meet us one after the other on the other lane."""
    motions = []
    for k in range(config.moving_cars):
        gap, speed = rng.uniform(13.0, 22.0), rng.uniform(5.0, 11.0)
        meet_s = (k + rng.uniform(0.3, 0.9)) / config.moving_cars * drive.duration_s
        if k == 1:
            motions.append(_lead_motion(builder, drive, gap, rng.uniform(0.3, 0.8)))
        else:
            motions.append(_oncoming_motion(builder, drive, meet_s, speed))
    return motions


def _lead_motion(builder: Builder, drive: Drive, gap: float, rate: float) -> BodyPose:
    def motion(time_s: float) -> Array:
        s = float(drive.distance(np.array(time_s))) + gap + 3.0 * np.sin(rate * time_s)
        centre, heading = builder.on_ground(drive.line, s, 0.0)
        return lie.se3_from(rotation_of(np.asarray(heading)), centre)

    return motion


def _oncoming_motion(builder: Builder, drive: Drive, meet_s: float, speed: float) -> BodyPose:
    at = float(drive.distance(np.array(meet_s)))

    def motion(time_s: float) -> Array:
        s = at + speed * (meet_s - time_s)
        centre, heading = builder.on_ground(drive.line, s, ROAD_CENTRE_M - 0.5 * LANE_M)
        return lie.se3_from(rotation_of(np.asarray(heading + np.pi)), centre)

    return motion
