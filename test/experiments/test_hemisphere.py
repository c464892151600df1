from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares

from hydranet_ros.experiments import hemisphere
from hydranet_ros.experiments.hemisphere import (
    CAMERA,
    NOISE_PX,
    PRESETS,
    RADIUS_M,
    landmarks,
    least_covariances,
    orientations,
    training_views,
    views,
)
from hydranet_ros.experiments.hemisphere import test_views as drawn_test_views
from hydranet_ros.geometry import lie
from hydranet_ros.gyro.device import set_threads


def test_the_grid_of_landmarks() -> None:
    points = landmarks(3.0)
    assert points.shape == (36, 3)
    assert np.abs(points).max() == 7.5
    np.testing.assert_allclose(points.mean(axis=0), 0.0)
    assert np.unique(points[:, 0]).tolist() == [-7.5, -4.5, -1.5, 1.5, 4.5, 7.5]


def test_cameras_are_on_the_hemisphere_and_see_everything() -> None:
    rng = np.random.default_rng(0)
    for preset in PRESETS.values():
        test = drawn_test_views(preset, 500, rng)
        np.testing.assert_allclose(np.linalg.norm(test.camera_m, axis=1), RADIUS_M)
        C_c_w = lie.quaternion_to_matrix(test.targets.double().numpy())
        seen = landmarks(preset.spacing_m) @ lie.so3_inverse(C_c_w) + [0.0, 0.0, RADIUS_M]
        pixels = CAMERA.project(seen)
        assert pixels.min() > 0.0
        assert pixels.max() < 500.0
        # The camera's axis meets the centre of the grid.
        ahead = np.swapaxes(C_c_w, 1, 2) @ [0.0, 0.0, RADIUS_M] + test.camera_m
        np.testing.assert_allclose(ahead, 0.0, atol=1e-5)


def test_pixels_have_noise_of_one_pixel() -> None:
    angles = np.zeros((2000, 3))
    found = views(angles, 3.0, np.random.default_rng(0)).coordinates.numpy()
    extent = 500.0 * 9.0 / 25.0
    assert found.std(axis=0).mean() * extent == pytest.approx(NOISE_PX, rel=0.02)
    exact = (landmarks(3.0)[:, :2] / 25.0 * 500.0 / extent).ravel()
    np.testing.assert_allclose(found.mean(axis=0), exact, atol=5 * NOISE_PX / extent / 44)


def test_ranges_of_the_presets() -> None:
    rng = np.random.default_rng(0)
    training = training_views(PRESETS["published"], 5000, rng)
    assert 59.0 < np.abs(training.polar_deg).max() <= 60.0
    sweep = drawn_test_views(PRESETS["published"], 500, rng).polar_deg
    np.testing.assert_allclose(sweep, np.linspace(-81.0, 81.0, 500))
    assert np.abs(drawn_test_views(PRESETS["paper"], 500, rng).polar_deg).max() <= 80.0


def test_orientations_compose_about_fixed_axes() -> None:
    half = orientations(np.array([[90.0, 0.0, 0.0], [0.0, 90.0, 0.0], [0.0, 0.0, 90.0]]))
    np.testing.assert_allclose(half[0] @ [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(half[1] @ [0.0, 0.0, 1.0], [1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(half[2] @ [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("spacing_m", [1.0, 3.0])
def test_nothing_is_better_than_the_bound_and_maximum_likelihood_reaches_it(
    spacing_m: float,
) -> None:
    rng = np.random.default_rng(3)
    (C,) = orientations(np.array([[40.0, -15.0, 10.0]]))
    points = landmarks(spacing_m)

    def pixels(phi: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = points @ (lie.so3_exp(phi) @ C).T + [0.0, 0.0, RADIUS_M]
        return CAMERA.project(seen).ravel()

    exact = pixels(np.zeros(3))
    errors = []
    for _ in range(400):
        measured = exact + NOISE_PX * rng.normal(size=exact.shape)
        errors.append(least_squares(lambda phi, y=measured: pixels(phi) - y, np.zeros(3)).x)
    found, (least,) = np.cov(np.array(errors).T), least_covariances(C[None], spacing_m)
    # Eigenvalues of least^-1 found: 1 within what 400 draws tell.
    ratio = np.linalg.eigvals(np.linalg.solve(least, found)).real
    np.testing.assert_allclose(ratio, 1.0, atol=0.25)


def test_a_short_training_learns_and_doubts_beyond_its_range() -> None:
    set_threads(1)
    outcome = hemisphere.run(hemisphere.HemisphereSettings("published"), quick=True)
    assert outcome.faults() == []
    figures = outcome.figures
    assert figures["inside.mean_deg"] < 5.0
    assert figures["epistemic_ratio"] > 2.0
    assert figures["beyond.mean_deg"] > figures["inside.mean_deg"]
    assert len(outcome.tables["test"]) == 500
