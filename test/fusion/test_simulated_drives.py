"""NEES of the fused pose on drives of a car, a robot and a drone, simulated by the error models.

The start is known, and the errors of the sources are drawn as their models say: white, persistent
as an Ornstein-Uhlenbeck process, slip over turned angles, scales that stay, the bias of an IMU. So
the error of the pose after 1, 10 and 100 frames, over seeds, must be what the covariance says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.error_models import FLOOR_S, OdometryModel, hold_to_ground
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.simulation.imu import SimulatedImuConfig, simulate_imu

FRAMES = (1, 10, 100)
COUNT = 120
UP = np.array([0.0, -1.0, 0.0])  # in a camera that looks forward
Nees = dict[int, float]


def white(rng: np.random.Generator, Sigma: np.ndarray) -> np.ndarray:
    return rng.multivariate_normal(np.zeros(len(Sigma)), Sigma)


class Persistent:
    """An error that stays for a while: of a time in seconds, or of an angle."""

    def __init__(self, rng: np.random.Generator, sigma: float, length: float, size: int) -> None:
        self._rng, self._sigma, self._length, self._size = rng, sigma, length, size
        self.value = sigma * rng.normal(size=size)

    def after(self, step: float) -> np.ndarray:
        keep = np.exp(-step / self._length)
        new = self._sigma * np.sqrt(1.0 - keep**2) * self._rng.normal(size=self._size)
        self.value = keep * self.value + new
        return self.value


def odometry_errors(
    rng: np.random.Generator, model: OdometryModel
) -> Callable[[RelativePose], np.ndarray]:
    """Draw the errors (6,) of motions in a row as a model has them."""
    drift = Persistent(rng, np.deg2rad(model.drift_deg_s), model.drift_s, 3)

    def error(motion: RelativePose) -> np.ndarray:
        times, angle = motion.seconds / FLOOR_S, np.linalg.norm(lie.so3_log(motion.T_2_1[:3, :3]))
        way = np.linalg.norm(motion.T_2_1[:3, 3])
        metres = model.floor_m**2 * times + model.distance_share**2 * way * 10.0
        radians = np.deg2rad(model.floor_deg) ** 2 * times + model.turn_share**2 * angle
        own = np.diag([metres] * 3 + [radians] * 3) + 1e-18 * np.eye(6)
        found = white(rng, model.scale * motion.Sigma_2_1) + white(rng, own)
        found[3:] += drift.after(motion.seconds) * motion.seconds
        return found

    return error


def nees_of(states: dict[int, np.ndarray], truth: np.ndarray, stamps: np.ndarray) -> Nees:
    found = {}
    for frame in FRAMES:
        state = states[int(stamps[frame])]
        error = lie.se3_log(lie.se3_inverse(state.T_w_c) @ truth[frame])
        found[frame] = float(error @ np.linalg.solve(state.Sigma_c_w, error)) / 6.0
    return found


def chained(steps: np.ndarray) -> np.ndarray:
    """T_w_c from the motions T_2_1."""
    poses = [np.eye(4)]
    for T in steps:
        poses.append(poses[-1] @ lie.se3_inverse(T))
    return np.array(poses)


def car(seed: int) -> Nees:
    """Our stereo odometry and our gyro at 10 Hz."""
    rng, config = np.random.default_rng(seed), FusionConfig(odometry="own")
    time = 0.1 * np.arange(COUNT)
    steps = np.zeros((COUNT, 6))
    steps[:, 2], steps[:, 4] = -1.0 - 0.2 * np.sin(0.3 * time), 0.02 * np.sin(0.2 * time + seed)
    stamps = (np.arange(COUNT + 1) * 100_000_000).astype(np.int64)
    truth, true = chained(lie.se3_exp(steps)), lie.se3_exp(steps)
    Sigma = np.diag([0.02**2] * 3 + [np.deg2rad(0.03) ** 2] * 3)
    Sigma_turn = np.eye(3) * np.deg2rad(0.03) ** 2
    errors = odometry_errors(rng, config.odometry_model)
    fusion, states = Fusion(config), {}
    for i in range(COUNT):
        span = int(stamps[i]), int(stamps[i + 1])
        exact = RelativePose(true[i], Sigma, *span)
        motion = RelativePose(lie.se3_exp(errors(exact)) @ true[i], Sigma, *span)
        exactly = RelativeRotation(true[i, :3, :3], Sigma_turn, *span)
        turned = white(rng, config.rotation_model.covariance(exactly))
        rotation = RelativeRotation(lie.so3_exp(turned) @ exactly.C_2_1, Sigma_turn, *span)
        for state in fusion.add(motion, rotation) + fusion.passed(span[1]):
            states[state.stamp_ns] = state
    return nees_of(states, truth, stamps)


def robot(seed: int) -> Nees:
    """Wheels at 40 Hz whose track is unknown, and a camera at 10 Hz, on uneven ground."""
    rng, config = np.random.default_rng(seed), FusionConfig(odometry="wheels")
    per, count = 4, 4 * COUNT
    time = 0.025 * np.arange(count)
    turn, way = 0.8 * np.sin(0.7 * time + seed) * 0.025, 0.4 * 0.025 * np.ones(count)
    scales = config.calibration.sigmas * rng.normal(size=3)
    noise = np.diag([1e-3**2] * 3 + [np.deg2rad(0.02) ** 2] * 3)
    slip = Persistent(rng, config.wheels.turn_share, 0.5, 1)
    model = FusionConfig().wheels.__class__(
        scale=1.0,
        floor_m=config.wheels.floor_m,
        floor_deg=config.wheels.floor_deg,
        distance_share=config.wheels.distance_share,
    )
    errors = odometry_errors(rng, model)
    motions, steps = [], []
    for i in range(count):
        span = 25_000_000 * i, 25_000_000 * (i + 1)
        level = np.array([0.0, 0.0, -way[i], 0.0, turn[i], 0.0])
        free = np.diag([0.1**2] * 3 + [0.1**2] * 3)
        held = hold_to_ground(RelativePose(lie.se3_exp(level), noise + free, *span), UP).Sigma_2_1
        along = np.outer(UP, UP)
        Sigma = noise.copy()  # but where the ground holds
        Sigma[:3, :3] += along @ held[:3, :3] @ along
        Sigma[3:, 3:] += (np.eye(3) - along) @ held[3:, 3:] @ (np.eye(3) - along)
        told = RelativePose(lie.se3_exp(level), Sigma, *span)
        true = level.copy()
        true[4] = turn[i] / ((1.0 + scales[1]) * (1.0 + slip.after(abs(turn[i]))[0]))
        motions.append(told)
        steps.append(lie.se3_exp(-errors(told)) @ lie.se3_exp(true))
    truth = chained(np.array(steps))[::per]
    stamps = (np.arange(COUNT + 1) * 100_000_000).astype(np.int64)
    fusion, states = Fusion(config), {}
    Sigma_turn = np.eye(3) * np.deg2rad(0.05) ** 2
    for i in range(count):
        for state in fusion.add(motions[i]):
            states.setdefault(state.stamp_ns, state)
        if (i + 1) % per == 0:
            k = (i + 1) // per
            C = truth[k, :3, :3].T @ truth[k - 1, :3, :3]
            exact = RelativeRotation(C, Sigma_turn, int(stamps[k - 1]), int(stamps[k]))
            seen = lie.so3_exp((1.0 + scales[0]) * lie.so3_log(C))
            wrong = white(rng, config.rotation_model.covariance(exact))
            span = exact.stamp_1_ns, exact.stamp_2_ns
            for state in fusion.add(
                RelativeRotation(lie.so3_exp(wrong) @ seen, Sigma_turn, *span)
            ):
                if state.stamp_ns == span[1]:
                    states[state.stamp_ns] = state
    return nees_of(states, truth, stamps)


def drone(seed: int) -> Nees:
    """Somebody's visual odometry and our gyro at 20 Hz, and an IMU at 200 Hz."""
    rng, config = np.random.default_rng(seed), FusionConfig(odometry="visual")
    time = 0.05 * np.arange(COUNT)
    phase = rng.uniform(0.0, 6.0, 6)
    rates = np.array([0.5, 0.3, 0.4, 0.3, 0.5, 0.2])
    steps = 0.05 * rates * np.sin(np.outer(time, [0.9, 0.7, 1.1, 1.3, 0.8, 1.0]) + phase)
    stamps = (np.arange(COUNT + 1) * 50_000_000).astype(np.int64)
    true = lie.se3_exp(steps)
    truth = chained(true)
    Sigma = np.diag([0.01**2] * 3 + [np.deg2rad(0.05) ** 2] * 3)
    Sigma_turn = np.eye(3) * np.deg2rad(0.05) ** 2
    imu = SimulatedImuConfig(
        rate_hz=200.0,
        bias_deg_s=tuple(config.imu.bias_sigma_deg_s * rng.normal(size=3)),
        bias_walk_deg_s=config.imu.bias_walk_deg_s,
        noise_deg=config.imu.noise_deg,
        scale=config.imu.share * float(rng.normal()),
        seed=seed,
    )
    samples = list(simulate_imu(truth, stamps, imu, UP))
    errors = odometry_errors(rng, config.odometry_model)
    fusion, states, at = Fusion(config), {}, 0
    for i in range(COUNT):
        span = int(stamps[i]), int(stamps[i + 1])
        while at < len(samples) and samples[at].stamp_ns <= span[1] + 10_000_000:
            fusion.add_imu(samples[at], np.eye(3))
            at += 1
        exact = RelativePose(true[i], Sigma, *span)
        motion = RelativePose(lie.se3_exp(errors(exact)) @ true[i], Sigma, *span)
        turned = white(rng, config.rotation_model.covariance(exact.rotation))
        rotation = RelativeRotation(lie.so3_exp(turned) @ true[i, :3, :3], Sigma_turn, *span)
        for state in fusion.add(motion, rotation) + fusion.passed(span[1]):
            states[state.stamp_ns] = state
    return nees_of(states, truth, stamps)


@pytest.mark.slow
@pytest.mark.parametrize("drive", [car, robot, drone])
def test_the_pose_is_known_as_well_as_it_is_said(drive: Callable[[int], Nees]) -> None:
    runs = [drive(seed) for seed in range(20)]
    for frame in FRAMES:
        mean = np.mean([run[frame] for run in runs])
        assert 0.5 < mean < 2.0, (frame, mean)
