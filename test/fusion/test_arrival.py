"""The rule by which measurements wait for each other."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from hydranet_ros.fusion.arrival import Partners
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.ros.image_input import MOST_UNMATCHED, Matcher


class Desk:
    """Partners with a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.partners = Partners(100, 0.5, lambda: self.now)

    def vo(self, first: int, second: int) -> list[tuple[int, str]]:
        motion = RelativePose(np.eye(4), np.eye(6), first, second)
        self.partners.add("vo", motion, self.now)
        return self.out()

    def rotation(self, first: int, second: int) -> list[tuple[int, str]]:
        turn = RelativeRotation(np.eye(3), np.eye(3), first, second)
        self.partners.add("rotation", turn, self.now)
        return self.out()

    def out(self) -> list[tuple[int, str]]:
        return [(g.stamp_ns, "+".join(sorted(g.measurements))) for g in self.partners.ready()]


def test_partners_leave_together_whoever_comes_first() -> None:
    desk = Desk()
    assert desk.vo(0, 1000) == []
    assert desk.rotation(0, 1000) == [(1000, "rotation+vo")]
    assert desk.rotation(1000, 2000) == []
    assert desk.vo(1000, 2050) == [(2000, "rotation+vo")]  # within the tolerance


def test_what_the_other_has_passed_is_not_waited_for() -> None:
    desk = Desk()
    assert desk.rotation(0, 1000) == []
    assert desk.rotation(1000, 2000) == []
    # VO bridged the frame at 1000.
    assert desk.vo(0, 2000) == [(1000, "rotation"), (2000, "rotation+vo")]


def test_a_source_that_says_it_has_none_is_not_waited_for() -> None:
    desk = Desk()
    desk.rotation(0, 1000)
    desk.partners.heard("vo", 1000)
    assert desk.out() == [(1000, "rotation")]


def test_groups_leave_in_order() -> None:
    desk = Desk()
    desk.vo(0, 1000)
    desk.vo(1000, 2000)
    assert desk.rotation(1000, 2000) == [(1000, "vo"), (2000, "rotation+vo")]


def test_an_absent_source_delays_one_group_only() -> None:
    desk = Desk()
    assert desk.vo(0, 1000) == []
    desk.now = 0.4
    assert desk.out() == []
    desk.now = 0.6
    assert desk.out() == [(1000, "vo")]
    assert desk.vo(1000, 2000) == [(2000, "vo")]
    # It is back: the late one goes on its own, and then it is waited for again.
    assert desk.rotation(0, 1000) == [(1000, "rotation")]
    assert desk.vo(2000, 3000) == []
    assert desk.rotation(2000, 3000) == [(3000, "rotation+vo")]


def test_left_and_right_are_matched_by_stamp() -> None:
    matcher = Matcher(2, tolerance_ns=5)
    assert matcher.add(0, 100, "l100") is None
    assert matcher.add(1, 103, "r103") == ("l100", "r103")
    assert matcher.add(0, 200, "l200") is None
    assert matcher.add(0, 300, "l300") is None
    assert matcher.add(1, 300, "r300") == ("l300", "r300")
    assert matcher.unmatched == 1  # l200, whose right one never came
    assert matcher.add(1, 200, "r200") is None


def test_unmatched_images_do_not_pile_up() -> None:
    matcher = Matcher(2, tolerance_ns=0)
    for stamp in range(1000):
        assert matcher.add(0, stamp, object()) is None
    assert matcher.unmatched == 1000 - MOST_UNMATCHED
    assert matcher.add(1, 999, "right") is not None
