"""Walls with openings, floors, ceilings, windows, and the view outside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.furniture import Kit
from hydranet_ros.simulation.scene import UP, Skin

_OFF_WALL_M = 0.02
_OUTSIDE_M = 20.0  # how far away the view outside hangs


@dataclass(frozen=True)
class Opening:
    """A hole in a wall: from and to along it, bottom and top above its foot, in metres."""

    start: float
    stop: float
    bottom: float
    top: float


def wall(
    kit: Kit,
    start: Array,
    stop: Array,
    height_m: float,
    skin: Skin,
    openings: tuple[Opening, ...] = (),
) -> None:
    """An upright rectangle on the line from start to stop, seen from both sides."""
    length = float(np.linalg.norm(stop - start))
    along = (stop - start) / length
    pieces, at = [], 0.0
    for hole in sorted(openings, key=lambda each: each.start):
        pieces.append((at, hole.start, 0.0, height_m))
        pieces.append((hole.start, hole.stop, hole.top, height_m))
        pieces.append((hole.start, hole.stop, 0.0, hole.bottom))
        at = hole.stop
    pieces.append((at, length, 0.0, height_m))
    for left, right, low, high in pieces:
        if right - left > 1e-3 and high - low > 1e-3:
            corner = start + along * left + UP * high
            # One texture over all pieces.
            shift = skin.shift[0] + skin.per_m * left, skin.shift[1] - skin.per_m * high
            piece = replace(skin, shift=shift)
            kit.builder.face(corner, along * (right - left), -UP * (high - low), piece)


def on_wall(
    kit: Kit, start: Array, along: Array, inward: Array, centre: Array, size: Array, skin: Skin
) -> None:
    """A picture or a door on a wall: centre (along, up) and size (wide, tall) in metres."""
    corner = start + along * (centre[0] - 0.5 * size[0]) + UP * (centre[1] + 0.5 * size[1])
    corner = corner + inward * _OFF_WALL_M
    kit.builder.face(corner, along * size[0], -UP * size[1], skin)


def level(kit: Kit, low: Array, high: Array, up_m: float, skin: Skin, down: bool = False) -> None:
    """A floor, or a ceiling that is seen from below, from low to high x, z."""
    corner = np.array([low[0], -up_m, low[1]])
    across = np.array([high[0] - low[0], 0.0, 0.0])
    along = np.array([0.0, 0.0, high[1] - low[1]])
    kit.builder.face(corner, across, along, skin, 0, -UP if down else UP)


def outside(kit: Kit, low: Array, high: Array) -> None:
    """Four large pictures around a building, from low to high x, z, a sky and a ground."""
    a, b = low - _OUTSIDE_M, high + _OUTSIDE_M
    corners = [(a[0], a[1]), (b[0], a[1]), (b[0], b[1]), (a[0], b[1])]
    for k in range(4):
        (x0, z0), (x1, z1) = corners[k], corners[(k + 1) % 4]
        start = np.array([x0, -22.0, z0])
        run = np.array([x1 - x0, 0.0, z1 - z0])
        skin = kit.whole("outside", gain=float(kit.rng.uniform(0.9, 1.3)))
        kit.builder.face(start, run, np.array([0.0, 34.0, 0.0]), skin)
    level(kit, a, b, 22.0, kit.skin("plain", per_m=20.0, gain=1.3), down=True)
    level(kit, a, b, -12.0, kit.skin("carpet", per_m=20.0))


def window_bars(kit: Kit, start: Array, along: Array, inward: Array, hole: Opening) -> None:
    """A frame with a cross; a pane that reflects instead of showing what is outside, at times."""
    frame = kit.skin("plain", "metal", "grain")
    wide, tall = hole.stop - hole.start, hole.top - hole.bottom
    middle = np.array([0.5 * (hole.start + hole.stop), 0.5 * (hole.bottom + hole.top)])
    if kit.rng.random() < 0.3:
        pane = kit.whole("glass")
        on_wall(kit, start, along, inward * 0.0, middle, np.array([wide, tall]), pane)
    bar = 0.06
    for centre, size in (
        ([hole.start, middle[1]], [bar, tall]),
        ([hole.stop, middle[1]], [bar, tall]),
        ([middle[0], middle[1]], [bar, tall]),
        ([middle[0], hole.top], [wide + bar, bar]),
        ([middle[0], hole.bottom], [wide + bar, bar]),
    ):
        on_wall(kit, start, along, inward, np.array(centre), np.array(size), frame)


def lamps(kit: Kit, low: Array, high: Array, up_m: float) -> None:
    """Bright strips under a ceiling."""
    strip = kit.skin("plain", gain=1.9)
    count = int(kit.rng.integers(1, 4))
    for z in np.linspace(low[1], high[1], count + 2)[1:-1]:
        x = 0.5 * (low[0] + high[0])
        half = min(0.6, 0.3 * (high[0] - low[0]))
        ends = np.array([x - half, z - 0.1]), np.array([x + half, z + 0.1])
        level(kit, ends[0], ends[1], up_m - _OFF_WALL_M, strip, down=True)


@dataclass(frozen=True, eq=False)
class Shell:
    """How a rectangular room is to be closed: from low to high x, z."""

    low: Array
    high: Array
    height_m: float
    doors: tuple[tuple[int, float], ...] = ()  # (side, centre along it): open doorways
    windows: tuple[int, ...] = ()  # sides
    open_sides: tuple[int, ...] = ()  # sides without a wall, which a neighbour has


_FLOORS = ("planks", "carpet", "tiles", "chequer", "speckles", "concrete")
DOOR_M = 1.1
DOOR_TOP_M = 2.1


def close(kit: Kit, shell: Shell) -> None:
    """Floor, ceiling, four walls, and what hangs on them. Side 0 is at low z, then clockwise.

    Seen from above with z ahead, sides 0 to 3 are the near, right, far and left one.
    """
    rng, (low, high) = kit.rng, (shell.low, shell.high)
    level(kit, low, high, 0.0, kit.surface(*_FLOORS, per_m=float(rng.uniform(180.0, 320.0))))
    ceiling = kit.surface("panels", "plain", "rough", "concrete", per_m=213.0)
    level(kit, low, high, shell.height_m, replace(ceiling, gain=1.05), down=True)
    lamps(kit, low, high, shell.height_m)
    base = kit.surface("rough", "bricks", "plain", "concrete")
    for side, (start, stop) in enumerate(_sides(low, high)):
        if side in shell.open_sides:
            continue
        skin = replace(base, gain=base.gain * float(rng.uniform(0.82, 1.12)))
        _close_side(kit, shell, side, (start, stop), skin)


def _close_side(kit: Kit, shell: Shell, side: int, ends: tuple[Array, Array], skin: Skin) -> None:
    rng, (start, stop) = kit.rng, ends
    length = float(np.linalg.norm(stop - start))
    along = (stop - start) / length
    inward = np.array([along[2], 0.0, -along[0]]) * -1.0
    doors = [
        Opening(centre - 0.5 * DOOR_M, centre + 0.5 * DOOR_M, 0.0, DOOR_TOP_M)
        for at, centre in shell.doors
        if at == side
    ]
    panes = []
    if side in shell.windows and shell.height_m > 2.3:
        for middle in np.arange(1.0, length - 0.9, 2.0):
            panes.append(
                Opening(middle - 0.65, middle + 0.65, 0.9, min(2.2, shell.height_m - 0.2))
            )
    wall(kit, start, stop, shell.height_m, skin, (*doors, *panes))
    for pane in panes:
        window_bars(kit, start, along, inward, pane)
    taken = [(hole.start - 0.1, hole.stop + 0.1) for hole in (*doors, *panes)]
    _decorate(kit, (start, along, inward), length, taken, shell.height_m)
    if rng.random() < 0.6 and not doors and not panes:  # a skirting board
        board = kit.skin("grain", "plain", gain=0.6)
        size = np.array([length, 0.1])
        on_wall(kit, start, along, inward, np.array([0.5 * length, 0.05]), size, board)


def _decorate(
    kit: Kit,
    frame: tuple[Array, Array, Array],
    length: float,
    taken: list[tuple[float, float]],
    height_m: float,
) -> None:
    """Posters, boards, switches and closed doors; few of them on blank walls."""
    rng = kit.rng
    for _ in range(int(rng.integers(0, 3 + int(0.9 * length)))):
        if rng.random() < kit.blank:
            continue
        if rng.random() < 0.25 and height_m > DOOR_TOP_M + 0.1:
            size, up, skin = np.array([0.95, 2.05]), 1.025, kit.whole("door")
        elif rng.random() < 0.1:  # a mirror, or a pane that shows nothing but a sheen
            size = np.array([rng.uniform(0.6, 2.5), rng.uniform(0.8, min(2.0, height_m - 0.3))])
            up, skin = 0.1 + 0.5 * size[1], kit.whole("glass")
        else:
            size = rng.uniform([0.15, 0.15], [1.3, 1.0])
            up, skin = rng.uniform(1.2, min(1.8, height_m - 0.55)), kit.picture()
        if length < size[0] + 0.2:
            continue
        at = rng.uniform(0.5 * size[0] + 0.05, length - 0.5 * size[0] - 0.05)
        span = at - 0.5 * size[0], at + 0.5 * size[0]
        if all(span[1] < a or span[0] > b for a, b in taken):
            taken.append(span)
            on_wall(kit, *frame, np.array([at, up]), size, skin)


def _sides(low: Array, high: Array) -> list[tuple[Array, Array]]:
    """Near, right, far, left: each from its start to its stop, on the floor."""
    corners = [(low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1])]
    points = [np.array([x, 0.0, z]) for x, z in corners]
    return [(points[k], points[(k + 1) % 4]) for k in range(4)]
