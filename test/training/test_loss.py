"""The loss against SciPy's normal distribution, and where its gradients go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from hydranet_ros.gyro import quaternion as quat
from hydranet_ros.gyro.network import HydraOutput
from hydranet_ros.training.config import LossConfig
from hydranet_ros.training.loss import bootstrap_weights, loss, negative_log_likelihood


@pytest.fixture
def sample() -> tuple[HydraOutput, torch.Tensor, torch.Tensor]:
    """A batch of 6 with 4 heads, whose errors are known."""
    generator = torch.Generator().manual_seed(0)
    phi = 0.1 * torch.randn(6, 4, 3, generator=generator, dtype=torch.float64)
    target = quat.exp(torch.randn(6, 3, generator=generator, dtype=torch.float64))
    root = 0.1 * torch.randn(6, 3, 3, generator=generator, dtype=torch.float64).tril()
    root = root.tril(-1) + torch.diag_embed(root.diagonal(dim1=1, dim2=2).abs() + 0.02)
    q = quat.multiply(quat.exp(phi), target[:, None]).requires_grad_()
    return HydraOutput(q, root.requires_grad_()), target, phi


def test_likelihood_is_that_of_scipy(sample):
    output, target, phi = sample
    expected = np.array(
        [
            [-multivariate_normal.logpdf(phi[b, h], cov=(r @ r.T).numpy()) for h in range(4)]
            for b, r in enumerate(output.root.detach())
        ]
    )
    expected -= 1.5 * np.log(2.0 * np.pi)
    with torch.no_grad():
        np.testing.assert_allclose(negative_log_likelihood(phi, output.root), expected)
        np.testing.assert_allclose(loss(output, target), expected.mean())
        # The other sign of a quaternion is the same rotation.
        np.testing.assert_allclose(loss(output, -target), expected.mean())
        weights = torch.rand(6, 4)
        np.testing.assert_allclose(
            loss(output, target, weights), (expected * weights.numpy()).mean()
        )


def gradients(sample, config: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    output, target, _ = sample
    return torch.autograd.grad(loss(output, target, config=config), tuple(output))


def test_split_trains_rotations_without_the_covariance(sample):
    output, target, _ = sample
    rotation, root = gradients(sample, LossConfig("split", mean_sigma_rad=0.1))
    half = 0.5 * (quat.difference(output.quaternions, target[:, None]) ** 2).sum(-1).mean()
    (expected,) = torch.autograd.grad(half / 0.1**2, output.quaternions)
    torch.testing.assert_close(rotation, expected)
    torch.testing.assert_close(root, gradients(sample, LossConfig())[1])


def test_beta_weighs_samples_by_their_covariance(sample):
    output, target, phi = sample
    with torch.no_grad():
        each = negative_log_likelihood(phi, output.root).mean(dim=1)
        share = torch.linalg.det(output.root @ output.root.mT) ** (0.5 / 3.0)
        expected = (each * share).mean() / share.mean()
        torch.testing.assert_close(loss(output, target, config=LossConfig(beta=0.5)), expected)


@pytest.mark.parametrize("wrong", [{"kind": "mse"}, {"beta": 2.0}, {"mean_sigma_rad": 0.0}])
def test_impossible_losses_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LossConfig(**wrong)


def test_gradients_are_finite_where_a_head_is_exactly_right():
    q = torch.tensor([[[1.0, 0.0, 0.0, 0.0]] * 3], requires_grad=True)
    value = loss(HydraOutput(q, torch.eye(3)[None]), q.detach()[:, 0])
    (gradient,) = torch.autograd.grad(value, q)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("kind", "variance"), [("poisson", 1.0), ("bernoulli", 1.0)])
def test_bootstrap_weights(kind, variance):
    weights = bootstrap_weights(np.arange(20_000), 25, kind).numpy()
    assert weights.shape == (20_000, 25)
    assert weights.mean() == pytest.approx(1.0, abs=0.01)
    assert weights.var() == pytest.approx(variance, abs=0.02)
    correlation = np.corrcoef(weights.T) - np.eye(25)
    assert np.abs(correlation).max() < 0.035  # 5 sigma of 20000 samples
    along = np.corrcoef(weights[:-1].ravel(), weights[1:].ravel())[0, 1]
    assert abs(along) < 0.01


def test_bootstrap_weights_stay_with_their_sample():
    all_at_once = bootstrap_weights(np.arange(100), 5, "poisson", seed=3)
    shuffled = torch.randperm(100)
    torch.testing.assert_close(
        bootstrap_weights(shuffled.numpy(), 5, "poisson", seed=3), all_at_once[shuffled]
    )
    assert (bootstrap_weights(np.arange(100), 5, "poisson", seed=4) != all_at_once).any()
    assert bootstrap_weights(np.arange(100), 5, "none") is None
    with pytest.raises(ValueError, match="none, poisson or bernoulli"):
        bootstrap_weights(np.arange(3), 5, "jackknife")


def test_poisson_weights_have_the_poisson_distribution():
    counts = bootstrap_weights(np.arange(40_000), 10, "poisson").int().flatten().bincount()
    expected = np.exp(-1.0) / np.array([1, 1, 2, 6, 24]) * 400_000
    np.testing.assert_allclose(counts[:5].numpy(), expected, rtol=0.03)
