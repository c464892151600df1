"""Standing still: the pose is held, and a motion that has just begun is not denied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.standing import (
    FREE,
    HELD_DEG,
    HELD_M,
    STILL_M_S,
    STILL_RAD_S,
    firmly,
    held,
    loosely,
)
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

SIGMA_VO = np.diag([1e-4**2] * 3 + [np.deg2rad(0.003) ** 2] * 3)
SIGMA_GYRO = np.eye(3) * np.deg2rad(0.016) ** 2
TURN = np.array([0.0, 0.0, 0.0, 0.0, np.deg2rad(2.0), 0.0])


def driven(
    motions: np.ndarray, rate_hz: float, seed: int, Sigma_vo: np.ndarray = SIGMA_VO
) -> Iterator[FusedState]:
    """The states of motions (n, 6), by odometry and rotations with white errors."""
    rng, fusion = np.random.default_rng(seed), Fusion(FusionConfig(odometry="own"))
    stamps = np.round(np.arange(len(motions) + 1) * 1e9 / rate_hz).astype(np.int64).tolist()
    for i, T in enumerate(lie.se3_exp(motions)):
        odometry = lie.se3_exp(rng.normal(size=6) * np.sqrt(np.diag(Sigma_vo))) @ T
        turned = lie.so3_exp(rng.normal(size=3) * np.sqrt(np.diag(SIGMA_GYRO))) @ T[:3, :3]
        span = stamps[i], stamps[i + 1]
        yield from fusion.add(
            RelativePose(odometry, Sigma_vo, *span), RelativeRotation(turned, SIGMA_GYRO, *span)
        )


def test_a_motion_that_has_just_begun_is_known_as_well_as_it_is_said() -> None:
    """Within the last step that passes for standing, it has moved already."""
    nees = []
    for seed in range(20):
        rng = np.random.default_rng(100 + seed)
        begun = 0.1 * rng.uniform() * np.repeat([0.5 * STILL_M_S, 0.5 * STILL_RAD_S], 3) / 3**0.5
        motions = np.array([np.zeros(6)] * 15 + [begun * rng.choice([-1.0, 1.0], 6)] + [TURN] * 3)
        states = list(driven(motions, 10.0, seed))
        assert [state.still for state in states[10:]] == [True] * 6 + [False] * 3
        state = states[15]
        assert state.T_2_1 is not None
        assert state.Sigma_2_1 is not None
        error = lie.se3_log(state.T_2_1 @ lie.se3_inverse(lie.se3_exp(motions[15])))
        nees.append(error @ np.linalg.solve(state.Sigma_2_1, error) / 6.0)
    assert np.mean(nees) < 2.0
    assert max(nees) < 4.0


@pytest.mark.parametrize("rate_hz", [5.0, 10.0, 60.0])
def test_long_standing_adds_hardly_anything(rate_hz: float) -> None:
    still = np.zeros((round(20.0 * rate_hz), 6))
    states = list(driven(still, rate_hz, 0, SIGMA_VO * (5.0 / rate_hz) ** 2))
    assert all(state.still for state in states[-10:])
    early, late = states[len(states) // 2 - 1], states[-1]
    seconds = (late.stamp_ns - early.stamp_ns) * 1e-9
    grown = np.diag(late.Sigma_c_w - early.Sigma_c_w)
    firm = np.array([HELD_M] * 3 + [np.deg2rad(HELD_DEG)] * 3) ** 2 * seconds
    assert (grown <= 1.001 * firm).all()
    error = lie.se3_log(late.T_w_c)
    assert error @ np.linalg.solve(late.Sigma_c_w, error) < 22.5  # 1 in 1000


def test_what_is_not_known_to_stand_is_free() -> None:
    """Without odometry only the turn is held, loosely and firmly."""
    assert held(None, True, True) == (False, True)
    loose = loosely(False, True, 0.1)
    firm = firmly(loose, 0.1)
    assert (loose[:3] == FREE**2).all()
    assert (firm[:3] == FREE**2).all()
    assert (firm[3:] < loose[3:]).all()
