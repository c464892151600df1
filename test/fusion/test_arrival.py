"""The rule by which measurements wait for each other."""

from __future__ import annotations

import numpy as np

from hydranet_ros.fusion.arrival import ODOMETRY, MeasurementPairing
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation


class Desk:
    """A pairing with a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pairing = MeasurementPairing(100, 0.5, lambda: self.now)

    def vo(self, first: int, second: int) -> list[tuple[int, str]]:
        motion = RelativePose(np.eye(4), np.eye(6), first, second)
        self.pairing.add(motion)
        return self.out()

    def rotation(self, first: int, second: int) -> list[tuple[int, str]]:
        turn = RelativeRotation(np.eye(3), np.eye(3), first, second)
        self.pairing.add(turn)
        return self.out()

    def out(self) -> list[tuple[int, str]]:
        return [(g.stamp_ns, "+".join(sorted(g.measurements))) for g in self.pairing.ready()]


def test_both_sources_of_an_interval_leave_together() -> None:
    desk = Desk()
    assert desk.vo(0, 1000) == []
    assert desk.rotation(0, 1000) == [(1000, "odometry+rotation")]
    assert desk.rotation(1000, 2000) == []
    assert desk.vo(1000, 2050) == [(2000, "odometry+rotation")]  # within the tolerance


def test_what_the_other_has_passed_is_not_waited_for() -> None:
    desk = Desk()
    assert desk.rotation(0, 1000) == []
    assert desk.rotation(1000, 2000) == []
    # VO bridged the frame at 1000.
    assert desk.vo(0, 2000) == [(1000, "rotation"), (2000, "odometry+rotation")]


def test_a_source_that_says_it_has_none_is_not_waited_for() -> None:
    desk = Desk()
    desk.rotation(0, 1000)
    desk.pairing.passed(ODOMETRY, 1000)
    assert desk.out() == [(1000, "rotation")]


def test_groups_leave_in_order() -> None:
    desk = Desk()
    desk.vo(0, 1000)
    desk.vo(1000, 2000)
    assert desk.rotation(1000, 2000) == [(1000, "odometry"), (2000, "odometry+rotation")]


def test_an_absent_source_delays_one_group_only() -> None:
    desk = Desk()
    assert desk.vo(0, 1000) == []
    desk.now = 0.4
    assert desk.out() == []
    desk.now = 0.6
    assert desk.out() == [(1000, "odometry")]
    assert desk.vo(1000, 2000) == [(2000, "odometry")]
    # It is back: the late one goes on its own, and then it is waited for again.
    assert desk.rotation(0, 1000) == [(1000, "rotation")]
    assert desk.vo(2000, 3000) == []
    assert desk.rotation(2000, 3000) == [(3000, "odometry+rotation")]
