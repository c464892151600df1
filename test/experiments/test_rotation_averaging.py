from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from hydranet_ros.experiments import rotation_averaging as experiment
from hydranet_ros.geometry import lie


@pytest.fixture(scope="module")
def outcome() -> experiment.Outcome:
    return experiment.run(experiment.RotationAveragingSettings(), quick=True)


def test_the_figures_are_as_expected(outcome: experiment.Outcome) -> None:
    assert outcome.expected
    assert outcome.faults() == []


def test_the_domain_ends_at_a_right_angle(outcome: experiment.Outcome) -> None:
    shares = {row["radius_deg"]: row["aligned"] for row in outcome.tables["domain"]}
    assert all(share == 1.0 for radius, share in shares.items() if radius < 90.0)
    assert all(share < 1.0 for radius, share in shares.items() if radius > 100.0)


def test_trying_all_signs_finds_the_least_cost() -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(6, 4))
    q /= np.linalg.norm(q, axis=1, keepdims=True)

    def cost(x: np.ndarray) -> float:
        return float(np.sum(lie.quaternionic_distance(q, x / np.linalg.norm(x)) ** 2))

    starts = rng.normal(size=(50, 4))
    least = min(minimize(cost, start, method="BFGS").fun for start in starts)
    assert cost(experiment.true_mean(q)) == pytest.approx(least, abs=1e-6)
    assert cost(experiment.true_mean(q)) <= cost(lie.quaternion_mean(q)) + 1e-12
