"""The part of the gyro's covariance that the next rotations share."""

from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.grid import CanonicalGrid, GridFlow
from hydranet_ros.gyro.persistent import PERSISTENT_S, PersistentConfig, with_persistent

GRID = CanonicalGrid(80, 112)
X, Y = np.moveaxis(GRID.centres, -1, 0)


def flow_of(C: np.ndarray) -> GridFlow:
    """The flow of a rotation: pi(C (x, 1)) - x."""
    ray = np.stack([X, Y, np.ones_like(X)], axis=-1) @ C.T
    flow = (ray[..., :2] / ray[..., 2:] - GRID.centres).transpose(2, 0, 1)
    return GridFlow(flow.astype(np.float32), np.ones(X.shape, dtype=bool))


def solved(flow: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The rotation that makes such a flow, to first order."""
    A = np.stack([np.stack([-x * y, 1.0 + x * x, -y], -1), np.stack([-1.0 - y * y, x * y, x], -1)])
    return np.linalg.lstsq(A.reshape(-1, 3), flow.reshape(-1), rcond=None)[0]


def rotation(phi: list[float]) -> RelativeRotation:
    return RelativeRotation(lie.so3_exp(np.array(phi)), 1e-10 * np.eye(3), 0, 50_000_000)


@pytest.mark.parametrize("phi", [[0.02, 0.0, 0.0], [0.0, -0.03, 0.0], [0.01, 0.02, 0.03]])
def test_a_wrong_focal_length_is_within_what_is_stated(phi: list[float]) -> None:
    """Flow seen with a focal length 1 % too long, solved for a rotation: off by a deviation."""
    given = rotation(phi)
    flow = flow_of(given.C_2_1)
    right, wrong = (solved(flow.flow / scale, X / scale, Y / scale) for scale in (1.0, 1.01))
    stated = with_persistent(given, flow, PersistentConfig())
    assert stated.persistent is not None
    error = wrong - right
    nees = float(error @ np.linalg.solve(stated.persistent, error))
    assert 0.3 < nees < 4.0


def test_it_is_part_of_the_covariance_and_lasts() -> None:
    given = rotation([0.01, 0.0, 0.02])
    stated = with_persistent(given, flow_of(given.C_2_1), PersistentConfig())
    assert stated.persistent is not None
    np.testing.assert_allclose(stated.Sigma_2_1, given.Sigma_2_1 + stated.persistent)
    assert stated.persistent_s == PERSISTENT_S


def test_at_rest_nothing_persists() -> None:
    given = rotation([0.0, 0.0, 0.0])
    stated = with_persistent(given, flow_of(given.C_2_1), PersistentConfig())
    assert stated.persistent is not None
    assert np.trace(stated.persistent) < 1e-2 * np.trace(given.Sigma_2_1)


def test_about_the_axis_of_view_a_focal_length_does_not_matter() -> None:
    config = PersistentConfig(flow_share=0.0)
    given = rotation([0.0, 0.0, 0.3])
    stated = with_persistent(given, flow_of(given.C_2_1), config)
    assert stated.persistent is not None
    assert np.trace(stated.persistent) < 1e-12
