"""Chained motions: poses, covariances, and frames without a motion."""

from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.odometer import LOST_VARIANCE, Odometer, OdometryPath, chain

PERIOD_NS = 100_000_000
FORWARD = lie.se3_exp([0.1, 0.0, -1.0, 0.0, 0.02, 0.01])
SIGMA = np.diag([0.02, 0.03, 0.05, 0.002, 0.003, 0.001]) ** 2


def motion(first: int, last: int, T: np.ndarray | None = None) -> RelativePose:
    T = np.linalg.matrix_power(FORWARD, last - first) if T is None else T
    return RelativePose(T, SIGMA, first * PERIOD_NS, last * PERIOD_NS)


def pose(frame: float) -> np.ndarray:
    return lie.se3_exp(-frame * lie.se3_log(FORWARD))


def test_chain_is_the_product() -> None:
    np.testing.assert_allclose(chain(np.array([FORWARD] * 7), np.eye(4))[7], pose(7), atol=1e-12)


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_the_covariance_is_that_of_the_errors(steps: int) -> None:
    """Monte Carlo: NEES of the pose after so many noisy motions is 6."""
    rng = np.random.default_rng(steps)
    root, runs, values = np.linalg.cholesky(SIGMA), 300, []
    for _ in range(runs):
        odometer = Odometer()
        odometer.restart(0)
        for i in range(steps):
            noisy = lie.se3_exp(root @ rng.normal(size=6)) @ FORWARD
            odometer.move(motion(i, i + 1, noisy))
        error = lie.se3_log(lie.se3_inverse(odometer.T_w_c) @ pose(steps))
        values.append(error @ np.linalg.solve(odometer.Sigma_c_w, error))
    assert np.mean(values) == pytest.approx(6.0, abs=4 * np.sqrt(12 / runs))


def test_extrapolation_goes_on_for_a_while_and_changes_nothing() -> None:
    odometer = Odometer(max_extrapolation_s=0.5)
    odometer.move(motion(0, 1))
    np.testing.assert_allclose(odometer.extrapolate(3 * PERIOD_NS), pose(3), atol=1e-12)
    np.testing.assert_allclose(odometer.extrapolate(90 * PERIOD_NS), pose(6), atol=1e-12)
    np.testing.assert_allclose(odometer.T_w_c, pose(1), atol=1e-12)


def test_a_restart_says_that_it_is_lost() -> None:
    odometer = Odometer()
    odometer.restart(0)
    assert np.trace(odometer.Sigma_c_w) < 1e-9
    odometer.move(motion(0, 1))
    odometer.restart(2 * PERIOD_NS)
    np.testing.assert_allclose(odometer.T_w_c, pose(2), atol=1e-12)
    assert np.diagonal(odometer.Sigma_c_w).min() >= LOST_VARIANCE


def test_a_path_has_a_pose_for_every_frame() -> None:
    path = OdometryPath()
    path.add(0, None)
    path.add(PERIOD_NS, motion(0, 1))
    path.add(2 * PERIOD_NS, None, bridged=True)
    np.testing.assert_allclose(path.T_w_c[2], pose(2), atol=1e-12)
    # The bridge turns out to be another motion than was expected: its frames are put on its way.
    bridge = lie.se3_exp([0.0, 0.0, -4.0, 0.0, 0.1, 0.0])
    path.add(3 * PERIOD_NS, motion(1, 3, bridge))
    half = pose(1) @ lie.se3_exp(-0.5 * lie.se3_log(bridge))
    np.testing.assert_allclose(path.T_w_c[2], half, atol=1e-12)
    np.testing.assert_allclose(path.T_w_c[3], pose(1) @ lie.se3_inverse(bridge), atol=1e-12)
    assert (path.lost, len(path.motions)) == (1, 2)


def test_a_path_goes_on_from_a_frame_that_no_motion_leads_to() -> None:
    path = OdometryPath()
    path.add(0, None)
    path.add(PERIOD_NS, motion(0, 1))
    path.add(2 * PERIOD_NS, None)
    path.add(3 * PERIOD_NS, motion(2, 3))
    np.testing.assert_allclose(path.T_w_c[3], pose(3), atol=1e-12)
    assert np.diagonal(path.odometer.Sigma_c_w).min() >= LOST_VARIANCE


def test_a_lost_odometer_stays_where_it_is() -> None:
    odometer = Odometer()
    odometer.restart(0)
    odometer.move(motion(0, 1))
    odometer.lose()
    odometer.restart(50 * PERIOD_NS)
    np.testing.assert_allclose(odometer.T_w_c, pose(1), atol=1e-12)
    assert np.diagonal(odometer.Sigma_c_w).min() >= LOST_VARIANCE
    np.testing.assert_allclose(odometer.extrapolate(60 * PERIOD_NS), pose(1), atol=1e-12)
