"""Least squares on flow fields: exact where the flow is rotation, and robust by its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hydranet_ros import lie
from hydranet_ros.camera import CanonicalGrid
from hydranet_ros.network import anchor, quaternion


def rotational_flow(phi, grid: CanonicalGrid) -> torch.Tensor:
    """(batch, 2, rows, columns): where lie says that rotation takes the cells."""
    points = anchor.grid_points(grid).double().numpy()
    rays = np.concatenate([points, np.ones_like(points[:1])]).reshape(3, -1)
    moved = lie.so3_exp(phi) @ rays
    flow = moved[:, :2] / moved[:, 2:] - rays[:2]
    return torch.tensor(flow.reshape(-1, 2, grid.rows, grid.columns))


def solve(
    flow: torch.Tensor, mask: torch.Tensor, grid: CanonicalGrid, weight=None
) -> anchor.Anchor:
    points = anchor.grid_points(grid).to(flow.dtype).expand(len(flow), -1, -1, -1)
    cells = anchor.pool(points, flow * mask, mask, 4)
    weight = torch.ones_like(cells.flow) if weight is None else weight
    return anchor.solve(cells, weight, torch.zeros_like(cells.flow))


@pytest.mark.parametrize(("degrees", "tolerance_deg"), [(0.0, 1e-9), (0.5, 2e-4), (10.0, 0.05)])
def test_a_rotation_is_found(degrees, tolerance_deg):
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(20, 3))
    phi *= np.radians(degrees) / np.linalg.norm(phi, axis=1, keepdims=True)
    flow = rotational_flow(phi, CanonicalGrid())
    mask = torch.tensor(rng.random((20, 1, 48, 160)) < 0.7, dtype=torch.float64)
    found = quaternion.log(solve(flow, mask, CanonicalGrid()).quaternion).numpy()
    # Means over 4x4 cells are not quite the flow at their centres, hence the tolerance.
    assert np.degrees(np.abs(found - phi).max()) < max(tolerance_deg, 2e-4 * degrees)


def test_the_centres_of_the_cells():
    points = anchor.grid_points(CanonicalGrid(2, 4, 1.0))
    np.testing.assert_allclose(points[0, 0], [-1.5, -0.5, 0.5, 1.5])
    np.testing.assert_allclose(points[1, :, 0], [-0.5, 0.5])


def test_weights_leave_out_what_moves_otherwise():
    phi = np.array([[0.004, -0.02, 0.003]])
    flow = rotational_flow(phi, CanonicalGrid())
    flow[..., :60] += 0.05
    weight = torch.ones(1, 2, 12, 40, dtype=torch.float64)
    weight[..., :15] = 0.0
    mask = torch.ones(1, 1, 48, 160, dtype=torch.float64)
    wrong = quaternion.log(solve(flow, mask, CanonicalGrid()).quaternion)
    right = quaternion.log(solve(flow, mask, CanonicalGrid(), weight).quaternion)
    assert np.abs(wrong.numpy() - phi).max() > 5e-3
    np.testing.assert_allclose(right, phi, atol=1e-5)


def test_nothing_valid_is_no_rotation_and_no_nan():
    flow = torch.zeros(2, 2, 48, 160, requires_grad=True)
    found = solve(flow, torch.zeros(2, 1, 48, 160), CanonicalGrid())
    torch.testing.assert_close(found.quaternion, torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2))
    (gradient,) = torch.autograd.grad(sum(part.sum() for part in found), flow)
    assert gradient.isfinite().all()
