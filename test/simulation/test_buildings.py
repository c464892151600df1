from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import CARRIERS, PLACES, BuildingConfig, Carrier, Place
from hydranet_ros.simulation.sensor import SensorConfig
from hydranet_ros.simulation.world import RIGHT, ExactFlow

CAMERA = StereoCamera(Camera(160.0, 160.0, 119.5, 89.5), 0.1)
SMALL = BuildingConfig(
    seed=3, width=240, height=180, camera=CAMERA, frames=12, noise_sigma=0.0, texture_seed=1
)
STILL = replace(SMALL, people=0)


@lru_cache(maxsize=16)
def building(config: BuildingConfig) -> Building:
    return Building(config)


def pixels(image: NDArray[np.generic]) -> Array:
    u, v = np.meshgrid(np.arange(image.shape[1]), np.arange(image.shape[0]))
    return np.stack([u, v], axis=-1).astype(np.float64)


def warp(image: NDArray[np.generic], flow: ExactFlow) -> Array:
    at = (pixels(image) + flow.vectors).astype(np.float32)
    u, v = np.ascontiguousarray(at[..., 0]), np.ascontiguousarray(at[..., 1])
    return cv2.remap(image.astype(np.float32), u, v, cv2.INTER_CUBIC).astype(np.float64)


def textured(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where the smaller eigenvalue of the structure tensor says that both directions show."""
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), 1.5)
    least = cv2.cornerMinEigenVal(smooth, 9, 3)
    return np.asarray(least > np.percentile(least, 70.0))


def energy(image: NDArray[np.uint8]) -> float:
    grey = image.astype(np.float64)
    return float(np.mean(np.diff(grey, axis=0) ** 2) + np.mean(np.diff(grey, axis=1) ** 2))


# --- geometry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_flow_follows_from_depth_and_poses_where_nothing_moves(place: Place) -> None:
    simulated = building(replace(STILL, place=place, motion="feet"))
    flow, depth = simulated.flow(4, 7), simulated.depth(4).astype(np.float64)
    camera = simulated.camera.left
    rays = np.dstack([camera.normalise(pixels(depth)), np.ones(depth.shape)])
    T_2_1 = lie.se3_inverse(simulated.T_w_c[7]) @ simulated.T_w_c[4]
    moved = rays * depth[..., None] @ T_2_1[:3, :3].T + T_2_1[:3, 3]
    ahead = moved[..., 2] > 0.2
    expected = camera.project(np.where(ahead[..., None], moved, 1.0)) - pixels(depth)
    assert ahead.mean() > 0.8
    np.testing.assert_allclose(flow.vectors[ahead], expected[ahead], atol=5e-3)
    assert not simulated.moving(4).any()


@pytest.mark.parametrize("place", PLACES)
def test_a_place_is_closed_and_keeps_off_the_camera(place: Place) -> None:
    wide = StereoCamera(Camera(45.0, 45.0, 119.5, 89.5), 0.1)  # 139 deg
    for motion in ("robot", "drone"):
        config = replace(STILL, place=place, motion=motion, camera=wide, frames=60, clutter=1.0)
        simulated = Building(config)
        for index in range(0, 60, 6):
            depth = simulated.depth(index)
            assert depth.max() < 200.0  # nowhere a hole through which nothing is seen
            rays = np.dstack([wide.left.normalise(pixels(depth)), np.ones(depth.shape)])
            distance = depth * np.linalg.norm(rays, axis=-1)
            assert distance.min() > 0.12


def test_disparity_is_the_flow_to_the_right_image() -> None:
    simulated = building(SMALL)
    flow, depth = simulated.disparity(3), simulated.depth(3)
    expected = -CAMERA.left.fx * CAMERA.baseline_m / depth
    np.testing.assert_allclose(flow.vectors[..., 0], expected, atol=2e-3)
    np.testing.assert_allclose(flow.vectors[..., 1], 0.0, atol=1e-3)


def test_people_have_a_flow_of_their_own() -> None:
    config = replace(SMALL, place="hall", motion="robot", speed=0.0, people=12, clutter=0.0)
    wide = StereoCamera(Camera(70.0, 70.0, 119.5, 89.5), 0.1)
    simulated = Building(replace(config, camera=wide))
    moving = simulated.moving(3)
    assert 0.0005 < moving.mean() < 0.5
    speed = np.linalg.norm(simulated.flow(3, 4).vectors, axis=-1)
    assert np.median(speed[moving]) > 0.1
    assert speed[~moving].max() < 1e-3


# --- images agree with the geometry --------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "motion"), [("room", "hand"), ("office", "robot"), ("hall", "drone")]
)
def test_the_next_image_warped_back_is_the_image(place: Place, motion: Carrier) -> None:
    simulated = building(replace(STILL, place=place, motion=motion, rate_hz=20.0))
    for index in (2, 8):
        flow = simulated.flow(index, index + 1)
        before, after = simulated.photograph(index), simulated.photograph(index + 1)
        error = np.abs(warp(after, flow) - before)[flow.visible]
        assert flow.visible.mean() > 0.5
        assert np.median(error) < 1.2
        assert error.mean() < 3.0


def test_the_right_image_warped_back_is_the_left_image() -> None:
    simulated = building(replace(SMALL, place="desk", motion="hand"))
    flow = simulated.disparity(5)
    error = np.abs(warp(simulated.photograph(5, RIGHT), flow) - simulated.photograph(5))
    assert np.median(error[flow.visible]) < 1.0


@pytest.mark.parametrize("place", ["desk", "office", "stairs"])
def test_real_flow_finds_the_exact_flow_where_there_is_texture(place: Place) -> None:
    config = replace(STILL, place=place, motion="hand", rate_hz=20.0, noise_sigma=1.0, blank=0.0)
    simulated = building(config)
    method = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    before, after = simulated.photograph(4), simulated.photograph(5)
    exact = simulated.flow(4, 5)
    error = np.linalg.norm(method.calc(before, after, None) - exact.vectors, axis=-1)
    assert np.median(error[textured(before) & exact.visible]) < 0.3


def test_outlines_are_anti_aliased() -> None:
    """A pixel is the mean of the 4 x 4 pixels of an image that is four times as large."""
    sharp = replace(STILL, place="desk", motion="hand", blur_sigma_px=0.0, clutter=1.0)
    fine = StereoCamera(Camera(640.0, 640.0, 479.5, 359.5), 0.1)
    large = Building(replace(sharp, width=960, height=720, camera=fine)).photograph(3)
    expected = cv2.resize(large, (240, 180), interpolation=cv2.INTER_AREA).astype(float)
    error = np.abs(Building(sharp).photograph(3) - expected)
    assert np.median(error) < 1.5
    assert np.percentile(error, 97.0) < 24.0


def test_equal_configurations_render_equal_bytes_in_any_order() -> None:
    sensor = SensorConfig(0.4, 0.02, 0.3, 70)
    config = replace(SMALL, noise_sigma=2.0, shutter_s=0.01, sensor=sensor, place="office")
    first, second = Building(config), Building(config)
    forward = [first.render(index) for index in (0, 5)]
    backward = [second.render(index) for index in (5, 0)][::-1]
    for one, other in zip(forward, backward, strict=True):
        assert one.left.tobytes() == other.left.tobytes()
        assert one.right.tobytes() == other.right.tobytes()
        np.testing.assert_array_equal(one.T_w_c, other.T_w_c)
    assert Building(replace(config, seed=4)).render(0).left.tobytes() != forward[0].left.tobytes()


@pytest.mark.parametrize("motion", CARRIERS)
def test_the_world_begins_at_the_first_camera(motion: Carrier) -> None:
    pose = Building(replace(SMALL, motion=motion, place="car_park")).T_w_c[0]
    np.testing.assert_allclose(pose[:3, 3], 0.0, atol=1e-9)
    assert abs(np.arctan2(pose[0, 2], pose[2, 2])) < 1e-9  # it looks along z


def test_a_mount_turns_the_camera_and_nothing_else() -> None:
    plain = building(STILL)
    turned = Building(replace(STILL, mount_roll_deg=180.0))
    np.testing.assert_allclose(turned.T_w_c[:, :3, 3], plain.T_w_c[:, :3, 3], atol=1e-12)
    half = lie.so3_exp([0.0, 0.0, np.pi])
    np.testing.assert_allclose(turned.T_w_c[:, :3, :3], plain.T_w_c[:, :3, :3] @ half, atol=1e-9)
    upright = turned.photograph(4)[::-1, ::-1].astype(float)
    assert np.median(np.abs(upright - plain.photograph(4))) <= 1.0


def test_a_frame_that_does_not_exist_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="frame 12 of a building with 12 frames"):
        building(SMALL).photograph(12)


# --- the sensor ----------------------------------------------------------------------------------


def test_an_open_shutter_blurs_a_fast_turn_and_shifts_nothing() -> None:
    turning = replace(STILL, motion="hand", place="desk", speed=2.5, seed=5)
    sharp, blurred = building(turning), Building(replace(turning, shutter_s=0.02))
    steps = lie.angular_distance(sharp.T_w_c[1:, :3, :3], sharp.T_w_c[:-1, :3, :3])
    index = int(np.argmax(steps))
    assert energy(blurred.photograph(index)) < 0.9 * energy(sharp.photograph(index))
    shift, _ = cv2.phaseCorrelate(
        sharp.photograph(index).astype(np.float32), blurred.photograph(index).astype(np.float32)
    )
    assert np.abs(shift).max() < 0.5


def test_a_rolling_shutter_shows_every_row_at_its_own_time() -> None:
    """Its first and last rows are those of global shutters half a readout earlier and later."""
    readout_s = 0.05
    config = replace(STILL, motion="hand", place="desk", rate_hz=2.0 / readout_s, frames=20)
    plain = building(config)
    rolling = Building(replace(config, sensor=SensorConfig(readout_s=readout_s)))
    better = []
    for index in range(2, 18, 3):
        image = rolling.photograph(index).astype(float)
        for rows, right, wrong in ((np.s_[:12], -1, 1), (np.s_[-12:], 1, -1)):
            apart = [
                np.abs(image - plain.photograph(index + k))[rows].mean() for k in (right, 0, wrong)
            ]
            better.append(apart[0] < apart[2])
    assert np.mean(better) > 0.9


def test_vignetting_darkens_the_corners_only() -> None:
    plain, dark = building(SMALL), Building(replace(SMALL, sensor=SensorConfig(vignetting=1.0)))
    before, after = plain.photograph(2).astype(float), dark.photograph(2).astype(float)
    ratio = after / np.maximum(before, 1.0)
    x, y = 119.5 / 160.0, 89.5 / 160.0
    assert ratio[:6, :6].mean() == pytest.approx((1.0 + x**2 + y**2) ** -2, rel=0.08)
    assert ratio[85:95, 115:125].mean() == pytest.approx(1.0, abs=0.02)


def test_exposure_steps_stay_within_their_bound_and_do_step() -> None:
    config = replace(STILL, speed=0.0, frames=100)
    stepping = Building(replace(config, sensor=SensorConfig(exposure_step=0.4)))
    levels = np.array([stepping.photograph(k).mean() for k in range(0, 100, 10)])
    level = Building(config).photograph(0).mean()
    assert (levels < 1.42 * level).all()
    assert (levels > level / 1.42).all()
    assert np.ptp(levels) > 0.1 * level


def test_jpeg_leaves_blocks_but_the_same_picture() -> None:
    plain, packed = building(SMALL), Building(replace(SMALL, sensor=SensorConfig(jpeg_quality=30)))
    apart = np.abs(plain.photograph(2).astype(float) - packed.photograph(2))
    assert 0.1 < apart.mean() < 6.0


def test_a_bad_configuration_names_its_field() -> None:
    for name, value in (("place", "moon"), ("motion", "boat"), ("frames", 100_000), ("blank", 2)):
        with pytest.raises(ValueError, match=name):
            replace(SMALL, **{name: value})  # type: ignore[arg-type]
