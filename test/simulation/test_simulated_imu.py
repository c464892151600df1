from __future__ import annotations

import numpy as np

from hydranet_ros.fusion.imu import STANDARD_GRAVITY, ImuBuffer, ImuConfig
from hydranet_ros.geometry import lie
from hydranet_ros.simulation.imu import SimulatedImuConfig, simulate_imu

UP = np.array([0.0, -1.0, 0.0])
PERFECT = SimulatedImuConfig(
    bias_deg_s=(0.0, 0.0, 0.0), bias_walk_deg_s=0.0, scale=0.0, noise_deg=0.0, noise_m_s=0.0
)


def drive() -> tuple[np.ndarray, np.ndarray]:
    T = [np.eye(4)]
    for i in range(60):
        step = [0.0, 0.0, 0.5, 0.01 * np.sin(0.2 * i), 0.05 * np.cos(0.1 * i), 0.01]
        T.append(T[-1] @ lie.se3_exp(step))
    return np.array(T), np.arange(61, dtype=np.int64) * 100_000_000


def test_a_perfect_gyro_turns_as_the_truth() -> None:
    T_w_c, stamps = drive()
    buffer = ImuBuffer(ImuConfig(), 100.0)
    for sample in simulate_imu(T_w_c, stamps, PERFECT, UP):
        buffer.add(sample)
    turn = buffer.turn(int(stamps[5]), int(stamps[55]), np.zeros(3))
    assert turn is not None
    true = T_w_c[55, :3, :3].T @ T_w_c[5, :3, :3]
    assert np.rad2deg(np.linalg.norm(lie.so3_log(turn.C @ true.T))) < 0.01


def test_the_acceleration_doubly_integrated_is_the_way() -> None:
    """An oracle that knows nothing of splines: forces less gravity, summed twice."""
    T_w_c, stamps = drive()
    samples = list(simulate_imu(T_w_c, stamps, PERFECT, UP))
    dt, C = 0.01, T_w_c[0, :3, :3]
    # Before the first sample the velocity is that of the path.
    place, velocity = np.zeros(3), np.zeros(3)
    places = []
    for sample in samples:
        assert sample.acceleration is not None
        force = C @ sample.acceleration - STANDARD_GRAVITY * UP
        places.append(place.copy())
        place = place + velocity * dt + 0.5 * force * dt**2
        velocity = velocity + force * dt
        C = C @ lie.so3_exp(sample.rate * dt)
    path = T_w_c[np.arange(0, 60), :3, 3]
    ours = np.array(places)[: 60 * 10 : 10]
    time = np.arange(60)[:, None] * 0.1
    start = ((path - ours) * time).sum(axis=0) / (time**2).sum()  # the velocity at the start
    assert np.abs(ours + time * start - path).max() < 0.15


def test_bias_scale_and_noise_are_what_they_say() -> None:
    T_w_c, stamps = np.tile(np.eye(4), (400, 1, 1)), np.arange(400, dtype=np.int64) * 100_000_000
    config = SimulatedImuConfig(bias_walk_deg_s=0.0)
    rates = np.array([s.rate for s in simulate_imu(T_w_c, stamps, config, UP)])
    np.testing.assert_allclose(np.rad2deg(rates.mean(axis=0)), config.bias_deg_s, atol=0.02)
    np.testing.assert_allclose(np.rad2deg(rates.std(axis=0)) * 0.1, config.noise_deg, rtol=0.1)
