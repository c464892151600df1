from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.error_models import OdometryModel, RotationModel
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

MS = 1_000_000


def motion(step_ms: int, turn: float = 0.0, way: float = 0.0) -> RelativePose:
    T = lie.se3_exp([0.0, 0.0, -way, 0.0, turn, 0.0])
    return RelativePose(T, np.eye(6) * 1e-16, 0, step_ms * MS)


def drifted(model: OdometryModel, steps: int, dt: float, runs: int) -> np.ndarray:
    """(runs,): the angle that white noise and a first-order Gauss-Markov rate add up to."""
    rng = np.random.default_rng(steps)
    keep = np.exp(-dt / model.drift_s)
    sigma = np.deg2rad(model.drift_deg_s)
    rate, angle = rng.normal(size=runs) * sigma, np.zeros(runs)
    for _ in range(steps):
        white = rng.normal(size=runs) * np.deg2rad(model.floor_deg) * np.sqrt(dt / 0.1)
        angle += rate * dt + white
        rate = keep * rate + np.sqrt(1.0 - keep**2) * sigma * rng.normal(size=runs)
    return angle


@pytest.mark.parametrize("steps", [1, 10, 100, 1000])
def test_covariances_cover_a_drift_that_persists(steps: int) -> None:
    """Monte Carlo: a step is as its step covariance says, many are as the long run says."""
    model = OdometryModel(floor_deg=0.03, drift_deg_s=0.11, drift_s=2.0)
    drawn = float(np.var(drifted(model, steps, 0.1, 4000)))
    believed = steps * model.covariance(motion(100))[4, 4]
    assert drawn < 1.1 * believed, "never over-confident"
    if steps == 1:
        assert drawn == pytest.approx(model.step_covariance(motion(100))[4, 4], rel=0.1)
    if steps == 1000:
        assert drawn == pytest.approx(believed, rel=0.15)


@pytest.mark.parametrize("model", [OdometryModel(drift_deg_s=0.2, turn_share=0.1)])
def test_nothing_depends_on_how_often_a_source_sends(model: OdometryModel) -> None:
    fast = [model.covariance(motion(10, 0.01, 0.1)) for _ in range(100)]
    slow = [model.covariance(motion(100, 0.1, 1.0)) for _ in range(10)]
    np.testing.assert_allclose(sum(fast), sum(slow), rtol=1e-6)


def test_shares_of_turn_and_way() -> None:
    model = OdometryModel(scale=1.0, floor_m=0.0, floor_deg=0.0, turn_share=0.1)
    turned = model.covariance(motion(100, turn=1.0))
    assert np.sqrt(turned[4, 4]) == pytest.approx(0.1, rel=1e-6)
    model = OdometryModel(scale=1.0, floor_m=0.0, floor_deg=0.0, distance_share=0.02)
    gone = model.covariance(motion(100, way=10.0))
    assert np.sqrt(gone[2, 2]) == pytest.approx(0.2, rel=1e-6)


def test_a_step_has_of_a_share_what_it_has_turned() -> None:
    """A track that is 10 % wrong shows 10 % of a short turn, however much a long one may have."""
    model = OdometryModel(scale=1.0, floor_m=0.0, floor_deg=0.0, turn_share=0.1)
    step = model.step_covariance(motion(100, turn=0.02))
    assert np.sqrt(step[4, 4]) == pytest.approx(0.1 * 0.02, rel=1e-5)
    model = OdometryModel(scale=1.0, floor_m=0.0, floor_deg=0.0, distance_share=0.02)
    assert np.sqrt(model.step_covariance(motion(100, way=0.5))[2, 2]) == pytest.approx(0.01)


def test_each_source_has_its_model() -> None:
    config = FusionConfig()
    assert config.odometry_model is config.visual
    assert config.rotation_model is config.gyro
    assert not config.with_bias
    network = FusionConfig(rotation="hydranet", odometry="wheels")
    assert network.rotation_model is network.hydranet
    assert network.odometry_model is network.wheels
    assert network.with_bias


def test_the_gyro_is_believed_as_it_says() -> None:
    Sigma = np.diag([1e-6, 2e-6, 3e-6])
    rotation = RelativeRotation(np.eye(3), Sigma, 0, 100 * MS)
    floor = np.deg2rad(0.005) ** 2
    np.testing.assert_allclose(RotationModel().covariance(rotation), Sigma + floor * np.eye(3))


def test_the_persistent_part_of_a_rotation_by_monte_carlo() -> None:
    """Rate errors that last for tau, over many steps: the variance of their sum is the long run's.

    A single step has only what was published.
    """
    rng, tau, dt, steps, sigma = np.random.default_rng(0), 2.0, 0.1, 200, 0.01
    keep = np.exp(-dt / tau)
    rate = sigma * rng.normal(size=4000)
    sums = np.zeros(4000)
    for _ in range(steps):
        sums += rate * dt
        rate = keep * rate + sigma * np.sqrt(1.0 - keep**2) * rng.normal(size=4000)
    persistent = np.eye(3) * (sigma * dt) ** 2
    rotation = RelativeRotation(
        np.eye(3), 1.5 * persistent, 0, round(dt * 1e9), None, persistent, tau
    )
    model = RotationModel(floor_deg=0.0, scale_noise=0.0)
    believed = steps * (model.covariance(rotation)[0, 0] - 0.5 * persistent[0, 0])
    # The sum begins within tau of nothing: over 10 tau that is 10 % less.
    assert sums.var() == pytest.approx(believed, rel=0.15)
    np.testing.assert_allclose(model.step_covariance(rotation), 1.5 * persistent)


def test_rotations_that_are_composed_keep_what_persists() -> None:
    """Twice the time has four times the variance of a rate error, twice that of white noise."""
    white, persistent = np.diag([1e-6, 2e-6, 3e-6]), np.diag([4e-6, 1e-6, 2e-6])
    first, second = (
        RelativeRotation(np.eye(3), white + persistent, a, a + 50, None, persistent, 2.0)
        for a in (0, 50)
    )
    both = first.then(second)
    np.testing.assert_allclose(both.Sigma_2_1, 2.0 * white + 4.0 * persistent, rtol=1e-6)
    assert both.persistent is not None
    np.testing.assert_allclose(both.persistent, 4.0 * persistent, rtol=1e-6)
