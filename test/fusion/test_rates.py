"""Wheels at 100 Hz beside a camera at 10 Hz whose rotations come late."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest

from hydranet_ros.fusion import rates
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

    def way_error(self, state: FusedState) -> float:
        index = round(state.stamp_ns / (10 * MS))
        true = lie.se3_inverse(self.T_c_w[index])
        return float(np.linalg.norm(state.T_w_c[:3, 3] - true[:3, 3]))

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


def test_corrections_are_smooth_where_a_rotation_ends_within_a_motion() -> None:
    """Wheels slip for 2 s in the dark, then a rotation over all of it ends after the output."""
    fusion = Fusion(wheels(), smooth_s=0.5)
    told: list[FusedState] = []
    for each in in_a_circle(4.0, 50 * MS, 20 * MS, dark=(10, 30), slip=1.2):
        told += [s for s in fusion.add(each) if not told or s.stamp_ns > told[-1].stamp_ns]
    errors = np.array([turn_error_deg(state) for state in told])
    assert errors.max() > 4.0
    assert errors[-1] < 1.0
    assert np.abs(np.diff(errors)).max() < 2.0, "a quarter of it goes in 50 ms"


# --- settings that change ------------------------------------------------------------------------

Change = Callable[[FusionConfig], FusionConfig]
CHANGES: dict[str, Change] = {
    "imu.use": lambda c: replace(c, imu=replace(c.imu, use=False)),
    "calibration.wheels": lambda c: replace(c, calibration=replace(c.calibration, wheels=False)),
    "rotation": lambda c: replace(c, rotation="hydranet"),
    "odometry": lambda c: replace(c, odometry="visual"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("smooth_s", [0.0, 0.3])
def test_a_setting_in_a_drive_leaves_the_pose_where_it_is(name: str, smooth_s: float) -> None:
    fusion = Fusion(wheels(), clock=lambda: 0.0, smooth_s=smooth_s)
    robot = Robot(450, yaw_error=0.0)
    for k, measurement in enumerate(robot.arrivals()):
        if k == 400:
            fusion.apply(CHANGES[name](fusion.config))
        for state in fusion.add(measurement):
            assert robot.way_error(state) < 0.06
    assert fusion.state is not None
    assert fusion.state.stamp_ns > 420 * 10 * MS


# --- clocks --------------------------------------------------------------------------------------

START = 100 * 1000 * MS
XI = np.array([0.0, 0.0, -0.5, 0.0, 0.3, 0.0])  # per second


def in_a_circle(
    seconds: float,
    wheels_ns: int = 20 * MS,
    offset_ns: int = 0,
    ahead_s: float = 0.0,
    dark: tuple[int, int] = (0, 0),
    slip: float = 1.0,
) -> Iterator[RelativePose | RelativeRotation]:
    """In the order in which they arrive, where the camera's clock is ahead of the wheels'.

    No image is seen after the first and before the second of `dark`; there the wheels slip.
    """
    arrivals: list[tuple[int, RelativePose | RelativeRotation]] = []
    for i in range(round(seconds * 1e9 / wheels_ns)):
        span = START + i * wheels_ns + offset_ns, START + (i + 1) * wheels_ns + offset_ns
        slips = dark[0] <= (span[0] - START) / (100 * MS) < dark[1]
        turned = XI * [1.0, 1.0, 1.0, 1.0, slip if slips else 1.0, 1.0]
        T = lie.se3_exp(turned * wheels_ns * 1e-9)
        arrivals.append((span[1], RelativePose(T, SIGMA_WHEELS, *span)))
    images = [i for i in range(round(seconds * 10) + 1) if not dark[0] < i < dark[1]]
    for a, b in pairwise(images):
        stamps = (START + i * 100 * MS + round(ahead_s * 1e9) for i in (a, b))
        C = lie.so3_exp(XI[3:] * 0.1 * (b - a))
        arrivals.append((START + b * 100 * MS, RelativeRotation(C, SIGMA_GYRO, *stamps)))
    yield from (each for _, each in sorted(arrivals, key=lambda arrival: arrival[0]))


def turn_error_deg(state: FusedState) -> float:
    true = lie.so3_exp(-XI[3:] * (state.stamp_ns - START) * 1e-9)
    return float(np.rad2deg(np.linalg.norm(lie.so3_log(true.T @ state.T_w_c[:3, :3]))))


def way_error(state: FusedState) -> float:
    true = lie.se3_exp(-XI * (state.stamp_ns - START) * 1e-9)
    return float(np.linalg.norm(true[:3, 3] - state.T_w_c[:3, 3]))


def with_clocks_apart(ahead_s: float, seconds: float = 6.0) -> tuple[Fusion, Counter[str]]:
    """The fusion after a drive, and what it said."""
    now, said = [0.0], Counter[str]()
    fusion = Fusion(wheels(), warn=lambda kind, _: said.update([kind]), clock=lambda: now[0])
    for each in in_a_circle(seconds, ahead_s=ahead_s):
        if isinstance(each, RelativePose):
            now[0] = each.stamp_2_ns * 1e-9
        fusion.add(each)
    return fusion, said


@pytest.mark.parametrize("ahead_s", [0.8, 3.0, 1e6])
def test_where_rotations_are_ahead_the_wheels_are_used(ahead_s: float) -> None:
    fusion, _ = with_clocks_apart(ahead_s)
    assert fusion.state is not None
    assert fusion.state.stamp_ns == START + 6000 * MS
    assert way_error(fusion.state) < 0.02
    assert fusion.window.gate.odometry.accepted > 50


def test_also_where_so_many_wait_that_the_oldest_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "MOST_WAITING", 10)
    fusion, _ = with_clocks_apart(3.0)
    assert fusion.waiting == 10
    assert fusion.state is not None
    assert fusion.state.stamp_ns == START + 6000 * MS
    assert way_error(fusion.state) < 0.02


def test_clocks_that_differ_are_told() -> None:
    for apart in (0.8, 3.0, -3.0):
        assert with_clocks_apart(apart)[1]["clocks"] > 10, apart
    for close in (0.0, 0.3, -0.8):
        assert with_clocks_apart(close)[1] == {}, close


def test_wheels_that_end_are_no_clock_that_differs() -> None:
    """Read from files, all comes at once."""
    said: list[str] = []
    fusion = Fusion(wheels(), warn=lambda kind, _: said.append(kind), clock=lambda: 0.0)
    for each in in_a_circle(4.0):
        if isinstance(each, RelativeRotation) or each.stamp_2_ns <= START + 2000 * MS:
            fusion.add(each)
        fusion.passed(each.stamp_2_ns)
    assert said == []


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
