"""Estimates against the truth: by stamp, by interval, and with gaps."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest

from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.record import (
    evaluate,
    rotation_blocks,
    rotation_errors,
    rotation_figures,
)
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.odometer import chain
from hydranet_ros.geometry.trajectory import Trajectory

N = 200
STAMPS = np.arange(N, dtype=np.int64) * 10**8 + 7 * 10**9
STEP = lie.se3_exp([0.0, 0.0, -1.5, 0.0, 0.01, 0.0])
TRUTH = Trajectory(chain(np.tile(STEP, (N - 1, 1, 1)), np.eye(4)), STAMPS, "truth")
SIGMA = np.diag([0.02**2] * 3 + [1e-3**2] * 3)


def noisy(seed: int = 0) -> Trajectory:
    """Frame-to-frame errors of covariance SIGMA."""
    drawn = np.random.default_rng(seed).normal(size=(N - 1, 6)) * np.sqrt(np.diag(SIGMA))
    return Trajectory(chain(lie.se3_exp(drawn) @ STEP, np.eye(4)), STAMPS, "estimate")


def rotations(estimate: Trajectory) -> list[RelativeRotation]:
    return [
        RelativeRotation(T[:3, :3], SIGMA[3:, 3:], int(a), int(b), 0.25 * SIGMA[3:, 3:])
        for T, a, b in zip(estimate.T_2_1, STAMPS[:-1], STAMPS[1:], strict=True)
    ]


def test_it_is_the_evaluation_of_the_metrics() -> None:
    estimate = noisy()
    for align in ("none", "first", "SE3", "Sim3"):
        assert evaluate(estimate, TRUTH, align) == metrics.evaluate(
            estimate.T_w_c, TRUTH.T_w_c, alignment=align
        )


def test_poses_are_paired_by_stamp() -> None:
    estimate = noisy()
    late = Trajectory(estimate.T_w_c[10:-5], STAMPS[10:-5] + 3_000_000, "late")
    some = np.arange(10, N - 5)
    expected = metrics.evaluate(estimate.T_w_c[some], TRUTH.T_w_c[some], alignment="first")
    assert evaluate(late, TRUTH, "first") == expected
    with pytest.raises(HydraNetError, match=r"no stamps within 0\.001 s"):
        evaluate(late, TRUTH, tolerance_s=1e-3)


def test_covariances_by_interval_are_those_by_row() -> None:
    estimate = noisy()
    by_row = evaluate(estimate, TRUTH, Sigma_2_1=np.tile(SIGMA, (N - 1, 1, 1)))
    intervals = {(int(a), int(b)): SIGMA for a, b in pairwise(STAMPS)}
    by_interval = evaluate(estimate, TRUTH, "first", intervals)
    assert by_interval.nees == pytest.approx(by_row.nees, rel=1e-9)
    assert by_interval.nll == pytest.approx(by_row.nll, rel=1e-9)
    assert 5.0 < by_interval.nees < 7.0


def test_covariances_of_some_intervals_are_enough() -> None:
    """Over two frames the errors add up; an interval of unknown stamps is left out."""
    estimate = noisy()
    adjoint = lie.se3_adjoint(STEP)
    doubled = SIGMA + adjoint @ SIGMA @ adjoint.T
    pairs = {(int(STAMPS[i]), int(STAMPS[i + 2])): doubled for i in range(0, N - 2, 2)}
    found = evaluate(estimate, TRUTH, Sigma_2_1=pairs | {(1, 2): SIGMA})
    assert found.nees == pytest.approx(6.0, abs=1.2)
    assert evaluate(estimate, TRUTH, Sigma_2_1={(1, 2): SIGMA}).nees is None


def test_covariances_by_row_need_every_pose() -> None:
    estimate = noisy()
    short = TRUTH.select(np.arange(N - 10))
    with pytest.raises(HydraNetError, match="10 have none"):
        evaluate(estimate, short, Sigma_2_1=np.tile(SIGMA, (N - 1, 1, 1)))


def test_errors_of_rotations_are_left_perturbations() -> None:
    phi = np.array([0.01, -0.02, 0.03])
    T = TRUTH.T_2_1[4]
    rotation = RelativeRotation(
        lie.so3_exp(phi) @ T[:3, :3], np.diag([1e-4, 4e-4, 9e-4]), *map(int, STAMPS[4:6])
    )
    errors = rotation_errors([rotation], TRUTH)
    assert errors is not None
    assert errors.stamps_ns.tolist() == [STAMPS[5]]
    np.testing.assert_allclose(errors.phi, [phi], atol=1e-12)
    np.testing.assert_allclose(errors.nees, [3.0], atol=1e-9)
    np.testing.assert_allclose(errors.sigmas, [[0.01, 0.02, 0.03]])
    assert errors.epistemic is None


def test_figures_of_rotations_are_those_of_the_metrics() -> None:
    found = rotation_figures(rotations(noisy()), TRUTH)
    C = noisy().T_2_1[:, :3, :3]
    Sigma = np.tile(SIGMA[3:, 3:], (N - 1, 1, 1))
    expected = metrics.evaluate_rotations(C, Sigma, 0.25 * Sigma, TRUTH.T_w_c)
    assert found is not None
    for ours, theirs in zip(astuple(found), astuple(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_a_gap_is_cut_out_of_the_path() -> None:
    every = rotations(noisy())
    some = every[:50] + every[52:]
    figures = rotation_figures(some, TRUTH)
    errors = rotation_errors(some, TRUTH)
    assert figures is not None
    assert errors is not None
    assert len(errors.phi) == N - 3
    assert figures.nees == pytest.approx(float(errors.nees.mean()))
    whole = rotation_figures(every, TRUTH)
    assert whole is not None
    assert figures.seg_deg_per_100m == pytest.approx(whole.seg_deg_per_100m, rel=0.2)


def test_without_truth_there_are_no_errors() -> None:
    elsewhere = Trajectory(TRUTH.T_w_c, STAMPS + 1, "elsewhere")
    assert rotation_errors(rotations(noisy()), elsewhere) is None
    assert rotation_figures([], TRUTH) is None


def test_blocks_are_of_frames_that_have_a_rotation_and_the_truth() -> None:
    every = rotations(noisy())
    whole = rotation_blocks(every, TRUTH, STAMPS, (1, 10, 10 * N))
    assert list(whole) == [1, 10]  # none is so long
    assert (whole[1].blocks, whole[10].blocks) == (N - 1, (N - 1) // 10)
    assert whole[10].nees == pytest.approx(3.0, abs=4.0 * np.sqrt(6.0 / whole[10].blocks))
    lost = rotation_blocks([*every[:33], *every[34:]], TRUTH, STAMPS, (1, 10))
    assert (lost[1].blocks, lost[10].blocks) == (N - 2, (N - 1) // 10 - 1)
    late = TRUTH.select(np.arange(15, N))
    assert rotation_blocks(every, late, STAMPS, (10,))[10].blocks == (N - 1) // 10 - 2
    assert rotation_blocks([], TRUTH, STAMPS) == {}
