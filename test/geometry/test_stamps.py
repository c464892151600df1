"""Which stamps belong together, and in which order they come."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry.stamps import (
    LEFT_OVER_S,
    MOST_UNMATCHED,
    Leftovers,
    StampMatcher,
    StampOrder,
    nearest,
    nearest_rows,
)

STAMPS = st.lists(st.integers(0, 10**6), min_size=1, max_size=30, unique=True)


@given(STAMPS, st.integers(-10, 10**6 + 10), st.integers(0, 1000))
def test_the_nearest_is_within_the_tolerance_or_none(
    stamps: list[int], stamp: int, t: int
) -> None:
    best = min(abs(each - stamp) for each in stamps)
    found = nearest(stamps, stamp, t)
    assert (found is None) == (best > t)
    assert found is None or abs(found - stamp) == best


def test_of_nothing_nothing_is_near() -> None:
    assert nearest([], 5, 100) is None


@given(STAMPS, STAMPS)
def test_rows_are_those_of_the_nearest(known: list[int], wanted: list[int]) -> None:
    sorted_known = np.array(sorted(known), dtype=np.int64)
    rows, apart = nearest_rows(sorted_known, np.array(wanted, dtype=np.int64))
    for row, distance, stamp in zip(rows, apart, wanted, strict=True):
        assert abs(sorted_known[row] - stamp) == distance == min(abs(k - stamp) for k in known)


def test_left_and_right_are_matched_by_stamp() -> None:
    matcher = StampMatcher(2, tolerance_ns=5)
    assert matcher.add(0, 100, "l100") is None
    assert matcher.add(1, 103, "r103") == ("l100", "r103")
    assert matcher.add(0, 200, "l200") is None
    assert matcher.add(0, 300, "l300") is None
    assert matcher.add(1, 300, "r300") == ("l300", "r300")
    assert matcher.unmatched == 1  # l200, whose right one never came
    assert matcher.add(1, 200, "r200") is None


def test_unmatched_images_do_not_pile_up() -> None:
    matcher = StampMatcher(2, tolerance_ns=0)
    for stamp in range(1000):
        assert matcher.add(0, stamp, object()) is None
    assert matcher.unmatched == 1000 - MOST_UNMATCHED
    assert matcher.add(1, 999, "right") is not None


@pytest.mark.parametrize("apart_ms", [0.0, 0.5, 20.0, 40.0])
def test_cameras_that_are_not_synchronised_are_matched_with_the_nearest(apart_ms: float) -> None:
    """At 10 Hz: once the time between frames is known, up to nearly half of it."""
    matcher: StampMatcher[int] = StampMatcher(2, 1_000_000, learn=True)
    pairs = []
    for i in range(20):
        left = i * 100_000_000
        right = left + round(apart_ms * 1e6)
        for side, stamp in ((0, left), (1, right)):
            pair = matcher.add(side, stamp, stamp)
            pairs += [] if pair is None else [pair]
    assert len(pairs) >= (20 if apart_ms <= 1.0 else 15)
    assert all(right - left == round(apart_ms * 1e6) for left, right in pairs)


# --- order ---------------------------------------------------------------------------------------

STEP = 100


class Stream:
    """Several sources put in order, and what came of it."""

    def __init__(self) -> None:
        self.order: StampOrder[int] = StampOrder()
        self.due: list[tuple[object, int]] = []
        self.outliers: list[int] = []
        self.resets = 0

    def add(self, source: str, *stamps: int) -> None:
        for stamp in stamps:
            arrival = self.order.add(source, stamp, stamp)
            self.due += arrival.items
            self.outliers += arrival.outliers
            self.resets += arrival.went_back

    def of(self, source: str) -> list[int]:
        return [stamp for name, stamp in self.due if name == source]


def steady(first: int, count: int) -> range:
    return range(first, first + count * STEP, STEP)


def test_each_source_goes_on_by_itself() -> None:
    stream = Stream()
    stream.add("left", *steady(1000, 6))
    stream.add("right", *steady(990, 6))
    stream.add("left", *steady(1600, 3))
    assert stream.of("left") == list(steady(1000, 9))
    assert stream.of("right") == list(steady(990, 6))
    assert (stream.outliers, stream.resets) == ([], 0)


def test_an_equal_stamp_is_refused() -> None:
    stream = Stream()
    stream.add("left", 100)
    with pytest.raises(BadInput, match="two messages have stamp 100 ns"):
        stream.add("left", 100)
    stream.add("left", 101)
    assert stream.of("left") == [100, 101]


@given(st.integers(4, 20), st.integers(-(10**9), 10**12))
def test_a_lone_stamp_out_of_order_changes_nothing(at: int, wrong: int) -> None:
    """Ahead or back, by whatever; then it goes on as before."""
    stream, stamps = Stream(), list(steady(10**6, 30))
    expected = wrong not in stamps and not 0 < wrong - stamps[at - 1] <= 3.5 * STEP
    stream.add("wheels", *stamps[:at])
    if wrong in stamps or not expected:
        return
    stream.add("wheels", wrong, *stamps[at:])
    assert stream.of("wheels") == stamps
    assert (stream.outliers, stream.resets) == ([wrong], 0)


def test_two_swapped_stamps_cost_one_message() -> None:
    stream = Stream()
    stamps = list(steady(1000, 12))
    stream.add("image", *stamps[:5], stamps[6], stamps[5], *stamps[7:])
    assert stream.of("image") == [*stamps[:5], *stamps[6:]]
    assert (stream.outliers, stream.resets) == ([stamps[5]], 0)


def test_a_gap_is_confirmed_by_the_next_message_and_nothing_is_lost() -> None:
    stream = Stream()
    stamps = [*steady(1000, 6), *steady(10**7, 4)]
    stream.add("image", *stamps[:7])
    assert stream.of("image") == stamps[:6]
    stream.add("image", *stamps[7:])
    assert stream.of("image") == stamps
    assert (stream.outliers, stream.resets) == ([], 0)


@pytest.mark.parametrize("slower", [5, 10, 50])
def test_a_source_that_becomes_slower_goes_on(slower: int) -> None:
    stream = Stream()
    stamps = [*steady(1000, 10), *range(2000, 2000 + 8 * slower * STEP, slower * STEP)]
    stream.add("image", *stamps)
    assert stream.of("image") == stamps
    assert (stream.outliers, stream.resets) == ([], 0)


def test_a_loop_is_noticed_once_and_nothing_is_lost() -> None:
    """Both sources begin again, one after the other, with leftovers of the old time between."""
    stream = Stream()
    first, again = list(steady(10**9, 20)), list(steady(10**9, 20))
    late = first[-1] + 5 * 10**9  # far from the new time
    for left, right in zip(first, first, strict=True):
        stream.add("left", left)
        stream.add("right", right)
    stream.due.clear()
    stream.add("left", *again[:2])
    stream.add("right", late)
    stream.add("right", *again[:2])
    assert (stream.due, stream.resets) == ([], 0)
    stream.add("left", again[2])
    assert (stream.of("left"), stream.resets) == (again[:3], 1)
    stream.add("right", again[2])
    assert stream.of("right")[-3:] == again[:3]
    for left, right in zip(again[3:], again[3:], strict=True):
        stream.add("left", left)
        stream.add("right", right)
    assert stream.of("left") == again
    assert [each for each in stream.of("right") if each != late] == again
    assert stream.resets == 1


def test_a_source_that_begins_much_later_is_believed_soon() -> None:
    """Wheels first heard 15 s after a gyro that has died, or the other way round."""
    stream = Stream()
    stream.add("rotation", *steady(10**9, 20))
    later = list(range(10**9 + 15 * 10**9, 10**9 + 16 * 10**9, 10**8))
    stream.add("odometry", *later)
    assert stream.of("odometry") == later
    assert stream.resets == 0


@given(st.lists(st.integers(0, 10**10), max_size=60))
def test_whatever_comes_what_is_due_increases_between_resets(stamps: list[int]) -> None:
    order: StampOrder[int] = StampOrder()
    last = -1
    for stamp in stamps:
        try:
            arrival = order.add("any", stamp, stamp)
        except BadInput:
            continue
        last = -1 if arrival.went_back else last
        for _, due in arrival.items:
            assert due > last
            last = due


@pytest.mark.parametrize(
    ("heard", "before", "now", "then", "held"),
    [
        (59.9, 60.0, 10.0, [60.0, 60.1, 10.1, 60.2], [True, True, False, False]),
        (59.9, 60.0, 10.0, [10.1, 60.0], [False, False]),
        (63.0, 60.0, 10.0, [13.1, 13.2], [False, False]),  # the camera's clock is ahead
        (1e9, 60.0, 10.0, [1e9 + 0.1, 1e9 + 0.2], [False, False]),  # stamps are not of /clock
        (59.9, 60.0, 59.99, [60.0, 60.1], [False, False]),  # two who publish /clock
        (None, 60.0, 10.0, [10.1], [False]),
    ],
)
def test_which_message_was_on_its_way(
    heard: float | None, before: float, now: float, then: list[float], held: list[bool]
) -> None:
    leftovers = Leftovers()
    if heard is not None:
        assert not leftovers.holds(round(heard * 1e9))
    leftovers.jump(round(before * 1e9), round(now * 1e9))
    assert [leftovers.holds(round(each * 1e9)) for each in then] == held


def test_what_comes_long_after_a_jump_was_not_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its stamp is: a source must never be silenced for good."""
    leftovers = Leftovers()
    leftovers.holds(59 * 10**9)
    leftovers.jump(60 * 10**9, 10 * 10**9)
    assert leftovers.holds(60 * 10**9)
    later = time.monotonic() + LEFT_OVER_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not leftovers.holds(60 * 10**9 + 1)
