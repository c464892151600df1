"""Which stamps belong together, and in which order they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry.stamps import (
    MOST_UNMATCHED,
    STALE_S,
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


# --- order ---------------------------------------------------------------------------------------


def test_each_source_goes_on_by_itself() -> None:
    order = StampOrder()
    assert not order.went_back("left", 100)
    assert not order.went_back("right", 90)
    assert not order.went_back("left", 200)
    assert not order.went_back("right", 95)


def test_an_equal_stamp_is_refused() -> None:
    order = StampOrder()
    order.went_back("left", 100)
    with pytest.raises(BadInput, match="two messages have stamp 100 ns"):
        order.went_back("left", 100)
    assert not order.went_back("left", 101)


def test_what_is_left_over_from_before_time_went_back_is_refused() -> None:
    order, late = StampOrder(), round(2 * STALE_S * 1e9)
    for source in ("left", "right"):
        order.went_back(source, late)
    assert order.went_back("left", 10)
    with pytest.raises(BadInput, match="from before time went back"):
        order.went_back("right", late + 1)
    assert not order.went_back("right", 11)
