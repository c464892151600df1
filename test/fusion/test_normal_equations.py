"""Band solutions against SciPy, and the compiled loops against the arrays they stand for."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from fusion.fusion_worlds import random_problem
from scipy.linalg import solve as solve_dense
from scipy.linalg import solveh_banded

from hydranet_ros.fusion import factors, normal_equations
from hydranet_ros.fusion.factors import EdgeFactors, Linear, States
from hydranet_ros.fusion.normal_equations import KERNELS, Block, Kernel, Layout
from hydranet_ros.fusion.window import Window
from hydranet_ros.geometry import lie

# Count of states, their dimension, and how many states an edge spans.
CHAINS = [(1, 6, 1), (2, 6, 1), (11, 6, 1), (11, 9, 2), (50, 6, 1), (23, 15, 2), (50, 12, 3)]


@pytest.fixture(params=["arrays", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which sums and solutions are taken."""
    if request.param == "compiled":
        pytest.importorskip("numba", reason="the extra `fast` is not installed")
    else:
        without_numba(monkeypatch)
    return str(request.param)


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (factors, normal_equations):
        monkeypatch.setattr(module, "compiled", None)


def chain(count: int, dimension: int, spans: int) -> tuple[np.ndarray, np.ndarray]:
    """A band like those of the window, with units that differ by ten digits, and a gradient."""
    rng = np.random.default_rng(count)
    size, below = count * dimension, min(spans + 1, count) * dimension
    J = np.zeros((0, size))
    for first in range(count):
        rows = np.zeros((2 * dimension, size))
        end = min(first + spans + 1, count) * dimension
        rows[:, first * dimension : end] = rng.normal(
            size=(2 * dimension, end - first * dimension)
        )
        J = np.concatenate([J, rows])
    units = 10.0 ** rng.uniform(-2.5, 2.5, size)
    H = units[:, None] * (J.T @ J + np.eye(size)) * units
    band = np.zeros((size, below))
    for k in range(below):
        band[: size - k, k] = np.diagonal(H, -k)
    return band, units * rng.normal(size=size)


@pytest.mark.parametrize(("count", "dimension", "spans"), CHAINS)
def test_solutions_are_those_of_scipy(way: str, count: int, dimension: int, spans: int) -> None:
    band, right = chain(count, dimension, spans)
    factor, solved = normal_equations.solve_band(band, right, dimension)
    assert factor is not None
    assert isinstance(factor, normal_equations.Cholesky) == (way == "compiled")
    expected = solveh_banded(band.T, right, lower=True)
    units = np.sqrt(band[:, 0])
    np.testing.assert_allclose(units * solved, units * expected, rtol=1e-9, atol=1e-9)
    for states in {1, min(2, count), count}:
        size = states * dimension
        last = np.eye(len(band))[:, -size:]
        covariance = solveh_banded(band.T, last, lower=True)[-size:]
        scale = units[-size:, None] * units[-size:]
        found = factor.last_inverse(size)
        np.testing.assert_allclose(scale * found, scale * covariance, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("count", "dimension", "spans"), CHAINS)
@pytest.mark.parametrize("wrong", [-1.0, 0.0, np.nan])
def test_what_is_not_positive_has_no_solution(
    count: int, dimension: int, spans: int, wrong: float
) -> None:
    for at in (0, count * dimension // 2, count * dimension - 1):
        band, right = chain(count, dimension, spans)
        band[at, 0] *= wrong
        assert normal_equations.solve_band(band, right, dimension)[0] is None


@pytest.mark.usefixtures("way")
def test_an_indefinite_matrix_has_no_solution() -> None:
    """Its diagonal is positive, and what is left of it is not."""
    band, right = chain(20, 6, 1)
    band[60, 1] = 2.0 * np.sqrt(band[60, 0] * band[61, 0])
    assert normal_equations.solve_band(band, right, 6)[0] is None


@pytest.mark.usefixtures("way")
def test_small_dense_solutions_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for size, many in ((3, 6), (6, 13), (15, 31)):
        root, right = rng.normal(size=(size, size)), rng.normal(size=(size, many))
        H = root @ root.T + 0.1 * np.eye(size)
        expected = solve_dense(H, right, assume_a="pos")
        found = normal_equations.solve_positive(H, right)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            normal_equations.solve_positive(H - 100.0 * np.eye(size), right)


# --- compiled, and by arrays ---------------------------------------------------------------------


def same(found: object, wanted: object) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.fixture
def numba() -> ModuleType:
    return pytest.importorskip("numba", reason="the extra `fast` is not installed")


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("turn", [0.0, 1e-9, 1e-3, 0.4, 2.0, 3.1])
def test_edges_are_the_same(turn: float, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of up to nearly half a turn, and biases of as much."""
    rng = np.random.default_rng(0)
    axes = rng.normal(size=(4, 3))
    T = lie.se3_exp(rng.normal(size=(5, 6)) * [5, 5, 5, 0.5, 0.5, 0.5])
    poses, rotations = np.array([[0, 1], [1, 3]]), np.array([[0, 1], [0, 4]])
    index = np.concatenate([poses, rotations])
    off = lie.so3_exp(turn * axes / np.linalg.norm(axes, axis=1, keepdims=True))
    C_meas = off @ T[index[:, 1], :3, :3] @ np.swapaxes(T[index[:, 0], :3, :3], 1, 2)
    bias = turn * rng.normal(size=(5, 3))
    states = States(T[:, :3, :3], T[:, :3, 3], bias, np.zeros((5, 3)), np.zeros((5, 3)))
    edges = EdgeFactors(poses, rotations, C_meas, rng.normal(size=(2, 3)), np.array([0.1, 0.3]))
    step = rng.normal(size=(5, 9)) * max(turn, 1e-3)
    compiled = factors.linearise_edges(states, edges, with_bias), factors.moved(states, step)
    without_numba(monkeypatch)
    wanted = factors.linearise_edges(states, edges, with_bias), factors.moved(states, step)
    for one, other in zip(compiled[0], wanted[0], strict=True):
        same(one.residual, other.residual)
        same(one.jacobian, other.jacobian)
    for part, other_part in zip(compiled[1], wanted[1], strict=True):
        same(part, other_part)


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("name", KERNELS)
def test_sums_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    index = np.array([[0, 1], [1, 2], [2, 4]])
    root = rng.normal(size=(3, 6, 6))
    information = root @ np.swapaxes(root, 1, 2)
    kernel = Kernel(name, 2.0)
    blocks = [
        Block(index, factors.TWO_POSES, information, kernel),
        Block(index[:2], factors.TWO_ROTATIONS, np.tile(np.eye(3), (2, 1, 1))),
    ]
    linears = [
        Linear(rng.normal(size=(3, 6)), rng.normal(size=(3, 6, 12))),
        Linear(rng.normal(size=(2, 3)), rng.normal(size=(2, 3, 6))),
    ]
    prior = np.eye(12) + rng.normal(size=(12, 12)) * 0.1, rng.normal(size=12), 0.5
    compiled = Layout(blocks, 5, 6, 2).fill(linears, *prior)
    without_numba(monkeypatch)
    wanted = Layout(blocks, 5, 6, 2).fill(linears, *prior)
    same(compiled.band, wanted.band)
    same(compiled.gradient, wanted.gradient)
    assert compiled.cost == pytest.approx(wanted.cost, rel=1e-12)
    for one, other in zip(compiled.parts, wanted.parts, strict=True):
        same(one.hessian, other.hessian)
        same(one.gradient, other.gradient)


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_windows_are_the_same(
    with_bias: bool, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(
        np.random.default_rng(2), 12, with_bias=with_bias, gaps=with_bias, kernels=kernels
    )

    def run() -> tuple[Window, list[np.ndarray]]:
        window, covariances = problem.empty_window(), []
        for i in range(1, len(problem.stamps)):
            problem.add_to(window, i)
            window.optimise()
            covariances.append(window.newest_covariance(2))
            if len(window) > 5:
                window.marginalise_oldest()
        return window, covariances

    compiled, covariances = run()
    without_numba(monkeypatch)
    wanted, others = run()
    for part, other in zip(compiled.states, wanted.states, strict=True):
        same(part, other)
    for one, two in zip(covariances, others, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9 * np.abs(two).max())
