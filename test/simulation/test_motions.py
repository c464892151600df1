from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.simulation.config import CARRIERS, BuildingConfig, Carrier
from hydranet_ros.simulation.motions import make_motion
from hydranet_ros.simulation.routes import Route, Spline, ease

SQUARE = Route(
    np.array([[-3.0, 0.0, -3.0], [3.0, 0.0, -3.0], [3.0, 0.0, 3.0], [-3.0, 0.0, 3.0]]),
    margin_m=0.5,
    ceiling_m=3.0,
    closed=True,
    box=(np.array([-1.0, -1.8, -1.0]), np.array([1.0, -0.8, 1.0])),
)
LONG = BuildingConfig(frames=600, rate_hz=20.0)
STEP_S = 1e-3


def test_a_spline_is_smooth_and_its_derivatives_are_right() -> None:
    points = np.random.default_rng(0).normal(size=(9, 2))
    spline, t = Spline(points, 0.7), np.linspace(0.2, 5.0, 50)
    for order in (0, 1):
        slope = (spline(t + 1e-5, order) - spline(t - 1e-5, order)) / 2e-5
        np.testing.assert_allclose(spline(t, order + 1), slope, atol=1e-4)
    inside = spline(np.linspace(-5.0, 20.0, 500))
    assert (inside >= points.min(axis=0) - 1e-12).all()
    assert (inside <= points.max(axis=0) + 1e-12).all()


def test_ease_goes_from_zero_to_one_without_a_jerk() -> None:
    t = np.linspace(-1.0, 4.0, 5001)
    share = ease(t, np.array(3.0), np.array(0.5))
    assert share[0] == 0.0
    assert share[-1] == 1.0
    speed = np.diff(share) / np.diff(t)
    assert speed.min() >= -1e-9
    assert speed.max() == pytest.approx(1.0 / 2.5, rel=1e-3)
    assert np.abs(np.diff(speed)).max() < 2e-3


@pytest.mark.parametrize("kind", CARRIERS)
@pytest.mark.parametrize("seed", range(3))
def test_motions_are_smooth_rigid_and_stay_in_their_space(kind: Carrier, seed: int) -> None:
    motion = make_motion(replace(LONG, motion=kind), SQUARE, np.random.default_rng(seed))
    t = np.arange(0.0, 30.0, 0.05)
    before, now, after = (motion.pose(t + k * STEP_S) for k in (-1, 0, 1))
    defect = now[:, :3, :3] @ lie.so3_inverse(now[:, :3, :3]) - np.eye(3)
    assert np.abs(defect).max() < 1e-9
    speed = np.linalg.norm(after[:, :3, 3] - before[:, :3, 3], axis=-1) / (2.0 * STEP_S)
    turning = lie.angular_distance(after[:, :3, :3], before[:, :3, :3]) / (2.0 * STEP_S)
    assert speed.max() < 8.0
    assert speed.mean() > 0.05
    assert turning.max() < 6.0
    # No jumps: acceleration by differences is finite.
    bend = after[:, :3, 3] - 2.0 * now[:, :3, 3] + before[:, :3, 3]
    assert np.abs(bend).max() / STEP_S**2 < 80.0
    x, y, z = np.abs(now[:, :3, 3]).T
    assert max(x.max(), z.max()) < 3.0 + SQUARE.margin_m + 0.1
    assert (now[:, 1, 3] < -0.1).all()
    assert y.max() < SQUARE.ceiling_m - 0.1


def test_a_robot_turns_on_the_spot_and_does_not_slide_sideways() -> None:
    found_turn = False
    for seed in range(8):
        config = replace(LONG, motion="robot", wobble=0.0)
        motion = make_motion(config, SQUARE, np.random.default_rng(seed))
        t = np.arange(0.0, 30.0, 0.02)
        a, b = motion.pose(t), motion.pose(t + STEP_S)
        velocity = np.einsum("nji,nj->ni", a[:, :3, :3], b[:, :3, 3] - a[:, :3, 3]) / STEP_S
        turning = lie.angular_distance(b[:, :3, :3], a[:, :3, :3]) / STEP_S
        on_the_spot = (np.linalg.norm(velocity, axis=-1) < 1e-6) & (turning > 0.3)
        if on_the_spot.any():
            found_turn = True
            assert np.abs(velocity[:, 0]).max() < 1e-3
            assert turning.max() < 2.1
    assert found_turn


@pytest.mark.parametrize("kind", CARRIERS)
def test_speed_zero_stands_still(kind: Carrier) -> None:
    config = replace(LONG, motion=kind, speed=0.0)
    poses = make_motion(config, SQUARE, np.random.default_rng(1)).pose(np.linspace(-1.0, 9.0, 7))
    np.testing.assert_array_equal(poses, np.broadcast_to(poses[0], poses.shape))


def test_a_drone_flies_sideways_and_a_hand_may_only_turn() -> None:
    t = np.arange(0.0, 30.0, 0.1)
    drone = make_motion(replace(LONG, motion="drone"), SQUARE, np.random.default_rng(0)).pose(t)
    velocity = np.einsum("nji,nj->ni", drone[:-1, :3, :3], np.diff(drone[:, :3, 3], axis=0)) / 0.1
    assert np.abs(velocity[:, 0]).max() > 0.3
    config = replace(LONG, motion="hand", parallax=0.0, wobble=0.0)
    hand = make_motion(config, SQUARE, np.random.default_rng(0)).pose(t)
    assert np.abs(hand[:, :3, 3] - hand[0, :3, 3]).max() < 1e-9
    assert lie.angular_distance(hand[:, :3, :3], hand[0, :3, :3]).max() > 0.1
