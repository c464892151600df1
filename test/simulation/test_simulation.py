from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import ExactFlow, StereoFrame, Street

Image = NDArray[np.uint8]

CLEAN = StreetConfig(noise_sigma=0.0)  # the default street without sensor noise
SMALL = StreetConfig(width=248, height=76, frames=20, noise_sigma=0.0)


@lru_cache(maxsize=8)
def street(config: StreetConfig) -> Street:
    return Street(config)


@lru_cache(maxsize=32)
def clean_frame(index: int) -> StereoFrame:
    return street(CLEAN).render(index)


def pixels(image: NDArray[np.generic]) -> Array:
    u, v = np.meshgrid(np.arange(image.shape[1]), np.arange(image.shape[0]))
    return np.stack([u, v], axis=-1).astype(np.float64)


def warp(image: NDArray[np.generic], flow: ExactFlow) -> Array:
    """What the second image has at the place of every pixel of the first."""
    at = (pixels(image) + flow.vectors).astype(np.float32)
    u, v = np.ascontiguousarray(at[..., 0]), np.ascontiguousarray(at[..., 1])
    return cv2.remap(image.astype(np.float32), u, v, cv2.INTER_CUBIC).astype(np.float64)


def gradient_energy(image: Image) -> float:
    grey = image.astype(np.float64)
    return float(np.mean(np.diff(grey, axis=0) ** 2) + np.mean(np.diff(grey, axis=1) ** 2))


def inner(flow: ExactFlow, depth: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Visible pixels far from outlines and creases in the first and from occluders in the second.

    Inverse depth is affine on a plane, so its second derivative shows where planes end.
    """
    bent = np.abs(cv2.Laplacian(1.0 / depth, cv2.CV_32F)) > 2e-4
    outside = bent | ~flow.visible
    return np.asarray(cv2.dilate(outside.astype(np.uint8), np.ones((13, 13))) == 0)


def track(before: Image, after: Image, points: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Lucas-Kanade from (n, 2) points to (n, 2) points, and which were found."""
    tracked, found, _ = cv2.calcOpticalFlowPyrLK(
        before,
        after,
        points.astype(np.float32)[:, None],
        np.zeros((len(points), 1, 2), dtype=np.float32),
        winSize=(11, 11),
        maxLevel=4,
        criteria=(cv2.TERM_CRITERIA_COUNT + cv2.TERM_CRITERIA_EPS, 60, 1e-4),
    )
    return tracked[:, 0].astype(np.float64), found[:, 0] > 0


def corners(image: Image) -> Array:
    found = cv2.goodFeaturesToTrack(image, 600, 0.005, 6)
    return np.asarray(np.rint(found[:, 0]), dtype=np.float64)


def at(values: NDArray[np.generic], points: Array) -> NDArray[np.generic]:
    u, v = points.astype(int).T
    return values[v, u]


def distances(simulated: Street) -> Array:
    """Horizontal distances to all that stands above the ground, as every second frame sees it."""
    found = []
    for index in range(0, len(simulated), 2):
        depth, pose = simulated.depth(index), simulated.T_w_c[index]
        rays = np.dstack([simulated.camera.left.normalise(pixels(depth)), np.ones(depth.shape)])
        points = rays * np.where(np.isfinite(depth), depth, 1e6)[..., None] @ pose[:3, :3].T
        above = points[..., 1] + pose[1, 3] < 1.65 - 0.2  # y is down, the ground at 1.65
        found.append(np.hypot(points[..., 0], points[..., 2])[above])
    return np.concatenate(found)


# --- the drive -----------------------------------------------------------------------------------


@pytest.mark.parametrize("motion", ["car", "robot", "handheld"])
def test_poses_start_at_the_identity_and_are_rigid(motion: str) -> None:
    poses = street(replace(SMALL, motion=motion)).T_w_c
    assert poses.shape == (20, 4, 4)
    np.testing.assert_array_equal(poses[0], np.eye(4))
    rotation = poses[:, :3, :3]
    defect = rotation @ lie.so3_inverse(rotation) - np.eye(3)
    assert np.abs(defect).max() < 1e-12


def test_stamps_follow_the_rate() -> None:
    stamps = street(SMALL).stamps_ns
    assert stamps == [100_000_000 * k for k in range(20)]
    assert all(isinstance(stamp, int) for stamp in stamps)
    assert Street(replace(SMALL, rate_hz=30.0)).stamps_ns[1] == 33_333_333


def test_the_drive_turns_and_changes_speed() -> None:
    poses = street(CLEAN).T_w_c
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=-1)
    assert 0.5 < steps.mean() < 1.1
    assert steps.max() > 1.2 * steps.min()
    turns = lie.angular_distance(poses[1:, :3, :3], poses[:-1, :3, :3])
    assert 0.5 < np.degrees(turns.max()) < 6.0


def test_a_hand_held_camera_turns_more_than_a_car() -> None:
    def mean_turn(motion: str) -> float:
        rotation = Street(replace(SMALL, motion=motion, frames=100)).T_w_c[:, :3, :3]
        return float(lie.angular_distance(rotation[1:], rotation[:-1]).mean())

    assert mean_turn("handheld") > 3.0 * mean_turn("car")
    assert mean_turn("robot") > 1.5 * mean_turn("car")


def test_speed_zero_stands_still() -> None:
    poses = Street(replace(SMALL, speed_m_s=0.0, wobble=0.0)).T_w_c
    np.testing.assert_allclose(poses, np.broadcast_to(np.eye(4), poses.shape), atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_camera_never_runs_into_anything(seed: int) -> None:
    wide = StereoCamera(Camera(60.0, 60.0, 124.0, 38.0), 0.5)  # 128 deg
    config = replace(SMALL, seed=seed, frames=100, moving_cars=0, crossing_cars=0, camera=wide)
    assert distances(Street(config)).min() > 1.5


def test_seeds_give_different_streets_and_drives() -> None:
    first, second = street(SMALL), street(replace(SMALL, seed=1))
    assert np.abs(first.T_w_c[-1] - second.T_w_c[-1]).max() > 0.05
    assert np.mean(np.isclose(first.depth(0), second.depth(0))) < 0.6
    assert np.mean(first.render(0).left != second.render(0).left) > 0.5


# --- determinism ---------------------------------------------------------------------------------


def test_equal_configurations_render_equal_bytes_in_any_order() -> None:
    config = replace(SMALL, noise_sigma=2.0, gain_drift=0.2, shutter_s=0.02)
    first, second = Street(config), Street(config)
    forward = [first.render(index) for index in (0, 3, 7)]
    backward = [second.render(index) for index in (7, 3, 0)][::-1]
    for one, other in zip(forward, backward, strict=True):
        assert one.left.tobytes() == other.left.tobytes()
        assert one.right.tobytes() == other.right.tobytes()
        assert one.stamp_ns == other.stamp_ns
        np.testing.assert_array_equal(one.T_w_c, other.T_w_c)


def test_frames_are_grey_bytes_of_the_asked_size() -> None:
    frame = street(SMALL).render(0)
    for image in (frame.left, frame.right):
        assert image.shape == (76, 248)
        assert image.dtype == np.uint8
        assert 20.0 < image.std() < 90.0
    assert len(list(Street(replace(SMALL, frames=2)))) == 2


def test_a_frame_that_does_not_exist_is_an_index_error() -> None:
    for index in (-1, 20):
        with pytest.raises(IndexError, match=f"frame {index} of a street with 20 frames"):
            street(SMALL).render(index)
        with pytest.raises(IndexError):
            street(SMALL).flow(0, index)


# --- geometry ------------------------------------------------------------------------------------


def test_depth_of_flat_ground_follows_from_the_camera_height() -> None:
    simulated = street(replace(SMALL, wobble=0.0, max_heading_deg=0.0, clutter=0.0, moving_cars=0))
    camera, depth = simulated.camera.left, simulated.depth(5)
    v = np.arange(65, 76)
    u = int(camera.cx)
    expected = 1.65 * camera.fy / (v - camera.cy)
    np.testing.assert_allclose(depth[65:76, u], expected, rtol=1e-5)


def test_depth_has_a_sky_at_infinity_and_nothing_behind() -> None:
    depth = street(CLEAN).depth(0)
    assert depth.dtype == np.float32
    assert np.isinf(depth).any()
    assert depth.min() > 0.2


def test_flow_follows_from_depth_and_poses_where_nothing_moves() -> None:
    simulated = street(replace(SMALL, moving_cars=0, crossing_cars=0))
    flow, depth = simulated.flow(4, 7), simulated.depth(4)
    camera = simulated.camera
    near = np.isfinite(depth)
    u, v = np.moveaxis(pixels(depth)[near], -1, 0)
    disparity = camera.left.fx * camera.baseline_m / depth[near]
    points = camera.triangulate(np.stack([u, v, u - disparity], axis=-1))
    T_2_1 = lie.se3_inverse(simulated.T_w_c[7]) @ simulated.T_w_c[4]
    moved = points @ T_2_1[:3, :3].T + T_2_1[:3, 3]
    expected = camera.left.project(moved) - np.stack([u, v], axis=-1)
    ahead = moved[:, 2] > 0.5
    np.testing.assert_allclose(flow.vectors[near][ahead], expected[ahead], atol=2e-3)


def test_the_sky_flows_by_rotation_alone() -> None:
    simulated = street(replace(SMALL, motion="handheld"))
    flow, depth = simulated.flow(4, 5), simulated.depth(4)
    camera = simulated.camera.left
    sky = np.isinf(depth) & flow.in_view
    rays = np.dstack([camera.normalise(pixels(depth)), np.ones(depth.shape)])[sky]
    C_2_1 = simulated.T_w_c[5, :3, :3].T @ simulated.T_w_c[4, :3, :3]
    expected = camera.project(rays @ C_2_1.T) - pixels(depth)[sky]
    np.testing.assert_allclose(flow.vectors[sky], expected, atol=1e-4)


def test_disparity_is_the_flow_to_the_right_image() -> None:
    simulated = street(SMALL)
    flow, depth = simulated.disparity(3), simulated.depth(3)
    camera = simulated.camera
    np.testing.assert_allclose(
        flow.vectors[..., 0], -camera.left.fx * camera.baseline_m / depth, atol=1e-3
    )
    np.testing.assert_allclose(flow.vectors[..., 1], 0.0, atol=1e-4)


def test_flow_to_the_same_frame_is_zero_and_all_visible() -> None:
    flow = street(SMALL).flow(2, 2)
    np.testing.assert_allclose(flow.vectors, 0.0, atol=1e-4)
    assert flow.in_view[1:-1, 1:-1].all()
    assert flow.visible[1:-1, 1:-1].all()


def test_flow_there_and_back_returns_where_it_is_visible() -> None:
    simulated = street(CLEAN)
    there, back = simulated.flow(30, 32), simulated.flow(32, 30)
    good = inner(there, simulated.depth(30))
    residual = np.stack([warp(back.vectors[..., k], there) for k in (0, 1)], axis=-1)
    error = np.linalg.norm(there.vectors + residual, axis=-1)[good]
    assert np.median(error) < 0.01
    assert np.mean(error < 0.1) > 0.97


def test_occluded_pixels_are_in_view_but_not_visible() -> None:
    simulated = street(CLEAN)
    flow = simulated.disparity(10)
    assert not (flow.visible & ~flow.in_view).any()
    hidden = flow.in_view & ~flow.visible
    assert 0.001 < hidden.mean() < 0.15
    left, right = clean_frame(10).left, clean_frame(10).right
    error = np.abs(warp(right, flow) - left)
    assert error[hidden].mean() > 4.0 * error[flow.visible].mean()


def test_moving_cars_have_a_flow_of_their_own() -> None:
    still = street(replace(CLEAN, moving_cars=0, crossing_cars=0))
    busy = street(CLEAN)
    moving = busy.moving(0)
    assert 0.001 < moving.mean() < 0.5
    assert not still.moving(0).any()
    np.testing.assert_array_equal(still.T_w_c, busy.T_w_c)
    T_2_1 = lie.se3_inverse(busy.T_w_c[1]) @ busy.T_w_c[0]
    depth, camera = busy.depth(0), busy.camera.left
    rays = np.dstack([camera.normalise(pixels(depth)), np.ones(depth.shape)])
    points = rays * np.where(np.isfinite(depth), depth, 1e6)[..., None]
    rigid = camera.project(points @ T_2_1[:3, :3].T + T_2_1[:3, 3]) - pixels(depth)
    apart = np.linalg.norm(busy.flow(0, 1).vectors - rigid, axis=-1)
    assert np.median(apart[moving]) > 0.3
    assert apart[~moving].max() < 0.05


# --- images agree with the geometry --------------------------------------------------------------


@pytest.mark.parametrize("motion", ["car", "handheld"])
def test_the_next_image_warped_back_is_the_image(motion: str) -> None:
    simulated = street(replace(CLEAN, motion=motion))
    for index in (5, 40, 75):
        flow = simulated.flow(index, index + 1)
        before, after = simulated.render(index).left, simulated.render(index + 1).left
        error = np.abs(warp(after, flow) - before)[flow.visible]
        assert np.median(error) < 1.2
        assert error.mean() < 2.5


def test_the_right_image_warped_back_is_the_left_image() -> None:
    simulated = street(CLEAN)
    for index in (5, 40, 75):
        flow, frame = simulated.disparity(index), clean_frame(index)
        error = np.abs(warp(frame.right, flow) - frame.left)[flow.visible]
        assert np.median(error) < 0.8
        assert error.mean() < 1.8


@pytest.mark.parametrize("stereo", [False, True], ids=["flow", "disparity"])
def test_images_are_not_shifted_against_the_flow(stereo: bool) -> None:
    """One Gauss-Newton step of registration over all visible pixels: a bias would show here."""
    simulated = street(CLEAN)
    shifts = []
    for index in (5, 30, 60, 90):
        frame = clean_frame(index)
        flow = simulated.disparity(index) if stereo else simulated.flow(index, index + 1)
        other = frame.right if stereo else clean_frame(index + 1).left
        good = inner(flow, simulated.depth(index))
        warped = warp(other, flow)
        gv, gu = np.gradient(warped)
        jacobian = np.stack([gu[good], gv[good]], axis=-1)
        residual = (frame.left - warped)[good]
        shifts.append(np.linalg.lstsq(jacobian, residual, rcond=None)[0])
    assert np.abs(np.mean(shifts, axis=0)).max() < 0.02


def test_tracked_corners_follow_the_exact_flow() -> None:
    simulated = street(CLEAN)
    errors = []
    for index in (5, 30, 60, 90):
        frame, after = clean_frame(index).left, clean_frame(index + 1).left
        points, flow = corners(frame), simulated.flow(index, index + 1)
        points = points[at(inner(flow, simulated.depth(index)), points)]
        tracked, found = track(frame, after, points)
        errors.append((tracked - points - at(flow.vectors, points))[found])
    error = np.concatenate(errors)
    assert len(error) > 200
    assert np.median(np.linalg.norm(error, axis=-1)) < 0.12
    assert np.abs(np.median(error, axis=0)).max() < 0.02


def test_a_plain_stereo_odometry_recovers_the_motion() -> None:
    simulated = street(CLEAN)
    camera = simulated.camera
    c = camera.left
    matrix = np.array([[c.fx, 0.0, c.cx], [0.0, c.fy, c.cy], [0.0, 0.0, 1.0]])
    rotation_deg, translation = [], []
    for index in (10, 35, 60, 85):
        frame, after = clean_frame(index), clean_frame(index + 1)
        points = corners(frame.left)
        right, found_right = track(frame.left, frame.right, points)
        ahead, found_ahead = track(frame.left, after.left, points)
        good = found_right & found_ahead & (np.abs(right - points)[:, 1] < 0.5)
        good &= points[:, 0] - right[:, 0] > 1.0
        world = camera.triangulate(np.column_stack([points[good], right[good, 0]]))
        cv2.setRNGSeed(0)
        _, r, t, inliers = cv2.solvePnPRansac(
            world, ahead[good], matrix, None, iterationsCount=300, reprojectionError=1.0
        )
        r, t = cv2.solvePnPRefineLM(
            world[inliers[:, 0]], ahead[good][inliers[:, 0]], matrix, None, r, t
        )
        truth = lie.se3_inverse(simulated.T_w_c[index + 1]) @ simulated.T_w_c[index]
        apart = lie.angular_distance(lie.so3_exp(r[:, 0]), truth[:3, :3])
        rotation_deg.append(np.degrees(apart))
        translation.append(np.linalg.norm(t[:, 0] - truth[:3, 3]) / np.linalg.norm(truth[:3, 3]))
    assert max(rotation_deg) < 0.05
    assert max(translation) < 0.02


# --- every knob does what it says ----------------------------------------------------------------


def test_blur_lowers_gradient_energy() -> None:
    energies = [
        gradient_energy(street(replace(SMALL, blur_sigma_px=sigma)).render(0).left)
        for sigma in (0.0, 0.7, 1.5, 3.0)
    ]
    assert all(sharp > 1.2 * soft for sharp, soft in pairwise(energies))


def test_an_open_shutter_blurs_what_moves_in_the_image_and_shifts_nothing() -> None:
    sharp = street(CLEAN)
    smeared = street(replace(CLEAN, shutter_s=0.03))
    still = Street(replace(CLEAN, shutter_s=0.03, speed_m_s=0.0, wobble=0.0, moving_cars=0))
    frozen = Street(replace(CLEAN, speed_m_s=0.0, wobble=0.0, moving_cars=0))
    assert gradient_energy(smeared.render(40).left) < 0.8 * gradient_energy(sharp.render(40).left)
    unlike = still.render(1).left.astype(int) - frozen.render(1).left
    assert np.mean(np.abs(unlike) > 1) < 0.1  # only the crossing car
    flow = smeared.flow(40, 41)
    error = np.abs(warp(smeared.render(41).left, flow) - smeared.render(40).left)[flow.visible]
    assert np.median(error) < 1.2


def test_texture_contrast_scales_gradients_down_to_outlines() -> None:
    energies = [
        gradient_energy(street(replace(SMALL, texture_contrast=c)).render(0).left)
        for c in (0.0, 0.4, 1.0)
    ]
    assert energies[0] < energies[1] < energies[2]


def test_gain_and_gamma_act_as_documented() -> None:
    plain = street(SMALL).render(0).left.astype(np.float64)
    darker = street(replace(SMALL, gain=0.5)).render(0).left
    bent = street(replace(SMALL, gamma=2.0)).render(0).left
    unclipped = plain < 250.0
    np.testing.assert_allclose(darker[unclipped], 0.5 * plain[unclipped], atol=0.8)
    np.testing.assert_allclose(bent, 255.0 * (plain / 255.0) ** 2, atol=1.6)


def test_right_gain_acts_on_the_right_camera_only() -> None:
    plain = street(SMALL).render(0)
    uneven = street(replace(SMALL, right_gain=0.8)).render(0)
    np.testing.assert_array_equal(plain.left, uneven.left)
    assert uneven.right.mean() == pytest.approx(0.8 * plain.right.mean(), rel=0.02)


def test_gain_drifts_smoothly_within_its_bounds() -> None:
    config = replace(SMALL, frames=100)
    plain, drifting = Street(config), Street(replace(config, gain_drift=0.2))
    ratios = np.array(
        [drifting.render(k).left.mean() / plain.render(k).left.mean() for k in range(0, 100, 14)]
    )
    assert np.all((ratios > 0.77) & (ratios < 1.23))
    assert np.ptp(ratios) > 0.05
    adjacent = drifting.render(1).left.mean() / drifting.render(0).left.mean()
    assert abs(adjacent - 1.0) < 0.05


def test_noise_has_the_asked_sigma_and_is_independent() -> None:
    clean, noisy = clean_frame(0), street(replace(CLEAN, noise_sigma=4.0)).render(0)
    inside = (clean.left > 30) & (clean.left < 225) & (clean.right > 30) & (clean.right < 225)
    left = (noisy.left.astype(float) - clean.left)[inside]
    right = (noisy.right.astype(float) - clean.right)[inside]
    assert left.std() == pytest.approx(4.0, rel=0.03)
    assert right.std() == pytest.approx(4.0, rel=0.03)
    assert abs(np.corrcoef(left, right)[0, 1]) < 0.02


def test_clutter_adds_things_to_see() -> None:
    still = replace(SMALL, moving_cars=0, crossing_cars=0)
    near = [
        np.count_nonzero(distances(street(replace(still, clutter=clutter))) < 8.0)
        for clutter in (0.0, 0.5, 1.0)
    ]
    assert near[0] == 0
    assert near[1] > 1000
    assert near[2] > 2 * near[1]


def test_a_camera_of_ones_own_is_used() -> None:
    camera = StereoCamera(Camera(100.0, 100.0, 80.0, 60.0), 0.12)
    simulated = Street(StreetConfig(width=160, height=120, camera=camera, frames=1))
    assert simulated.camera is camera
    assert simulated.render(0).left.shape == (120, 160)


def test_the_default_camera_is_kittis_at_half_size() -> None:
    camera = StreetConfig().stereo
    assert camera.left.fx == pytest.approx(359.1, abs=0.1)
    assert camera.baseline_m == 0.54
    assert StreetConfig(width=1240, height=376).stereo.left.fx == pytest.approx(2.0 * 359.1, 1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("seed", 1.5),
        ("frames", 0),
        ("frames", 10_000),
        ("frames", True),
        ("rate_hz", 0.0),
        ("width", 4),
        ("height", 100_000),
        ("camera", "kitti"),
        ("motion", "boat"),
        ("speed_m_s", -1.0),
        ("speed_variation", 1.5),
        ("max_heading_deg", 120.0),
        ("wobble", -0.1),
        ("moving_cars", -1),
        ("crossing_cars", 2.5),
        ("clutter", 1.1),
        ("texture_contrast", float("nan")),
        ("blur_sigma_px", -1.0),
        ("shutter_s", -0.1),
        ("gain", 0.0),
        ("gamma", 0.0),
        ("gain_drift", 1.0),
        ("right_gain", 0.0),
        ("noise_sigma", float("inf")),
        ("noise_sigma", "loud"),
    ],
)
def test_a_bad_configuration_names_its_field(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        StreetConfig(**{name: value})  # type: ignore[arg-type]
