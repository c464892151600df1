from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hydranet_ros.experiments.one_d_methods import (
    FLOOR,
    METHODS,
    likelihood_gradient,
    square_gradient,
)
from hydranet_ros.experiments.one_d_networks import Shape, Stack

SAMPLES = 7


def plain_network(stack: Stack, index: int) -> tuple[nn.Module, nn.ModuleList]:
    """The same network out of ordinary layers, in float32."""
    shape = stack.shape
    n, o = shape.units, shape.outputs
    weights = [each[index] for each in stack._W]
    body = nn.Sequential(nn.Linear(1, n), nn.SELU(), nn.Linear(n, n), nn.SELU())
    heads = nn.ModuleList(
        nn.Sequential(nn.Linear(n, n), nn.SELU(), nn.Linear(n, o)) for _ in range(shape.heads)
    )
    with torch.no_grad():
        _fill(body[0], weights[0])
        _fill(body[2], weights[1])
        for h, head in enumerate(heads):
            _fill(head[0], weights[2][h * n : (h + 1) * n])
            _fill(head[2], weights[3][h * o : (h + 1) * o])
    return body, heads


def _fill(layer: nn.Linear, weights: Tensor) -> None:
    layer.weight.copy_(weights[:, :-1])
    layer.bias.copy_(weights[:, -1])


@pytest.mark.parametrize("shape", [Shape(3), Shape(2, heads=5), Shape(2, outputs=2)], ids=str)
def test_a_stack_is_its_networks_side_by_side(shape: Shape) -> None:
    rng = torch.Generator().manual_seed(0)
    stack = Stack(shape, rng)
    x = 2.0 * torch.randn(shape.networks, SAMPLES, generator=rng)
    output = stack.forward(x)
    for index in range(shape.networks):
        body, heads = plain_network(stack, index)
        features = body(x[index, :, None])
        for h, head in enumerate(heads):
            torch.testing.assert_close(output[index, h].T, head(features), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [Shape(3), Shape(2, heads=5), Shape(2, outputs=2)], ids=str)
def test_the_written_gradient_is_that_of_autograd(shape: Shape) -> None:
    rng = torch.Generator().manual_seed(1)
    stack = Stack(shape, rng)
    x = torch.randn(shape.networks, SAMPLES, generator=rng)
    slope = torch.randn(stack.forward(x).shape, generator=rng)
    stack.backward(slope)
    n = shape.units
    for index in range(shape.networks):
        body, heads = plain_network(stack, index)
        features = body(x[index, :, None])
        value = sum((head(features).T * slope[index, h]).sum() for h, head in enumerate(heads))
        value.backward()
        expected = [body[0], body[2]]
        for layer, written in zip(expected, stack._dW, strict=False):
            _same_gradient(layer, written[index])
        for h, head in enumerate(heads):
            _same_gradient(head[0], stack._dW[2][index, h * n : (h + 1) * n])


def _same_gradient(layer: nn.Linear, written: Tensor) -> None:
    torch.testing.assert_close(written[:, :-1], layer.weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(written[:, -1], layer.bias.grad, rtol=1e-4, atol=1e-5)


def test_networks_of_a_stack_do_not_touch_each_other() -> None:
    stack = Stack(Shape(2, heads=3), torch.Generator().manual_seed(0))
    x = torch.randn(2, SAMPLES)
    slope = torch.zeros_like(stack.forward(x))
    slope[1] = 1.0
    stack.backward(slope)
    for gradient in stack._dW:
        assert not gradient[0].any()
        assert gradient[1].any()


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    stack = Stack(Shape(200), torch.Generator().manual_seed(0), dropout=0.25)
    stack.forward(torch.rand(200, 50))
    values = stack._buffers[50].a1[:, :-1]
    assert float((values == 0.0).float().mean()) == pytest.approx(0.25, abs=0.01)
    whole = Stack(Shape(200), torch.Generator().manual_seed(0))
    whole.forward(torch.rand(200, 50))
    mean = values.mean() * stack._gain
    expected = whole._buffers[50].a1[:, :-1].mean() * whole._gain
    assert float(mean) == pytest.approx(float(expected), abs=0.02)


def test_gradient_with_dropout_is_that_of_the_network_with_those_units() -> None:
    shape = Shape(3, heads=2)
    stack = Stack(shape, torch.Generator().manual_seed(0), dropout=0.3)
    x = torch.rand(3, SAMPLES)
    y = stack.forward(x)
    slope = torch.randn(y.shape)
    b = stack._buffers[SAMPLES]
    parameters = stack.parameters.clone().requires_grad_()
    W = stack._views(parameters)
    a = torch.stack([x, torch.ones_like(x)], dim=1)
    for weights, buffer in zip(W, (b.a1, b.a2, b.a3), strict=False):
        kept = buffer[:, :-1].reshape(3, -1, SAMPLES) != 0.0
        a = torch.selu(weights @ a) * kept / 0.7
        a = torch.cat([a, torch.ones(3, 1, SAMPLES)], dim=1)
    heads = a[:, :-1].reshape(3, 2, 20, SAMPLES)
    last = W[3].view(3, 2, 1, 21)
    expected = last[..., :-1] @ heads + last[..., -1:]
    torch.testing.assert_close(y, expected)
    expected.backward(slope)
    stack.backward(slope)
    torch.testing.assert_close(stack.gradient, parameters.grad)


def test_momentum_keeps_its_share_of_the_gradient() -> None:
    stack = Stack(Shape(2, heads=3), torch.Generator().manual_seed(0))
    x = torch.rand(2, SAMPLES)
    slopes = torch.randn(2, *stack.forward(x).shape)
    gradients = []
    for slope in slopes:
        stack.forward(x)
        stack.backward(slope)
        gradients.append(stack.gradient.clone())
    stack.gradient.copy_(gradients[0])
    stack.forward(x)
    stack.backward(slopes[1], keep=0.9)
    torch.testing.assert_close(stack.gradient, 0.9 * gradients[0] + gradients[1])


def test_dropped_units_pass_no_gradient() -> None:
    stack = Stack(Shape(1), torch.Generator().manual_seed(0), dropout=0.5)
    y = stack.forward(torch.rand(1, 1))
    dropped = stack._buffers[1].a3[0, :-1, 0] == 0.0
    assert dropped.any()
    stack.backward(torch.ones_like(y))
    assert not stack._dW[2][0][dropped].any()
    assert stack._dW[2][0][~dropped].any(dim=1).all()


@pytest.mark.parametrize("deviation", [False, True])
@pytest.mark.parametrize("outputs", [(11, 1), (1, 2)])
def test_gradients_of_the_losses(outputs: tuple[int, int], deviation: bool) -> None:
    y = torch.randn(3, 1, SAMPLES, dtype=torch.float64)
    output = torch.randn(3, *outputs, SAMPLES, dtype=torch.float64, requires_grad=True)
    rows = output.flatten(1, 2)
    variance = (nn.functional.softplus(rows[:, -1:]) + FLOOR) ** (2 if deviation else 1)
    nll = 0.5 * ((rows[:, :-1] - y) ** 2 / variance + variance.log())
    nll.mean(dim=(1, 2)).sum().backward()
    torch.testing.assert_close(likelihood_gradient(deviation, output.detach(), y), output.grad)
    output.grad = None
    ((output - y[:, :, None]) ** 2).mean(dim=-1).sum().backward()
    torch.testing.assert_close(square_gradient(output.detach(), y), output.grad)


def test_the_paper_s_table_of_hyper_parameters() -> None:
    table = {m.name: (m.learning_rate, m.momentum, m.dropout) for m in METHODS.values()}
    assert table == {
        "dropout": (0.05, 0.5, 0.03),
        "direct": (1e-4, 0.0, 0.0),
        "bagging": (0.01, 0.9, 0.0),
        "hydranet_no_sigma": (0.01, 0.9, 0.0),
        "hydranet": (0.01, 0.1, 0.0),
    }
