"""The geometry inside the network, against exact flow fields and finite differences."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from hydranet_ros.geometry import lie
from hydranet_ros.gyro import epipolar, quaternion
from hydranet_ros.gyro.config import preset
from hydranet_ros.gyro.grid import CanonicalGrid
from hydranet_ros.gyro.network import HydraNet

GRID = CanonicalGrid()
POINTS = epipolar.grid_points(GRID)


def exact_flow(phi: np.ndarray, t: np.ndarray, inverse_depth: np.ndarray) -> torch.Tensor:
    """(1, 2, rows, columns): points at x / z, y / z of depth z seen after p -> C p + t."""
    x, y = POINTS.double().numpy()
    rays = np.stack([x, y, np.ones_like(x)])
    moved = np.einsum("ij,jrc->irc", lie.so3_exp(phi), rays) + t[:, None, None] * inverse_depth
    return torch.tensor(moved[:2] / moved[2] - rays[:2], dtype=torch.float32)[None]


def street_depth(seed: int) -> np.ndarray:
    """Inverse depth of ground, walls of random distance, and sky."""
    rng = np.random.default_rng(seed)
    x, y = POINTS.double().numpy()
    ground = np.clip(y / 1.65, 0.0, None)
    walls = np.abs(x) / rng.uniform(4.0, 9.0) * (y > -0.2 + 0.1 * rng.random())
    return np.maximum(np.maximum(ground, walls), 0.0)


def found(flow: torch.Tensor, mask: torch.Tensor | None = None) -> epipolar.CameraMotion:
    mask = torch.ones(1, 1, GRID.rows, GRID.columns) if mask is None else mask
    return epipolar.solve(epipolar.pool(POINTS[None], flow, mask, 4))


def angle_deg(C: torch.Tensor, phi: np.ndarray) -> float:
    error = lie.so3_log(C[0].double().numpy() @ lie.so3_exp(phi).T)
    return float(np.degrees(np.linalg.norm(error)))


@pytest.mark.parametrize("seed", range(6))
def test_rotation_and_direction_of_exact_flow_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    phi = np.radians(rng.normal(0.0, [0.5, 2.0, 0.5]))
    t = np.array([0.05, -0.02, -1.0]) * rng.uniform(0.5, 2.0)
    motion = found(exact_flow(phi, t, street_depth(seed)))
    assert angle_deg(motion.C, phi) < 0.01
    direction = motion.t[0].numpy()
    assert np.degrees(np.arccos(np.clip(direction @ t / np.linalg.norm(t), -1, 1))) < 0.5


def test_reverse_gear_has_the_opposite_direction() -> None:
    motion = found(exact_flow(np.zeros(3), np.array([0.0, 0.0, 0.8]), street_depth(0)))
    assert motion.t[0, 2] > 0.99


@pytest.mark.parametrize("size_deg", [0.1, 2.0, 8.0])
def test_without_parallax_it_is_the_rotation_alone(size_deg: float) -> None:
    phi = np.radians(size_deg) * np.array([0.36, -0.8, 0.48])
    motion = found(exact_flow(phi, np.zeros(3), street_depth(1)))
    assert angle_deg(motion.C, phi) < 0.01


def test_no_flow_is_no_motion() -> None:
    motion = found(torch.zeros(1, 2, GRID.rows, GRID.columns))
    torch.testing.assert_close(motion.C[0], torch.eye(3), atol=1e-6, rtol=0.0)
    nothing = found(torch.zeros(1, 2, GRID.rows, GRID.columns), torch.zeros(1, 1, 48, 160))
    assert nothing.C.isfinite().all()
    assert nothing.t.isfinite().all()


def test_a_third_of_wrong_flow_does_little() -> None:
    phi, t = np.radians([0.1, 1.0, -0.2]), np.array([0.0, 0.0, -1.0])
    flow = exact_flow(phi, t, street_depth(2))
    flow[:, :, 10:40, 20:80] += torch.tensor([0.05, 0.01])[None, :, None, None]
    assert angle_deg(found(flow).C, phi) < 0.03


def test_flow_that_is_not_trusted_does_not_touch_the_geometry() -> None:
    """Two thirds are wrong, all in the same way: more than any robust kernel could bear."""
    phi, t = np.radians([0.3, -2.0, 0.2]), np.array([0.05, 0.0, -1.0])
    flow = exact_flow(phi, t, street_depth(1))
    trusted = torch.zeros(1, 1, GRID.rows, GRID.columns)
    trusted[..., : GRID.columns // 3] = 1.0
    spoiled = torch.where(trusted > 0.0, flow, exact_flow(-phi, -t, street_depth(2)))
    torch.manual_seed(0)
    body = HydraNet(preset("default")).eval().body
    x = torch.cat([spoiled, torch.ones_like(trusted)], dim=1)
    with torch.no_grad():
        anchors = [quaternion.to_matrix(body(x, each).anchor) for each in (None, trusted)]
    assert angle_deg(anchors[0], phi) > 1.0
    assert angle_deg(anchors[1], phi) < 0.05


def moved(
    motion: epipolar.CameraMotion, phi: torch.Tensor, dt: torch.Tensor
) -> epipolar.CameraMotion:
    t = torch.nn.functional.normalize(motion.t + dt, dim=1)
    return epipolar.CameraMotion(epipolar.rotate(phi[None]) @ motion.C, t)


@pytest.mark.parametrize("t", [(0.1, 0.0, -1.0), (0.0, 0.0, 0.0)])
def test_one_step_undoes_a_small_error(t: tuple[float, float, float]) -> None:
    """Gauss-Newton converges at once where its derivatives are right, and slowly where not.

    With a scale so wide that the robust kernel weighs all cells alike.
    """
    size, zero = 1e-3, torch.zeros(3, dtype=torch.float64)
    flow = exact_flow(np.radians([0.2, 1.0, 0.1]), np.array(t), street_depth(3))
    cells = epipolar.pool(POINTS[None], flow, torch.ones(1, 1, 48, 160), 4)
    cells = epipolar.Cells(*(each.double() for each in cells))
    start = torch.tensor([t if any(t) else (0.0, 0.0, -1.0)], dtype=torch.float64)
    best = epipolar.CameraMotion(torch.eye(3, dtype=torch.float64)[None], start)
    best = moved(best, zero, zero)
    for _ in range(60):
        best = epipolar.step(cells, best, cells.valid[:, 0], 1e6)
    for axis in size * torch.eye(3, dtype=torch.float64):
        found = epipolar.step(cells, moved(best, axis, zero), cells.valid[:, 0], 1e6, held=1e3)
        assert (found.C - best.C).norm() < 0.005 * size
        if any(t):
            found = epipolar.step(cells, moved(best, zero, axis), cells.valid[:, 0], 1e6)
            assert (found.t - best.t).norm() < 0.06 * size


def test_the_covariance_knows_what_cannot_be_seen() -> None:
    """Yaw is hard to tell from sideways motion, so where there is parallax it is less certain."""
    flow = exact_flow(np.zeros(3), np.array([0.0, 0.0, -1.0]), street_depth(4))
    flow = flow + 3e-4 * torch.randn(flow.shape, generator=torch.Generator().manual_seed(0))
    fine = epipolar.pool(POINTS[None], flow, torch.ones(1, 1, 48, 160), 2)
    root = epipolar.covariance_root(fine, found(flow), fine.valid[:, 0], 1e-3)[0]
    sigma = (root @ root.mT).diagonal().sqrt()
    assert sigma[1] > sigma[0]
    assert torch.equal(root, root.tril())
    blind = epipolar.covariance_root(fine, found(flow), torch.zeros_like(fine.valid[:, 0]), 1e-3)
    assert 0.04 < float(blind[0, 0, 0]) < 0.06


def test_gradients_are_finite_where_there_is_nothing_to_see() -> None:
    cells = epipolar.pool(POINTS[None], torch.zeros(1, 2, 48, 160), torch.ones(1, 1, 48, 160), 2)
    weight = torch.ones_like(cells.valid[:, 0], requires_grad=True)
    start = epipolar.CameraMotion(torch.eye(3)[None], torch.tensor([[0.0, 0.0, 1.0]]))
    motion = epipolar.step(cells, start, weight, 1e-3)
    root = epipolar.covariance_root(cells, motion, weight, 1e-3)
    (motion.C.sum() + root.sum()).backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_rotations_of_steps_are_exact() -> None:
    phi = np.random.default_rng(0).uniform(-0.5, 0.5, (100, 3))
    found = epipolar.rotate(torch.tensor(phi)).numpy()
    np.testing.assert_allclose(found, lie.so3_exp(phi), atol=2e-6)


AFTER_INFERENCE = """
import torch
from hydranet_ros.gyro import epipolar
from hydranet_ros.gyro.grid import CanonicalGrid
points, mask = epipolar.grid_points(CanonicalGrid())[None], torch.ones(1, 1, 48, 160)
cells = epipolar.pool(points, torch.zeros(1, 2, 48, 160), mask, 4)
with torch.inference_mode():
    motion = epipolar.solve(cells)
start = epipolar.CameraMotion(torch.eye(3)[None], torch.tensor([[0.0, 0.0, 1.0]]))
weight = torch.ones_like(cells.valid[:, 0], requires_grad=True)
epipolar.step(cells, start, weight, 1e-3).C.sum().backward()
"""


def test_training_works_after_inference_in_the_same_process() -> None:
    """Constants that inference makes and keeps must not be inference tensors."""
    subprocess.run([sys.executable, "-c", AFTER_INFERENCE], check=True, timeout=120)
