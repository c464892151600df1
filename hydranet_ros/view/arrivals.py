"""Scenes of a running system: what arrives from its nodes, found again by its stamp."""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic
from typing import Any

from hydranet_ros.geometry.lie import Array
from hydranet_ros.view.frames import LATENCY, Known, SceneMaker
from hydranet_ros.view.recorded import pixels
from hydranet_ros.view.scene import History
from hydranet_ros.view.words import Diagnosis

MOST_WAITING = 100
# Of scenes: wheels may be faster than anybody looks.
SHORTEST_PERIOD_NS = 45_000_000
IMAGE, TRUTH, ODOMETRY, ROTATION, PICTURE = "image", "truth", "odometry", "rotation", "picture"


class Arrivals:
    """Keep what arrives for a while, and add a scene to the history for each state.

    Poses are T_w_c, w with z up. The picture is an image message, turned into pixels when shown.
    """

    def __init__(self, history: History) -> None:
        self.diagnosis = Diagnosis()
        self._history, self._scenes = history, SceneMaker()
        self._kept: dict[str, OrderedDict[int, Any]] = {}
        self._shown_ns = -1

    def keep(self, name: str, stamp_ns: int, value: Any) -> None:
        """Keep a pose, a rotation or a picture for the scene with its stamp."""
        kept = self._kept.setdefault(name, OrderedDict())
        kept[stamp_ns] = value
        while len(kept) > MOST_WAITING:
            kept.popitem(last=False)

    def keep_moment(self, stamp_ns: int) -> None:
        """Keep when an image arrived: the latency begins."""
        self.keep(IMAGE, stamp_ns, monotonic())

    def show(self, stamp_ns: int, fused: Array | None = None, Sigma: Array | None = None) -> None:
        """Add the scene of a state; `Sigma` is of its position in w."""
        if stamp_ns < self._shown_ns:
            self._scenes, self._shown_ns = SceneMaker(), -1  # a replay began again
        if self._shown_ns >= 0 and stamp_ns - self._shown_ns < SHORTEST_PERIOD_NS:
            return
        self._shown_ns = stamp_ns
        numbers = dict(self.diagnosis.numbers)
        began = self._find(IMAGE, stamp_ns)
        if began is not None:
            numbers[LATENCY] = {"image to fused": 1e3 * (monotonic() - began)}
        known = Known(
            stamp_ns,
            self._find(TRUTH, stamp_ns),
            self._find(ODOMETRY, stamp_ns),
            fused,
            Sigma,
            self._find(ROTATION, stamp_ns),
            dict(self.diagnosis.nis),
            numbers,
            dict(self.diagnosis.states),
            dict(self.diagnosis.found),
        )
        picture = self._find(PICTURE, stamp_ns) or self._newest(PICTURE)
        self._history.add(self._scenes.make(known), None if picture is None else pixels(picture))

    def _find(self, name: str, stamp_ns: int) -> Any | None:
        kept = self._kept.get(name)
        return None if kept is None else kept.get(stamp_ns)

    def _newest(self, name: str) -> Any | None:
        kept = self._kept.get(name)
        return next(reversed(kept.values())) if kept else None
