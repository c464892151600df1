from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.fusion.error_models import BUMP_M, SLOPE, TILT_DEG, hold_to_ground
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose

UP = np.array([0.0, -1.0, 0.0])
WAY = lie.se3_exp([0.0, 0.0, -0.2, 0.0, 0.01, 0.0])


def test_what_wheels_do_not_know_is_held_by_the_ground() -> None:
    Sigma = np.diag([1e-4, 9.0, 1e-4, 0.09, 1e-6, 0.09])
    held = hold_to_ground(RelativePose(WAY, Sigma, 0, 100_000_000), UP).Sigma_2_1
    way = np.linalg.norm(WAY[:3, 3])
    tilt = np.deg2rad(TILT_DEG) ** 2
    lift = BUMP_M**2 + (SLOPE * way) ** 2
    assert np.diagonal(held) == pytest.approx([1e-4, lift, 1e-4, tilt, 1e-6, tilt])


def test_what_is_known_better_stays() -> None:
    Sigma = np.eye(6) * 1e-10
    held = hold_to_ground(RelativePose(WAY, Sigma, 0, 100_000_000), UP).Sigma_2_1
    np.testing.assert_allclose(held, Sigma)


def test_any_axis_may_be_up() -> None:
    up = np.array([0.6, 0.0, 0.8])
    Sigma = np.eye(6) * 4.0
    held = hold_to_ground(RelativePose(WAY, Sigma, 0, 100_000_000), up).Sigma_2_1
    assert up @ held[:3, :3] @ up < 1e-3
    assert up @ held[3:, 3:] @ up == pytest.approx(4.0)
    across = np.array([0.8, 0.0, -0.6])
    assert across @ held[3:, 3:] @ across == pytest.approx(np.deg2rad(TILT_DEG) ** 2)
