"""The paper's relaxation: its printed figures, the exact minimum, its covariance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fusion.fusion_worlds import correlated, draw
from scipy.optimize import least_squares

from hydranet_ros.datasets.recording import Recording, read_recording
from hydranet_ros.fusion.pairwise import MAX_DETERMINANT, pair_covariances, relax_pairs
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.odometer import chain

PRINTED = {
    "00": (9.86, 2.83, 1.34, 0.63),
    "02": (50.19, 6.51, 1.47, 0.63),
    "05": (9.85, 3.23, 1.38, 0.60),
}


def sources(recording: Recording) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    assert recording.C_hn is not None
    assert recording.Sigma_hn is not None
    return recording.T_vo, recording.Sigma_vo, recording.C_hn, recording.Sigma_hn


def random_pairs(count: int, apart: float, seed: int = 0):
    """Pairs of which the two rotations are about `apart` rad from each other."""
    rng = np.random.default_rng(seed)
    T_vo = lie.se3_exp(rng.normal(size=(count, 6)) * [0.3, 0.3, 1.0, 0.1, 0.3, 0.1])
    C_hn = lie.so3_exp(rng.normal(size=(count, 3)) * apart) @ T_vo[:, :3, :3]
    Sigma_vo = np.array([correlated(rng, [0.3] * 3 + [0.1] * 3) for _ in range(count)])
    Sigma_hn = np.array([correlated(rng, [0.1] * 3) for _ in range(count)])
    return T_vo, Sigma_vo, C_hn, Sigma_hn


@pytest.mark.parametrize("sequence", PRINTED)
def test_the_printed_table(recordings: Path, sequence: str) -> None:
    path = recordings / f"kitti_{sequence}.npz"
    recording = read_recording(path)
    fused = chain(relax_pairs(*sources(recording)), recording.T_w_c_vo[0])
    assert recording.T_w_c_gt is not None
    errors = metrics.evaluate(fused, recording.T_w_c_gt)
    figures = errors.ate_m, errors.ate_deg, errors.seg_pct, errors.seg_deg_per_100m
    assert tuple(round(value, 2) for value in figures if value is not None) == PRINTED[sequence]
    with np.load(path) as archive:
        published = archive["T_w_c_fused_paper"]
    assert np.abs(fused[:, :3, 3] - published[:, :3, 3]).max() < 2e-3


def test_the_exact_minimum_is_another_but_near(recordings: Path) -> None:
    measured = sources(read_recording(recordings / "kitti_05.npz"))
    published, exact = relax_pairs(*measured), relax_pairs(*measured, unit_jacobians=False)
    apart = np.linalg.norm((published - exact)[:, :3, 3], axis=1).max()
    assert 1e-5 < apart < 4e-4


@pytest.mark.parametrize("apart", [1e-3, 0.1, 0.4])
def test_the_exact_minimum_is_that_of_scipy(apart: float) -> None:
    T_vo, Sigma_vo, C_hn, Sigma_hn = random_pairs(8, apart)
    relaxed = relax_pairs(
        T_vo, Sigma_vo, C_hn, Sigma_hn, max_determinant=None, unit_jacobians=False
    )
    for i, ours in enumerate(relaxed):
        root_vo = np.linalg.inv(np.linalg.cholesky(Sigma_vo[i]))
        root_hn = np.linalg.inv(np.linalg.cholesky(Sigma_hn[i]))

        def residuals(x: np.ndarray, i=i, root_vo=root_vo, root_hn=root_hn) -> np.ndarray:
            T = lie.se3_exp(x) @ T_vo[i]
            xi = lie.se3_log(T @ lie.se3_inverse(T_vo[i]))
            phi = lie.so3_log(T[:3, :3] @ C_hn[i].T)
            return np.concatenate([root_vo @ xi, root_hn @ phi])

        found = least_squares(residuals, np.zeros(6), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        np.testing.assert_allclose(ours, lie.se3_exp(found.x) @ T_vo[i], atol=1e-6)


def test_unit_jacobians_balance_the_weighted_errors() -> None:
    T_vo, Sigma_vo, C_hn, Sigma_hn = random_pairs(20, 0.1)
    relaxed = relax_pairs(T_vo, Sigma_vo, C_hn, Sigma_hn, max_determinant=None)
    xi = lie.se3_log(relaxed @ lie.se3_inverse(T_vo))
    phi = lie.so3_log(relaxed[:, :3, :3] @ np.swapaxes(C_hn, 1, 2))
    pull = np.linalg.solve(Sigma_vo, xi[..., None])[..., 0]
    pull[:, 3:] += np.linalg.solve(Sigma_hn, phi[..., None])[..., 0]
    np.testing.assert_allclose(pull, np.zeros((20, 6)), atol=1e-8)
    assert np.abs(xi).max() > 1e-2


def test_pairs_above_the_determinant_keep_vo() -> None:
    T_vo, Sigma_vo, C_hn, Sigma_hn = random_pairs(6, 0.05)
    Sigma_hn[::2] = np.eye(3) * (1.01 * MAX_DETERMINANT) ** (1 / 3)
    Sigma_hn[1::2] = np.eye(3) * (0.99 * MAX_DETERMINANT) ** (1 / 3)
    measured = T_vo, Sigma_vo, C_hn, Sigma_hn
    kept = relax_pairs(*measured)
    np.testing.assert_array_equal(kept[::2], T_vo[::2])
    moved = np.abs(kept - T_vo).max(axis=(1, 2))
    assert (moved[1::2] > 1e-6).all()
    every = relax_pairs(*measured, max_determinant=None)
    assert (np.abs(every - T_vo).max(axis=(1, 2)) > 1e-6).all()
    np.testing.assert_array_equal(every[1::2], kept[1::2])
    covariances = pair_covariances(Sigma_vo, Sigma_hn)
    np.testing.assert_allclose(covariances[::2], Sigma_vo[::2], rtol=1e-9)
    assert (np.linalg.det(covariances[1::2]) < np.linalg.det(Sigma_vo[1::2])).all()
    used = pair_covariances(Sigma_vo, Sigma_hn, max_determinant=None)
    assert (np.linalg.det(used[::2]) < np.linalg.det(Sigma_vo[::2])).all()


def test_the_inputs_are_left_alone_and_no_pairs_are_no_pairs() -> None:
    measured = random_pairs(4, 0.05)
    before = [array.copy() for array in measured]
    relax_pairs(*measured, max_determinant=None)
    pair_covariances(measured[1], measured[3])
    for array, copy in zip(measured, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert relax_pairs(*(array[:0] for array in measured)).shape == (0, 4, 4)


def test_the_covariance_by_monte_carlo() -> None:
    rng = np.random.default_rng(5)
    count = 8000
    truth = lie.se3_exp([0.1, -0.2, -1.0, 0.02, 0.1, -0.05])
    Sigma_vo = correlated(rng, [0.05] * 3 + [0.01] * 3)
    Sigma_hn = correlated(rng, [0.008] * 3)
    noise_vo = np.array([draw(rng, Sigma_vo) for _ in range(count)])
    noise_hn = np.array([draw(rng, Sigma_hn) for _ in range(count)])
    Sigmas = np.tile(Sigma_vo, (count, 1, 1)), np.tile(Sigma_hn, (count, 1, 1))
    relaxed = relax_pairs(
        lie.se3_exp(noise_vo) @ truth, Sigmas[0], lie.so3_exp(noise_hn) @ truth[:3, :3], Sigmas[1]
    )
    errors = lie.se3_log(relaxed @ lie.se3_inverse(truth))
    stated = pair_covariances(*Sigmas)[0]
    root = np.linalg.inv(np.linalg.cholesky(stated))
    sample = root @ np.cov(errors.T) @ root.T
    np.testing.assert_allclose(sample, np.eye(6), atol=5 * np.sqrt(2 / count))
