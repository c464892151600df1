"""Rotation and direction of motion from a flow field: the geometry that need not be learned.

A point at x in normalised coordinates, rotated by C, is seen at h = pi(C (x, 1)). What is left of
its flow, f = x + flow - h, is parallax, and lies on the line through the epipole:

    f x d = 0,   d = t_xy - h t_z,   t the direction of motion (a unit vector).

Across d there is only error; along d there is the unknown depth, of which nothing is assumed. How
well the flow of a cell is known depends on the direction: S is its covariance relative to that of
a well-textured cell, so the error across d, n = d turned by 90 deg, has the variance n^T S n.
Weighted Gauss-Newton over C and t minimises

    sum w rho(r / scale),   r^2 = (f x d)^2 / |d|^2 / (n^T S n),

with Cauchy's rho. The cost has several minima: a rotation looks like a motion sideways, a plane
has two solutions. So `search` starts from directions all over the sphere (t and -t are the same
line), solves for the rotation of each, then for both, and takes the best by one robust cost.
Nothing prefers a rotation where there is parallax. Where there is none, or little, many directions
fit about equally well, each with a rotation of its own: `Found.ambiguity` is how far they spread,
weighed by how well they fit.
"""

from __future__ import annotations

from functools import lru_cache
from math import pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.gyro.grid import WELL_TEXTURED, CanonicalGrid
from hydranet_ros.gyro.search_settings import (
    ALIKE_RAD,
    CELLS_PER_ERROR,
    COARSE_CELLS,
    COST_SCALE,
    DAMPING,
    DIRECTIONS,
    EPIPOLE,
    FAR,
    FINAL_SCALES,
    FINALISTS,
    FINE_CELLS,
    FREE_STAGES,
    HELD,
    HELD_STAGES,
    KEPT,
    LEAST_INFORMATION,
    LEAST_VARIANCE,
    NOISE,
    NOISE_GRADIENT,
    PRIOR_SIGMA_RAD,
    ROTATION_SCALES,
    STIFF,
    TEMPERATURE,
)


class Cells(NamedTuple):
    """A flow field: points and where they are seen next (batch, 2, n), valid (batch, 1, n).

    `spread` (batch, 3, n) is S as xx, xy, yy.
    """

    points: Tensor
    target: Tensor
    valid: Tensor
    spread: Tensor


class CameraMotion(NamedTuple):
    """C_2_1 (batch, 3, 3), and the direction of motion (batch, 3) in camera 2."""

    C: Tensor
    t: Tensor


class Found(NamedTuple):
    """The best motion, and the covariance (batch, 3, 3) of the rotations that fit as well."""

    motion: CameraMotion
    ambiguity: Tensor


class Residuals(NamedTuple):
    """Residuals of a flow field under a motion, (batch, n); depth is the scale of along."""

    f: tuple[Tensor, Tensor]
    across: Tensor  # f x d / |d|, signed
    along: Tensor  # f . d / |d|
    variance: Tensor  # of across: n^T S n
    depth: Tensor  # (batch, 1)


class _At(NamedTuple):
    """Where a motion puts the points: h, d / |d|, 1 / |d|, and the residuals."""

    h: tuple[Tensor, Tensor]
    d: tuple[Tensor, Tensor]
    size: Tensor
    left: Residuals


# --- cells ---------------------------------------------------------------------------------------


def grid_points(grid: CanonicalGrid) -> Tensor:
    """Centres of the cells of a grid, (2, rows, columns)."""
    return torch.tensor(grid.centres, dtype=torch.float32).permute(2, 0, 1)


def cell_centres(rows: int, columns: int, cell: float, like: Tensor) -> Tensor:
    """`grid_points` of a grid of that size, (1, 2, rows, columns), on the device of `like`."""
    return _centres(int(rows), int(columns), cell, like.device, like.dtype)


def pool(points: Tensor, flow: Tensor, mask: Tensor, texture: Tensor, factor: int) -> Cells:
    """Means over blocks of factor x factor cells; a block counts where all of it is valid.

    `texture` (batch, 3, rows, columns) is the structure tensor xx, xy, yy.
    """
    where = functional.avg_pool2d(points, factor)
    mean = functional.avg_pool2d(flow * mask, factor)
    where = where.expand_as(mean)
    spread = flow_spread(functional.avg_pool2d(texture, factor)).flatten(2)
    return Cells(where.flatten(2), (where + mean).flatten(2), whole(mask, factor), spread)


def whole(mask: Tensor, factor: int) -> Tensor:
    """(batch, 1, n): 1 for blocks of factor x factor cells that are all in the mask, else 0."""
    return (functional.avg_pool2d(mask, factor) > 0.999).to(mask.dtype).flatten(2)


def flow_spread(texture: Tensor) -> Tensor:
    """The covariance S of flow from the structure tensor, both (batch, 3, ...) as xx, xy, yy."""
    xx, xy, yy = texture.unbind(dim=1)
    xx, yy = xx + NOISE_GRADIENT, yy + NOISE_GRADIENT
    scale = WELL_TEXTURED / (xx * yy - xy * xy).clamp_min(1e-3)
    return torch.stack(
        [scale * yy + LEAST_VARIANCE, -scale * xy, scale * xx + LEAST_VARIANCE], dim=1
    )


def eigenvalues(texture: Tensor) -> tuple[Tensor, Tensor]:
    """The lesser and the larger eigenvalue of (batch, 3, ...) symmetric tensors."""
    xx, xy, yy = texture.unbind(dim=1)
    middle, apart = 0.5 * (xx + yy), torch.hypot(0.5 * (xx - yy), xy)
    return (middle - apart).clamp_min(0.0), middle + apart


# --- the search ----------------------------------------------------------------------------------


def search(cells: Cells) -> Found:
    """The best motion of a flow field over all directions, by one robust cost."""
    kind = cells.points.dtype
    cells = doubled(cells)  # costs are compared by differences of less than float32 resolves
    solved, cost = _solved(cells, *_promising(_some(cells, COARSE_CELLS)))
    motion, many = _distinct(solved, cost, FINALISTS), _repeated(cells, FINALISTS)
    for scale in FINAL_SCALES:
        motion = step(many, motion, many.valid[:, 0], scale)
    best = _best(motion, _cost(many, motion, COST_SCALE).view(len(cost), FINALISTS), 1)
    motion = CameraMotion(*(each.to(kind) for each in _forward(cells, best)))
    return Found(motion, _ambiguity(solved.C, cost, best.C).to(kind))


def doubled(cells: Cells) -> Cells:
    """In double precision."""
    return Cells(*(each.double() for each in cells))


def _ambiguity(C: Tensor, cost: Tensor, best: Tensor) -> Tensor:
    """Sum p_i phi_i phi_i^T, phi_i = Log(C_i C^T), p_i ~ exp(-(cost_i - least) / temperature)."""
    batch, starts = cost.shape
    apart = C.view(batch, starts, 3, 3) @ best[:, None].mT
    # sin(angle) times the axis: all that is needed of rotations that are near.
    phi = 0.5 * torch.stack(
        [
            apart[..., 2, 1] - apart[..., 1, 2],
            apart[..., 0, 2] - apart[..., 2, 0],
            apart[..., 1, 0] - apart[..., 0, 1],
        ],
        dim=-1,
    )
    share = torch.softmax(-cost / TEMPERATURE, dim=1)
    return (phi * share[..., None]).mT @ phi


def _promising(cells: Cells) -> tuple[CameraMotion, Tensor]:
    """Directions of all stages, with their rotations, and the scales to go on with.

    (batch * stages * kept, ...), (stages * kept, steps).
    """
    batch, directions = len(cells.points), _half_sphere(cells.points.device, cells.points.dtype)
    count = len(directions)
    C = _rotation_alone(cells).repeat_interleave(count, dim=0)
    motion = CameraMotion(C, directions.repeat(batch, 1))
    many = _repeated(cells, count)
    stages = []
    for scales in HELD_STAGES:
        for scale in scales:
            motion = step(many, motion, many.valid[:, 0], scale, held=HELD)
        cost = _cost(many, motion, 0.5 * scales[-1]).view(batch, count)
        stages.append(_best(motion, cost, KEPT))
    C, t = (torch.stack(each, dim=1).flatten(0, 2) for each in _apart(stages, batch))
    return CameraMotion(C, t), _scales_after(C.device, C.dtype)


def _apart(stages: list[CameraMotion], batch: int) -> tuple[list[Tensor], list[Tensor]]:
    """(batch, kept, ...) of each stage, rotations and directions."""
    return (
        [each.C.view(batch, KEPT, 3, 3) for each in stages],
        [each.t.view(batch, KEPT, 3) for each in stages],
    )


def _solved(cells: Cells, motion: CameraMotion, scales: Tensor) -> tuple[CameraMotion, Tensor]:
    """Many starts, solved for rotation and direction, and their costs (batch, starts)."""
    few = _some(cells, FINE_CELLS)
    many = _repeated(few, len(scales))
    for column in scales.repeat(len(few.points), 1).unbind(dim=1):
        motion = step(many, motion, many.valid[:, 0], column[:, None])
    return motion, _cost(many, motion, COST_SCALE).view(len(few.points), len(scales))


def _distinct(motion: CameraMotion, cost: Tensor, count: int) -> CameraMotion:
    """The best of each row of cost, the best that is unlike it, and so on."""
    batch, starts = cost.shape
    q = motion.C.view(batch, starts, 9)
    first = starts * torch.arange(batch, device=cost.device)
    numbers = []
    for _ in range(count):
        best = cost.argmin(dim=1)
        numbers.append(best + first)
        apart = (q - q[torch.arange(batch, device=cost.device), best][:, None]).square().sum(dim=2)
        cost = cost + FAR * (apart < 2.0 * ALIKE_RAD**2)
    chosen = torch.stack(numbers, dim=1).flatten()
    return CameraMotion(motion.C[chosen], motion.t[chosen])


def _repeated(cells: Cells, times: int) -> Cells:
    return Cells(*(each.repeat_interleave(times, dim=0) for each in cells))


def _cost(cells: Cells, motion: CameraMotion, scale: float) -> Tensor:
    """(batch,) sum of log(1 + r^2 / scale^2)."""
    left = residuals(cells, motion)
    ratio = left.across.square() / (left.variance * scale**2)
    return (cells.valid[:, 0] * torch.log1p(ratio)).sum(dim=1)


def _best(motion: CameraMotion, cost: Tensor, count: int) -> CameraMotion:
    """The `count` best of each row of cost, in the order of `motion`, (batch * count, ...)."""
    first = cost.shape[1] * torch.arange(len(cost), device=cost.device)[:, None]
    numbers = (cost.topk(count, dim=1, largest=False).indices + first).flatten()
    return CameraMotion(motion.C[numbers], motion.t[numbers])


def step(
    cells: Cells, motion: CameraMotion, weight: Tensor, scale: float | Tensor, held: float = 0.0
) -> CameraMotion:
    """One step of Gauss-Newton; weight (batch, n), and a Cauchy kernel of a scale, or (batch, 1).

    `held` keeps the direction of motion where it is.
    """
    normal, moment = _normal(_place(cells, motion), motion.t, weight, scale)
    total = weight.sum(dim=1)[:, None, None]
    size = normal.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    least = DAMPING * size + LEAST_INFORMATION * total + 1e-12
    damped = normal + least * _eye(6, normal) + _fixed_length(motion.t, size, held * size)
    delta = torch.linalg.solve_ex(damped, moment).result
    t = functional.normalize(motion.t + delta[:, 3:], dim=1)
    return CameraMotion(rotate(delta[:, :3]) @ motion.C, t)


def covariance_root(
    cells: Cells,
    motion: CameraMotion,
    weight: Tensor,
    scale: float,
    ambiguity: Tensor | None = None,
) -> Tensor:
    """(batch, 3, 3) lower L, L L^T the covariance of the rotation if flow errors were white.

    The direction of motion is marginalised out: rotations that look like it are uncertain.
    `ambiguity` is added.
    """
    at = _place(cells, motion)
    normal = _normal(at, motion.t, weight, scale)[0].double()
    square = at.left.across.square() / at.left.variance
    kernel = weight / (1.0 + square / scale**2)
    spread = (kernel * square).sum(dim=1) / (kernel.sum(dim=1) + 1e-9)
    variance = (spread + (0.2 * NOISE) ** 2).to(normal.dtype)[:, None, None]
    information = normal / (variance * CELLS_PER_ERROR)
    information = information + _fixed_length(motion.t, torch.ones_like(variance), 1e-3)
    rotation, cross, direction = (
        information[:, :3, :3],
        information[:, :3, 3:],
        information[:, 3:, 3:],
    )
    known = torch.linalg.solve_ex(direction, cross.mT).result
    schur = rotation - cross @ known + _eye(3, normal) / PRIOR_SIGMA_RAD**2
    # Unchecked: `combine` refuses an output that is not finite.
    covariance = torch.linalg.inv_ex(0.5 * (schur + schur.mT)).inverse
    if ambiguity is not None:
        covariance = covariance + ambiguity.to(covariance.dtype)
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


def _some(cells: Cells, count: int) -> Cells:
    """So many cells, textured ones first, spread over the field the same way every time."""
    n = int(cells.points.shape[2])  # a tensor, while a trace is made
    if n <= count:
        return cells
    textured = cells.spread[:, 0] + cells.spread[:, 2] < 2.0 * WELL_TEXTURED
    order = cells.valid[:, 0] * (1.0 + textured.to(cells.valid.dtype)) + _shuffled(
        n, cells.points.device, cells.points.dtype
    )
    best = order.topk(count, dim=1).indices[:, None]
    return Cells(*(torch.gather(each, 2, best.expand(-1, each.shape[1], -1)) for each in cells))


def _rotation_alone(cells: Cells) -> Tensor:
    """Robust rotation as if there were no parallax: where to start."""
    batch, valid = len(cells.points), cells.valid[:, 0]
    eye = _eye(3, cells.points)
    C = eye.repeat(batch, 1, 1)
    for scale in ROTATION_SCALES:
        x, y = _seen(C, cells.points)
        u, v = cells.target[:, 0] - x, cells.target[:, 1] - y
        weight = (valid / (1.0 + (u * u + v * v) / scale**2))[:, None]
        one, xy = torch.ones_like(x), x * y
        first = torch.stack([-xy, one + x * x, -y, u], dim=1)
        second = torch.stack([-one - y * y, xy, x, v], dim=1)
        sums = (first * weight) @ first.mT + (second * weight) @ second.mT  # (batch, 4, 4)
        total = weight.sum(dim=2)[:, :, None]
        normal = sums[:, :3, :3] + (LEAST_INFORMATION * total + 1e-9) * eye
        C = rotate(torch.linalg.solve_ex(normal, sums[:, :3, 3]).result) @ C
    return C


def _forward(cells: Cells, motion: CameraMotion) -> CameraMotion:
    """Choose the sign of t with which depths are positive for the most part."""
    along = residuals(cells, motion).along
    votes = (cells.valid[:, 0] * torch.tanh(along / NOISE)).sum(dim=1, keepdim=True)
    return motion._replace(t=torch.where(votes < 0.0, -motion.t, motion.t))


# --- the normal equations ------------------------------------------------------------------------


def _place(cells: Cells, motion: CameraMotion) -> _At:
    x, y = _seen(motion.C, cells.points)
    u, v = cells.target[:, 0] - x, cells.target[:, 1] - y
    t = motion.t[:, :, None]
    p, q = t[:, 0] - x * t[:, 2], t[:, 1] - y * t[:, 2]
    size = torch.rsqrt(p * p + q * q + EPIPOLE**2)
    p, q = p * size, q * size
    along, valid = u * p + v * q, cells.valid[:, 0]
    xx, xy, yy = cells.spread.unbind(dim=1)
    variance = q * q * xx - 2.0 * p * q * xy + p * p * yy + 1e-3
    size_of_all = torch.linalg.vecdot(valid, along.detach().clamp(-0.3, 0.3).square())
    depth = (size_of_all / (valid.sum(dim=1) + 1e-6) + 1e-12).sqrt()[:, None]
    return _At((x, y), (p, q), size, Residuals((u, v), u * q - v * p, along, variance, depth))


def _normal(at: _At, t: Tensor, weight: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
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
    w = weight / (left.variance + left.across.square() / scale**2)
    sums = (across * w[:, None]) @ across.mT
    return sums[:, :6, :6], -sums[:, :6, 6]


def _fixed_length(t: Tensor, size: Tensor, held: Tensor | float) -> Tensor:
    """Information (batch, 6, 6) that keeps the length of t, and holds its direction."""
    direction = t.to(size.dtype)
    along = STIFF * size * direction[:, :, None] * direction[:, None, :]
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
def _centres(
    rows: int, columns: int, cell: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    points = grid_points(CanonicalGrid(rows, columns, cell))
    return points[None].to(device, dtype)


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


@lru_cache
@torch.inference_mode(False)
def _half_sphere(device: torch.device, dtype: torch.dtype) -> Tensor:
    """(directions, 3): a Fibonacci lattice on the half sphere z > 0."""
    i = torch.arange(DIRECTIONS, dtype=torch.float64) + 0.5
    z = 1.0 - i / DIRECTIONS
    angle, radius = pi * (1.0 + sqrt(5.0)) * i, (1.0 - z * z).sqrt()
    points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle), z], dim=1)
    return points.to(device, dtype)


@lru_cache
@torch.inference_mode(False)
def _scales_after(device: torch.device, dtype: torch.dtype) -> Tensor:
    """(stages * kept, steps): the scales to go on with."""
    return torch.tensor(FREE_STAGES, device=device, dtype=dtype).repeat_interleave(KEPT, dim=0)


@lru_cache
@torch.inference_mode(False)
def _shuffled(count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(count,) numbers of 0 to 1 in an order that has no pattern, the same every time.

    By NumPy: a trace would record `torch.randperm`, without its seed, and draw anew at every call.
    """
    order = np.random.default_rng(0).permutation(count)
    return torch.from_numpy(order / count).to(device, dtype)


def _seen(C: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """pi(C (x, 1)); never divided by zero, however large the rotation."""
    ray = C[:, :, :2] @ points + C[:, :, 2:]
    behind = 1.0 / ray[:, 2].clamp_min(0.1)
    return ray[:, 0] * behind, ray[:, 1] * behind
