"""Scenes of a running system: what arrives from its nodes, found again by its stamp."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from hydranet_ros.files import whole_file
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL
from hydranet_ros.geometry.lie import Array
from hydranet_ros.view.frames import LATENCY, Known, SceneMaker
from hydranet_ros.view.scene import History
from hydranet_ros.view.words import Diagnosis

MOST_WAITING = 100
# Of scenes: wheels may be faster than anybody looks.
SHORTEST_PERIOD_NS = 45_000_000
NEAR_NS = 150_000_000
BACK_NS = 3_000_000_000  # stamps that go back further are of another drive
IMAGE, TRUTH, ODOMETRY, ROTATION, PICTURE = "image", "truth", "odometry", "rotation", "picture"


class Arrivals:
    """Keep what arrives for a while, and add a scene to the history for each state.

    Poses are T_w_c, w with z up. The picture is an image message, turned into pixels when shown.
    """

    def __init__(self, history: History, begin: Callable[[], History] | None = None) -> None:
        self.diagnosis = Diagnosis()
        self._begin = begin  # the history of the next drive, when stamps go back
        self._history, self._scenes = history, SceneMaker()
        self._kept: dict[str, OrderedDict[int, Any]] = {}
        self._shown_ns = -1
        self._start: Array | None = None  # of the world of the truth in ours

    def keep(self, name: str, stamp_ns: int, value: Any) -> None:
        """Keep a pose, a rotation or a picture for the scene with its stamp."""
        if value is None:  # its node says why in /diagnostics
            return
        if name == TRUTH:
            self._scenes.know(stamp_ns, value)
        kept = self._kept.setdefault(name, OrderedDict())
        if kept and stamp_ns < next(reversed(kept)) - BACK_NS:
            kept.clear()  # another drive
        kept[stamp_ns] = value
        while len(kept) > MOST_WAITING:
            kept.popitem(last=False)

    def keep_moment(self, stamp_ns: int) -> None:
        """Keep when an image arrived: the latency begins."""
        self.keep(IMAGE, stamp_ns, monotonic())

    def show(
        self,
        stamp_ns: int,
        fused: Array | None = None,
        Sigma: Array | None = None,
        latency_ms: float | None = None,
    ) -> None:
        """Add the scene of a state; `Sigma` is of its position in w."""
        if stamp_ns < self._shown_ns:
            self._start_again(stamp_ns)
        if self._shown_ns >= 0 and stamp_ns - self._shown_ns < SHORTEST_PERIOD_NS:
            return
        self._shown_ns = stamp_ns
        numbers = dict(self.diagnosis.numbers)
        began = self._find(IMAGE, stamp_ns)
        if latency_ms is None and began is not None:
            latency_ms = 1e3 * (monotonic() - began)
        if latency_ms is not None:
            numbers[LATENCY] = {"image to fused": latency_ms}
        odometry = self._last(ODOMETRY, stamp_ns)
        known = Known(
            stamp_ns,
            self._true(stamp_ns, odometry if fused is None else fused),
            odometry,
            fused,
            Sigma,
            self._since(ROTATION, stamp_ns),
            dict(self.diagnosis.nis),
            numbers,
            dict(self.diagnosis.states),
            dict(self.diagnosis.found),
        )
        picture = self._find(PICTURE, stamp_ns) or self._newest(PICTURE)
        self._history.add(self._scenes.make(known), None if picture is None else pixels(picture))

    def _start_again(self, stamp_ns: int) -> None:
        """A replay began again, or another drive: forget the last one."""
        if self._begin is not None:
            self._history = self._begin()
        self.diagnosis = Diagnosis()
        self._scenes, self._shown_ns, self._start = SceneMaker(), -1, None
        for kept in self._kept.values():
            if kept and next(reversed(kept)) > stamp_ns + BACK_NS:
                kept.clear()
        for stamp, truth in self._kept.get(TRUTH, {}).items():
            self._scenes.know(stamp, truth)

    def _true(self, stamp_ns: int, ours: Array | None) -> Array | None:
        """The true pose, in a world that is ours where both are known first."""
        truth: Array | None = self._last(TRUTH, stamp_ns)
        if truth is None or ours is None:
            return None
        if self._start is None:
            self._start = ours @ lie.se3_inverse(truth)
        return np.asarray(self._start @ truth)

    def _find(self, name: str, stamp_ns: int) -> Any | None:
        kept = self._kept.get(name)
        return None if kept is None else kept.get(stamp_ns)

    def _last(self, name: str, stamp_ns: int) -> Any | None:
        """At a stamp or shortly before: wheels and cameras have stamps of their own."""
        kept: Mapping[int, Any] = self._kept.get(name, {})
        near = [s for s in kept if 0 <= stamp_ns - s <= NEAR_NS]
        return kept[max(near)] if near else None

    def _since(self, name: str, stamp_ns: int) -> tuple[Any, ...]:
        """All up to a stamp, taken out."""
        kept: OrderedDict[int, Any] = self._kept.get(name, OrderedDict())
        return tuple(kept.pop(s) for s in sorted(s for s in kept if s <= stamp_ns))

    def _newest(self, name: str) -> Any | None:
        kept = self._kept.get(name)
        return next(reversed(kept.values())) if kept else None


def pixels(message: Any) -> Any:
    """Of an image message with 8 bits: grey, or BGR; None for others."""
    channels = {"mono8": 1, "bgr8": 3, "rgb8": 3}.get(message.encoding)
    if channels is None:
        return None
    rows = np.asarray(message.data, dtype=np.uint8).reshape(message.height, message.step)
    picture = rows[:, : message.width * channels].reshape(message.height, message.width, channels)
    picture = picture[..., ::-1] if message.encoding == "rgb8" else picture
    return np.ascontiguousarray(picture if channels == 3 else picture[..., 0])


def camera_pose(T_w_child: Array, child_frame: str) -> Array:
    """T_w_c of an odometry: a child that is no camera is a base that the camera looks ahead of."""
    return T_w_child if "optical" in child_frame else T_w_child @ T_BASE_OPTICAL


class Drives:
    """The histories of one drive after the other; kept as OUT/1.npz, 2.npz when they end."""

    def __init__(self, out: str) -> None:
        self._folder = Path(out) if out else None
        self.newest, self._number = History(), 1

    def begin(self) -> History:
        """Keep the last one; the next one."""
        self.keep()
        self.newest, self._number = History(), self._number + 1
        return self.newest

    def keep(self) -> None:
        """Write the newest one, where anything is in it and a folder was given."""
        if self._folder is not None and self.newest.count:
            with whole_file(self._folder / f"{self._number}.npz") as file:
                file.write(self.newest.dumps())
