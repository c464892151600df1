"""Stereo odometry: its parts against known answers, the whole on rendered and real streets."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from hydranet_ros.datasets.kitti import read_kitti_calibration
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.windows import brightness_ratio, smooth, window_centroids
from hydranet_ros.stereo_vo.calibration import (
    PRIOR_SIGMA,
    SIZE,
    Calibration,
    large_offset,
    offset_basis,
)
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.covariance import CovarianceModel, Vibration
from hydranet_ros.stereo_vo.features import CornerDetector, cell_size
from hydranet_ros.stereo_vo.front_end import follow
from hydranet_ros.stereo_vo.motion import (
    MotionFit,
    MotionSolver,
    Rolling,
    Tracks,
    best_sample,
    draw_samples,
    fit_samples,
)
from hydranet_ros.stereo_vo.noise import PERSISTENCE, ROW_RATIO, TrackNoise, inverse_3x3
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import Lost, VOResult

CAMERA = StereoCamera(Camera(700.0, 710.0, 600.0, 180.0), 0.54)
NOISE = TrackNoise(0.08, 0.1, edge_px=0.25, window_px=13)
MOTION = lie.se3_exp([0.03, -0.02, -1.1, 0.002, 0.015, -0.003])
SURE = Calibration.prior(np.full(SIZE, 1e-6))
CONFIG = StereoVOConfig()
DETECTOR = CornerDetector(CONFIG)


def street_points(rng: np.random.Generator, count: int) -> np.ndarray:
    """Points that the camera sees before and after, 6 to 60 m away."""
    z = rng.uniform(6.0, 60.0, count)
    pixels = rng.uniform([80.0, 20.0], [1120.0, 350.0], (count, 2))
    return np.concatenate([CAMERA.left.normalise(pixels), np.ones((count, 1))], 1) * z[:, None]


def four_pixels(points: np.ndarray) -> np.ndarray:
    y = CAMERA.project(points)
    return np.concatenate([y, y[:, 1:2]], axis=1)


def exact_tracks(points: np.ndarray, motion: np.ndarray = MOTION) -> Tracks:
    after = points @ motion[:3, :3].T + motion[:3, 3]
    return Tracks(four_pixels(points), four_pixels(after))


def noisy_tracks(
    points: np.ndarray, rng: np.random.Generator, motion: np.ndarray = MOTION
) -> Tracks:
    """Noise as noise.py says: tracking moves both pixels, stereo errors persist."""
    exact, n = exact_tracks(points, motion), len(points)
    z2 = (points @ motion[:3, :3].T + motion[:3, 3])[:, 2]
    focal = CAMERA.left.fx
    tracking = np.sqrt(NOISE.tracking_variance(points[:, 2] / z2))
    first, second = (
        np.sqrt(NOISE.stereo_variance(focal * CAMERA.baseline_m / z, focal))
        for z in (points[:, 2], z2)
    )
    shared, own_1, own_2, row = rng.standard_normal((4, n))
    rho = PERSISTENCE
    before, after = exact.before.copy(), exact.after.copy()
    before[:, 2] += first * (np.sqrt(rho) * shared + np.sqrt(1 - rho) * own_1)
    moved = tracking[:, None] * rng.standard_normal((n, 2))
    after += np.concatenate([moved, moved], axis=1)
    after[:, 2] += second * (np.sqrt(rho) * shared + np.sqrt(1 - rho) * own_2)
    after[:, 3] += second / ROW_RATIO * row
    return Tracks(before, after)


# --- the solver ----------------------------------------------------------------------------------


def test_jacobian_agrees_with_finite_differences() -> None:
    rng = np.random.default_rng(1)
    tracks = noisy_tracks(street_points(rng, 40), rng)
    solver = MotionSolver(CAMERA, tracks, Calibration.prior(), NOISE, 0.1)
    state = np.concatenate([np.zeros(6), [0.05, -0.03, 0.02], np.zeros(SIZE)])
    errors = np.zeros(40)
    # Where the pixels most likely are is where they are measured, if no residuals are left.
    exact = replace(solver.linearise(MOTION, state, errors), residuals=np.zeros((40, 4)))
    analytic = solver.with_calibration(exact, errors).jacobian
    step = 1e-6
    for column in range(analytic.shape[2]):
        delta = step * np.eye(analytic.shape[2])[column]

        def residuals(d: np.ndarray) -> np.ndarray:
            return solver.linearise(lie.se3_exp(d[:6]) @ MOTION, state + d, errors).residuals

        numeric = -(residuals(delta) - residuals(-delta)) / (2 * step)
        scale = 1.0 + np.abs(numeric).max()
        np.testing.assert_allclose(analytic[:, :, column], numeric, atol=1e-6 * scale)


def test_exact_tracks_give_the_exact_motion() -> None:
    tracks = exact_tracks(street_points(np.random.default_rng(2), 60))
    motion = MotionSolver(CAMERA, tracks, SURE, NOISE, 1e-6).solve(np.eye(4), 20)
    np.testing.assert_allclose(motion.T_2_1, MOTION, atol=1e-7)
    assert motion.inliers.all()


def test_covariance_is_consistent_by_monte_carlo() -> None:
    rng = np.random.default_rng(3)
    nees, scales = [], []
    for _ in range(300):
        tracks = noisy_tracks(street_points(rng, 150), rng)
        motion = MotionSolver(CAMERA, tracks, SURE, NOISE, 1e-6).solve(MOTION, 8)
        error = lie.se3_log(motion.T_2_1 @ lie.se3_inverse(MOTION))
        nees.append(error @ np.linalg.solve(motion.Sigma_2_1, error))
        scales.append(motion.scale)
    assert np.mean(scales) == pytest.approx(1.0, abs=0.05)
    # The mean of 300 chi-square values of 6 degrees has a standard deviation of 0.2; robust
    # weights cost some 5 % of efficiency.
    assert 5.3 < np.mean(nees) < 7.0


def test_more_pixel_noise_gives_a_larger_covariance() -> None:
    rng = np.random.default_rng(4)
    tracks = noisy_tracks(street_points(rng, 200), rng)
    exact = exact_tracks(street_points(np.random.default_rng(4), 200))
    double = Tracks(2 * tracks.before - exact.before, 2 * tracks.after - exact.after)
    sigmas = [
        np.trace(MotionSolver(CAMERA, t, SURE, NOISE, 1e-6).solve(MOTION, 8).Sigma_2_1[3:, 3:])
        for t in (tracks, double)
    ]
    assert 2.5 < sigmas[1] / sigmas[0] < 6.0


def test_the_error_of_a_calibration_is_found_without_ground_truth() -> None:
    rng = np.random.default_rng(5)
    theta = np.zeros(SIZE)
    theta[1:6] = 1e-3, -1e-3, 0.02, -0.006, 0.0
    theta[6:15] = 4e-4, -3e-4, -3e-4, 4e-4, 0.022, 1e-3, -0.006, -5e-4, -1e-3
    belief, errors = Calibration.prior(), []
    for _ in range(60):
        motion_true = lie.se3_exp(
            [*(0.03 * rng.standard_normal(2)), -1.1, *(0.01 * rng.standard_normal(3))]
        )
        tracks = noisy_tracks(street_points(rng, 200), rng, motion_true)
        for pixels in (tracks.before, tracks.after):
            exact = pixels.copy()
            for _ in range(3):  # the offset is that at the pixel where it is seen
                pixels[:] = exact + offset_basis(CAMERA.left, pixels) @ theta
        motion = MotionSolver(CAMERA, tracks, belief, NOISE, 0.02).solve(motion_true, 8)
        belief = belief.updated(*motion.message)
        errors.append(lie.se3_log(motion.T_2_1 @ lie.se3_inverse(motion_true)))
    u, v = np.meshgrid([100.0, 350.0, 600.0, 850.0, 1100.0], [40.0, 180.0, 320.0])
    where = np.stack([u, v, u, v], axis=-1).reshape(-1, 4)
    true = offset_basis(CAMERA.left, where) @ theta
    wrong = belief.offsets(CAMERA.left, where) - true
    assert np.abs(true).max() > 5.0
    assert np.sqrt(np.mean(wrong**2, axis=0) / np.mean(true**2, axis=0)).max() < 0.1
    assert np.abs(np.mean(errors[30:], axis=0)[:3]).max() < 0.004
    assert np.abs(np.mean(errors[30:], axis=0)[3:]).max() < 1e-4


def test_a_perfect_calibration_is_found_perfect() -> None:
    """Nothing runs away, the shared focal length least of all, which turns alone show."""
    loose = np.where(np.arange(SIZE) == 0, 2e-3, PRIOR_SIGMA)
    rng, belief = np.random.default_rng(8), Calibration.prior(loose)
    for _ in range(60):
        motion_true = lie.se3_exp(
            [*(0.03 * rng.standard_normal(2)), -1.1, *(0.01 * rng.standard_normal(3))]
        )
        tracks = noisy_tracks(street_points(rng, 200), rng, motion_true)
        motion = MotionSolver(CAMERA, tracks, belief, NOISE, 0.02).solve(motion_true, 8)
        belief = belief.updated(*motion.message)
    sigma = np.sqrt(np.diag(belief.covariance))
    assert sigma[0] < 0.5 * loose[0]
    assert np.abs(belief.mean / sigma).max() < 3.5
    assert np.mean((belief.mean / sigma) ** 2) < 2.0


def test_forgetting_returns_to_the_prior() -> None:
    prior = Calibration.prior()
    sure = prior.updated(1e10 * np.eye(SIZE), np.full(SIZE, 1e7))
    np.testing.assert_allclose(sure.mean, 1e-3, rtol=2e-3)
    for _ in range(100):
        sure = sure.aged(0.5)
    np.testing.assert_allclose(sure.information, prior.information, rtol=1e-6)
    np.testing.assert_allclose(sure.mean, 0.0, atol=1e-12)


def test_inverse_of_symmetric_matrices() -> None:
    a = np.random.default_rng(6).standard_normal((50, 3, 3))
    spd = a @ np.swapaxes(a, 1, 2) + 0.1 * np.eye(3)
    np.testing.assert_allclose(inverse_3x3(spd) @ spd, np.tile(np.eye(3), (50, 1, 1)), atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_samples_survive_forty_percent_outliers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tracks = noisy_tracks(street_points(rng, 200), rng)
    wrong = rng.permutation(200) < 80
    tracks.after[wrong] += rng.uniform(8.0, 60.0, (80, 1)) * rng.choice([-1.0, 1.0], (80, 4))
    points, measured = CAMERA.triangulate(tracks.before[:, :3]), tracks.after[:, :3]
    samples = draw_samples(200, CONFIG.hypotheses, rng)
    assert all(len(set(sample)) == 3 for sample in samples.tolist())
    poses = fit_samples(CAMERA, points, measured, np.eye(4), samples, CONFIG.sample_iterations)
    pose, inliers = best_sample(CAMERA, points, measured, poses, CONFIG.inlier_px)
    assert not inliers[wrong].any()
    assert inliers[~wrong].mean() > 0.9
    assert np.abs(lie.se3_log(pose @ lie.se3_inverse(MOTION))[3:]).max() < 3e-3


# --- covariance ----------------------------------------------------------------------------------


def test_the_scatter_over_patches_tells_how_large_the_covariance_is() -> None:
    """0.83 of independent errors, by robust weights; more of such that neighbours share."""
    rng = np.random.default_rng(9)
    found: dict[str, list[float]] = {"alone": [], "shared": []}
    for _ in range(60):
        points = street_points(rng, 200)
        alone = noisy_tracks(points, rng)
        shared = Tracks(alone.before.copy(), alone.after.copy())
        patch = (alone.after[:, :2] // 120.0).astype(int) @ [1, 10]
        shared.after[:, :3:2] += 0.08 * rng.standard_normal((100, 1))[patch]
        for name, tracks in (("alone", alone), ("shared", shared)):
            motion = MotionSolver(CAMERA, tracks, SURE, NOISE, 1e-6).solve(MOTION, 8)
            error = lie.se3_log(motion.T_2_1 @ lie.se3_inverse(MOTION))
            nees = float(error @ np.linalg.solve(motion.Sigma_2_1, error))
            found[name].append(motion.clustering)
            found[f"nees {name}"] = [*found.get(f"nees {name}", []), nees / 6.0]
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    assert mean["alone"] == pytest.approx(0.83, abs=0.06)
    assert mean["shared"] > 1.3 * mean["alone"]
    assert 0.7 < mean["nees shared"] / mean["shared"] < 1.7


def test_the_motion_moves_with_the_principal_point_as_its_covariance_says() -> None:
    """What is 1 px off in both images turns the motion's frame by 1 / focal about x and y."""
    rng = np.random.default_rng(10)
    tracks = noisy_tracks(street_points(rng, 150), rng)

    def solved(pixels: list[float]) -> MotionFit:
        shift = np.array([*pixels, *pixels])
        moved = Tracks(tracks.before + shift, tracks.after + shift)
        return MotionSolver(CAMERA, moved, SURE, NOISE, 1e-6).solve(MOTION, 12)

    at = solved([0.0, 0.0])
    at = replace(at, Sigma_2_1=np.zeros((6, 6)), by_theta=np.zeros((6, SIZE)))
    sigma, lasting = 1e-3, np.array([50.0] * 3 + [1.0] * 3) ** 0.5
    found = CovarianceModel(0.0, sigma).complete(at, np.eye(SIZE), 0.1)
    columns = [np.concatenate([at.T_2_1[:3, 3], np.zeros(3)])]
    for axis, focal in enumerate((CAMERA.left.fx, CAMERA.left.fy)):
        pixels = [0.0, 0.0]
        pixels[axis] = 0.5
        more, less = solved(pixels), solved([-each for each in pixels])
        columns.append(lie.se3_log(more.T_2_1 @ lie.se3_inverse(less.T_2_1)) * focal)
    derivative = lasting[:, None] * np.stack(columns, axis=1)
    expected = sigma**2 * derivative @ derivative.T
    # A shift is a turn only near the middle of the image: far from it the motion differs by this.
    np.testing.assert_allclose(
        np.sqrt(np.diag(found))[:3], np.sqrt(np.diag(expected))[:3], rtol=0.2
    )


def test_the_motion_moves_with_the_readout_as_its_derivative_says() -> None:
    """Tracks of a shutter whose rows see the point where its velocity has carried it."""
    rng, height, share = np.random.default_rng(11), 360, 0.05
    points = street_points(rng, 150)
    exact = exact_tracks(points)
    twist = lie.se3_log(MOTION)
    before = twist + np.array([0.02, 0.05, -0.1, 0.004, -0.003, 0.002])

    def rolled(pixels: np.ndarray, at: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        late = share * (pixels[:, 1] / height - 0.5)
        moved = [lie.se3_exp(s * velocity) for s in late]
        seen = np.stack([T[:3, :3] @ p + T[:3, 3] for T, p in zip(moved, at, strict=True)])
        return four_pixels(seen)

    after = points @ MOTION[:3, :3].T + MOTION[:3, 3]
    tracks = Tracks(
        rolled(exact.before, points, 0.5 * (before + twist)),
        rolled(exact.after, after, 1.5 * twist - 0.5 * before),
    )
    solver = MotionSolver(CAMERA, tracks, SURE, NOISE, 1e-6, Rolling(before, height))
    motion = solver.solve(MOTION, 12)
    moved = lie.se3_log(motion.T_2_1 @ lie.se3_inverse(MOTION)) / share
    assert motion.by_readout is not None
    difference = np.abs(moved + motion.by_readout)  # of what is taken off the pixels
    assert difference[:3].max() < 0.15 * np.abs(moved[:3]).max()
    assert difference[3:].max() < 0.15 * np.abs(moved[3:]).max()


def test_a_jolt_is_no_shake() -> None:
    rng, count, dt = np.random.default_rng(12), 300, 0.05
    time = dt * np.arange(count)[:, None]
    angle = np.radians(3.0) * np.sin(2 * np.pi * 0.5 * time + [0.0, 1.0, 2.0])
    angle[150:] += np.radians([1.0, -0.5, 0.3])
    angle += np.radians(0.001) * rng.standard_normal((count, 3))
    shake = Vibration(1.0)
    variances = [shake.variance(rate, 0.0) for rate in np.diff(angle, axis=0) / dt]
    assert np.degrees(np.sqrt(np.median(variances[160:]) * dt**2 / 2)) < 0.003


def test_shake_is_found_in_white_rotations_and_not_in_smooth_ones() -> None:
    rng, count, dt = np.random.default_rng(7), 400, 0.1
    time = dt * np.arange(count)[:, None]
    smooth_angle = np.radians(2.0) * np.sin(2 * np.pi * 0.8 * time + [0.0, 1.0, 2.0])
    white = np.radians(0.02) * rng.standard_normal((count, 3))
    found = []
    for angle in (smooth_angle, smooth_angle + white):
        shake = Vibration(1.0)
        variances = [shake.variance(rate, 0.0) for rate in np.diff(angle, axis=0) / dt]
        found.append(np.degrees(np.sqrt(np.mean(variances[100:]) * dt**2 / 2)))
    assert found[0] < 0.002
    assert 0.01 < found[1] < 0.04


# --- features and brightness ---------------------------------------------------------------------


def textured(height: int = 240, width: int = 400, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).uniform(0, 255, (height, width)).astype(np.float32)
    blurred = cv2.GaussianBlur(noise, (0, 0), 2.0)
    return np.clip(128 + 4 * (blurred - 128), 0, 255).astype(np.uint8)


def test_features_are_spread_and_avoid_occupied_cells() -> None:
    image = textured()
    cell = cell_size(image.shape, CONFIG)
    found = DETECTOR.detect(image, np.zeros((0, 2)), 1000)
    cells = {tuple(c) for c in (found // cell).astype(int).tolist()}
    assert len(cells) == len(found) > 50
    more = DETECTOR.detect(image, found[:20], 1000)
    taken = {tuple(c) for c in (found[:20] // cell).astype(int).tolist()}
    assert not taken & {tuple(c) for c in (more // cell).astype(int).tolist()}
    assert len(DETECTOR.detect(image, np.zeros((0, 2)), 7)) == 7
    assert len(DETECTOR.detect(np.full_like(image, 90), np.zeros((0, 2)), 1000)) == 0


def test_brightness_is_compared_at_corresponding_pixels() -> None:
    image = textured() // 2
    brighter = cv2.convertScaleAbs(image, alpha=1.3)
    pixels = DETECTOR.detect(image, np.zeros((0, 2)), 200)
    side = CONFIG.window_px
    ratio = brightness_ratio(smooth(brighter, side), pixels, smooth(image, side), pixels)
    assert ratio == pytest.approx(1.3, abs=0.01)
    few = brightness_ratio(smooth(brighter, side), pixels[:3], smooth(image, side), pixels[:3])
    assert few == 1.0


def test_a_window_moves_as_the_centroid_of_its_texture() -> None:
    """A picture that grows from above: rows move by what they are away from the top.

    Texture fades towards the top of every window, as that of a road does with the distance.
    """
    height, width = 400, 400
    rows = np.arange(height) % 9 / 9.0
    image = textured(height, width, 5).astype(np.float64)
    fading = (128.0 + (image - 128.0) * (0.2 + 0.8 * rows[:, None])).astype(np.uint8)
    grown = cv2.warpAffine(
        fading, np.array([[1.0, 0.0, 0.0], [0.0, 1.08, 0.0]]), (width, height),
        flags=cv2.INTER_CUBIC,
    )  # fmt: skip
    pixels = DETECTOR.detect(fading, np.zeros((0, 2)), 1000)
    pixels = pixels[(pixels[:, 1] > 20) & (pixels[:, 1] < 330)]
    start = pixels * [1.0, 1.08]
    found, ok, _ = follow(fading, grown, pixels, start, CONFIG)
    moved = (found - pixels)[ok, 1]
    centre = pixels[ok, 1]
    shown = window_centroids(fading, pixels[ok], CONFIG.window_px)
    at_centre, at_texture = moved - 0.08 * centre, moved - 0.08 * (centre + shown[:, 1])
    assert ok.sum() > 100
    assert np.median(np.abs(at_texture)) < 0.6 * np.median(np.abs(at_centre))


def test_configuration_is_checked() -> None:
    for field in fields(StereoVOConfig):
        with pytest.raises(ValueError, match=field.name):
            replace(CONFIG, **{field.name: -1})
    with pytest.raises(ValueError, match="odd"):
        StereoVOConfig(window_px=12)


# --- the whole on a rendered street --------------------------------------------------------------


class Drive:
    """Rendered frames with their true poses."""

    def __init__(self, frames: int, **settings: object) -> None:
        simulation = pytest.importorskip("hydranet_ros.simulation")
        street = simulation.Street(simulation.StreetConfig(frames=frames, **settings))
        self.camera = street.camera
        self.frames = list(street)

    def update(self, vo: StereoVO, index: int) -> VOResult:
        frame = self.frames[index]
        return vo.update(Frame(frame.stamp_ns, frame.left, frame.right))

    def truth(self, first: int, second: int) -> np.ndarray:
        return lie.se3_inverse(self.frames[second].T_w_c) @ self.frames[first].T_w_c

    def error(self, result: VOResult, first: int, second: int) -> np.ndarray:
        assert result.pose is not None, result.lost
        return lie.se3_log(result.pose.T_2_1 @ lie.se3_inverse(self.truth(first, second)))


@pytest.fixture(scope="module")
def drive() -> Drive:
    return Drive(60, seed=11)


def test_motion_and_covariance_on_a_rendered_street(drive: Drive) -> None:
    """With a camera that is known as well as calibrations are."""
    c = drive.camera.left
    known = StereoCamera(
        Camera(1.001 * c.fx, 1.001 * c.fy, c.cx + 1.0, c.cy - 1.0), 1.003 * drive.camera.baseline_m
    )
    vo, nees, turned, errors = StereoVO(known), [], [], []
    assert drive.update(vo, 0).lost is Lost.INITIALISING
    for k in range(1, len(drive.frames)):
        result = drive.update(vo, k)
        error = drive.error(result, k - 1, k)
        assert result.pose is not None
        nees.append(error @ np.linalg.solve(result.pose.Sigma_2_1, error))
        turned.append(error[3:] @ np.linalg.solve(result.pose.Sigma_2_1[3:, 3:], error[3:]))
        errors.append(error)
        assert result.stamp_1_ns == drive.frames[k - 1].stamp_ns
        assert result.statistics.inliers >= 20
    assert np.degrees(np.linalg.norm(np.array(errors)[:, 3:], axis=1)).mean() < 0.012
    assert np.linalg.norm(np.array(errors)[:, :3], axis=1).mean() < 0.008
    # The first ten frames are cautious: until then, all roughness may be shake. The covariance of
    # the translation allows for errors of the calibration, and there are none.
    assert 1.5 < np.mean(nees[10:]) < 6.0
    assert 1.4 < np.mean(turned[10:]) < 5.0


def test_what_is_not_known_of_distances_is_told(drive: Drive) -> None:
    """What no image shows, and what the self-calibration does not know yet."""
    vo = StereoVO(drive.camera)
    found = [drive.update(vo, k).pose for k in range(12)][1:]
    sigmas = [pose.scale_sigma for pose in found if pose is not None]
    assert min(sigmas) > CONFIG.scale_sigma
    assert sigmas[-1] < sigmas[0]
    assert sigmas[-1] < 2.0 * CONFIG.scale_sigma


def test_a_calibration_that_is_far_off_is_said() -> None:
    assert large_offset(0.5, 2.9) is None
    assert "3.2 px (right)" in str(large_offset(0.5, 3.2))


def test_two_runs_give_the_same_bytes(drive: Drive) -> None:
    runs = []
    for _ in range(2):
        vo = StereoVO(drive.camera)
        poses = [drive.update(vo, k).pose for k in range(8)][1:]
        runs.append(b"".join(p.T_2_1.tobytes() + p.Sigma_2_1.tobytes() for p in poses if p))
    assert len(runs[0]) == 7 * (16 + 36) * 8
    assert runs[0] == runs[1]


def test_reset_forgets_everything(drive: Drive) -> None:
    vo = StereoVO(drive.camera)
    first = [drive.update(vo, k).pose for k in range(4)][-1]
    vo.reset()
    again = [drive.update(vo, k).pose for k in range(4)][-1]
    assert first is not None
    assert again is not None
    np.testing.assert_array_equal(first.Sigma_2_1, again.Sigma_2_1)


def test_callers_may_reuse_their_buffers(drive: Drive) -> None:
    vo = StereoVO(drive.camera)
    left, right = (np.empty_like(drive.frames[0].left) for _ in range(2))
    for k in range(3):
        left[:], right[:] = drive.frames[k].left, drive.frames[k].right
        result = vo.update(Frame(drive.frames[k].stamp_ns, left, right))
    assert np.linalg.norm(drive.error(result, 1, 2)[:3]) < 0.02


@pytest.mark.parametrize("kind", ["black", "flat right", "blurred"])
def test_bad_frames_are_bridged(drive: Drive, kind: str) -> None:
    vo = StereoVO(drive.camera)
    for k in range(3):
        drive.update(vo, k)
    left, right, stamp = (getattr(drive.frames[3], n) for n in ("left", "right", "stamp_ns"))
    if kind == "black":
        left, right = np.zeros_like(left), np.zeros_like(right)
    elif kind == "flat right":
        right = np.full_like(right, 200)
    else:
        left, right = (cv2.GaussianBlur(image, (0, 0), 12.0) for image in (left, right))
    lost = vo.update(Frame(stamp, left, right))
    assert lost.pose is None
    assert not lost.ok
    assert lost.lost in (Lost.FLAT_IMAGE, Lost.TOO_FEW_FEATURES)
    assert lost.stamp_1_ns == drive.frames[2].stamp_ns
    result = drive.update(vo, 4)
    assert result.stamp_1_ns == drive.frames[2].stamp_ns
    assert np.linalg.norm(drive.error(result, 2, 4)[:3]) < 0.04


def test_too_many_bad_frames_start_again(drive: Drive) -> None:
    vo = StereoVO(drive.camera, StereoVOConfig(max_bridged_frames=2))
    drive.update(vo, 0)
    black = np.zeros_like(drive.frames[0].left)
    for k in (1, 2, 3):
        assert vo.update(Frame(drive.frames[k].stamp_ns, black, black)).lost is Lost.FLAT_IMAGE
    again = drive.update(vo, 4)
    assert again.lost is Lost.INITIALISING
    assert again.stamp_1_ns is None
    result = drive.update(vo, 5)
    assert result.stamp_1_ns == drive.frames[4].stamp_ns
    assert np.linalg.norm(drive.error(result, 4, 5)[:3]) < 0.04


def test_swapped_cameras_are_told(drive: Drive) -> None:
    vo = StereoVO(drive.camera)
    for k in range(2):
        frame = drive.frames[k]
        assert (
            vo.update(Frame(frame.stamp_ns, frame.right, frame.left)).lost is Lost.SWAPPED_CAMERAS
        )


def test_unrelated_images_are_no_pair(drive: Drive) -> None:
    vo, frame = StereoVO(drive.camera), drive.frames[0]
    other = textured(*frame.left.shape, seed=3)
    assert vo.update(Frame(frame.stamp_ns, frame.left, other)).lost is Lost.NOT_A_STEREO_PAIR


def test_after_a_long_gap_it_starts_again_and_keeps_the_calibration(drive: Drive) -> None:
    vo = StereoVO(drive.camera)
    for k in range(3):
        drive.update(vo, k)
    known, last = vo.calibration, drive.frames[2].stamp_ns
    frame = drive.frames[3]
    for seconds, lost in ((0.9, None), (2.5, Lost.LONG_GAP)):
        result = vo.update(Frame(last + round(seconds * 1e9), frame.left, frame.right))
        assert result.lost is lost
        assert not result.bridged
        known = vo.calibration if lost is None else known
    np.testing.assert_array_equal(vo.calibration.information, known.information)
    black = np.zeros_like(frame.left)
    assert vo.update(Frame(last + round(4.5e9), black, black)).lost is Lost.FLAT_IMAGE
    assert vo.update(Frame(last + round(4.6e9), frame.left, frame.right)).lost is Lost.INITIALISING


def test_a_cut_to_another_place_is_lost_and_starts_again(drive: Drive) -> None:
    vo = StereoVO(drive.camera)
    for k in range(3):
        drive.update(vo, k)
    left, right = (
        np.fliplr(each).copy() for each in (drive.frames[50].left, drive.frames[50].right)
    )
    elsewhere = vo.update(Frame(drive.frames[3].stamp_ns, left, right))
    assert elsewhere.pose is None
    there = Drive(2, seed=12)
    vo = StereoVO(drive.camera)
    for k in range(3):
        drive.update(vo, k)
    first, second = there.frames
    cut = vo.update(Frame(10**9, first.left, first.right))
    assert cut.lost in (Lost.TOO_FEW_TRACKS, Lost.TOO_FEW_INLIERS, Lost.DEGENERATE_GEOMETRY)
    assert cut.stamp_1_ns == drive.frames[2].stamp_ns
    result = vo.update(Frame(10**9 + 10**8, second.left, second.right))
    assert result.stamp_1_ns == 10**9
    assert np.linalg.norm(there.error(result, 0, 1)[:3]) < 0.04


def test_misuse_is_a_value_error(drive: Drive) -> None:
    vo, frame = StereoVO(drive.camera), drive.frames[0]
    with pytest.raises(ValueError, match=r"one size, got \(188, 620\) and \(187, 620\)"):
        vo.update(Frame(0, frame.left, frame.right[:-1]))
    with pytest.raises(ValueError, match=r"uint8, got .* float64"):
        vo.update(Frame(0, frame.left, frame.right.astype(float)))
    with pytest.raises(ValueError, match=r"left image must be \(h, w\) uint8"):
        vo.update(Frame(0, np.stack([frame.left] * 3, axis=-1), frame.right))
    with pytest.raises(ValueError, match="at least"):
        vo.update(Frame(0, frame.left[:20], frame.right[:20]))
    vo.update(Frame(100, frame.left, frame.right))
    with pytest.raises(ValueError, match="stamps must increase, got 100 ns then 100 ns"):
        vo.update(Frame(100, frame.left, frame.right))
    with pytest.raises(ValueError, match="must stay"):
        vo.update(Frame(200, frame.left[:, :-2], frame.right[:, :-2]))
    with pytest.raises(ValueError, match="needs both images"):
        vo.update(Frame(300, frame.left))


# --- the whole on a real street ------------------------------------------------------------------


def test_real_street(data: Path) -> None:
    folder, count = data / "kitti" / "sequences" / "09", 150
    if not folder.is_dir():
        pytest.skip(f"no KITTI sequence at {folder}")
    poses = np.loadtxt(data / "kitti" / "poses" / "09.txt")[:count].reshape(-1, 3, 4)
    T_w_c = np.tile(np.eye(4), (count, 1, 1))
    T_w_c[:, :3] = poses
    truth = lie.se3_inverse(T_w_c[1:]) @ T_w_c[:-1]
    stamps = np.round(1e9 * np.loadtxt(folder / "times.txt")[:count]).astype(int)
    vo = StereoVO(read_kitti_calibration(folder / "calib.txt"))
    results = []
    for k, stamp in enumerate(stamps):
        pair = [
            cv2.imread(str(next((folder / side).glob(f"{k:06d}.*"))), cv2.IMREAD_GRAYSCALE)
            for side in ("image_0", "image_1")
        ]
        results.append(vo.update(Frame(int(stamp), pair[0], pair[1])))
    assert results[0].lost is Lost.INITIALISING
    found = [r.pose for r in results[1:] if r.pose is not None]
    assert len(found) == count - 1
    estimate = np.stack([pose.T_2_1 for pose in found])
    error = lie.se3_log(estimate @ lie.se3_inverse(truth))
    nees = np.einsum(
        "ni,nij,nj->n", error, np.linalg.inv(np.stack([p.Sigma_2_1 for p in found])), error
    )
    assert np.degrees(np.linalg.norm(error[:, 3:], axis=1)).mean() < 0.032
    assert 3.0 < nees.mean() < 12.0
    length = [np.linalg.norm(t[:, :3, 3], axis=1).sum() for t in (estimate, truth)]
    assert length[0] / length[1] == pytest.approx(1.0, abs=0.01)
    chained = np.eye(4)
    for pose in estimate:
        chained = pose @ chained
    end = lie.se3_inverse(T_w_c[-1]) @ T_w_c[0]
    drift = lie.se3_inverse(chained) @ end
    assert np.linalg.norm(drift[:3, 3]) / length[1] < 0.013
