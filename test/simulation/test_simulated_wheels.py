from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.simulation.wheels import SimulatedWheelsConfig, simulate_wheels, vehicle_up

UP = np.array([0.0, -1.0, 0.0])  # of a camera that looks forward
PERFECT = SimulatedWheelsConfig(
    yaw_scale=0.0, distance_scale=0.0, slip=0.0, noise_m=0.0, noise_deg=0.0
)


def drive(frames: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """On a plane, 1 m a frame, to the left and to the right."""
    T = [np.eye(4)]
    for i in range(frames - 1):
        T.append(T[-1] @ lie.se3_exp([0.0, 0.0, 1.0, 0.0, 0.03 * np.sin(0.05 * i), 0.0]))
    return np.array(T), np.arange(frames, dtype=np.int64) * 100_000_000


def turned_and_gone(config: SimulatedWheelsConfig) -> tuple[float, float]:
    motions = list(simulate_wheels(*drive(), config, UP))
    xi = np.array([lie.se3_log(motion.T_2_1) for motion in motions])
    return float(np.abs(xi[:, 4]).sum()), float(np.linalg.norm(xi[:, :3], axis=1).sum())


def test_perfect_wheels_are_the_truth() -> None:
    T_w_c, stamps = drive()
    motions = list(simulate_wheels(T_w_c, stamps, PERFECT, UP))
    assert all(a.stamp_2_ns == b.stamp_1_ns for a, b in pairwise(motions))
    assert motions[0].stamp_1_ns == 3_700_000 - 20_000_000
    assert motions[0].stamp_1_ns <= stamps[0] < motions[1].stamp_1_ns
    assert motions[-1].stamp_1_ns < stamps[-1] <= motions[-1].stamp_2_ns  # no frame lacks them
    pose = np.eye(4)
    for motion in motions:
        pose = pose @ lie.se3_inverse(motion.T_2_1)
    whole = lie.se3_inverse(T_w_c[0]) @ T_w_c[-1]
    assert np.linalg.norm(pose[:3, 3] - whole[:3, 3]) < 1.0  # begin and end lie between frames
    assert float(lie.angular_distance(pose[:3, :3], whole[:3, :3])) < 0.03


def test_errors_of_scale() -> None:
    turn, way = turned_and_gone(PERFECT)
    wrong = replace(PERFECT, yaw_scale=0.06, distance_scale=-0.02)
    assert turned_and_gone(wrong) == pytest.approx((1.06 * turn, 0.98 * way), rel=1e-6)


def test_noise_and_slip_come_by_the_seed() -> None:
    noisy = SimulatedWheelsConfig()
    assert turned_and_gone(noisy) == turned_and_gone(noisy)
    assert turned_and_gone(noisy) != turned_and_gone(replace(noisy, seed=1))


def test_a_camera_that_looks_down_is_noticed() -> None:
    down = lie.se3_from(lie.so3_exp([-0.1, 0.0, 0.0]), np.zeros(3))
    T_w_c = drive()[0] @ down
    np.testing.assert_allclose(vehicle_up(T_w_c, UP), down[:3, :3].T @ UP, atol=5e-3)
