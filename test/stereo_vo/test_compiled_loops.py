"""The compiled loops of stereo odometry give the numbers of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.stereo_vo import calibration, front_end, motion

pytest.importorskip("numba", reason="numba is not installed")
CAMERA = StereoCamera(Camera(700.0, 690.0, 600.0, 180.0), 0.54)
RNG = np.random.default_rng(1)


def test_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    points = RNG.uniform((-9.0, -2.0, 4.0), (9.0, 2.0, 50.0), (200, 3))
    T = lie.se3_exp([0.1, -0.02, -1.2, 0.01, 0.02, -0.01])
    measured = CAMERA.project(motion.transform(T, points)) + RNG.normal(0.0, 0.3, (200, 3))
    measured[::7] += 20.0
    samples = motion.draw_samples(200, 50, RNG)
    given = CAMERA, points, measured
    poses = motion.fit_samples(*given, np.eye(4), samples, 3)
    best, inliers = motion.best_sample(*given, poses, 2.0)
    monkeypatch.setattr(motion, "compiled", lambda: None)
    expected = motion.fit_samples(*given, np.eye(4), samples, 3)
    np.testing.assert_allclose(poses, expected, atol=1e-6)
    expected_best, expected_inliers = motion.best_sample(*given, expected, 2.0)
    np.testing.assert_allclose(best, expected_best, atol=1e-6)
    np.testing.assert_array_equal(inliers, expected_inliers)


def test_features(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = RNG.uniform((0.0, 0.0), (119.0, 89.0), (60, 2))
    known = pixels[20:], pixels[20:, 0]
    nearest = front_end.nearest_disparity(pixels[:20], *known)
    monkeypatch.setattr(front_end, "compiled", lambda: None)
    np.testing.assert_array_equal(nearest, front_end.nearest_disparity(pixels[:20], *known))


def test_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    features = RNG.uniform(0.0, 1200.0, (60, 4))
    basis = calibration.offset_basis(CAMERA.left, features)
    monkeypatch.setattr(calibration, "compiled", lambda: None)
    np.testing.assert_allclose(basis, calibration.offset_basis(CAMERA.left, features), rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_median(count: int) -> None:
    values = RNG.normal(size=count)
    assert motion.median(values) == pytest.approx(float(np.median(values)))
