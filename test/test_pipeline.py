from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.pipeline import Odometer
from hydranet_ros.stereo_vo.result import Lost, VOResult, VOStatistics

FORWARD = np.array([0.0, 0.0, -1.0, 0.0, 0.02, 0.0])  # Log(T_2_1) per frame: 1 m ahead, a turn
PERIOD = 10**8


def moved(first: int, last: int) -> VOResult:
    T = lie.se3_exp(FORWARD * (last - first))
    pose = RelativePose(T, np.eye(6) * 1e-4, first * PERIOD, last * PERIOD)
    return VOResult(last * PERIOD, first * PERIOD, pose, None, VOStatistics())


def lost(frame: int) -> VOResult:
    return VOResult(frame * PERIOD, 0, None, Lost.FLAT_IMAGE, VOStatistics())


def truth(count: int) -> np.ndarray:
    return lie.se3_exp(-FORWARD * np.arange(count)[:, None])


def test_motions_are_chained() -> None:
    odometer = Odometer()
    for i in range(6):
        odometer.add(lost(0) if i == 0 else moved(i - 1, i))
    np.testing.assert_allclose(odometer.T_w_c, truth(6), atol=1e-12)
    assert odometer.lost == 0


def test_a_start_pose_is_kept() -> None:
    start = lie.se3_exp([1.0, 2.0, 3.0, 0.1, 0.2, 0.3])
    odometer = Odometer(start)
    odometer.add(lost(0))
    odometer.add(moved(0, 1))
    np.testing.assert_allclose(odometer.T_w_c[1], start @ truth(2)[1], atol=1e-12)


def test_lost_frames_go_on_at_the_last_velocity_and_are_counted() -> None:
    odometer = Odometer()
    for result in (lost(0), moved(0, 1), lost(2), lost(3)):
        odometer.add(result)
    np.testing.assert_allclose(odometer.T_w_c, truth(4), atol=1e-12)
    assert odometer.lost == 2


def test_a_bridged_motion_puts_the_frames_between_on_its_way() -> None:
    odometer = Odometer()
    for result in (lost(0), lost(1), lost(2), moved(0, 3)):
        odometer.add(result)
    np.testing.assert_allclose(odometer.T_w_c, truth(4), atol=1e-12)
    assert odometer.lost == 2


def test_a_motion_from_an_unknown_frame_is_misuse() -> None:
    odometer = Odometer()
    odometer.add(lost(0))
    with pytest.raises(ValueError, match="is not in list"):
        odometer.add(moved(5, 6))
