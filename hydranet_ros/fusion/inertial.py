"""What an IMU tells of the states of a window, and what holds them while the vehicle stands.

Both are given to neighbouring states: where a late measurement puts a state between two of them,
what was told of both together is told anew of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hydranet_ros.fusion.edges import Interval
from hydranet_ros.fusion.expectation import Expectation
from hydranet_ros.fusion.imu import GRAVITY_S, ImuBuffer
from hydranet_ros.fusion.standing import REST_S, firmly, held, loosely
from hydranet_ros.fusion.window import Window


def take_imu(window: Window, samples: ImuBuffer, refused: Iterable[Interval]) -> None:
    """Give neighbouring states what the IMU says of their interval, as soon as it covers it.

    Over the intervals of `refused` it is not believed.
    """
    if window.dimension < 15:
        return
    neighbours = list(pairwise(window.stamps.tolist()))
    for cut in window.turns.keys() - set(neighbours):
        del window.turns[cut]
    for i, (begin, end) in enumerate(neighbours):
        inside = any(first <= begin and end <= last for first, last in refused)
        if (begin, end) not in window.turns and not inside:
            turn = samples.turn(begin, end, window.states.i[i])
            if turn is not None:
                window.turns[begin, end] = turn
    _take_vertical(window, samples)


def _take_vertical(window: Window, samples: ImuBuffer) -> None:
    """Give the newest state the vertical, each half second; the first says where up is."""
    newest = int(window.stamps[-1])
    if newest - max(window.verticals, default=0) < GRAVITY_S * 1e9:
        return
    up = samples.vertical(newest)
    if up is not None and window.up_w is None:
        window.up_w = window.states.C[-1].T @ up
    elif up is not None:
        window.verticals[newest] = up


def hold(window: Window, expects: Expectation) -> bool:
    """Tie neighbouring states together where the vehicle stands, and tell whether it does.

    The newest step is tied loosely, others firmly once it stood long enough after them, and the
    oldest at the latest: it is about to leave the window.
    """
    steps = list(pairwise(window.stamps.tolist()))
    for cut in window.stills.keys() - set(steps):
        del window.stills[cut]
    if not steps:
        return False
    begin, end = steps[-1]
    way, turn = held(*expects.votes_of_rest((begin, end)))
    if not turn:
        return False
    window.stills[begin, end] = loosely(way, turn, (end - begin) * 1e-9)
    for step in reversed(steps[:-1]):
        if step not in window.stills:
            break
        if (end - step[1]) * 1e-9 >= REST_S or step == steps[0]:
            seconds = (step[1] - step[0]) * 1e-9
            window.stills[step] = firmly(window.stills[step], seconds)
    return True
