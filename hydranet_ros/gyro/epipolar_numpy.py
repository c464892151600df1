"""`epipolar` in NumPy, for machines without torch: the same steps, without gradients.

What is minimised and why is told there. Fields have no batch here but that of hypotheses: points
and targets are (2, n) for one flow field, motions are (many, 3, 3) and (many, 3).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import compiled_loops
from hydranet_ros.gyro.grid import WELL_TEXTURED
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

Field = NDArray[Any]  # float32, or float64 where it says so
EYE3, EYE6 = np.eye(3), np.eye(6)
compiled = compiled_loops("hydranet_ros.gyro.epipolar_numba")
"""The inner loops; None where numba is not installed."""


class Cells(NamedTuple):
    """A flow field: points and where they are seen next (2, n), valid (n), S (3, n)."""

    points: Field
    target: Field
    valid: Field
    spread: Field


class CameraMotion(NamedTuple):
    """C_2_1 (many, 3, 3), and the direction of motion (many, 3) in camera 2."""

    C: Field
    t: Field


class Residuals(NamedTuple):
    """Residuals of the cells under motions, (many, n); depth (many) is the scale of along."""

    f: tuple[Field, Field]
    across: Field
    along: Field
    variance: Field
    depth: Field


class _At(NamedTuple):
    h: tuple[Field, Field]
    d: tuple[Field, Field]
    size: Field
    left: Residuals


# --- cells ---------------------------------------------------------------------------------------


def blocks(maps: Field, factor: int) -> Field:
    """Means over blocks of factor x factor cells: (..., rows, columns) -> (..., fewer, fewer)."""
    if compiled is not None:
        flat = maps.astype(np.float32, copy=False).reshape(-1, *maps.shape[-2:])
        found: Field = compiled.blocks(flat, factor)
        return found.reshape(*maps.shape[:-2], *found.shape[1:])
    total = np.array(maps[..., ::factor, ::factor], dtype=np.float32)
    for i in range(1, factor * factor):
        total += maps[..., i // factor :: factor, i % factor :: factor]
    return total / np.float32(factor * factor)


def pool(points: Field, flow: Field, mask: Field, texture: Field, factor: int) -> Cells:
    """Means over blocks; a block counts where all of it is valid. All (c, rows, columns)."""
    where, mean = blocks(points, factor), blocks(flow * mask, factor)
    spread = flow_spread(blocks(texture, factor).reshape(3, -1))
    target = (where + mean).reshape(2, -1)
    return Cells(where.reshape(2, -1), target, whole(mask, factor), spread)


def whole(mask: Field, factor: int) -> Field:
    """(n,): 1 for blocks that are all in the mask (rows, columns), else 0."""
    return (blocks(mask, factor) > 0.999).astype(np.float32).ravel()


def flow_spread(texture: Field) -> Field:
    """The covariance S of flow from the structure tensor, both (3, n) as xx, xy, yy."""
    xx, xy, yy = texture[0] + NOISE_GRADIENT, texture[1], texture[2] + NOISE_GRADIENT
    scale = WELL_TEXTURED / np.maximum(xx * yy - xy * xy, 1e-3)
    return np.stack([scale * yy + LEAST_VARIANCE, -scale * xy, scale * xx + LEAST_VARIANCE])


def eigenvalues(texture: Field) -> tuple[Field, Field]:
    """The lesser and the larger eigenvalue of (3, n) symmetric tensors."""
    xx, xy, yy = texture
    middle, apart = 0.5 * (xx + yy), np.hypot(0.5 * (xx - yy), xy)
    return np.maximum(middle - apart, 0.0), middle + apart


# --- the search ----------------------------------------------------------------------------------


def search(cells: Cells) -> tuple[CameraMotion, Field]:
    """The best motion of a flow field over all directions (1, ...), and its ambiguity (3, 3)."""
    cells = doubled(cells)  # costs are compared by differences of less than float32 resolves
    motion, scales = _promising(_some(cells, COARSE_CELLS))
    few = _some(cells, FINE_CELLS)
    for column in scales.T:
        motion = step(few, motion, few.valid, column[:, None])
    cost = _cost(few, motion, COST_SCALE)
    solved, motion = motion, _distinct(motion, cost)
    for scale in FINAL_SCALES:
        motion = step(cells, motion, cells.valid, scale)
    best = _best(motion, _cost(cells, motion, COST_SCALE), 1)
    return single(_forward(cells, best)), _ambiguity(solved.C, cost, best.C[0])


def doubled(cells: Cells) -> Cells:
    """In double precision."""
    return Cells(*(each.astype(np.float64) for each in cells))


def single(motion: CameraMotion) -> CameraMotion:
    """In single precision."""
    return CameraMotion(motion.C.astype(np.float32), motion.t.astype(np.float32))


def _ambiguity(C: Field, cost: Field, best: Field) -> Field:
    apart = C @ best.T
    phi = 0.5 * np.stack(
        [
            apart[:, 2, 1] - apart[:, 1, 2],
            apart[:, 0, 2] - apart[:, 2, 0],
            apart[:, 1, 0] - apart[:, 0, 1],
        ],
        axis=1,
    )
    share = np.exp(-(cost - cost.min()) / TEMPERATURE)
    found: Field = (phi * (share / share.sum())[:, None]).T @ phi
    return found.astype(np.float32)


def _promising(cells: Cells) -> tuple[CameraMotion, Field]:
    """Directions of all stages with their rotations, and the scales to go on with."""
    t = _half_sphere()
    motion = CameraMotion(np.repeat(_rotation_alone(cells), len(t), axis=0), t)
    stages = []
    for scales in HELD_STAGES:
        for scale in scales:
            motion = step(cells, motion, cells.valid, scale, held=HELD)
        stages.append(_best(motion, _cost(cells, motion, 0.5 * scales[-1]), KEPT))
    kept = CameraMotion(*(np.concatenate(each) for each in zip(*stages, strict=True)))
    return kept, np.repeat(np.array(FREE_STAGES), KEPT, axis=0)


def _distinct(motion: CameraMotion, cost: Field) -> CameraMotion:
    """The best, the best that is unlike it, and so on."""
    q, chosen = motion.C.reshape(-1, 9), []
    for _ in range(FINALISTS):
        chosen.append(best := int(cost.argmin()))
        apart = np.square(q - q[best]).sum(axis=1)
        cost = cost + FAR * (apart < 2.0 * ALIKE_RAD**2)
    return CameraMotion(motion.C[chosen], motion.t[chosen])


def _cost(cells: Cells, motion: CameraMotion, scale: float) -> Field:
    if compiled is not None:
        found: Field = compiled.costs(*_fields(cells), cells.valid, *motion, scale)
        return found
    left = residuals(cells, motion)
    ratio = np.square(left.across) / (left.variance * scale**2)
    cost: Field = np.log1p(ratio) @ cells.valid
    return cost


def _best(motion: CameraMotion, cost: Field, count: int) -> CameraMotion:
    numbers = np.argsort(cost, kind="stable")[:count]
    return CameraMotion(motion.C[numbers], motion.t[numbers])


def step(
    cells: Cells,
    motion: CameraMotion,
    weight: Field,
    scale: float | Field,
    held: float = 0.0,
) -> CameraMotion:
    """One step of Gauss-Newton; weight (n), a Cauchy kernel of a scale, or (many, 1) of them."""
    least = LEAST_INFORMATION * weight.sum() + 1e-12
    if compiled is not None:
        scales = np.broadcast_to(np.asarray(scale, dtype=np.float64).ravel(), len(motion.t))
        constants = float(least), DAMPING, STIFF, held
        equations = compiled.sums(*_fields(cells), weight, *motion, scales)
        return CameraMotion(*compiled.advance(equations, *motion, *constants))
    normal, moment = _normal(_place(cells, motion), motion.t, weight, scale)
    size = np.trace(normal, axis1=1, axis2=2)[:, None, None] / 6.0
    damped = normal + (DAMPING * size + least) * EYE6
    damped[:, 3:, 3:] += _fixed_length(motion.t, size, held * size)
    delta = np.linalg.solve(damped, moment[..., None])[..., 0]
    t = motion.t + delta[:, 3:]
    t /= np.maximum(np.linalg.norm(t, axis=1, keepdims=True), 1e-12)
    return CameraMotion(rotate(delta[:, :3]) @ motion.C, t)


def covariance_root(
    cells: Cells, motion: CameraMotion, weight: Field, scale: float, ambiguity: Field
) -> Field:
    """(3, 3) lower L, L L^T the covariance of the rotation if flow errors were white."""
    if compiled is not None:
        left = residuals(cells, motion)
        scales = np.full(1, scale)
        normal = compiled.sums(*_fields(cells), weight, *motion, scales)[0, :6, :6]
    else:
        at = _place(cells, motion)
        left = at.left
        normal = _normal(at, motion.t, weight, scale)[0][0].astype(np.float64)
    square = np.square(left.across[0]) / left.variance[0]
    kernel = weight / (1.0 + square / scale**2)
    spread = float((kernel * square).sum() / (kernel.sum() + 1e-9))
    information = normal / ((spread + (0.2 * NOISE) ** 2) * CELLS_PER_ERROR)
    information[3:, 3:] += _fixed_length(motion.t.astype(np.float64), np.ones((1, 1, 1)), 1e-3)[0]
    cross = information[:3, 3:]
    schur = information[:3, :3] - cross @ np.linalg.solve(information[3:, 3:], cross.T)
    schur = 0.5 * (schur + schur.T) + np.eye(3) / PRIOR_SIGMA_RAD**2
    return np.linalg.cholesky(np.linalg.inv(schur) + ambiguity)


def residuals(cells: Cells, motion: CameraMotion) -> Residuals:
    """The residuals of the cells under motions."""
    if compiled is not None:
        u, v, *others = compiled.residuals(*_fields(cells), cells.valid, *motion)
        kind = cells.points.dtype
        across, along, variance, depth = (each.astype(kind, copy=False) for each in others)
        return Residuals(
            (u.astype(kind, copy=False), v.astype(kind, copy=False)),
            across,
            along,
            variance,
            depth,
        )
    return _place(cells, motion).left


def rotate(phi: Field) -> Field:
    """Exp of steps, (many, 3) -> (many, 3, 3), cut off at half a radian per axis."""
    phi = np.clip(phi, -0.5, 0.5)
    square = np.square(phi).sum(axis=1)[:, None, None]
    sine = 1.0 + square * (-1.0 / 6.0 + square * (1.0 / 120.0 - square / 5040.0))
    cosine = 0.5 + square * (-1.0 / 24.0 + square * (1.0 / 720.0 - square / 40320.0))
    x, y, z = phi.T
    K = np.zeros((len(phi), 3, 3), dtype=phi.dtype)
    K[:, 0, 1], K[:, 0, 2], K[:, 1, 2] = -z, y, -x
    K[:, 1, 0], K[:, 2, 0], K[:, 2, 1] = z, -y, x
    return EYE3 + sine * K + cosine * (K @ K)


def _some(cells: Cells, count: int) -> Cells:
    """So many cells, textured ones first, spread over the field the same way every time."""
    n = cells.points.shape[1]
    if n <= count:
        return cells
    textured = cells.spread[0] + cells.spread[2] < 2.0 * WELL_TEXTURED
    order = cells.valid * (1.0 + textured) + _shuffled(n)
    best = np.argpartition(-order, count - 1)[:count]
    # In order: taken as they are, the rows of each would lie across memory.
    return Cells(*(np.ascontiguousarray(each[..., best]) for each in cells))


def _rotation_alone(cells: Cells) -> Field:
    """Robust rotation as if there were no parallax, (1, 3, 3): where to start."""
    if compiled is not None:
        scales = np.array(ROTATION_SCALES)
        found: Field = compiled.rotation_alone(*cells[:3], scales, LEAST_INFORMATION)
        return found[None]
    C = EYE3[None]
    for scale in ROTATION_SCALES:
        (x,), (y,) = _seen(C, cells.points)
        u, v = cells.target[0] - x, cells.target[1] - y
        weight = cells.valid / (1.0 + (u * u + v * v) / scale**2)
        one, xy = np.ones_like(x), x * y
        first = np.stack([-xy, one + x * x, -y, u])
        second = np.stack([-one - y * y, xy, x, v])
        sums = (first * weight) @ first.T + (second * weight) @ second.T
        least = LEAST_INFORMATION * weight.sum() + 1e-9
        delta = np.linalg.solve(sums[:3, :3] + least * EYE3, sums[:3, 3])
        C = rotate(delta[None]) @ C
    return C


def _forward(cells: Cells, motion: CameraMotion) -> CameraMotion:
    """Choose the sign of t with which depths are positive for the most part."""
    votes = np.tanh(residuals(cells, motion).along / NOISE) @ cells.valid
    return CameraMotion(motion.C, np.where(votes[:, None] < 0.0, -motion.t, motion.t))


# --- the normal equations ------------------------------------------------------------------------


def _place(cells: Cells, motion: CameraMotion) -> _At:
    x, y = _seen(motion.C, cells.points)
    u, v = cells.target[0] - x, cells.target[1] - y
    t = motion.t[:, :, None]
    p, q = t[:, 0] - x * t[:, 2], t[:, 1] - y * t[:, 2]
    size = 1.0 / np.sqrt(p * p + q * q + EPIPOLE**2)
    p, q = p * size, q * size
    along = u * p + v * q
    xx, xy, yy = cells.spread
    variance = q * q * xx - 2.0 * p * q * xy + p * p * yy + 1e-3
    total = np.square(np.clip(along, -0.3, 0.3)) @ cells.valid
    depth = np.sqrt(total / (cells.valid.sum() + 1e-6) + 1e-12)
    return _At((x, y), (p, q), size, Residuals((u, v), u * q - v * p, along, variance, depth))


def _normal(at: _At, t: Field, weight: Field, scale: float | Field) -> tuple[Field, Field]:
    """The normal matrix (many, 6, 6) over rotation and t, and -gradient (many, 6)."""
    (x, y), (p, q), (u, v), left = at.h, at.d, at.left.f, at.left
    t_z, n = t[:, 2:], at.size
    a, b = p - t_z * u * n, q - t_z * v * n
    c = y * a - x * b
    rows = np.empty((len(t), 7, x.shape[-1]), dtype=x.dtype)
    rows[:, 0], rows[:, 1], rows[:, 2] = -a - y * c, x * c - b, x * a + y * b
    rows[:, 3], rows[:, 4], rows[:, 5] = -v * n, u * n, (v * x - u * y) * n
    rows[:, 6] = left.across
    w = weight / (left.variance + np.square(left.across) / np.square(scale))
    sums = (rows * w[:, None].astype(x.dtype)) @ rows.transpose(0, 2, 1)
    return sums[:, :6, :6], -sums[:, :6, 6]


def _fields(cells: Cells) -> tuple[Field, Field, Field]:
    return cells.points, cells.target, cells.spread


def _fixed_length(t: Field, size: Field, held: Field | float) -> Field:
    """Information (many, 3, 3) that keeps the length of t, and holds its direction."""
    along: Field = STIFF * size * t[:, :, None] * t[:, None, :]
    return along + held * EYE3


def _seen(C: Field, points: Field) -> tuple[Field, Field]:
    """pi(C (x, 1)); never divided by zero, however large the rotation."""
    ray = C[:, :, :2] @ points + C[:, :, 2:]
    behind = 1.0 / np.maximum(ray[:, 2], 0.1)
    return ray[:, 0] * behind, ray[:, 1] * behind


@lru_cache
def _half_sphere() -> Field:
    """(directions, 3): a Fibonacci lattice on the half sphere z > 0."""
    i = np.arange(DIRECTIONS) + 0.5
    z = 1.0 - i / DIRECTIONS
    angle, radius = np.pi * (1.0 + np.sqrt(5.0)) * i, np.sqrt(1.0 - z * z)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), z], axis=1)


@lru_cache
def _shuffled(count: int) -> Field:
    return np.random.default_rng(0).permutation(count) / count
