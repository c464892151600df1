"""Wheels at 100 Hz beside a camera at 10 Hz whose rotations come late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

MS = 1_000_000
SIGMA_WHEELS = np.diag([1e-3**2] * 3 + [2e-4**2] * 3)
SIGMA_GYRO = np.eye(3) * 3e-4**2


@dataclass
class Robot:
    """It turns to and fro; its wheels turn by 1.1 times too much."""

    steps: int
    rotation_delay_ms: int = 150
    camera_ms: int = 100
    yaw_error: float = 0.1
    circling: float = 0.0
    without_camera: range = field(default_factory=lambda: range(0))
    without_wheels: range = field(default_factory=lambda: range(0))

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        rate = 0.8 * np.sin(np.arange(self.steps) * 0.01) + self.circling
        twist = np.zeros((self.steps, 6))
        twist[:, 2], twist[:, 4] = -0.005, rate * 0.01
        self.T_2_1 = lie.se3_exp(twist)
        self.T_c_w = [np.eye(4)]
        for T in self.T_2_1:
            self.T_c_w.append(T @ self.T_c_w[-1])
        twist[:, 4] *= 1.0 + self.yaw_error
        noise = rng.normal(size=(self.steps, 6)) * np.sqrt(np.diagonal(SIGMA_WHEELS))
        self.wheels = lie.se3_exp(noise) @ lie.se3_exp(twist)
        self.rng = rng

    def arrivals(self) -> Iterator[RelativePose | RelativeRotation]:
        """In the order in which they arrive."""
        every, late = self.camera_ms // 10, self.rotation_delay_ms // 10
        for i in range(self.steps):
            now = i + 1 - late
            if now > 0 and now % every == 0 and now - 1 not in self.without_camera:
                yield self.rotation(now - every, now)
            if i not in self.without_wheels:
                stamps = i * 10 * MS, (i + 1) * 10 * MS
                yield RelativePose(self.wheels[i], SIGMA_WHEELS, *stamps)

    def rotation(self, a: int, b: int) -> RelativeRotation:
        C = self.T_c_w[b][:3, :3] @ self.T_c_w[a][:3, :3].T
        noisy = lie.so3_exp(3e-4 * self.rng.normal(size=3)) @ C
        return RelativeRotation(noisy, SIGMA_GYRO, a * 10 * MS, b * 10 * MS)

    def turn_error_deg(self, state: FusedState) -> float:
        index = round(state.stamp_ns / (10 * MS))
        error = lie.so3_log(self.T_c_w[index][:3, :3] @ state.T_w_c[:3, :3])
        return float(np.rad2deg(np.linalg.norm(error)))

    def wheels_error_deg(self, index: int) -> float:
        C = np.eye(3)
        for T in self.wheels[:index]:
            C = T[:3, :3] @ C
        return float(np.rad2deg(np.linalg.norm(lie.so3_log(C @ self.T_c_w[index][:3, :3].T))))


def run(robot: Robot, fusion: Fusion) -> list[list[FusedState]]:
    """The states that each arrival has given."""
    return [fusion.add(measurement) for measurement in robot.arrivals()]


def wheels(**changes: object) -> FusionConfig:
    return FusionConfig(odometry="wheels", **changes)


@pytest.mark.parametrize("delay_ms", [0, 150, 400])
@pytest.mark.parametrize("camera_ms", [30, 50, 100, 200])
def test_no_rotation_is_rejected_and_each_motion_goes_out_at_once(
    delay_ms: int, camera_ms: int
) -> None:
    robot, fusion = Robot(300, delay_ms, camera_ms), Fusion(wheels())
    for arrival, states in zip(robot.arrivals(), run(robot, fusion), strict=True):
        assert all(state.rejected == () for state in states)
        if isinstance(arrival, RelativePose) and arrival.stamp_1_ns > 0:
            assert states[-1].stamp_ns == arrival.stamp_2_ns
    assert fusion.window.gate.rotation.accepted >= 300 // max(camera_ms // 10, 6) - 10
    assert fusion.window.gate.rotation.rejected == 0


def test_the_gyro_puts_the_wheels_right() -> None:
    robot, fusion = Robot(315), Fusion(wheels())  # half a turn to and fro
    last = run(robot, fusion)[-1][-1]
    assert robot.wheels_error_deg(315) > 5.0
    assert robot.turn_error_deg(last) < 0.25 * robot.wheels_error_deg(315)


def test_states_are_at_most_so_many_a_second() -> None:
    robot, fusion = Robot(400, camera_ms=20), Fusion(wheels(state_rate_hz=10.0))
    run(robot, fusion)
    steps = np.diff(fusion.window.window.stamps) * 1e-9
    assert steps[1:].min() >= 0.09
    span = fusion.window.window.stamps[-1] - fusion.window.window.stamps[0]
    assert span * 1e-9 == pytest.approx(fusion.config.window_s, abs=0.2)


def test_late_rotations_enter_where_they_belong() -> None:
    """After states were made without them: the end is nearly as if they had come in time."""
    late, in_time = Robot(500, 800), Robot(500, 0)
    ends = []
    for robot in (late, in_time):
        fusion = Fusion(wheels(max_wait_s=0.3))
        states = [state for each in run(robot, fusion) for state in each]
        assert all(state.rejected == () for state in states)
        ends.append({s.stamp_ns: s for s in states}[400 * 10 * MS])
        stamps = fusion.window.window.stamps
        between = fusion.window.window.unmeasured()
        assert not between.any(), "a motion that was cut is whole"
        assert (np.diff(stamps) > 0).all()
    assert robot.turn_error_deg(ends[0]) < 0.5 * robot.wheels_error_deg(400) + 1.0


def test_without_a_camera_the_wheels_go_on() -> None:
    robot = Robot(600, without_camera=range(200, 400))
    fusion = Fusion(wheels())
    states = [state for each in run(robot, fusion) for state in each]
    assert {s.stamp_ns for s in states} >= {(i + 1) * 10 * MS for i in range(1, 600)}
    assert len(fusion.window.window) <= fusion.config.most_states


def test_without_wheels_the_camera_goes_on() -> None:
    """A second without wheels in a turn: the rotation over it is the camera's."""
    robot = Robot(400, 0, without_wheels=range(200, 300))
    fusion = Fusion(wheels(max_wait_s=0.0))
    last = [state for each in run(robot, fusion) for state in each][-1]
    assert last.stamp_ns == 400 * 10 * MS
    assert robot.turn_error_deg(last) < 3.0
    assert np.sqrt(last.Sigma_c_w[0, 0]) > 0.05, "where it went meanwhile is not known"


@pytest.mark.parametrize("smooth_s", [0.0, 0.5])
def test_corrections_are_smooth(smooth_s: float) -> None:
    robot = Robot(400, yaw_error=0.3)
    fusion = Fusion(wheels(), smooth_s=smooth_s)
    told: list[FusedState] = []
    for states in run(robot, fusion):
        told += [s for s in states if not told or s.stamp_ns > told[-1].stamp_ns]
    jumps = []
    for a, b in pairwise(told[50:]):
        moved = lie.se3_inverse(b.T_w_c) @ a.T_w_c
        index = round(b.stamp_ns / (10 * MS)) - 1
        jump = lie.se3_log(moved @ lie.se3_inverse(robot.wheels[index]))
        jumps.append(np.rad2deg(np.abs(jump[4])))
        assert (np.abs(jump) < 3.0 * np.sqrt(np.diag(b.Sigma_c_w))).all()
    assert robot.turn_error_deg(told[-1]) < 5.0
    largest = max(jumps)
    assert largest < 0.25 if smooth_s else largest > 0.5, largest


@pytest.mark.slow
def test_after_a_minute_the_scales_are_known() -> None:
    """What wheels with a wrong track turn too far in the second minute is eight times less."""
    robot, fusion = Robot(12_000, yaw_error=0.06, circling=0.1), Fusion(wheels())
    poses: dict[int, np.ndarray] = {}
    for states in run(robot, fusion):
        poses.update({round(state.stamp_ns / (10 * MS)): state.T_w_c for state in states})
    C, alone = np.eye(3), {0: np.eye(3)}
    for i, T in enumerate(robot.wheels, start=1):
        C = C @ T[:3, :3].T
        alone[i] = C
    errors = []
    for path in ({k: T[:3, :3] for k, T in poses.items()}, alone):
        start = robot.T_c_w[6000][:3, :3] @ path[6000]
        apart = [
            lie.so3_log(robot.T_c_w[k][:3, :3] @ path[k] @ start.T) for k in range(6000, 11950, 10)
        ]
        errors.append(float(np.sqrt(np.mean(np.square(apart)))))
    assert errors[0] < errors[1] / 8.0


def test_time_and_memory_per_update_are_flat() -> None:
    robot, fusion = Robot(3000), Fusion(wheels())
    seconds, sizes = [], []
    for measurement in robot.arrivals():
        began = time.perf_counter()
        fusion.add(measurement)
        seconds.append(time.perf_counter() - began)
        held = len(fusion._pairing.odometry), len(fusion.window.window), len(fusion.window._edges)
        sizes.append(held)
    assert max(sizes[1000:2000]) == max(sizes[2000:])
    third = len(seconds) // 3
    assert np.median(seconds[-third:]) < 1.5 * np.median(seconds[third : 2 * third])
    assert np.median(seconds) < 5e-3
