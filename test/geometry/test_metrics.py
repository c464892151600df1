from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import multivariate_normal

from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.odometer import chain


def street(count: int = 400, seed: int = 3) -> np.ndarray:
    """A winding drive of about 4 m per frame."""
    rng = np.random.default_rng(seed)
    twists = rng.normal(size=(count - 1, 6)) * 0.01
    twists[:, 2] -= 4.0
    twists[:, 4] += 0.02 * np.sin(np.arange(count - 1) / 30)
    return chain(lie.se3_exp(twists), np.eye(4))


def drifted(truth: np.ndarray, seed: int = 4) -> np.ndarray:
    steps = lie.se3_inverse(truth[1:]) @ truth[:-1]
    noise = np.random.default_rng(seed).normal(size=(len(steps), 6)) * 0.002
    return chain(lie.se3_exp(noise) @ steps, truth[0])


def angle_deg(matrix: np.ndarray) -> float:
    return float(np.rad2deg(Rotation.from_matrix(matrix).magnitude()))


def segments_by_loop(est: np.ndarray, gt: np.ndarray, stride: int) -> dict[float, list]:
    """The definition, read literally, one segment at a time."""
    errors: dict[float, list] = {}
    travelled = [0.0]
    for a, b in pairwise(gt):
        travelled.append(travelled[-1] + np.linalg.norm(b[:3, 3] - a[:3, 3]))
    for length in range(100, 801, 100):
        for i in range(0, len(gt), stride):
            j = next((j for j in range(i, len(gt)) if travelled[j] > travelled[i] + length), None)
            if j is None:
                continue
            step_est, step_gt = np.linalg.inv(est[i]) @ est[j], np.linalg.inv(gt[i]) @ gt[j]
            error = np.linalg.inv(step_est) @ step_gt
            entry = (
                100 * np.linalg.norm(error[:3, 3]) / length,
                100 * angle_deg(error[:3, :3]) / length,
            )
            errors.setdefault(length, []).append(entry)
    return errors


def test_segments_match_the_definitions_read_literally() -> None:
    truth = street()
    estimate = drifted(truth)
    seg_pct, seg_deg, devkit_pct, devkit_deg = metrics.segment_errors(estimate, truth)
    every = segments_by_loop(estimate, truth, 1)
    assert set(every) == set(range(100, 801, 100))
    paper = np.mean([np.mean(values, axis=0) for values in every.values()], axis=0)
    np.testing.assert_allclose([seg_pct, seg_deg], paper, rtol=1e-9)
    tenth = segments_by_loop(estimate, truth, 10)
    pooled = np.mean([entry for values in tenth.values() for entry in values], axis=0)
    np.testing.assert_allclose([devkit_pct, devkit_deg], pooled, rtol=1e-9)


def test_short_paths_have_no_segments_but_the_rest() -> None:
    truth = street(10)
    result = metrics.evaluate(truth, truth)
    assert result.seg_pct is None
    assert result.devkit_deg_per_100m is None
    assert result.ate_m == pytest.approx(0.0, abs=1e-9)
    assert result.f2f_deg == pytest.approx(0.0, abs=1e-6)


def test_a_single_pose_has_an_absolute_error_only() -> None:
    result = metrics.evaluate(np.eye(4)[None], lie.se3_exp([3.0, 4.0, 0, 0, 0, 0])[None])
    assert result.ate_m == pytest.approx(5.0)
    assert result.f2f_deg is None


def test_known_absolute_error() -> None:
    truth = street(30)
    offset = lie.se3_exp([0.0, 0.0, 0.0, 0.0, np.deg2rad(2.0), 0.0])
    offset[:3, 3] = [1.0, 2.0, 2.0]
    result = metrics.evaluate(truth @ lie.se3_inverse(offset), truth)
    assert result.ate_m == pytest.approx(3.0)
    assert result.ate_deg == pytest.approx(2.0)


def test_segments_ignore_a_common_rigid_motion() -> None:
    truth = street()
    estimate = drifted(truth)
    moved = lie.se3_exp([10.0, -5.0, 3.0, 0.3, -1.0, 2.0]) @ estimate
    np.testing.assert_allclose(
        metrics.segment_errors(moved, truth), metrics.segment_errors(estimate, truth), rtol=1e-8
    )


@pytest.mark.parametrize("size", [3, 6])
def test_nll_matches_scipy_without_its_constant(size: int) -> None:
    rng = np.random.default_rng(size)
    errors = rng.normal(size=(50, size))
    factors = rng.normal(size=(50, size, size)) + 3 * np.eye(size)
    covariances = factors @ np.swapaxes(factors, 1, 2)
    nll, _ = metrics.mean_nll_and_nees(errors, covariances)
    scipy_nll = [
        -multivariate_normal(cov=c).logpdf(e) for e, c in zip(errors, covariances, strict=True)
    ]
    assert nll == pytest.approx(np.mean(scipy_nll) - 0.5 * size * np.log(2 * np.pi))


@pytest.mark.parametrize("size", [3, 6])
def test_nees_of_honest_covariances_is_the_number_of_dimensions(size: int) -> None:
    rng = np.random.default_rng(0)
    truth = street(4000)
    factor = 0.01 * (rng.normal(size=(6, 6)) + 3 * np.eye(6))
    covariance = factor @ factor.T
    steps = lie.se3_inverse(truth[1:]) @ truth[:-1]
    noise = rng.multivariate_normal(np.zeros(6), covariance, size=len(steps))
    estimate = chain(lie.se3_exp(noise) @ steps, truth[0])
    given = np.tile(covariance[-size:, -size:], (len(steps), 1, 1))
    nees = metrics.evaluate(estimate, truth, given).nees
    assert nees == pytest.approx(size, abs=5 * np.sqrt(2 * size / len(steps)))


def transform(pose: np.ndarray, scale: float) -> np.ndarray:
    rng = np.random.default_rng(9)
    motion = lie.se3_exp(rng.normal(size=6) * [5, 5, 5, 1, 1, 1])
    moved = motion @ pose
    moved[:, :3, 3] *= scale
    return moved


@pytest.mark.parametrize(
    ("alignment", "scale"), [("none", 1.0), ("first", 1.0), ("SE3", 1.0), ("Sim3", 0.3)]
)
def test_alignment_undoes_its_own_group_and_no_more(alignment: metrics.Alignment, scale) -> None:
    truth = street()
    moved = truth if alignment == "none" else transform(truth, scale)
    assert metrics.evaluate(moved, truth, alignment=alignment).ate_m == pytest.approx(0, abs=1e-6)
    if alignment != "Sim3":
        scaled = transform(truth, 0.3)
        assert metrics.evaluate(scaled, truth, alignment=alignment).ate_m > 10.0


@pytest.mark.parametrize("alignment", ["SE3", "Sim3"])
def test_alignment_is_optimal(alignment: metrics.Alignment) -> None:
    truth = street()
    estimate = transform(drifted(truth), 0.7)
    aligned = metrics.align(estimate, truth, alignment)

    def cost(poses: np.ndarray) -> float:
        return float(np.sum((poses[:, :3, 3] - truth[:, :3, 3]) ** 2))

    centre = truth[:, :3, 3].mean(axis=0)
    for twist in 1e-3 * np.vstack([np.eye(6), -np.eye(6)]):
        about_centre = lie.se3_from(np.eye(3), centre) @ lie.se3_exp(twist)
        assert cost(about_centre @ lie.se3_from(np.eye(3), -centre) @ aligned) > cost(aligned)


def test_unknown_alignment_and_unequal_lengths_are_misuse() -> None:
    truth = street(5)
    with pytest.raises(ValueError, match="alignment must be one of none, first, SE3, Sim3"):
        metrics.align(truth, truth, "affine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 estimated poses, but 5 true ones"):
        metrics.evaluate(truth[:4], truth)


PAPER = {
    "00": (27.91, 6.25, 1.96, 0.81),
    "02": (64.67, 8.45, 1.47, 0.56),
    "05": (23.72, 8.10, 1.79, 0.79),
}


@pytest.mark.parametrize("sequence", PAPER)
def test_the_papers_figures_of_visual_odometry(recordings: Path, sequence: str) -> None:
    with np.load(recordings / f"kitti_{sequence}.npz") as file:
        result = metrics.evaluate(file["T_w_c_vo"], file["T_w_c_gt_oxts"], file["Sigma_21_vo"])
    printed = (result.ate_m, result.ate_deg, result.seg_pct, result.seg_deg_per_100m)
    assert tuple(round(value, 2) for value in printed) == PAPER[sequence]


NETWORK = {"00": (0.1994, -16.844), "02": (0.1378, -18.441), "05": (0.1086, -19.313)}


@pytest.mark.parametrize("sequence", NETWORK)
def test_the_papers_figures_of_the_network(recordings: Path, sequence: str) -> None:
    with np.load(recordings / f"kitti_{sequence}.npz") as file:
        errors = lie.so3_log(file["C_21_hn"] @ lie.so3_inverse(file["C_21_gt"]))
        nll, _ = metrics.mean_nll_and_nees(errors, file["Sigma_21_hn"].astype(float))
    mean_deg = np.rad2deg(np.linalg.norm(errors, axis=1)).mean()
    assert (round(mean_deg, 4), round(nll, 3)) == NETWORK[sequence]


def test_figures_of_rotations() -> None:
    rng = np.random.default_rng(0)
    truth = lie.se3_exp(np.cumsum(rng.normal(0.0, [0.0, 0.0, 0.1, 0.0, 0.01, 0.0], (300, 6)), 0))
    truth[:, 2, 3] = np.arange(300.0)
    steps = lie.se3_inverse(truth[1:]) @ truth[:-1]
    sigma, bias = 1e-3, np.array([0.0, 2e-3, 0.0])
    errors = bias + sigma * rng.standard_normal((299, 3))
    C = lie.so3_exp(errors) @ steps[:, :3, :3]
    Sigma = np.tile(np.eye(3) * sigma**2, (299, 1, 1))
    found = metrics.evaluate_rotations(C, Sigma, 0.25 * Sigma, truth)
    assert found.mean_deg == pytest.approx(np.degrees(np.linalg.norm(errors, axis=1)).mean())
    np.testing.assert_allclose(found.bias_deg, np.degrees(errors.mean(axis=0)), atol=1e-6)
    assert found.nees == pytest.approx(3.0 + 4.0, rel=0.1)
    assert found.epistemic_deg == pytest.approx(0.5 * np.degrees(sigma))
    assert found.aleatoric_deg == pytest.approx(np.sqrt(0.75) * np.degrees(sigma))
    assert found.seg_deg_per_100m is not None
    assert found.seg_deg_per_100m > 1.0
    exact = metrics.evaluate_rotations(steps[:, :3, :3], Sigma, 0.25 * Sigma, truth)
    assert exact.mean_deg < 1e-5
    assert exact.seg_deg_per_100m == pytest.approx(0.0, abs=1e-5)


def turns(count: int, seed: int = 0) -> np.ndarray:
    return lie.so3_exp(np.random.default_rng(seed).normal(0.0, 0.05, (count, 3)))


COVARIANCE = np.array([[4.0, 1.0, 0.0], [1.0, 2.0, -0.5], [0.0, -0.5, 1.0]]) * 1e-6


def test_white_errors_are_honest_over_any_number_of_frames() -> None:
    """Monte Carlo: summed in the last frame's axes, the covariance is that of the block."""
    truth, rng = turns(60_000), np.random.default_rng(1)
    Sigma = np.tile(COVARIANCE, (len(truth), 1, 1))
    estimate = lie.so3_exp(rng.multivariate_normal(np.zeros(3), COVARIANCE, len(truth))) @ truth
    for frames in (1, 10, 50, 100):
        found = metrics.block_figures(estimate, Sigma, truth, frames)
        assert found is not None
        assert found.blocks == len(truth) // frames
        # Four standard deviations of the mean of chi-square with three degrees of freedom.
        assert found.nees == pytest.approx(3.0, abs=4.0 * np.sqrt(6.0 / found.blocks))
        assert np.abs(found.bias_deg).max() < 4.0 * np.degrees(2e-3 / np.sqrt(len(truth)))


def test_errors_that_persist_show_over_many_frames() -> None:
    truth = np.tile(np.eye(3), (2000, 1, 1))
    Sigma = np.tile(COVARIANCE, (2000, 1, 1))
    held = np.random.default_rng(2).multivariate_normal(np.zeros(3), COVARIANCE, 20)
    estimate = lie.so3_exp(np.repeat(held, 100, axis=0))
    one, ten, hundred = (metrics.block_figures(estimate, Sigma, truth, n) for n in (1, 10, 100))
    assert one is not None
    assert ten is not None
    assert hundred is not None
    assert ten.nees == pytest.approx(10.0 * one.nees, rel=0.01)
    assert hundred.nees == pytest.approx(100.0 * one.nees, rel=0.01)
    np.testing.assert_allclose(hundred.bias_deg, one.bias_deg, rtol=1e-3)
    np.testing.assert_allclose(one.bias_deg, np.degrees(held.mean(axis=0)), rtol=1e-6)
    assert hundred.mean_deg == pytest.approx(100.0 * one.mean_deg, rel=1e-3)


def test_a_block_is_a_product_and_leaves_out_what_is_not_known() -> None:
    truth, error = turns(25), lie.so3_exp([1e-3, 2e-3, -1e-3])
    estimate, Sigma = truth.copy(), np.tile(COVARIANCE, (25, 1, 1))
    estimate[3] = error @ estimate[3]
    phi, total = metrics.block_errors(estimate, Sigma, truth, 5)
    assert phi.shape == (5, 3)
    after = truth[4]  # the error of the fourth rotation, seen in the fifth's later frame
    np.testing.assert_allclose(phi[0], after @ [1e-3, 2e-3, -1e-3], atol=1e-9)
    np.testing.assert_allclose(phi[1:], 0.0, atol=1e-9)
    carried = [np.linalg.multi_dot([np.eye(3), np.eye(3), *truth[20 + i + 1 : 25][::-1]])
               for i in range(5)]  # fmt: skip
    np.testing.assert_allclose(total[4], sum(A @ COVARIANCE @ A.T for A in carried), atol=1e-12)
    estimate[7], truth[12] = np.nan, np.nan
    assert len(metrics.block_errors(estimate, Sigma, truth, 5)[0]) == 3
    assert metrics.block_figures(estimate, Sigma, truth, 50) is None
