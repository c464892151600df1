"""That the networks learn, and that heads disagree about what they have not learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hydranet_ros.gyro import quaternion as quat
from hydranet_ros.gyro.config import FLOW_CHANNELS, preset
from hydranet_ros.gyro.epipolar import grid_points
from hydranet_ros.gyro.grid import CanonicalGrid
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.prediction import Prediction, combine
from hydranet_ros.gyro.predictor import network_input
from hydranet_ros.training.config import LossConfig
from hydranet_ros.training.loss import bootstrap_weights, loss


@pytest.fixture(autouse=True)
def one_thread():
    """Small products are faster on one thread, and do not depend on who else is running."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(model, x, q, steps, rate, batch=None, config=None) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    weights = bootstrap_weights(np.arange(len(x)), model.config.heads, model.config.bootstrap)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, steps)
    values = []
    for _ in range(steps):
        i = torch.randperm(len(x), generator=generator)[: batch or len(x)]
        value = loss(model(x[i]), q[i], None if weights is None else weights[i], config)
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        schedule.step()
        values.append(value.item())
    model.eval()
    return values


def predict(model: HydraNet, x: torch.Tensor) -> Prediction:
    with torch.inference_mode():
        return combine(model(x))


def mean_error(prediction: Prediction, q: torch.Tensor) -> float:
    phi = quat.difference(torch.tensor(prediction.quaternions), q.double())
    return float(phi.norm(dim=-1).mean())


def street_flow(count: int, grid: CanonicalGrid) -> tuple[torch.Tensor, torch.Tensor]:
    """Flow over a ground plane with noise, and its rotations (degrees, mostly yaw)."""
    generator = torch.Generator().manual_seed(0)
    points = grid_points(grid)
    rays = torch.cat([points, torch.ones_like(points[:1])]).flatten(1)
    phi = torch.randn(count, 3, generator=generator) * torch.tensor([0.004, 0.015, 0.004])
    forward = torch.rand(count, 1, generator=generator)
    inverse_depth = rays[1].clamp_min(0.0) / 1.65
    moved = quat.to_matrix(quat.exp(phi)) @ rays
    moved[:, 2] -= forward * inverse_depth
    flow = moved[:, :2] / moved[:, 2:] - rays[:2]
    flow = flow + 1e-3 * torch.randn(flow.shape, generator=generator)
    flow = flow.reshape(count, 2, grid.rows, grid.columns)
    mask = torch.rand(count, grid.rows, grid.columns, generator=generator) < 0.9
    return network_input(flow, mask, FLOW_CHANNELS), quat.exp(phi)


@pytest.mark.parametrize(
    ("overrides", "config", "degrees"),
    [
        ({}, LossConfig(), 0.1),
        ({"head_hidden": 16}, LossConfig(beta=0.5), 0.1),
    ],
    ids=["default", "beta"],
)
def test_the_default_network_learns_a_few_frames(overrides, config, degrees):
    grid = CanonicalGrid(24, 80, 1.0 / 48.0)
    x, q = street_flow(16, grid)
    torch.manual_seed(0)
    model = HydraNet(preset("default", grid=grid, input_shape=(6, 24, 80), heads=8, **overrides))
    before = mean_error(predict(model.eval(), x), q)
    values = train(model.train(), x, q, 50, 2e-3, config=config)
    after = mean_error(predict(model, x), q)
    assert np.mean(values[-5:]) < np.mean(values[:5]) - 1.0
    assert after < 0.5 * before
    assert after < np.radians(degrees)


def test_the_paper_s_heads_learn():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 12, generator=generator)
    q = quat.exp(0.3 * torch.tanh(x[:, :3]))
    torch.manual_seed(0)
    model = HydraNet(
        preset("mlp", input_shape=(12,), features=12, heads=5, head_hidden=64, head_dropout=0.0)
    )
    values = train(model, x, q, 300, 3e-3)
    assert values[-1] < values[0] - 5.0
    assert mean_error(predict(model, x), q) < 0.06


# --- diversity: four numbers in, a smooth rotation out, learned where |x_i| < 1


def toy_rotation(x: torch.Tensor) -> torch.Tensor:
    a, b, c, d = x.unbind(dim=-1)
    return 0.3 * torch.stack([torch.sin(2 * a), torch.cos(2 * b) * c, d * a], dim=-1)


def toy_spread(**overrides: object) -> tuple[float, float, float, float]:
    """RMS epistemic deviation and error, in distribution and far from it."""
    generator = torch.Generator().manual_seed(0)
    x = 2.0 * torch.rand(512, 4, generator=generator) - 1.0
    q = quat.exp(toy_rotation(x) + 0.01 * torch.randn(512, 3, generator=generator))
    config = preset(
        "mlp",
        input_shape=(4,),
        features=4,
        heads=10,
        head_hidden=64,
        head_dropout=0.0,
        output="tangent",
        output_scale_rad=0.3,
        sigma_unit_rad=0.1,
        covariance_floor=1e-3,
        **overrides,
    )
    torch.manual_seed(0)
    model = HydraNet(config)
    train(model, x, q, 400, 3e-3, batch=128)
    near = 2.0 * torch.rand(1000, 4, generator=generator) - 1.0
    far = 3.0 * torch.nn.functional.normalize(torch.randn(1000, 4, generator=generator), dim=1)
    result = []
    for inputs in (near, far):
        prediction = predict(model, inputs)
        truth = quat.exp(toy_rotation(inputs).double())
        phi = quat.difference(torch.tensor(prediction.quaternions), truth)
        spread = np.trace(prediction.epistemic, axis1=1, axis2=2).mean() / 3.0
        result += [float(np.sqrt(spread)), float(phi.square().mean().sqrt())]
    return tuple(result)


def test_heads_disagree_far_away_only_with_priors_and_bootstrap():
    _, _, plain_far, plain_error = toy_spread()
    near, near_error, far, far_error = toy_spread(
        prior_scale_rad=0.1, prior_gain=1.5, bootstrap="poisson"
    )
    assert plain_far < 0.25 * plain_error  # the paper's heads agree, and all are wrong
    assert far > 0.5 * far_error  # ours say by how much
    assert far > 4.0 * near
    assert far > 4.0 * plain_far
    assert near < 0.06  # and still agree where they were taught
    assert near_error < 0.06
