from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from hydranet_ros.experiments.one_d_methods import (
    FLOOR,
    METHODS,
    likelihood_gradient,
    square_gradient,
)
from hydranet_ros.experiments.one_d_networks import SELU_SCALE, Shape, Stack

SAMPLES = 7


def plain_network(stack: Stack, index: int) -> tuple[nn.Module, nn.ModuleList]:
    """The same network out of ordinary layers, in float32."""
    shape = stack.shape
    n, o = shape.units, shape.outputs
    weights = [each[index] for each in stack.layers(stack.parameters)]
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
    n, o = shape.units, shape.outputs
    for index in range(shape.networks):
        body, heads = plain_network(stack, index)
        features = body(x[index, :, None])
        value = sum((head(features).T * slope[index, h]).sum() for h, head in enumerate(heads))
        value.backward()
        first, second, third, fourth = (each[index] for each in stack.layers(stack.gradient))
        _same_gradient(body[0], first)
        _same_gradient(body[2], second)
        for h, head in enumerate(heads):
            _same_gradient(head[0], third[h * n : (h + 1) * n])
            _same_gradient(head[2], fourth[h * o : (h + 1) * o])


def _same_gradient(layer: nn.Linear, written: Tensor) -> None:
    torch.testing.assert_close(written[:, :-1], layer.weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(written[:, -1], layer.bias.grad, rtol=1e-4, atol=1e-5)


def test_networks_of_a_stack_do_not_touch_each_other() -> None:
    stack = Stack(Shape(2, heads=3), torch.Generator().manual_seed(0))
    x = torch.randn(2, SAMPLES)
    slope = torch.zeros_like(stack.forward(x))
    slope[1] = 1.0
    stack.backward(slope)
    for gradient in stack.layers(stack.gradient):
        assert not gradient[0].any()
        assert gradient[1].any()


# Dropout draws from the generator that a stack is given: from the same state, the same units.


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    """Where all units hold the same value, an output is proportional to the number kept."""
    networks, samples, units = 200, 50, 20
    stack = Stack(Shape(networks), torch.Generator().manual_seed(0), dropout=0.25)
    *hidden, last = stack.layers(stack.parameters)
    for weights in hidden:
        weights.zero_()
        weights[..., -1] = 1.0  # the bias: SELU(1) in every unit
    last.fill_(1.0)
    last[..., -1] = 0.0
    kept = stack.forward(torch.zeros(networks, samples)) / (SELU_SCALE / 0.75)
    torch.testing.assert_close(kept, kept.round(), rtol=0.0, atol=1e-4)
    assert float(kept.mean()) == pytest.approx(0.75 * units, rel=0.005)
    assert float(kept.var()) == pytest.approx(0.75 * 0.25 * units, rel=0.05)
    # Through all layers, where SELU is linear, the mean is that without dropout.
    plain = Stack(Shape(networks), torch.Generator().manual_seed(0))
    for each in (stack, plain):
        each.parameters.fill_(0.04)
    x = torch.ones(networks, samples)
    assert float(stack.forward(x).mean()) == pytest.approx(
        float(plain.forward(x).mean()), rel=0.01
    )


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_precision")
def test_gradient_with_dropout_is_that_of_the_network_with_those_units() -> None:
    """Against differences of the output along random directions, layer by layer."""
    rng = torch.Generator().manual_seed(0)
    stack, size = Stack(Shape(3, heads=2), rng, dropout=0.3), 1e-6
    x = torch.rand(3, SAMPLES, generator=rng)
    slope = torch.randn(stack.forward(x).shape, generator=rng)
    state = rng.get_state()
    stack.forward(x)
    stack.backward(slope)
    gradient, parameters = stack.gradient.clone(), stack.parameters.clone()
    for number in range(4):
        direction = torch.zeros_like(parameters)
        layer = stack.layers(direction)[number]
        layer.copy_(torch.randn(layer.shape, generator=torch.Generator().manual_seed(number)))
        values = []
        for sign in (1.0, -1.0):
            stack.parameters.copy_(parameters + sign * size * direction)
            rng.set_state(state)
            values.append(float((stack.forward(x) * slope).sum()))
        found = (values[0] - values[1]) / (2.0 * size)
        assert found == pytest.approx(float(gradient @ direction), rel=1e-5)


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
    """A unit of the last hidden layer is dropped where its bias does not matter."""
    rng = torch.Generator().manual_seed(0)
    stack, x = Stack(Shape(1), rng, dropout=0.5), torch.rand(1, 1)
    state = rng.get_state()
    plain = stack.forward(x).clone()
    stack.backward(torch.ones_like(plain))
    gradient = stack.layers(stack.gradient)[2][0]
    bias = stack.layers(stack.parameters)[2][0, :, -1]
    dropped = []
    for unit in range(len(bias)):
        before = float(bias[unit])
        bias[unit] += 1.0
        rng.set_state(state)
        dropped.append(torch.equal(stack.forward(x), plain))
        bias[unit] = before
    assert 0 < sum(dropped) < len(dropped)
    assert gradient.any(dim=1).tolist() == [not each for each in dropped]


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
