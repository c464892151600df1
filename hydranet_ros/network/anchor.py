"""Rotation by weighted least squares on a flow field: the geometry that need not be learned.

A point at x = (x, y) in normalised coordinates moves by rotation alone to pi(C (x, y, 1)), and a
small rotation w = (wx, wy, wz) more moves it by A(x, y) w with

    A = [[-x y, 1 + x^2, -y], [-(1 + y^2), x y, x]].

The network says how much each cell counts and how much of its flow is parallax; Gauss-Newton does
the rest. It is right for rotations of any size that training never saw, in every camera.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.camera import CanonicalGrid
from hydranet_ros.network import quaternion

_ITERATIONS = 2  # the second corrects the linearisation: 1e-4 rad remain of 10 deg
_DAMPING = 1e-5  # against a total weight of 1: pulls by 1e-5, and gives 0 where nothing is valid
_EPSILON = 1e-6


class Cells(NamedTuple):
    """A flow field on coarser cells: (batch, 2, rows, columns), and valid (batch, 1, ...)."""

    points: Tensor
    flow: Tensor
    valid: Tensor


class Anchor(NamedTuple):
    """A rotation (batch, 4), the flow it leaves (as `Cells.flow`), and its normal matrix."""

    quaternion: Tensor
    residual: Tensor
    normal: Tensor  # (batch, 3, 3)
    rms: Tensor  # (batch, 2), weighted, of the residual


def grid_points(grid: CanonicalGrid) -> Tensor:
    """Centres of the cells of a grid, (2, rows, columns)."""
    return torch.tensor(grid.centres, dtype=torch.float32).permute(2, 0, 1)


def pool(points: Tensor, flow: Tensor, mask: Tensor, factor: int) -> Cells:
    """Means over blocks of factor x factor cells, weighted by the mask (batch, 1, ...)."""
    valid = functional.avg_pool2d(mask, factor)
    share = valid.clamp_min(_EPSILON)
    return Cells(
        functional.avg_pool2d(points * mask, factor) / share,
        functional.avg_pool2d(flow * mask, factor) / share,
        valid,
    )


def solve(cells: Cells, weight: Tensor, parallax: Tensor) -> Anchor:
    """argmin_C sum weight |x + flow - parallax - pi(C (x, 1))|^2.

    `weight` and `parallax` are (batch, 2, rows, columns), one number per axis of the flow.
    """
    points, target = cells.points.flatten(2), (cells.points + cells.flow - parallax).flatten(2)
    weight = (weight * cells.valid).flatten(2)
    weight = weight / (weight.sum(dim=(1, 2), keepdim=True) + _EPSILON)
    ray = torch.cat([points, torch.ones_like(points[:, :1])], dim=1)  # (batch, 3, cells)
    damping = _DAMPING * torch.eye(3, dtype=ray.dtype, device=ray.device)
    q, here = None, points
    for _ in range(_ITERATIONS):
        jacobian = _jacobian(here)  # (batch, 2, cells, 3)
        weighted = jacobian * weight[..., None]
        normal = torch.einsum("bani,banj->bij", weighted, jacobian) + damping
        moment = torch.einsum("bani,ban->bi", weighted, target - here)
        step = quaternion.exp(torch.linalg.solve(normal, moment))
        q = step if q is None else quaternion.multiply(step, q)
        here = _project(quaternion.to_matrix(q) @ ray)
    assert q is not None
    residual = cells.points + cells.flow - here.reshape(cells.flow.shape)
    rms = ((target - here) ** 2 * weight).sum(dim=2)
    return Anchor(q, residual * (cells.valid > 0.0), normal, (rms + 1e-12).sqrt())


def _jacobian(points: Tensor) -> Tensor:
    """A(x, y): (batch, 2, cells) -> (batch, 2, cells, 3)."""
    x, y = points.unbind(dim=1)
    one, xy = torch.ones_like(x), x * y
    u = torch.stack([-xy, one + x * x, -y], dim=-1)
    v = torch.stack([-one - y * y, xy, x], dim=-1)
    return torch.stack([u, v], dim=1)


def _project(ray: Tensor) -> Tensor:
    """pi: (batch, 3, cells) -> (batch, 2, cells); a wild rotation must not divide by zero."""
    return ray[:, :2] / ray[:, 2:].clamp_min(0.1)
