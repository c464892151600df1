"""Errors of scale: factors, and what the window finds of a robot's track and focal length."""

from __future__ import annotations

import numpy as np
import pytest
from fusion.test_factors import INDEX, check_jacobian, measured, random_states, relative
from fusion.test_rates import Robot, run, wheels

from hydranet_ros.fusion import calibration, factors
from hydranet_ros.fusion.calibration import CalibrationConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.factors import Linear, States
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.geometry import lie


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_scaled_edges(seed: int, spread: float) -> None:
    """Residuals are their definitions, Jacobians those of finite differences."""
    rng = np.random.default_rng(seed)
    states = random_states(rng)
    T, C = measured(rng, states, spread), measured(rng, states, spread)[:, :3, :3]
    dt = np.array([0.1, 0.35, 1.2])
    given = factors.EdgeFactors(INDEX, INDEX, np.concatenate([T[:, :3, :3], C]), T[:, :3, 3], dt)

    def linearise(s: States) -> tuple[Linear, Linear]:
        return calibration.linearise_scaled(s, given)

    poses, rotations = linearise(states)
    T_b_a = relative(states, INDEX[:, 0], INDEX[:, 1])
    g, y, d = (1.0 + states.s[INDEX[:, 1]]).T
    seen = lie.se3_exp(lie.se3_log(T_b_a) * np.stack([d, d, d, y, y, y], axis=1))
    expected = lie.se3_log(seen @ lie.se3_inverse(T))
    np.testing.assert_allclose(poses.residual, expected, atol=1e-8)
    turned = lie.so3_exp(lie.so3_log(T_b_a[:, :3, :3]) * g[:, None])
    turned = lie.so3_exp(states.b[INDEX[:, 1]] * dt[:, None]) @ turned
    expected = lie.so3_log(turned @ np.swapaxes(C, 1, 2))
    np.testing.assert_allclose(rotations.residual, expected, atol=1e-9)
    check_jacobian(lambda s: linearise(s)[0], states, INDEX, calibration.SCALED_POSES)
    check_jacobian(lambda s: linearise(s)[1], states, INDEX, calibration.SCALED_ROTATIONS)


def test_scale_walk() -> None:
    states = random_states(np.random.default_rng(0))
    check_jacobian(
        lambda s: calibration.scale_walk(s, INDEX), states, INDEX, calibration.TWO_SCALES
    )


def newest(robot: Robot, **changes: float) -> FusedState:
    fusion = Fusion(wheels(calibration=CalibrationConfig(**changes)))
    return [state for states in run(robot, fusion) for state in states][-1]


@pytest.mark.parametrize("yaw_error", [-0.08, 0.0, 0.12])
def test_the_track_is_found(yaw_error: float) -> None:
    state = newest(Robot(1500, yaw_error=yaw_error))
    assert state.Sigma_scales is not None
    sigma = np.sqrt(np.diagonal(state.Sigma_scales))
    assert abs(state.scales[1] - yaw_error) < 3.0 * sigma[1]
    assert abs(state.scales[1] - yaw_error) < 0.02
    assert sigma[1] < 0.3 * CalibrationConfig().yaw_sigma
    assert abs(state.scales[0]) < CalibrationConfig().gyro_sigma


def test_what_cannot_be_told_apart_is_shared_out_by_the_priors() -> None:
    """Only y - g is seen: with a focal length as uncertain as the track, each has half of it."""
    state = newest(Robot(1500, yaw_error=0.1), gyro_sigma=0.1, gyro_walk=1e-3)
    assert state.Sigma_scales is not None
    assert state.scales[1] - state.scales[0] == pytest.approx(0.1, abs=0.03)
    assert state.scales[1] == pytest.approx(0.05, abs=0.02)
    assert np.sqrt(state.Sigma_scales[1, 1]) > 0.05, "and it says so"


def test_distance_stays_off_where_nobody_else_knows_it() -> None:
    state = newest(Robot(500))
    assert abs(state.scales[2]) < 1e-6


def test_scales_can_be_off() -> None:
    state = newest(Robot(300), wheels=False)
    assert state.Sigma_scales is None
    np.testing.assert_array_equal(state.scales, 0.0)


def test_the_output_takes_the_error_out_at_once() -> None:
    """With the track known, a late camera costs little: between rotations the wheels are right."""
    late = Robot(1200, rotation_delay_ms=400, yaw_error=0.1)
    errors = {}
    for on in (True, False):
        fusion = Fusion(wheels(calibration=CalibrationConfig(wheels=on)))
        live = [states[-1] for states in run(late, fusion) if states][600:]
        errors[on] = np.median([late.turn_error_deg(state) for state in live])
    assert errors[True] < 0.7 * errors[False]
