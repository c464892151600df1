"""Stamps: which belong together, and in which order they come.

Live and offline obey these rules alike: images of a pair are matched by `StampMatcher`, messages
of several sources are put in order by `StampOrder`, and two stamps are the same instant where
`nearest` says so. `Leftovers` are messages that were on their way when a clock was set back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import BadInput

M = TypeVar("M")

Stamps = NDArray[np.int64]

# The left and right image of a pair are stamped within this, unless a user says else.
PAIR_TOLERANCE_S = 1e-3
# The nearest stamp is nearer than half a step; so far apart a pair is of no instant any more.
NEAR, MOST_APART_NS = 0.45, 50_000_000
# Images that wait for the other side of their pair.
MOST_UNMATCHED = 10
# A stamp is expected within so many usual steps of its source, or, before those are known, within
# this time: two frames may be lost, a longer gap must be confirmed by the next message.
HORIZON_STEPS, UNKNOWN_HORIZON_NS = 3.5, 2_000_000_000
RECENT_STEPS, FEW_STEPS = 20, 3
# The first message of a source is expected within this time of what other sources are at.
STALE_NS = 1_000_000_000
# The reason for a reset, where stamps went back for good.
WENT_BACK = "stamps went back"
# So many messages in a row that agree confirm a gap, and that time went back.
FORWARD_CONFIRMED, BACK_CONFIRMED = 2, 3
# Stamps and the clock agree within this; no queue holds messages for longer than that.
CLOCK_TOLERANCE_NS, LEFT_OVER_S = 1_000_000_000, 5.0


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
    """Match the messages of several sides by stamp; what is older than a match is let go.

    Stamps may differ by the tolerance. A matcher that learns also takes stamps within nearly half
    of the usual time between messages: cameras that are not synchronised are matched with the
    nearest image.
    """

    def __init__(self, sides: int, tolerance_ns: int, learn: bool = False) -> None:
        self.tolerance_ns = self._least_ns = tolerance_ns
        self._recent: list[deque[int]] = [deque(maxlen=RECENT_STEPS) for _ in range(sides * learn)]
        self._waiting: list[dict[int, M]] = [{} for _ in range(sides)]
        self.unmatched = 0

    def clear(self) -> None:
        """Forget what waits."""
        for waiting in self._waiting:
            waiting.clear()
        for recent in self._recent:
            recent.clear()

    def add(self, side: int, stamp: int, message: M) -> tuple[M, ...] | None:
        """All sides of this stamp, once the last of them is here."""
        if self._recent:
            self._learn(side, stamp)
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

    def _learn(self, side: int, stamp: int) -> None:
        """Take the usual step from the lower quartile: lost messages make steps longer."""
        self._recent[side].append(stamp)
        if all(len(stamps) > FEW_STEPS for stamps in self._recent):
            usual = min(_lower_quartile(stamps) for stamps in self._recent)
            self.tolerance_ns = max(self._least_ns, min(round(NEAR * usual), MOST_APART_NS))

    def _let_go(self, waiting: dict[int, M], until: int) -> None:
        for stamp in [each for each in waiting if each <= until]:
            del waiting[stamp]
            self.unmatched += 1


def _lower_quartile(stamps: Iterable[int]) -> float:
    """Of the steps between stamps. It is asked for with every image: NumPy would take longer."""
    steps = sorted(after - before for before, after in pairwise(stamps))
    place = 0.25 * (len(steps) - 1)
    low = int(place)
    high = min(low + 1, len(steps) - 1)
    return steps[low] + (place - low) * (steps[high] - steps[low])


@dataclass(frozen=True, eq=False)
class Arrival(Generic[M]):
    """What a stamp means: `items` are due now, in order; `outliers` are stamps to be forgotten.

    Where time `went_back`, all that was known before the items is void.
    """

    items: tuple[tuple[Hashable, M], ...] = ()
    outliers: tuple[int, ...] = ()
    went_back: bool = False


class StampOrder(Generic[M]):
    """Put the messages of several sources in order; a lone wrong stamp does no harm.

    A stamp is expected within some steps after the last one of its source. A message with any
    other stamp is held back until the next ones say what it was. If they go on from it, it was
    right: after a gap, or, once `BACK_CONFIRMED` agree, because time went back (a bag loops, a
    clock was reset). If they go on from before it, it was an outlier.
    """

    def __init__(self) -> None:
        self._sources: dict[Hashable, _Source[M]] = {}

    def clear(self) -> None:
        """Forget all sources: any stamp may come next."""
        self._sources.clear()

    def add(self, source: Hashable, stamp: int, item: M) -> Arrival[M]:
        """Take a message in. An equal stamp is a BadInput."""
        own = self._sources.setdefault(source, _Source())
        if stamp == own.newest:
            raise BadInput("equal stamps", f"two messages have stamp {stamp} ns")
        if self._expected(source, stamp):
            return self._accept(source, stamp, item)
        agrees = bool(own.held) and 0 < stamp - own.held[-1][0] <= own.agreement_ns
        outliers = () if agrees else tuple(each[0] for each in own.held)
        own.held = [*(own.held if agrees else ()), (stamp, item)]
        back = own.newest is not None and own.held[0][0] < own.newest
        needed = FORWARD_CONFIRMED if own.newest is not None and not back else BACK_CONFIRMED
        if len(own.held) < needed:
            return Arrival(outliers=outliers)
        if back:
            self._go_back(source)
        own.learn_pace()
        held, own.held = own.held, []
        own.newest = held[-1][0]
        return Arrival(tuple((source, each) for _, each in held), outliers, back)

    def _expected(self, source: Hashable, stamp: int) -> bool:
        own = self._sources[source]
        if own.newest is not None:
            return own.newest < stamp <= own.newest + own.horizon_ns
        others = [each.newest for each in self._sources.values() if each.newest is not None]
        return not others or abs(stamp - max(others)) <= STALE_NS

    def _accept(self, source: Hashable, stamp: int, item: M) -> Arrival[M]:
        """Held messages of a source that has just begun go with it, others were outliers."""
        own = self._sources[source]
        begun = own.newest is None
        kept = [each for each in own.held if begun and 0 < stamp - each[0] <= STALE_NS]
        outliers = tuple(each[0] for each in own.held if each not in kept)
        if own.newest is not None:
            own.steps.append(stamp - own.newest)
        own.newest, own.held = stamp, []
        items = (*(each for _, each in kept), item)
        return Arrival(tuple((source, each) for each in items), outliers)

    def _go_back(self, source: Hashable) -> None:
        """Forget when the other sources were; what they hold may be of the new time already."""
        for name, each in self._sources.items():
            if name != source:
                each.newest = None


class _Source(Generic[M]):
    """The newest stamp of a source, its usual step, and the messages that are held back."""

    def __init__(self) -> None:
        self.newest: int | None = None
        self.steps: deque[int] = deque(maxlen=RECENT_STEPS)
        self.held: list[tuple[int, M]] = []

    def learn_pace(self) -> None:
        """Take the steps of held messages that were confirmed; a new pace replaces the old one."""
        stamps = [stamp for stamp, _ in self.held]
        steps = [later - earlier for earlier, later in pairwise(stamps)]
        if max(steps) > self.horizon_ns:
            self.steps.clear()
        self.steps.extend(steps)

    @property
    def agreement_ns(self) -> int:
        """How far after a held message the next one may be: a source may have become slower."""
        since = 0 if self.newest is None else abs(self.held[0][0] - self.newest)
        return max(self.horizon_ns, min(2 * since, UNKNOWN_HORIZON_NS), since)

    @property
    def horizon_ns(self) -> int:
        """How far ahead a stamp is expected."""
        if len(self.steps) < FEW_STEPS:
            return UNKNOWN_HORIZON_NS
        return round(HORIZON_STEPS * median(self.steps))


class Leftovers:
    """What was still on its way when a clock jumped back: it must not begin a new state.

    A bag that loops in simulated time leaves its last messages in the queues. After the reset they
    would come first, and the new round would look like stamps that went back. A message is such a
    leftover where

        stamp after the last one of its topic,
        now + CLOCK_TOLERANCE < stamp < time before the jump + CLOCK_TOLERANCE,

    until the first that is none. Stamps of another clock are thus never held to be one.
    """

    def __init__(self) -> None:
        self._newest_ns: int | None = None
        self._span: tuple[int, int] | None = None  # of their stamps
        self._until = 0.0

    def jump(self, before_ns: int, now_ns: int) -> None:
        """Note a jump of the clock."""
        self._span = now_ns + CLOCK_TOLERANCE_NS, before_ns + CLOCK_TOLERANCE_NS
        self._until = time.monotonic() + LEFT_OVER_S

    def holds(self, stamp: int) -> bool:
        """Take the next stamp of the topic in; whether its message is a leftover."""
        if self._span is not None and self._newest_ns is not None:
            first, last = self._span
            in_time = time.monotonic() <= self._until
            if in_time and max(first, self._newest_ns) < stamp < last:
                return True
            self._span = None
        self._newest_ns = stamp
        return False
