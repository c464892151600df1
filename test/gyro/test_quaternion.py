"""Quaternions in torch against `hydranet_ros.lie`, and their gradients where formulas break."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import rotation_vectors
from torch import Tensor

from hydranet_ros.geometry import lie
from hydranet_ros.gyro import quaternion

HARD = [0.0, 1e-300, 1e-160, 1e-30, 1e-12, 1e-6, 1e-3, 0.06, 0.07, 1.0, 3.0, np.pi - 1e-6]
AXIS = np.array([0.48, -0.6, 0.64])


def tensor(array) -> Tensor:
    return torch.tensor(np.asarray(array), dtype=torch.float64)


def same_rotation(a: Tensor, b) -> None:
    a, b = quaternion.positive(a).numpy(), np.asarray(b)
    np.testing.assert_allclose(np.minimum(abs(a - b), abs(a + b)), 0.0, atol=4e-15)


@given(rotation_vectors())
def test_exp_agrees_with_lie(phi):
    same_rotation(quaternion.exp(tensor(phi)), lie.quaternion_exp(phi))


@given(rotation_vectors())
def test_log_agrees_with_lie(phi):
    q = lie.quaternion_exp(phi)
    np.testing.assert_allclose(
        quaternion.log(tensor(q)), lie.quaternion_log(q), rtol=1e-14, atol=1e-300
    )
    np.testing.assert_allclose(
        quaternion.log(tensor(-q)), quaternion.log(tensor(q)), rtol=1e-14, atol=1e-300
    )


@given(rotation_vectors(count=2))
def test_products_and_differences_agree_with_lie(phis):
    a, b = lie.quaternion_exp(phis[0]), lie.quaternion_exp(phis[1])
    product = quaternion.multiply(tensor(a), tensor(b))
    np.testing.assert_allclose(product, lie.quaternion_multiply(a, b), atol=1e-15)
    same_rotation(quaternion.multiply(product, quaternion.conjugate(tensor(b))), a)
    np.testing.assert_allclose(quaternion.difference(tensor(a), tensor(a)), 0.0, atol=1e-15)


@given(rotation_vectors())
def test_matrices_agree_with_lie(phi):
    R = lie.so3_exp(phi)
    q = quaternion.from_matrix(tensor(R))
    np.testing.assert_allclose(quaternion.to_matrix(q), R, atol=4e-15)
    np.testing.assert_allclose(q, lie.quaternion_from_matrix(R), atol=4e-15)


@given(rotation_vectors())
def test_mean_agrees_with_lie_whatever_the_signs(phi):
    rng = np.random.default_rng(0)
    spread = 0.2 * rng.normal(size=(*phi.shape[:-1], 7, 3))
    q = lie.quaternion_multiply(lie.quaternion_exp(spread), lie.quaternion_exp(phi)[..., None, :])
    q *= rng.choice([-1.0, 1.0], size=(*q.shape[:-1], 1))
    same_rotation(quaternion.mean(tensor(q)), lie.quaternion_mean(q))


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        quaternion.mean(torch.zeros(2, 0, 4))


@pytest.mark.parametrize("angle", HARD)
@pytest.mark.parametrize(
    "function",
    [
        quaternion.exp,
        lambda phi: quaternion.log(quaternion.exp(phi)),
        lambda phi: quaternion.to_matrix(quaternion.exp(phi)),
        lambda phi: quaternion.from_matrix(quaternion.to_matrix(quaternion.exp(phi))),
        lambda phi: quaternion.normalise(2.0 + quaternion.exp(phi)),
        lambda phi: quaternion.mean(torch.stack([quaternion.exp(phi), quaternion.exp(0.5 * phi)])),
    ],
    ids=["exp", "log", "to_matrix", "from_matrix", "normalise", "mean"],
)
def test_gradients_are_those_of_finite_differences(function: Callable, angle: float) -> None:
    phi = tensor(angle * AXIS).requires_grad_()
    assert torch.autograd.gradcheck(function, phi, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_identity_are_exact(dtype):
    phi = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(
        lambda p: quaternion.log(quaternion.exp(p)).sum(dim=0), phi
    )
    expected = torch.eye(3, dtype=dtype)[:, None].expand(3, 4, 3)
    torch.testing.assert_close(jacobian, expected)
    one = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=dtype, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(quaternion.log, one)
    torch.testing.assert_close(jacobian[:, 1:], 2.0 * torch.eye(3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("q", [[0, 0, 0, 0], [1, 0, 0, 0], [-1, 0, 0, 0], [0, 1, 0, 0]])
def test_nothing_is_ever_nan(dtype, q):
    q = torch.tensor(q, dtype=dtype, requires_grad=True)
    for value in (quaternion.normalise(q), quaternion.log(q), quaternion.log(1e-30 * q)):
        (gradient,) = torch.autograd.grad(value.sum(), q, retain_graph=True)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


def test_float32_is_as_good_as_float32_can_be():
    rng = np.random.default_rng(1)
    phi = rng.normal(size=(1000, 3)) * np.logspace(-6, 0, 1000)[:, None]
    back = quaternion.log(quaternion.exp(torch.tensor(phi, dtype=torch.float32))).numpy()
    np.testing.assert_allclose(back, phi, rtol=3e-6, atol=1e-12)
