"""From heads to one estimate, and from two cameras to one: against lie and Monte Carlo."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.gyro.config import Calibration
from hydranet_ros.gyro.network import HydraOutput
from hydranet_ros.gyro.prediction import Prediction, combine, combine_stereo, error_correlation


@pytest.fixture
def output() -> HydraOutput:
    """5 samples of 25 heads, with arbitrary signs."""
    rng = np.random.default_rng(0)
    centre = lie.quaternion_exp(rng.normal(size=(5, 1, 3)))
    q = lie.quaternion_multiply(lie.quaternion_exp(0.05 * rng.normal(size=(5, 25, 3))), centre)
    q *= rng.choice([-1.0, 1.0], size=(5, 25, 1))
    root = 0.02 * (np.tril(rng.normal(size=(5, 3, 3)), -1) + np.eye(3))
    return HydraOutput(torch.tensor(q), torch.tensor(root))


def test_combination_is_the_paper_s(output):
    prediction = combine(output)
    q = output.quaternions.numpy()
    mean = lie.quaternion_mean(q)
    R, R_mean = lie.quaternion_to_matrix(q), lie.quaternion_to_matrix(mean)
    np.testing.assert_allclose(prediction.quaternions, mean, atol=1e-14)
    np.testing.assert_allclose(
        prediction.epistemic, lie.sample_covariance(R, R_mean), rtol=1e-9, atol=1e-15
    )
    root = output.root.numpy()
    np.testing.assert_allclose(prediction.aleatoric, root @ np.swapaxes(root, 1, 2))
    np.testing.assert_allclose(prediction.covariance, prediction.epistemic + prediction.aleatoric)
    assert (prediction.quaternions[:, 0] >= 0.0).all()


def test_calibration_scales_deviations_and_takes_out_the_bias(output):
    plain = combine(output)
    bias = (0.001, -0.002, 0.003)
    prediction = combine(output, Calibration((2.0, 1.0, 0.5), 3.0, bias))
    scale = np.diag([2.0, 1.0, 0.5])
    np.testing.assert_allclose(prediction.aleatoric, scale @ plain.aleatoric @ scale)
    np.testing.assert_allclose(prediction.epistemic, 9.0 * plain.epistemic)
    before, after = (lie.quaternion_to_matrix(p.quaternions) for p in (plain, prediction))
    # The error Log(q q_true^-1) of an estimate that was off by just the bias vanishes.
    np.testing.assert_allclose(after, lie.so3_exp(bias).T @ before, atol=1e-14)


def test_rotations_carry_stamps_and_both_covariances(output):
    prediction = combine(output)
    stamps = [(10 * i, 10 * i + 10) for i in range(5)]
    for i, rotation in enumerate(prediction.rotations(stamps)):
        assert (rotation.stamp_1_ns, rotation.stamp_2_ns) == stamps[i]
        np.testing.assert_allclose(rotation.quaternion, prediction.quaternions[i], atol=1e-12)
        np.testing.assert_allclose(rotation.epistemic, prediction.epistemic[i])
        np.testing.assert_allclose(rotation.aleatoric, prediction.aleatoric[i], rtol=1e-9)
    with pytest.raises(ValueError, match="5 rotations need as many stamps, got 2"):
        prediction.rotations(stamps[:2])


def test_an_output_that_is_not_finite_is_an_error(output):
    output.quaternions[3, 7, 1] = torch.nan
    with pytest.raises(HydraNetError, match="sample 3 is not finite"):
        combine(output)


# --- two cameras


COUNT = 40_000
TRUTH = lie.quaternion_exp([0.01, 0.03, -0.02])


def cameras(correlation: float, A_l, A_r, heads: int = 4) -> tuple[Prediction, Prediction]:
    """Predictions whose aleatoric errors have the given correlation, and no epistemic ones."""
    rng = np.random.default_rng(0)
    shared, own = rng.normal(size=(COUNT, 3)), rng.normal(size=(2, COUNT, 3))
    both = []
    for A, noise in zip((A_l, A_r), own, strict=True):
        values, vectors = np.linalg.eigh(A)
        root = vectors * np.sqrt(values) @ vectors.T
        z = np.sqrt(correlation) * shared + np.sqrt(1.0 - correlation) * noise
        q = lie.quaternion_multiply(lie.quaternion_exp(z @ root), TRUTH)
        both.append(Prediction(q, np.zeros((COUNT, heads, 3)), np.broadcast_to(A, (COUNT, 3, 3))))
    return both[0], both[1]


def some_covariance(seed: int, sigma: float):
    factor = np.random.default_rng(seed).normal(size=(3, 3)) + 2.0 * np.eye(3)
    return sigma**2 * factor @ factor.T


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("sigma_r", [0.002, 0.01])
def test_stereo_covariance_is_that_of_its_errors(correlation, sigma_r):
    left, right = cameras(correlation, some_covariance(1, 0.002), some_covariance(2, sigma_r))
    fused = combine_stereo(left, right, correlation)
    inverse = TRUTH * [1.0, -1.0, -1.0, -1.0]
    phi = lie.quaternion_log(lie.quaternion_multiply(fused.quaternions, inverse))
    root = np.linalg.cholesky(fused.covariance[0])
    white = np.linalg.solve(root, phi.T)
    np.testing.assert_allclose(white @ white.T / COUNT, np.eye(3), atol=0.04)
    assert error_correlation(left, right, TRUTH) == pytest.approx(correlation, abs=0.02)


def test_ignoring_the_correlation_is_over_confident():
    A = some_covariance(1, 0.002)
    left, right = cameras(0.8, A, A)
    np.testing.assert_allclose(combine_stereo(left, right, 0.8).aleatoric[0], 0.9 * A)
    np.testing.assert_allclose(combine_stereo(left, right, 0.0).aleatoric[0], 0.5 * A)


def test_a_blind_camera_does_no_harm():
    left, right = cameras(0.5, some_covariance(1, 0.002), some_covariance(2, 1e3))
    fused = combine_stereo(left, right, 0.5)
    np.testing.assert_allclose(fused.quaternions, left.quaternions, atol=1e-5)
    np.testing.assert_allclose(fused.aleatoric, left.aleatoric, rtol=1e-3, atol=1e-10)


def test_stereo_heads_are_combined_head_by_head(output):
    """Heads that err alike on both cameras gain nothing; heads that err apart gain half."""
    left = combine(output)
    same = combine_stereo(left, left, 0.5)
    np.testing.assert_allclose(same.epistemic, left.epistemic, rtol=1e-9)
    np.testing.assert_allclose(same.quaternions, left.quaternions, atol=1e-12)
    rng = np.random.default_rng(0)
    apart = [
        Prediction(left.quaternions, rng.normal(size=(5, 4000, 3)), left.aleatoric)
        for _ in range(2)
    ]
    fused = combine_stereo(*apart, 0.5)
    np.testing.assert_allclose(fused.epistemic, 0.5 * np.eye(3)[None].repeat(5, 0), atol=0.05)


def test_impossible_combinations_are_refused(output):
    one = combine(output)
    with pytest.raises(ValueError, match="from 0 to 1"):
        combine_stereo(one, one, 1.5)
    with pytest.raises(ValueError, match="left has 5 predictions, right 2"):
        combine_stereo(
            one, Prediction(one.quaternions[:2], one.deviations[:2], one.aleatoric[:2]), 0.5
        )


def test_the_inverse_is_that_of_every_head() -> None:
    rng = np.random.default_rng(0)
    heads = lie.quaternion_exp(0.3 + 0.01 * rng.standard_normal((2, 6, 3)))
    root = 0.01 * torch.eye(3).repeat(2, 1, 1) + 0.003 * torch.ones(2, 3, 3).tril()
    forward = combine(HydraOutput(torch.tensor(heads), root))
    backward = combine(
        HydraOutput(torch.tensor(heads * [1.0, -1.0, -1.0, -1.0]), root)
    ).quaternions
    inverse = forward.inverse()
    np.testing.assert_allclose(inverse.quaternions, backward, atol=1e-9)
    C = lie.quaternion_to_matrix(inverse.quaternions)
    for i in range(2):
        for h in range(6):
            head = lie.quaternion_to_matrix(heads[i, h]).T
            expected = lie.so3_log(head @ C[i].T)
            np.testing.assert_allclose(inverse.deviations[i, h], expected, atol=1e-6)
    again = inverse.inverse()
    np.testing.assert_allclose(again.aleatoric, forward.aleatoric, atol=1e-12)
    np.testing.assert_allclose(again.epistemic, forward.epistemic, atol=1e-12)
