"""The splines against SciPy's, to rounding."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.spatial.transform import Rotation, RotationSpline

from hydranet_ros.geometry import lie
from hydranet_ros.simulation import splines


def knots(count: int, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Uneven seconds, places, rotations, and the times between them."""
    rng = np.random.default_rng(count)
    seconds = np.cumsum(rng.uniform(0.05, 0.15, count))
    seconds -= seconds[0]
    places = np.cumsum(rng.normal(size=(count, 3)), axis=0)
    C = [np.eye(3)]
    for turn in spread * rng.normal(size=(count - 1, 3)):
        C.append(C[-1] @ lie.so3_exp(turn))
    return seconds, places, np.array(C), np.arange(0.0, seconds[-1], 0.01)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 60])
def test_accelerations_are_those_of_scipy(count: int) -> None:
    seconds, places, _, times = knots(count, 0.0)
    expected = CubicSpline(seconds, places)(times, 2)
    found = splines.accelerations(seconds, places, times)
    np.testing.assert_allclose(found, expected, atol=1e-12 * max(np.abs(expected).max(), 1.0))


@pytest.mark.parametrize("spread", [0.0, 1e-5, 0.02, 0.5])
@pytest.mark.parametrize("count", [2, 3, 4, 60])
def test_rotations_and_rates_are_those_of_scipy(count: int, spread: float) -> None:
    seconds, _, C, times = knots(count, spread)
    spline = RotationSpline(seconds, Rotation.from_matrix(C))
    turned, rates = splines.turning(seconds, C, times)
    np.testing.assert_allclose(turned, spline(times).as_matrix(), atol=1e-12)
    np.testing.assert_allclose(rates, spline(times, 1), atol=1e-12)


def test_stamps_have_to_increase() -> None:
    seconds, places, C, times = knots(5, 0.1)
    seconds[2] = seconds[1]
    with pytest.raises(ValueError, match="stamps increase"):
        splines.accelerations(seconds, places, times)
    with pytest.raises(ValueError, match="2 or more knots"):
        splines.turning(seconds[:1], C[:1], times)
