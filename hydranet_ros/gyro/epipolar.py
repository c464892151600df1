"""Rotation and direction of motion from a flow field: the geometry that need not be learned.

A point at x in normalised coordinates, rotated by C, is seen at h = pi(C (x, 1)). What is left of
its flow, f = x + flow - h, is parallax, and lies on the line through the epipole:

    f x d = 0,   d = t_xy - h t_z,   t the direction of motion (a unit vector).

Across d there is only error; along d there is the unknown depth, of which no more is assumed than
its scale. Weighted Gauss-Newton over C and t minimises

    sum w |f x d|^2 / |d|^2  +  w noise^2 / (noise^2 + depth^2) |f . d|^2 / |d|^2,

which is the epipolar constraint where there is parallax and plain least squares where there is
none. It holds for every camera, for rotations of any size that training never saw.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.gyro.grid import CanonicalGrid

_EPIPOLE = 0.02  # where |d| is less, at the epipole, the direction of d means little
_NOISE = 5e-4  # of flow, a seventh of a pixel of the canonical image
# A robust scale for each step: wide at first, to be caught; narrow in the end, to be exact.
_LEAST_SQUARES_SCALES = (0.02, 0.01)
_HELD_SCALES = (0.01, 0.005)  # with the direction of motion as it was guessed
_FREE_SCALES = (0.003, 0.002, 0.0015, 0.001, 0.0007)
_STIFF = 10.0  # of the length of t, against the mean of the normal matrix
_COST_SCALE = 0.002  # what is beyond it counts little when starts are compared
_HELD = 1e3  # information that holds a direction, against a total weight of 1
_STARTS = ((0.0, 0.0, 1.0), (1.0, 0.0, 0.1))  # ahead, sideways
_DAMPING = 1e-4  # of a step, relative to the mean of the normal matrix
_LEAST_INFORMATION = 1e-7  # per unit of weight: without any flow, steps are 0
_CELLS_PER_ERROR = 40.0  # errors of this many neighbouring cells are one error
_PRIOR_SIGMA_RAD = 0.05  # a covariance never exceeds this


class Cells(NamedTuple):
    """A flow field: points and where they are seen next (batch, 2, n), valid (batch, 1, n)."""

    points: Tensor
    target: Tensor
    valid: Tensor


class CameraMotion(NamedTuple):
    """C_2_1 (batch, 3, 3), and the direction of motion (batch, 3) in camera 2."""

    C: Tensor
    t: Tensor


class Residuals(NamedTuple):
    """Residuals of a flow field under a motion, (batch, n); depth is the scale of along."""

    f: tuple[Tensor, Tensor]
    across: Tensor  # f x d / |d|, signed
    along: Tensor  # f . d / |d|
    depth: Tensor  # (batch, 1)


class _At(NamedTuple):
    """Where a motion puts the points: h, d / |d|, 1 / |d|, and the residuals."""

    h: tuple[Tensor, Tensor]
    d: tuple[Tensor, Tensor]
    size: Tensor
    left: Residuals


def grid_points(grid: CanonicalGrid) -> Tensor:
    """Centres of the cells of a grid, (2, rows, columns)."""
    return torch.tensor(grid.centres, dtype=torch.float32).permute(2, 0, 1)


def pool(points: Tensor, flow: Tensor, mask: Tensor, factor: int) -> Cells:
    """Means over blocks of factor x factor cells; a block counts where all of it is valid."""
    where = functional.avg_pool2d(points, factor)
    mean = functional.avg_pool2d(flow * mask, factor)
    where = where.expand_as(mean)
    return Cells(where.flatten(2), (where + mean).flatten(2), whole(mask, factor))


def whole(mask: Tensor, factor: int) -> Tensor:
    """(batch, 1, n): 1 for blocks of factor x factor cells that are all in the mask, else 0."""
    return (functional.avg_pool2d(mask, factor) > 0.999).to(mask.dtype).flatten(2)


def solve(cells: Cells) -> CameraMotion:
    """The robust motion of a flow field, the best that is reached from several starts."""
    batch, starts = len(cells.points), len(_STARTS)
    C = _least_squares(cells).repeat_interleave(starts, dim=0)
    t = functional.normalize(C.new_tensor(_STARTS), dim=1).repeat(batch, 1)
    many = Cells(*(each.repeat_interleave(starts, dim=0) for each in cells))
    motion, ones = CameraMotion(C, t), many.valid[:, 0]
    for scale in _HELD_SCALES:
        motion = step(many, motion, ones, scale, held=_HELD)
    for scale in _FREE_SCALES:
        motion = step(many, motion, ones, scale)
    left = residuals(many, motion).across
    cost = (ones * torch.log1p((left / _COST_SCALE) ** 2)).sum(dim=1)
    # Ahead is what most motions are: another start must be clearly better.
    cost = cost.view(batch, starts) * cost.new_tensor([0.97] + [1.0] * (starts - 1))
    best = cost.argmin(dim=1) + starts * torch.arange(batch, device=cost.device)
    return _forward(cells, CameraMotion(motion.C[best], motion.t[best]))


def step(
    cells: Cells, motion: CameraMotion, weight: Tensor, scale: float, held: float = 0.0
) -> CameraMotion:
    """One step of Gauss-Newton; weight (batch, n), and a Cauchy kernel of a scale.

    `held` keeps the direction of motion where it is.
    """
    normal, moment = _normal(_place(cells, motion), motion.t, weight, scale)
    total = weight.sum(dim=1)[:, None, None]
    size = normal.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    least = _DAMPING * size + _LEAST_INFORMATION * total + 1e-12
    damped = normal + least * _eye(6, normal) + _fixed_length(motion.t, size, held * total)
    delta = torch.linalg.solve_ex(damped, moment).result
    t = functional.normalize(motion.t + delta[:, 3:], dim=1)
    return CameraMotion(rotate(delta[:, :3]) @ motion.C, t)


def covariance_root(cells: Cells, motion: CameraMotion, weight: Tensor, scale: float) -> Tensor:
    """(batch, 3, 3) lower L, L L^T the covariance of the rotation if flow errors were white.

    The direction of motion is marginalised out: rotations that look like it are uncertain.
    """
    at = _place(cells, motion)
    normal = _normal(at, motion.t, weight, scale)[0].double()
    kernel = _cauchy(at.left.across, scale) * weight
    spread = (kernel * at.left.across**2).sum(dim=1) / (kernel.sum(dim=1) + 1e-9)
    variance = (spread + (0.2 * _NOISE) ** 2).to(normal.dtype)[:, None, None]
    information = normal / (variance * _CELLS_PER_ERROR)
    information = information + _fixed_length(motion.t, torch.ones_like(variance), 1e-3)
    rotation, cross, direction = (
        information[:, :3, :3],
        information[:, :3, 3:],
        information[:, 3:, 3:],
    )
    known = torch.linalg.solve_ex(direction, cross.mT).result
    schur = rotation - cross @ known + _eye(3, normal) / _PRIOR_SIGMA_RAD**2
    # Unchecked: `combine` refuses an output that is not finite.
    covariance = torch.linalg.inv_ex(0.5 * (schur + schur.mT)).inverse
    return torch.linalg.cholesky_ex(covariance).L.to(weight.dtype)


def residuals(cells: Cells, motion: CameraMotion) -> Residuals:
    """The residuals of a flow field under a motion."""
    return _place(cells, motion).left


def rotate(phi: Tensor) -> Tensor:
    """Exp: (batch, 3) -> (batch, 3, 3), of steps, which are cut off at half a radian per axis.

    Rodrigues' formula with its series in |phi|^2: smooth at 0, right to 1e-6, and a few products.
    """
    phi = phi.clamp(-0.5, 0.5)
    square = (phi * phi).sum(dim=1)[:, None, None]
    sine = 1.0 + square * (-1.0 / 6.0 + square * (1.0 / 120.0 - square / 5040.0))
    cosine = 0.5 + square * (-1.0 / 24.0 + square * (1.0 / 720.0 - square / 40320.0))
    K = (phi @ _generators(phi.device, phi.dtype)).view(-1, 3, 3)
    return _eye(3, phi) + sine * K + cosine * (K @ K)


def _least_squares(cells: Cells) -> Tensor:
    """Robust rotation as if there were no parallax: where to start."""
    batch, valid = len(cells.points), cells.valid[:, 0]
    eye = _eye(3, cells.points)
    C = eye.repeat(batch, 1, 1)
    for scale in _LEAST_SQUARES_SCALES:
        x, y = _seen(C, cells.points)
        u, v = cells.target[:, 0] - x, cells.target[:, 1] - y
        weight = (valid / (1.0 + (u * u + v * v) / scale**2))[:, None]
        one, xy = torch.ones_like(x), x * y
        first = torch.stack([-xy, one + x * x, -y, u], dim=1)
        second = torch.stack([-one - y * y, xy, x, v], dim=1)
        sums = (first * weight) @ first.mT + (second * weight) @ second.mT  # (batch, 4, 4)
        total = weight.sum(dim=2)[:, :, None]
        normal = sums[:, :3, :3] + (_LEAST_INFORMATION * total + 1e-9) * eye
        C = rotate(torch.linalg.solve_ex(normal, sums[:, :3, 3]).result) @ C
    return C


def _forward(cells: Cells, motion: CameraMotion) -> CameraMotion:
    """Choose the sign of t with which depths are positive for the most part."""
    along = residuals(cells, motion).along
    votes = (cells.valid[:, 0] * torch.tanh(along / _NOISE)).sum(dim=1, keepdim=True)
    return motion._replace(t=torch.where(votes < 0.0, -motion.t, motion.t))


def _place(cells: Cells, motion: CameraMotion) -> _At:
    x, y = _seen(motion.C, cells.points)
    u, v = cells.target[:, 0] - x, cells.target[:, 1] - y
    t = motion.t[:, :, None]
    p, q = t[:, 0] - x * t[:, 2], t[:, 1] - y * t[:, 2]
    size = torch.rsqrt(p * p + q * q + _EPIPOLE**2)
    p, q = p * size, q * size
    along, valid = u * p + v * q, cells.valid[:, 0]
    size_of_all = torch.linalg.vecdot(valid, along.detach().clamp(-0.3, 0.3).square())
    depth = (size_of_all / (valid.sum(dim=1) + 1e-6) + 1e-12).sqrt()[:, None]
    return _At((x, y), (p, q), size, Residuals((u, v), u * q - v * p, along, depth))


def _normal(at: _At, t: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The normal matrix (batch, 6, 6) over rotation and t, and -gradient (batch, 6).

    With A the derivative of h by a rotation phi, f changes by -A phi and, since h moves, d by
    -t_z A phi; the products with A = [[-x y, 1 + x^2, -y], [-(1 + y^2), x y, x]] are written out.
    """
    (x, y), (p, q), (u, v), left = at.h, at.d, at.left.f, at.left
    t_z = t[:, 2:]
    a, b = p - t_z * u * at.size, q - t_z * v * at.size
    c, n = y * a - x * b, at.size
    across = torch.stack(
        [-a - y * c, x * c - b, x * a + y * b, -v * n, u * n, (v * x - u * y) * n, left.across],
        dim=1,
    )  # (batch, 7, n): derivatives by phi and t, and the residual
    e = x * p + y * q
    along = torch.stack([q + y * e, -p - x * e, y * p - x * q, left.along], dim=1)
    w = weight * _cauchy(left.across, scale)
    known = _NOISE**2 / (_NOISE**2 + left.depth**2)
    z = w * known * _cauchy(left.along, 3.0 * scale + 3.0 * left.depth)
    sums = (across * w[:, None]) @ across.mT
    more = (along * z[:, None]) @ along.mT
    normal = sums[:, :6, :6] + functional.pad(more[:, :3, :3], (0, 3, 0, 3))
    return normal, -sums[:, :6, 6] - functional.pad(more[:, :3, 3], (0, 3))


def _fixed_length(t: Tensor, size: Tensor, held: Tensor | float) -> Tensor:
    """Information (batch, 6, 6) that keeps the length of t, and holds its direction."""
    direction = t.to(size.dtype)
    along = _STIFF * size * direction[:, :, None] * direction[:, None, :]
    return functional.pad(along + held * _eye(3, size), (3, 0, 3, 0))


# Constants are made once. Never as inference tensors, which a later training could not use.


@lru_cache
@torch.inference_mode(False)
def _identity(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.eye(size, device=device, dtype=dtype)


def _eye(size: int, like: Tensor) -> Tensor:
    return _identity(size, like.device, like.dtype)


@lru_cache
@torch.inference_mode(False)
def _generators(device: torch.device, dtype: torch.dtype) -> Tensor:
    """(3, 9): the skew-symmetric matrix of each axis."""
    rows = [
        [0, 0, 0, 0, 0, -1, 0, 1, 0],
        [0, 0, 1, 0, 0, 0, -1, 0, 0],
        [0, -1, 0, 1, 0, 0, 0, 0, 0],
    ]
    return torch.tensor(rows, device=device, dtype=dtype)


def _cauchy(residual: Tensor, scale: float | Tensor) -> Tensor:
    return 1.0 / (1.0 + (residual / scale) ** 2)


def _seen(C: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """pi(C (x, 1)); never divided by zero, however large the rotation."""
    ray = C[:, :, :2] @ points + C[:, :, 2:]
    behind = 1.0 / ray[:, 2].clamp_min(0.1)
    return ray[:, 0] * behind, ray[:, 1] * behind
