"""The geometry inside the network, against exact flow fields, Monte Carlo and differences."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import cv2
import numpy as np
import pytest
import torch
from torch.nn import functional

from hydranet_ros.geometry import lie
from hydranet_ros.gyro import epipolar, quaternion
from hydranet_ros.gyro.config import preset
from hydranet_ros.gyro.grid import CanonicalGrid
from hydranet_ros.gyro.network import HydraNet

GRID = CanonicalGrid()
POINTS = epipolar.grid_points(GRID)
SHAPE = GRID.rows, GRID.columns
WELL = torch.tensor([20.0, 0.0, 20.0]).view(1, 3, 1, 1).expand(1, 3, *SHAPE)
Array = np.ndarray


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- exact flow ----------------------------------------------------------------------------------


def exact_flow(phi: Array, t: Array, inverse_depth: Array) -> torch.Tensor:
    """(1, 2, rows, columns): points at x / z, y / z of depth z seen after p -> C p + t."""
    x, y = POINTS.double().numpy()
    rays = np.stack([x, y, np.ones_like(x)])
    moved = np.einsum("ij,jrc->irc", lie.so3_exp(phi), rays) + t[:, None, None] * inverse_depth
    return torch.tensor(moved[:2] / moved[2] - rays[:2], dtype=torch.float32)[None]


def street_depth(seed: int) -> Array:
    """Inverse depth of ground, walls of random distance, and sky."""
    rng = np.random.default_rng(seed)
    x, y = POINTS.double().numpy()
    ground = np.clip(y / 1.65, 0.0, None)
    walls = np.abs(x) / rng.uniform(4.0, 9.0) * (y > -0.2 + 0.1 * rng.random())
    return np.maximum(np.maximum(ground, walls), 0.0)


def cells_of(flow: torch.Tensor, factor: int = 4, mask: torch.Tensor | None = None):
    mask = torch.ones(1, 1, *SHAPE) if mask is None else mask
    return epipolar.pool(POINTS[None], flow, mask, WELL, factor)


def found(flow: torch.Tensor, mask: torch.Tensor | None = None) -> epipolar.CameraMotion:
    return epipolar.search(cells_of(flow, mask=mask)).motion


def angle_deg(C: torch.Tensor, phi: Array) -> float:
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


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("axis", range(3))
def test_no_direction_of_motion_is_special(axis: int, sign: float) -> None:
    """Ahead, sideways, up, and back: the sign follows from positive depths."""
    t = 0.5 * sign * np.eye(3)[axis]
    phi = np.radians([0.5, -1.0, 0.7])
    motion = found(exact_flow(phi, t, street_depth(0)))
    assert angle_deg(motion.C, phi) < 0.02
    assert motion.t[0, axis] * sign > 0.99


@pytest.mark.parametrize("size_deg", [0.1, 2.0, 8.0])
def test_without_parallax_it_is_the_rotation_alone(size_deg: float) -> None:
    phi = np.radians(size_deg) * np.array([0.36, -0.8, 0.48])
    motion = found(exact_flow(phi, np.zeros(3), street_depth(1)))
    assert angle_deg(motion.C, phi) < 0.01


def test_no_flow_is_no_motion() -> None:
    motion = found(torch.zeros(1, 2, *SHAPE))
    torch.testing.assert_close(motion.C[0], torch.eye(3), atol=1e-6, rtol=0.0)
    nothing = found(torch.zeros(1, 2, *SHAPE), torch.zeros(1, 1, *SHAPE))
    assert nothing.C.isfinite().all()
    assert nothing.t.isfinite().all()


def test_a_third_of_wrong_flow_does_little() -> None:
    phi, t = np.radians([0.1, 1.0, -0.2]), np.array([0.0, 0.0, -1.0])
    flow = exact_flow(phi, t, street_depth(2))
    rows, columns = slice(SHAPE[0] // 5, 4 * SHAPE[0] // 5), slice(20, 20 + 9 * SHAPE[1] // 16)
    flow[:, :, rows, columns] += torch.tensor([0.05, 0.01])[None, :, None, None]
    # As the network does: a few steps more, with all cells.
    cells = cells_of(flow)
    assert angle_deg(refined(cells, found(flow)).C, phi) < 0.03


def test_flow_that_is_not_trusted_does_not_touch_the_geometry() -> None:
    """Two thirds are wrong, all in the same way: more than any robust kernel could bear."""
    phi, t = np.radians([0.3, -2.0, 0.2]), np.array([0.05, 0.0, -1.0])
    flow = exact_flow(phi, t, street_depth(1))
    trusted = torch.zeros(1, 1, *SHAPE)
    trusted[..., : GRID.columns // 3] = 1.0
    spoiled = torch.where(trusted > 0.0, flow, exact_flow(-phi, -t, street_depth(2)))
    torch.manual_seed(0)
    body = HydraNet(preset("default")).eval().body
    x = torch.cat([spoiled, torch.ones_like(trusted), WELL], dim=1)
    with torch.no_grad():
        anchors = [quaternion.to_matrix(body(x, each).anchor) for each in (None, trusted)]
    assert angle_deg(anchors[0], phi) > 1.0
    assert angle_deg(anchors[1], phi) < 0.05


def test_a_search_repeats_itself_and_draws_nothing() -> None:
    flow = exact_flow(np.radians([0.3, -2.0, 0.2]), np.array([0.05, 0.0, -1.0]), street_depth(1))
    flow = flow + 1e-3 * torch.randn(flow.shape, generator=torch.Generator().manual_seed(0))
    cells = cells_of(flow)
    before = torch.get_rng_state()
    first = epipolar.search(cells)
    again = epipolar.search(epipolar.Cells(*(each.clone() for each in cells)))
    assert torch.equal(first.motion.C, again.motion.C)
    assert torch.equal(first.ambiguity, again.ambiguity)
    assert torch.equal(torch.get_rng_state(), before)
    nothing = epipolar.search(epipolar.Cells(*(each[:0] for each in cells)))
    assert nothing.motion.C.shape == (0, 3, 3)


# --- the right minimum, of all there are ---------------------------------------------------------

SIM_ROWS, SIM_COLUMNS, SIM_CELL = 56, 80, 1.0 / 48.0
SIM_NOISE = 3e-4
SCENES = ("plane", "corridor", "rough", "boxes")


class Scene(NamedTuple):
    """A flow field with its truth."""

    target: Array  # (2, n)
    valid: Array  # (n,)
    C: Array
    t: Array
    kind: str


def inverse_depths(kind: str, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """About 1 in the middle of the picture."""
    if kind == "plane":
        n = rng.normal(size=3)
        n = n / np.linalg.norm(n)
        n[2] = max(abs(n[2]), 0.2)
        return np.clip((n[0] * x + n[1] * y) / n[2] + 1.0, 0.02, None)
    if kind == "corridor":
        walls = np.maximum(np.abs(x) / rng.uniform(0.6, 2.0), np.abs(y) / rng.uniform(0.6, 2.0))
        return np.maximum(walls, rng.uniform(0.1, 0.4))
    if kind == "rough":
        return np.exp(rng.normal(0.0, 0.5, x.shape))
    depths = np.full(x.shape, rng.uniform(0.2, 0.6))
    for _ in range(8):
        centre, half = rng.uniform(-1.0, 1.0, 2) * (0.8, 0.6), rng.uniform(0.05, 0.3, 2)
        box = (np.abs(x - centre[0]) < half[0]) & (np.abs(y - centre[1]) < half[1])
        depths[box] = rng.uniform(0.5, 3.0)
    return depths


def sim_points() -> Array:
    """(2, n)."""
    return (
        epipolar.grid_points(CanonicalGrid(SIM_ROWS, SIM_COLUMNS, SIM_CELL)).numpy().reshape(2, -1)
    )


def random_scene(rng: np.random.Generator, kind: str | None = None) -> Scene:
    """A motion in any direction over any scene; of the flow 30 % is wrong, half of it alike."""
    x, y = sim_points().astype(np.float64)
    kind = kind or str(rng.choice(SCENES))
    rho = inverse_depths(kind, x, y, rng)
    phi, t = rng.normal(size=(2, 3))
    phi *= np.radians(rng.uniform(0.0, 30.0)) / np.linalg.norm(phi)
    t *= rng.uniform(0.0, 0.5) / np.linalg.norm(t)
    C = lie.so3_exp(phi)
    moved = C @ np.stack([x, y, np.ones_like(x)]) + t[:, None] * rho
    seen = moved[:2] / np.maximum(moved[2], 0.05)
    edge = 0.5 * SIM_CELL * np.array([[SIM_COLUMNS], [SIM_ROWS]]) + 0.15
    valid = (moved[2] > 0.15) & (np.abs(seen) < edge).all(axis=0)
    seen = seen + rng.normal(0.0, SIM_NOISE, seen.shape)
    wrong = rng.random(len(x)) < 0.3
    mover, alike = rng.normal(0.0, 0.05, (2, 1)), rng.random(len(x)) < 0.5
    seen = seen + wrong * np.where(alike, mover, rng.normal(0.0, 0.05, seen.shape))
    return Scene(seen, valid, C, t, kind)


def sim_cells(scenes: list[Scene]) -> epipolar.Cells:
    target = torch.tensor(np.array([each.target for each in scenes]), dtype=torch.float32)
    valid = torch.tensor(np.array([each.valid for each in scenes]), dtype=torch.float32)
    points = torch.tensor(sim_points()).expand(len(scenes), -1, -1)
    spread = torch.tensor([1.0, 0.0, 1.0])[None, :, None].expand(len(scenes), 3, target.shape[2])
    return epipolar.Cells(points, target, valid[:, None], spread)


def refined(cells: epipolar.Cells, motion: epipolar.CameraMotion) -> epipolar.CameraMotion:
    for scale in (0.001, 0.0007, 0.0007, 0.0007):
        motion = epipolar.step(cells, motion, cells.valid[:, 0], scale)
    return motion


def robust_cost(cells: epipolar.Cells, motion: epipolar.CameraMotion) -> Array:
    """(batch,) sum of log(1 + r^2 / s^2), from the residuals alone."""
    left = epipolar.residuals(cells, motion)
    ratio = left.across.double().square() / left.variance / 0.001**2
    return (cells.valid[:, 0] * torch.log1p(ratio)).sum(dim=1).numpy()


def angles_deg(C: torch.Tensor, truth: Array) -> Array:
    errors = lie.so3_log(C.double().numpy() @ np.swapaxes(truth, 1, 2))
    return np.degrees(np.linalg.norm(errors, axis=1))


def missed(scenes: list[Scene]) -> tuple[Array, Array]:
    """Where the search is not at the truth, and where it should be: two (n,) of bool."""
    cells = sim_cells(scenes)
    motion = refined(cells, epipolar.search(cells).motion)
    C = np.array([each.C for each in scenes])
    t = np.array([each.t for each in scenes])
    t = t / np.maximum(np.linalg.norm(t, axis=1, keepdims=True), 1e-9)
    truth = refined(
        cells,
        epipolar.CameraMotion(
            torch.tensor(C, dtype=torch.float32), torch.tensor(t, dtype=torch.float32)
        ),
    )
    off = angles_deg(motion.C, C) > np.maximum(3.0 * angles_deg(truth.C, C), 0.3)
    best = robust_cost(cells, truth) <= robust_cost(cells, motion) + 1e-3
    return off & best, best | ~off


def share_missed(count: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    wrong = right = 0
    for _ in range(count // 50):
        off, best = missed([random_scene(rng) for _ in range(50)])
        wrong, right = wrong + int(off.sum()), right + int(best.sum())
    assert right > 0.9 * count  # the question is asked of nearly all
    print(f"{wrong} of {right} missed")
    return wrong / right


def test_the_right_minimum_is_found_of_nearly_all_motions() -> None:
    """Four of 400 are what chance makes of 0.5 %; the ten thousand below are the measure."""
    assert share_missed(400, 1) <= 4.0 / 400.0


@pytest.mark.slow
def test_the_right_minimum_is_found_of_ten_thousand_motions() -> None:
    assert share_missed(10_000, 2) <= 0.005


def test_a_plane_has_two_solutions_and_the_search_finds_both_and_takes_the_right_one() -> None:
    """The other one fits a plane as well, and a plane with a box before it less."""
    rng = np.random.default_rng(4)
    x, y = sim_points().astype(np.float64)
    box = (np.abs(x - 0.2) < 0.15) & (np.abs(y) < 0.25)
    tried = both = right = 0
    while tried < 12:
        n, t = np.array([*rng.uniform(-0.8, 0.8, 2), 1.0]), rng.normal(size=3)
        t *= 0.25 / np.linalg.norm(t)
        C = lie.so3_exp(np.radians(rng.normal(0.0, 2.0, 3)))
        other = other_solution(C, t, n)
        if np.degrees(np.linalg.norm(lie.so3_log(other @ C.T))) < 2.0:
            continue  # t along n: the two are one
        tried += 1
        rho = np.clip(n @ np.stack([x, y, np.ones_like(x)]), 0.05, None)
        cells = sim_cells([plane_scene(C, t, rho, rng)])
        solved, _ = epipolar._solved(cells, *epipolar._promising(epipolar._some(cells, 128)))
        near = [angles_deg(solved.C, np.tile(each, (len(solved.C), 1, 1))) for each in (C, other)]
        both += bool(min(near[0]) < 0.3 and min(near[1]) < 0.3)
        cells = sim_cells([plane_scene(C, t, np.where(box, 1.6 * rho, rho), rng)])
        right += bool(angles_deg(epipolar.search(cells).motion.C, C[None])[0] < 0.3)
    assert both >= 11
    assert right == tried


def plane_scene(C: Array, t: Array, rho: Array, rng: np.random.Generator) -> Scene:
    x, y = sim_points().astype(np.float64)
    moved = C @ np.stack([x, y, np.ones_like(x)]) + t[:, None] * rho
    seen = moved[:2] / moved[2] + rng.normal(0.0, SIM_NOISE, (2, len(x)))
    return Scene(seen, np.ones(len(x), dtype=bool), C, t, "plane")


def other_solution(C: Array, t: Array, n: Array) -> Array:
    """The C' of C' + t' n'^T = C + t n^T that is not C, by OpenCV."""
    _, rotations, _, _ = cv2.decomposeHomographyMat(C + np.outer(t, n), np.eye(3))
    away = [np.linalg.norm(each - C) for each in rotations]
    return np.asarray(rotations[int(np.argmax(away))])


# --- ambiguity -----------------------------------------------------------------------------------


def ambiguities_deg(kind: str, size: float) -> tuple[float, float]:
    """Medians over eight motions of a size: of the ambiguity, and of errors in its units."""
    found_deg, in_sigmas = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rho = inverse_depths(kind, *sim_points().astype(np.float64), rng)
        C, t = lie.so3_exp(np.radians([0.5, 1.0, -0.3])), rng.normal(size=3)
        t *= size / np.linalg.norm(t)
        cells = sim_cells([plane_scene(C, t, rho, rng)])
        motion, ambiguity = epipolar.search(cells)
        values = torch.linalg.eigvalsh(ambiguity[0].double())
        assert values[0] > -1e-6 * values[2]
        found_deg.append(np.degrees(float(ambiguity[0].diagonal().sum().sqrt())))
        in_sigmas.append(angles_deg(refined(cells, motion).C, C[None])[0] / found_deg[-1])
    return float(np.median(found_deg)), float(np.median(in_sigmas))


@pytest.mark.parametrize("kind", ["rough", "boxes", "corridor"])
def test_ambiguity_is_larger_where_parallax_is_little_than_where_it_is_rich(kind: str) -> None:
    rich, _ = ambiguities_deg(kind, 0.3)
    poor, in_sigmas = ambiguities_deg(kind, 0.003)
    assert rich < 0.015
    assert poor > 2.0 * rich
    assert poor > 0.015
    assert in_sigmas < 3.0


def test_a_plane_is_ambiguous_however_rich_its_parallax() -> None:
    """Its two solutions are degrees apart, and noise decides between them."""
    ambiguity, in_sigmas = ambiguities_deg("plane", 0.1)
    assert ambiguity > 1.0
    assert in_sigmas < 2.0


def test_without_parallax_every_direction_has_the_same_rotation() -> None:
    for kind in SCENES:
        ambiguity, in_sigmas = ambiguities_deg(kind, 0.0)
        assert ambiguity < 0.01
        assert in_sigmas < 2.0


# --- derivatives and covariances -----------------------------------------------------------------


def moved(
    motion: epipolar.CameraMotion, phi: torch.Tensor, dt: torch.Tensor
) -> epipolar.CameraMotion:
    t = functional.normalize(motion.t + dt, dim=1)
    return epipolar.CameraMotion(epipolar.rotate(phi[None]) @ motion.C, t)


def random_cells(seed: int) -> tuple[epipolar.Cells, epipolar.CameraMotion]:
    """In float64: flow that fits a motion roughly, with spreads that point anywhere."""
    rng = np.random.default_rng(seed)
    scene = random_scene(rng, "rough")
    cells = epipolar.Cells(*(each.double() for each in sim_cells([scene])))
    a, b = rng.uniform(0.3, 5.0, (2, 1, cells.points.shape[2]))
    c = rng.uniform(-0.9, 0.9, a.shape) * np.sqrt(a * b)
    cells = cells._replace(spread=torch.tensor(np.stack([a, c, b], axis=1)))
    t = torch.tensor(scene.t / np.linalg.norm(scene.t))[None]
    return cells, epipolar.CameraMotion(torch.tensor(scene.C)[None], t)


@pytest.mark.parametrize("seed", range(4))
def test_derivatives_are_those_of_the_residuals(seed: int) -> None:
    """Of across by phi and t, times the root of the weights: by finite differences.

    A change of t along itself only changes |d|, and _EPIPOLE keeps d from being normalised there:
    t is changed across itself.
    """
    cells, motion = random_cells(seed)
    weight = torch.rand(cells.valid[:, 0].shape, generator=torch.Generator().manual_seed(seed))
    weight = weight.double() * cells.valid[:, 0]
    at = epipolar._place(cells, motion)
    scale, h = 0.01, 1e-6
    normal, moment = epipolar._normal(at, motion.t, weight, scale)
    w = weight / (at.left.variance + at.left.across.square() / scale**2)
    columns = []
    for k in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[k] = h
        sides = []
        for sign in (1.0, -1.0):
            C = epipolar.rotate(sign * step[None, :3]) @ motion.C
            # Not normalised, and d not normalised anew: d / |d| has no part across that counts.
            t = motion.t + sign * step[None, 3:]
            placed = epipolar._place(cells, epipolar.CameraMotion(C, t))
            sides.append(placed.left.across / placed.size * at.size)
        columns.append((sides[0] - sides[1]) / (2.0 * h))
    J = torch.stack(columns, dim=1)  # (1, 6, n)
    expected = (J * w[:, None]) @ J.mT
    torch.testing.assert_close(
        normal, expected, rtol=1e-5, atol=1e-4 * float(expected.abs().max())
    )
    gradient = -((J * w[:, None]) @ at.left.across[..., None])[..., 0]
    size = float(gradient.abs().max())
    torch.testing.assert_close(moment, gradient, rtol=1e-5, atol=1e-4 * size)


@pytest.mark.parametrize("t", [(0.1, 0.0, -1.0), (0.0, 0.0, 0.0)])
def test_one_step_undoes_a_small_error(t: tuple[float, float, float]) -> None:
    """Gauss-Newton converges at once where its derivatives are right, and slowly where not.

    With a scale so wide that the robust kernel weighs all cells alike.
    """
    size, zero = 1e-3, torch.zeros(3, dtype=torch.float64)
    flow = exact_flow(np.radians([0.2, 1.0, 0.1]), np.array(t), street_depth(3))
    cells = epipolar.Cells(*(each.double() for each in cells_of(flow)))
    start = torch.tensor([t if any(t) else (0.0, 0.0, -1.0)], dtype=torch.float64)
    best = epipolar.CameraMotion(torch.eye(3, dtype=torch.float64)[None], start)
    best = moved(best, zero, zero)
    for _ in range(60):
        best = epipolar.step(cells, best, cells.valid[:, 0], 1e6)
    for axis in size * torch.eye(3, dtype=torch.float64):
        there = epipolar.step(cells, moved(best, axis, zero), cells.valid[:, 0], 1e6, held=1e3)
        assert (there.C - best.C).norm() < 0.005 * size
        if any(t):
            there = epipolar.step(cells, moved(best, zero, axis), cells.valid[:, 0], 1e6)
            assert (there.t - best.t).norm() < 0.06 * size


@pytest.mark.parametrize("kind", ["rough", "boxes", "corridor"])
def test_the_covariance_is_that_of_monte_carlo(kind: str) -> None:
    """Of white noise: too large by the number of cells that it takes to share an error."""
    rng = np.random.default_rng(7)
    x, y = sim_points().astype(np.float64)
    rho = inverse_depths(kind, x, y, rng)
    C, t = lie.so3_exp(np.radians([1.0, -2.0, 0.5])), np.array([0.1, -0.05, -0.2])
    runs = 200
    cells = sim_cells([plane_scene(C, t, rho, rng) for _ in range(runs)])
    truth = epipolar.CameraMotion(
        torch.tensor(C, dtype=torch.float32).expand(runs, 3, 3),
        torch.tensor(t / np.linalg.norm(t), dtype=torch.float32).expand(runs, 3),
    )
    weight, scale = cells.valid[:, 0], 2e-3  # wide: noise is 3e-4, and no cell is wrong
    motion = truth
    for _ in range(4):
        motion = epipolar.step(cells, motion, weight, scale)
    root = epipolar.covariance_root(cells, motion, weight, scale).double().numpy()
    errors = lie.so3_log(motion.C.double().numpy() @ C.T)
    white = np.linalg.solve(root, errors[..., None])[..., 0]
    nees = float((white**2).sum(axis=1).mean())
    expected = 3.0 / epipolar.CELLS_PER_ERROR
    # What is assumed beside the residuals, a fifth of _NOISE, makes it a little less.
    assert 0.75 * expected < nees < 1.2 * expected


def test_ambiguity_is_added_to_the_covariance() -> None:
    cells, motion = random_cells(0)
    weight = cells.valid[:, 0]
    plain = epipolar.covariance_root(cells, motion, weight, 1e-3)
    more = torch.diag(torch.tensor([1e-4, 4e-4, 9e-4], dtype=torch.float64))[None]
    wider = epipolar.covariance_root(cells, motion, weight, 1e-3, more)
    torch.testing.assert_close(wider @ wider.mT, plain @ plain.mT + more)


def test_the_covariance_knows_what_cannot_be_seen() -> None:
    """Yaw is hard to tell from sideways motion, so where there is parallax it is less certain."""
    flow = exact_flow(np.zeros(3), np.array([0.0, 0.0, -1.0]), street_depth(4))
    flow = flow + 3e-4 * torch.randn(flow.shape, generator=torch.Generator().manual_seed(0))
    strip = torch.zeros(1, 1, *SHAPE)
    strip[:, :, 32:80] = 1.0  # wider than high: pitch is seen at the sides as well
    fine = cells_of(flow, 2, strip)
    root = epipolar.covariance_root(fine, found(flow), fine.valid[:, 0], 1e-3)[0]
    sigma = (root @ root.mT).diagonal().sqrt()
    assert sigma[1] > sigma[0]
    assert torch.equal(root, root.tril())
    blind = epipolar.covariance_root(fine, found(flow), torch.zeros_like(fine.valid[:, 0]), 1e-3)
    assert 0.04 < float(blind[0, 0, 0]) < 0.06


def test_gradients_are_finite_where_there_is_nothing_to_see() -> None:
    cells = cells_of(torch.zeros(1, 2, *SHAPE), 2)
    weight = torch.ones_like(cells.valid[:, 0], requires_grad=True)
    start = epipolar.CameraMotion(torch.eye(3)[None], torch.tensor([[0.0, 0.0, 1.0]]))
    motion = epipolar.step(cells, start, weight, 1e-3)
    root = epipolar.covariance_root(cells, motion, weight, 1e-3)
    (motion.C.sum() + root.sum()).backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_rotations_of_steps_are_exact() -> None:
    phi = np.random.default_rng(0).uniform(-0.5, 0.5, (100, 3))
    turned = epipolar.rotate(torch.tensor(phi)).numpy()
    np.testing.assert_allclose(turned, lie.so3_exp(phi), atol=2e-6)


# --- texture -------------------------------------------------------------------------------------


def test_flow_is_known_across_an_edge_and_not_along_it() -> None:
    """A vertical edge has its gradient along x: S is small there and large along y."""
    edge = torch.tensor([[400.0, 0.0, 0.0]]).view(1, 3, 1)
    xx, xy, yy = epipolar.flow_spread(edge)[0, :, 0]
    assert xx < 0.5
    assert yy > 4.0
    assert xy == 0.0
    small, large = epipolar.eigenvalues(edge)
    assert (float(small), float(large)) == (0.0, 400.0)


def test_spread_turns_with_the_picture() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        root = 10.0 * rng.normal(size=(2, 2))
        G, angle = root @ root.T, rng.uniform(0.0, 2.0 * np.pi)
        R = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

        def spread(M: Array) -> Array:
            given = torch.tensor([[M[0, 0], M[0, 1], M[1, 1]]])[..., None]
            a, b, c = epipolar.flow_spread(given)[0, :, 0].tolist()
            return np.array([[a, b], [b, c]])

        np.testing.assert_allclose(spread(R @ G @ R.T), R @ spread(G) @ R.T, atol=1e-9)
        values = np.sort(np.linalg.eigvalsh(G))
        given = torch.tensor([[G[0, 0], G[0, 1], G[1, 1]]])[..., None]
        found_values = [float(each) for each in epipolar.eigenvalues(given)]
        np.testing.assert_allclose(found_values, values, atol=1e-9)


def test_cells_whose_flow_slides_along_edges_do_less_harm_where_that_is_known() -> None:
    """Half of the cells see an upright edge each: their flow upwards is anything."""
    C, t = lie.so3_exp(np.radians([0.3, -1.0, 0.2])), np.array([0.1, 0.0, -0.3])
    x, y = sim_points().astype(np.float64)
    upright, well = np.array([[400.0], [0.0], [0.0]]), np.array([[20.0], [0.0], [20.0]])
    errors = []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        scene = plane_scene(C, t, inverse_depths("corridor", x, y, rng), rng)
        scene.target[1] += rng.normal(0.0, 2e-3, x.shape) * (x < 0.0)
        cells = sim_cells([scene])
        for edges in (upright, well):
            texture = torch.tensor(np.where(x < 0.0, edges, well), dtype=torch.float32)[None]
            told = cells._replace(spread=epipolar.flow_spread(texture))
            motion = refined(told, epipolar.search(told).motion)
            errors.append(angles_deg(motion.C, C[None])[0])
    told_deg, not_told_deg = np.mean(np.reshape(errors, (-1, 2)), axis=0)
    assert told_deg < 0.01
    assert told_deg < 0.85 * not_told_deg


AFTER_INFERENCE = """
import torch
from hydranet_ros.gyro import epipolar
from hydranet_ros.gyro.grid import CanonicalGrid
points, mask = epipolar.grid_points(CanonicalGrid(48, 160))[None], torch.ones(1, 1, 48, 160)
texture = torch.ones(1, 3, 48, 160)
cells = epipolar.pool(points, torch.zeros(1, 2, 48, 160), mask, texture, 4)
with torch.inference_mode():
    motion = epipolar.search(cells)
start = epipolar.CameraMotion(torch.eye(3)[None], torch.tensor([[0.0, 0.0, 1.0]]))
weight = torch.ones_like(cells.valid[:, 0], requires_grad=True)
epipolar.step(cells, start, weight, 1e-3).C.sum().backward()
"""


def test_training_works_after_inference_in_the_same_process() -> None:
    """Constants that inference makes and keeps must not be inference tensors."""
    subprocess.run([sys.executable, "-c", AFTER_INFERENCE], check=True, timeout=120)
