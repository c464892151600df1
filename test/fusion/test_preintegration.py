from __future__ import annotations

import numpy as np
import pytest
from fusion.fusion_worlds import correlated, draw

from hydranet_ros.fusion.preintegration import Motion, OdometryBuffer, scaled
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose

MS = 1_000_000
TWIST = np.array([0.02, -0.01, -0.05, 0.004, 0.03, -0.002])
SIGMA = correlated(np.random.default_rng(0), [2e-3] * 3 + [1e-3] * 3)


def motion(i: int, T: np.ndarray, step_ms: int = 10) -> RelativePose:
    return RelativePose(T, SIGMA, i * step_ms * MS, (i + 1) * step_ms * MS)


def filled(T: np.ndarray) -> OdometryBuffer:
    buffer = OdometryBuffer(100.0)
    for i, each in enumerate(T):
        buffer.add(motion(i, each))
    return buffer


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_the_covariance_is_that_of_many_draws(steps: int) -> None:
    """Monte Carlo: NEES of the composed motion is 6."""
    rng = np.random.default_rng(steps)
    true, runs = np.tile(lie.se3_exp(TWIST), (steps, 1, 1)), 400
    (composed,) = filled(true).between(0, steps * 10 * MS)
    values = []
    for _ in range(runs):
        noise = lie.se3_exp(np.array([draw(rng, SIGMA) for _ in range(steps)]))
        drawn = np.eye(4)
        for each in noise @ true:
            drawn = each @ drawn
        xi = lie.se3_log(drawn @ lie.se3_inverse(composed.T))
        values.append(xi @ np.linalg.solve(composed.Sigma, xi))
    assert np.mean(values) == pytest.approx(6.0, abs=4.0 * np.sqrt(12.0 / runs))


@pytest.mark.parametrize("cut_ms", [10, 13, 47, 99])
def test_what_is_cut_and_composed_is_the_whole(cut_ms: int) -> None:
    rng = np.random.default_rng(3)
    buffer = filled(lie.se3_exp(TWIST + 0.01 * rng.normal(size=(10, 6))))
    (whole,) = buffer.between(0, 100 * MS)
    (before,), (after,) = buffer.between(0, cut_ms * MS), buffer.between(cut_ms * MS, 100 * MS)
    both = before.then(after)
    np.testing.assert_allclose(both.T, whole.T, atol=1e-12)
    # Noise of a part is carried on by less than the whole motion: of second order.
    np.testing.assert_allclose(both.Sigma, whole.Sigma, rtol=0.02, atol=1e-7)
    assert (both.begin, both.end) == (0, 100 * MS)


def test_stamps_between_messages_are_interpolated() -> None:
    (part,) = filled(np.tile(lie.se3_exp(TWIST), (10, 1, 1))).between(25 * MS, 60 * MS)
    np.testing.assert_allclose(part.T, lie.se3_exp(3.5 * TWIST), atol=1e-12)


def test_a_gap_parts_the_motion() -> None:
    buffer = OdometryBuffer(100.0)
    for i in (0, 1, 5, 6):
        buffer.add(motion(i, lie.se3_exp(TWIST)))
    found = buffer.between(5 * MS, 65 * MS)
    assert [(m.begin // MS, m.end // MS) for m in found] == [(5, 20), (50, 65)]
    assert buffer.between(25 * MS, 45 * MS) == []


def test_what_overlaps_counts_once() -> None:
    buffer = OdometryBuffer(100.0)
    buffer.add(RelativePose(lie.se3_exp(TWIST), SIGMA, 0, 10 * MS))
    buffer.add(RelativePose(lie.se3_exp(2.0 * TWIST), SIGMA, 0, 20 * MS))
    buffer.add(RelativePose(lie.se3_exp(TWIST), SIGMA, 5 * MS, 15 * MS))
    (whole,) = buffer.between(0, 20 * MS)
    np.testing.assert_allclose(whole.T, lie.se3_exp(2.0 * TWIST), atol=1e-12)


def test_the_buffer_is_bounded() -> None:
    buffer = OdometryBuffer(0.5)
    for i in range(1000):
        buffer.add(motion(i, np.eye(4)))
    assert len(buffer) == 51


def test_calibration_takes_errors_out() -> None:
    wrong = TWIST * np.repeat([1.08, 0.95], 3)
    right = scaled(Motion(lie.se3_exp(wrong), SIGMA, 0, MS), turn=-0.05, distance=0.08)
    np.testing.assert_allclose(right.T, lie.se3_exp(TWIST), atol=1e-12)
