"""Points of a reference image are followed into pictures whose warp is known."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Image
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.tracks import TrackConfig, Tracks
from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import BuildingConfig

SHAPE = (240, 320)
CAMERA = Camera(250.0, 240.0, 158.0, 121.0)
RNG = np.random.default_rng(3)
WAVES = RNG.normal(size=(60, 2)) * np.geomspace(0.03, 0.9, 60)[:, None]  # rad per pixel
PHASES = RNG.uniform(0.0, 2.0 * np.pi, 60)


def picture(at: Array) -> Array:
    """Grey levels at (..., 2) points of a plane, in floating point."""
    total = np.zeros(at.shape[:-1])
    for k, phase in zip(WAVES, PHASES, strict=True):
        total += np.cos(at @ k + phase)
    return 128.0 + 14.0 * total


def seen(A: Array, b: Array, gain: float = 1.0, noise: float = 0.0, seed: int = 0) -> Image:
    """The picture after x -> A x + b, in pixels: what is at x now was at A^-1 (x - b)."""
    height, width = SHAPE
    at = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float64)
    levels = gain * picture((at - b) @ np.linalg.inv(A).T)
    levels = levels + noise * np.random.default_rng(seed).standard_normal(levels.shape)
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


EYE, ZERO, STILL = np.eye(2), np.zeros(2), np.eye(3)


def pixels(normalised: Array) -> Array:
    return np.asarray(normalised * (CAMERA.fx, CAMERA.fy) + (CAMERA.cx, CAMERA.cy))


def errors_px(tracks: Tracks, image: Image, A: Array, b: Array) -> tuple[Array, Array]:
    """Distances from where the points are, of those found; and which were."""
    found = tracks.follow(image, tracks.last, STILL)
    expected = pixels(tracks.bearings) @ A.T + b
    return np.linalg.norm(pixels(found.at) - expected, axis=1)[found.found], found.found


@pytest.fixture
def tracks() -> Tracks:
    return Tracks(seen(EYE, ZERO), CAMERA, TrackConfig())


def test_points_are_spread_over_the_picture_and_none_is_at_its_edge(tracks: Tracks) -> None:
    assert 150 <= len(tracks) <= 200
    at = pixels(tracks.last)
    assert (at >= 8).all()
    assert (at <= np.array(SHAPE[::-1]) - 8).all()
    apart = np.linalg.norm(at[:, None] - at[None], axis=-1) + 1e9 * np.eye(len(at))
    assert apart.min() > 8.0
    quarters = (at > 0.5 * np.array(SHAPE[::-1])).astype(int) @ [1, 2]
    assert (np.bincount(quarters, minlength=4) > 0.15 * len(at)).all()


@pytest.mark.parametrize("shift", [(0.0, 0.0), (0.4, -0.3), (3.25, 1.5), (-7.6, 4.1)], ids=str)
def test_a_shift_is_followed_to_a_tenth_of_a_pixel(
    tracks: Tracks, shift: tuple[float, float]
) -> None:
    b = np.array(shift)
    errors, found = errors_px(tracks, seen(EYE, b), EYE, b)
    assert found.mean() > 0.85
    assert np.median(errors) < 0.035
    assert np.percentile(errors, 95) < 0.1


def test_errors_of_one_sequence_do_not_add_up(tracks: Tracks) -> None:
    """Thirty frames of 0.7 pixels, noise in each: the last is as good as the first."""
    medians = []
    for k in range(1, 31):
        b = 0.7 * k * np.array([0.8, -0.6])
        errors, found = errors_px(tracks, seen(EYE, b, noise=2.0, seed=k), EYE, b)
        medians.append(float(np.median(errors)))
    assert found.mean() > 0.6  # the rest has left the picture
    assert np.mean(medians[-5:]) < 1.3 * np.mean(medians[:5])
    assert medians[-1] < 0.06


def test_a_turned_and_larger_picture_is_followed(tracks: Tracks) -> None:
    """By 4 deg about the middle and 5 % larger, in steps of a frame: no bias where it ends."""
    middle = 0.5 * np.array(SHAPE[::-1])
    for k in range(1, 9):
        angle, size = np.radians(0.5 * k), 1.05 ** (k / 8.0)
        A = size * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        b = middle - A @ middle
        errors, found = errors_px(tracks, seen(A, b), A, b)
    assert found.mean() > 0.6
    assert np.median(errors) < 0.15


@pytest.mark.parametrize("gain", [0.6, 0.85, 1.25])
def test_exposure_may_change(tracks: Tracks, gain: float) -> None:
    b = np.array([1.3, -0.7])
    errors, found = errors_px(tracks, seen(EYE, b, gain), EYE, b)
    assert found.mean() > 0.75
    assert np.median(errors) < 0.05


def photograph(C: Array) -> Image:
    """A wall without end, brighter to the right, by a camera that has turned by C (3, 3)."""
    height, width = SHAPE
    at = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float64)
    ray = np.concatenate([CAMERA.normalise(at), np.ones((*at.shape[:2], 1))], axis=-1) @ C
    wall = pixels(ray[..., :2] / ray[..., 2:])
    levels = 0.5 * picture(wall) * (1.0 + 0.002 * (wall[..., 0] - CAMERA.cx))
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("degrees", [4.0, 12.0, 20.0])
def test_a_turn_of_the_camera_bends_nothing_and_tells_no_exposure(degrees: float) -> None:
    """What comes into view is brighter than what has left it: no reason to change the image."""
    C = np.asarray(lie.so3_exp(np.radians(degrees) * np.array([0.1, -0.98, 0.17])))
    tracks = Tracks(photograph(STILL), CAMERA, TrackConfig())
    expected = tracks.bearings @ C[:, :2].T + C[:, 2]
    expected = expected[:, :2] / expected[:, 2:]
    about = lie.so3_exp([2e-3, -1e-3, 1e-3]) @ C  # the turn is only about known
    found = tracks.follow(photograph(C), expected + 2e-3, about)
    errors = np.linalg.norm(pixels(found.at) - pixels(expected), axis=1)[found.found]
    assert found.found.mean() > 0.3
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 95) < 0.2


def test_what_is_lost_stays_lost(tracks: Tracks) -> None:
    """Covered on the left: those points are gone, also when the cover is."""
    covered = seen(EYE, ZERO)
    covered[:, :160] = np.random.default_rng(0).integers(0, 256, (SHAPE[0], 160))
    left = pixels(tracks.bearings)[:, 0] < 145
    right = pixels(tracks.bearings)[:, 0] > 175
    found = tracks.follow(covered, tracks.last, STILL)
    assert found.found[left].mean() < 0.1
    assert found.found[right].mean() > 0.95
    last = tracks.last.copy()
    again = tracks.follow(seen(EYE, ZERO), tracks.last, STILL)
    assert not (again.found & ~found.found).any()
    np.testing.assert_array_equal(tracks.last[~found.found], last[~found.found])
    np.testing.assert_array_equal(tracks.alive, again.found)


def test_points_that_leave_the_picture_are_lost(tracks: Tracks) -> None:
    b = np.array([-60.0, 0.0])
    moved = tracks.bearings + b / (CAMERA.fx, CAMERA.fy)
    found = tracks.follow(seen(EYE, b), moved, STILL)
    gone = pixels(tracks.bearings)[:, 0] < 60.0
    assert gone.any()
    assert not found.found[gone].any()
    inside = pixels(tracks.bearings)[:, 0] > 75.0
    assert found.found[inside].mean() > 0.85


def test_points_that_are_carried_over_come_first_and_keep_their_place() -> None:
    image = seen(EYE, ZERO)
    carried = CAMERA.normalise(np.array([[50.25, 60.5], [200.75, 100.125], [300.0, 200.0]]))
    tracks = Tracks(image, CAMERA, TrackConfig(), carried)
    np.testing.assert_allclose(tracks.last[:3], carried, atol=1e-6)
    assert len(tracks) > 100
    away = np.linalg.norm(pixels(tracks.last)[3:, None] - pixels(carried), axis=-1)
    assert away.min() > 8.0
    full = Tracks(image, CAMERA, TrackConfig(points=30), tracks.last[:30])
    assert len(full) == 30


def test_an_image_without_texture_has_no_points() -> None:
    flat = np.full(SHAPE, 90, dtype=np.uint8)
    tracks = Tracks(flat, CAMERA, TrackConfig())
    assert len(tracks) == 0
    found = tracks.follow(flat, tracks.last, STILL)
    assert found.at.shape == (0, 2)
    assert found.found.shape == (0,)
    assert tracks.disparities(flat)[0].shape == (0,)


def test_a_large_image_is_halved_and_angles_stay() -> None:
    """The same picture with twice the pixels: the same bearings, as sharp as before."""
    small = seen(EYE, ZERO)
    size = 3 * SHAPE[1], 3 * SHAPE[0]
    tile = np.tile(small, (3, 3))[: size[1], : size[0]]
    large = np.asarray(cv2.resize(tile, (2 * size[0], 2 * size[1]), interpolation=cv2.INTER_CUBIC))
    camera = Camera(500.0, 500.0, 959.5, 719.5)
    tracks = Tracks(large, camera, TrackConfig())
    shift = np.array([2.6, -1.4])
    moved = cv2.warpAffine(
        large, np.array([[1, 0, shift[0]], [0, 1, shift[1]]]), large.shape[::-1]
    )
    found = tracks.follow(np.asarray(moved), tracks.last, STILL)
    errors = (found.at - tracks.bearings)[found.found] * 500.0 - shift
    assert found.found.mean() > 0.9
    assert np.linalg.norm(np.median(errors, axis=0)) < 0.06  # warps are in 32nds
    assert np.median(np.linalg.norm(errors, axis=1)) < 0.1


def test_disparities_are_those_of_the_exact_depth() -> None:
    world = Building(BuildingConfig(seed=11, frames=2, place="office", people=0))
    tracks = Tracks(world.photograph(0, 0), world.camera.left, TrackConfig())
    disparity, known = tracks.disparities(world.photograph(0, 1))
    at = np.rint(
        tracks.bearings * world.camera.left.fx + (world.camera.left.cx, world.camera.left.cy)
    ).astype(int)
    expected = world.camera.baseline_m / world.depth(0)[at[:, 1], at[:, 0]]
    errors = np.abs(disparity - expected)[known] * world.camera.left.fx
    assert known.mean() > 0.6
    assert np.median(errors) < 0.2
    assert np.mean(errors > 1.0) < 0.1


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="window_px must be odd, got 14"):
        TrackConfig(window_px=14)
    with pytest.raises(ValueError, match="points must be a whole number from 30"):
        TrackConfig(points=3)
