"""Residuals against their definitions, Jacobians against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydranet_ros.fusion import factors
from hydranet_ros.fusion.factors import Columns, Linear, States
from hydranet_ros.geometry import lie

STEP = 1e-6
SEEDS = st.integers(0, 2**32 - 1)
# How far measurements are from the states, rad and 10 m: from nothing to nearly half a turn.
SPREADS = st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 0.8])
INDEX = np.array([[0, 1], [1, 3], [0, 4]])
TRIPLES = np.array([[0, 1, 2], [1, 2, 3]])


def random_states(rng: np.random.Generator) -> States:
    T = lie.se3_exp(rng.normal(size=(5, 6)) * [5, 5, 5, 0.5, 0.5, 0.5])
    return States(
        T[:, :3, :3], T[:, :3, 3], *(rng.normal(size=(5, 3)) * size for size in (0.3, 0.05, 0.02))
    )


def relative(states: States, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    T = lie.se3_from(states.C, states.r)
    return T[b] @ lie.se3_inverse(T[a])


def measured(rng: np.random.Generator, states: States, spread: float) -> np.ndarray:
    """Poses at a distance of `spread` from T_b_a, in random directions."""
    xi = rng.normal(size=(len(INDEX), 6))
    xi *= spread * np.pi / np.linalg.norm(xi[:, 3:], axis=1, keepdims=True)
    return lie.se3_exp(xi * [3, 3, 3, 1, 1, 1]) @ relative(states, INDEX[:, 0], INDEX[:, 1])


def perturbed(states: States, state: int, column: int, step: float) -> States:
    """T <- Exp(xi) T, and the rest by adding, in one of the fifteen directions of a state."""
    C, r, *rest = (part.copy() for part in states)
    if column < 6:
        T = lie.se3_exp(step * np.eye(6)[column]) @ lie.se3_from(C[state], r[state])
        C[state], r[state] = T[:3, :3], T[:3, 3]
    else:
        rest[column // 3 - 2][state, column % 3] += step
    return States(C, r, *rest)


def check_jacobian(
    linearise: Callable[[States], Linear], states: States, index: np.ndarray, columns: Columns
) -> None:
    """Every column that is named agrees, and what is not named has no influence."""
    jacobian = linearise(states).jacobian
    assert jacobian.shape == (len(index), jacobian.shape[1], 3 * len(columns))
    for row, touched in enumerate(index):
        for state in range(len(states.r)):
            for column in range(15):
                ahead = linearise(perturbed(states, state, column, STEP)).residual[row]
                behind = linearise(perturbed(states, state, column, -STEP)).residual[row]
                expected = (ahead - behind) / (2.0 * STEP)
                ours = np.zeros_like(expected)
                for group, (which, third) in enumerate(columns):
                    if touched[which] == state and column // 3 == third:
                        ours = ours + jacobian[row, :, 3 * group + column % 3]
                scale = 1.0 + np.abs(jacobian[row]).max()
                np.testing.assert_allclose(ours, expected, atol=1e-7 * scale)


def edges(rng: np.random.Generator, states: States, spread: float, with_bias: bool):
    T = measured(rng, states, spread)
    C, dt = measured(rng, states, spread)[:, :3, :3], np.array([0.1, 0.35, 1.2])

    given = factors.EdgeFactors(INDEX, INDEX, np.concatenate([T[:, :3, :3], C]), T[:, :3, 3], dt)

    def linearise(s: States) -> tuple[Linear, Linear]:
        return factors.linearise_edges(s, given, with_bias)

    return T, C, dt, linearise


@given(SEEDS, SPREADS, st.booleans())
def test_edge_residuals_are_their_definitions(seed: int, spread: float, with_bias: bool) -> None:
    rng = np.random.default_rng(seed)
    states = random_states(rng)
    T, C, dt, linearise = edges(rng, states, spread, with_bias)
    pose, rotation = linearise(states)
    T_b_a = relative(states, INDEX[:, 0], INDEX[:, 1])
    expected = lie.se3_log(T_b_a @ lie.se3_inverse(T))
    np.testing.assert_allclose(pose.residual, expected, atol=1e-9 * (1.0 + np.abs(expected).max()))
    seen = T_b_a[:, :3, :3]
    if with_bias:
        seen = lie.so3_exp(states.b[INDEX[:, 1]] * dt[:, None]) @ seen
    expected = lie.so3_log(seen @ np.swapaxes(C, 1, 2))
    np.testing.assert_allclose(rotation.residual, expected, atol=1e-9)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_edge_jacobians(seed: int, spread: float, with_bias: bool) -> None:
    rng = np.random.default_rng(seed)
    states = random_states(rng)
    *_, linearise = edges(rng, states, spread, with_bias)
    check_jacobian(lambda s: linearise(s)[0], states, INDEX, factors.TWO_POSES)
    columns = factors.ROTATIONS_AND_BIAS if with_bias else factors.TWO_ROTATIONS
    check_jacobian(lambda s: linearise(s)[1], states, INDEX, columns)


@pytest.mark.parametrize("seed", range(4))
def test_still(seed: int) -> None:
    states = random_states(np.random.default_rng(seed))
    expected = lie.se3_log(relative(states, INDEX[:, 0], INDEX[:, 1]))
    np.testing.assert_allclose(factors.still(states, INDEX).residual, expected, atol=1e-9)
    check_jacobian(lambda s: factors.still(s, INDEX), states, INDEX, factors.TWO_POSES)


@pytest.mark.parametrize("seed", range(4))
def test_velocity_walk(seed: int) -> None:
    states = random_states(np.random.default_rng(seed))
    before = np.random.default_rng(seed).uniform(0.4, 1.1, (2, 6))
    after = np.random.default_rng(seed + 9).uniform(0.2, 0.7, (2, 6))

    def linearise(s: States) -> Linear:
        return factors.velocity_walk(s, TRIPLES, 1.0 / before, 1.0 / after)

    first = lie.se3_log(relative(states, TRIPLES[:, 0], TRIPLES[:, 1]))
    second = lie.se3_log(relative(states, TRIPLES[:, 1], TRIPLES[:, 2]))
    expected = second / after - first / before
    np.testing.assert_allclose(linearise(states).residual, expected, atol=1e-9)
    check_jacobian(linearise, states, TRIPLES, factors.THREE_POSES)


def test_a_steady_motion_has_no_velocity_residual() -> None:
    velocity = np.array([0.3, -0.2, 9.0, 0.1, 0.4, -0.2])
    T = lie.se3_exp(velocity * np.array([[0.0], [0.1], [0.5]]))
    states = States(T[:, :3, :3], T[:, :3, 3], np.zeros((3, 3)), np.zeros((3, 3)))
    linear = factors.velocity_walk(
        states, TRIPLES[:1], np.full((1, 6), 1 / 0.1), np.full((1, 6), 1 / 0.4)
    )
    np.testing.assert_allclose(linear.residual, np.zeros((1, 6)), atol=1e-12)


def test_bias_walk() -> None:
    states = random_states(np.random.default_rng(0))
    expected = states.b[INDEX[:, 1]] - states.b[INDEX[:, 0]]
    np.testing.assert_allclose(factors.bias_walk(states, INDEX).residual, expected)
    check_jacobian(lambda s: factors.bias_walk(s, INDEX), states, INDEX, factors.TWO_BIASES)
