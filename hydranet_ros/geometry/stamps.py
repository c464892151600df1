"""Stamps: which belong together, and in which order they come.

Live and offline obey these rules alike: images of a pair are matched by `StampMatcher`, messages
of several sources are put in order by `StampOrder`, and two stamps are the same instant where
`nearest` says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import BadInput

M = TypeVar("M")

Stamps = NDArray[np.int64]

# The left and right image of a pair are stamped within this, unless a user says else.
PAIR_TOLERANCE_S = 1e-3
# Images that wait for the other side of their pair.
MOST_UNMATCHED = 10
# After time went back in one source, what another sends from before is ahead by more than this.
STALE_S = 10.0


def nearest(stamps: Iterable[int], stamp: int, tolerance_ns: int) -> int | None:
    """The nearest of `stamps` to `stamp`, None where none is within the tolerance."""
    found = min(stamps, key=lambda other: abs(other - stamp), default=None)
    return None if found is None or abs(found - stamp) > tolerance_ns else found


def nearest_rows(known: Stamps, wanted: Stamps) -> tuple[NDArray[np.intp], Stamps]:
    """For each of `wanted`, the row of the nearest of `known` (sorted), and how far it is."""
    after = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    before = np.maximum(after - 1, 0)
    to_after, to_before = np.abs(known[after] - wanted), np.abs(known[before] - wanted)
    return np.where(to_before <= to_after, before, after), np.minimum(to_before, to_after)


class StampMatcher(Generic[M]):
    """Match the messages of several sides by stamp; what is older than a match is let go."""

    def __init__(self, sides: int, tolerance_ns: int) -> None:
        self.tolerance_ns = tolerance_ns
        self._waiting: list[dict[int, M]] = [{} for _ in range(sides)]
        self.unmatched = 0

    def clear(self) -> None:
        """Forget what waits."""
        for waiting in self._waiting:
            waiting.clear()

    def add(self, side: int, stamp: int, message: M) -> tuple[M, ...] | None:
        """All sides of this stamp, once the last of them is here."""
        self._waiting[side][stamp] = message
        found = [nearest(waiting, stamp, self.tolerance_ns) for waiting in self._waiting]
        if None in found:
            if len(self._waiting[side]) > MOST_UNMATCHED:
                self._let_go(self._waiting[side], min(self._waiting[side]))
            return None
        match = tuple(w.pop(s) for w, s in zip(self._waiting, found, strict=True) if s is not None)
        for waiting in self._waiting:
            self._let_go(waiting, stamp)
        return match

    def _let_go(self, waiting: dict[int, M], until: int) -> None:
        for stamp in [each for each in waiting if each <= until]:
            del waiting[stamp]
            self.unmatched += 1


class StampOrder:
    """The newest stamp of each source, and what a new one means."""

    def __init__(self) -> None:
        self._newest: dict[Hashable, int] = {}

    def clear(self) -> None:
        """Forget all sources: any stamp may come next."""
        self._newest.clear()

    def went_back(self, source: Hashable, stamp: int) -> bool:
        """Note a stamp, and say whether time went back: then whatever was known is void.

        A BadInput refuses an equal stamp, and one that is left over from before time went back.
        """
        last = self._newest.get(source)
        others = [newest for name, newest in self._newest.items() if name != source]
        if last is None and others and stamp - max(others) > STALE_S * 1e9:
            raise BadInput("stale", f"stamp {stamp} ns is far ahead: from before time went back")
        if last is not None and stamp == last:
            raise BadInput("equal stamps", f"two messages have stamp {stamp} ns")
        back = last is not None and stamp < last
        if back:
            self.clear()
        self._newest[source] = stamp
        return back
