"""An IMU: preintegration against Monte Carlo and GTSAM, its bias, gravity, and its vote."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fusion.test_factors import INDEX, check_jacobian, random_states

from hydranet_ros.fusion import imu
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.imu import ImuBuffer, ImuConfig, ImuSample, ImuTurn, integrate
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

MS = 1_000_000
BIAS = np.deg2rad([0.4, -0.3, 0.5])
UP = np.array([0.0, -1.0, 0.0])
SIGMA_WHEELS = np.diag([1e-3**2] * 3 + [2e-4**2] * 3)
SIGMA_GYRO = np.eye(3) * np.deg2rad(0.03) ** 2


# --- preintegration ------------------------------------------------------------------------------


def rates(rng: np.random.Generator, steps: int) -> np.ndarray:
    return rng.normal(size=3) + 0.5 * rng.normal(size=(steps, 3))


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_the_covariance_of_a_turn_by_monte_carlo(steps: int) -> None:
    rng = np.random.default_rng(steps)
    told, noise = rates(rng, steps), 0.01
    seconds = rng.uniform(0.004, 0.006, steps)
    turn = integrate(seconds, told, np.zeros(3), noise)
    errors = []
    for _ in range(1500):
        wrong = told + noise / np.sqrt(seconds)[:, None] * rng.normal(size=told.shape)
        errors.append(lie.so3_log(integrate(seconds, wrong, np.zeros(3), noise).C @ turn.C.T))
    found = np.cov(np.array(errors).T)
    scale = np.sqrt(np.outer(np.diagonal(turn.covariance), np.diagonal(turn.covariance)))
    assert np.abs((found - turn.covariance) / scale).max() < 0.15


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_the_jacobian_of_the_bias(steps: int) -> None:
    rng = np.random.default_rng(steps)
    told, seconds = rates(rng, steps), np.full(steps, 0.005)
    turn = integrate(seconds, told, BIAS, 0.01)
    for axis in np.eye(3):
        again = integrate(seconds, told, BIAS + 1e-6 * axis, 0.01)
        moved = lie.so3_log(again.C @ turn.C.T) / 1e-6
        np.testing.assert_allclose(moved, turn.jacobian @ axis, atol=1e-5 * steps * 0.005 + 1e-8)
    near = integrate(seconds, told, BIAS + 1e-3, 0.01)
    np.testing.assert_allclose(turn.at(BIAS + 1e-3), near.C, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_preintegration_is_that_of_gtsam(steps: int) -> None:
    gtsam = pytest.importorskip("gtsam")
    rng = np.random.default_rng(steps)
    told, seconds, noise = rates(rng, steps), rng.uniform(0.004, 0.006, steps), 0.01
    parameters = gtsam.PreintegratedRotationParams()
    parameters.setGyroscopeCovariance(noise**2 * np.eye(3))
    oracle = gtsam.PreintegratedAhrsMeasurements(parameters, BIAS)
    for rate, dt in zip(told, seconds, strict=True):
        oracle.integrateMeasurement(rate, float(dt))
    ours = integrate(seconds, told, BIAS, noise)
    np.testing.assert_allclose(ours.C, oracle.deltaRij().matrix().T, atol=1e-12)
    # GTSAM takes the noise of a step as if the step did not turn.
    np.testing.assert_allclose(ours.covariance, oracle.preintMeasCov(), rtol=2e-3, atol=1e-9)


def test_a_turn_is_the_same_however_it_is_cut() -> None:
    rng = np.random.default_rng(0)
    buffer = ImuBuffer(ImuConfig(), 10.0)
    for i in range(100):
        assert buffer.add(ImuSample(i * 10 * MS, rng.normal(size=3)))
    stamps = [123 * MS, 250 * MS, 251 * MS, 618 * MS]
    whole = buffer.turn(stamps[0], stamps[-1], BIAS)
    C = np.eye(3)
    for begin, end in pairwise(stamps):
        part = buffer.turn(begin, end, BIAS)
        assert part is not None
        C = part.C @ C
    assert whole is not None
    np.testing.assert_allclose(C, whole.C, atol=2e-5)


def test_what_the_samples_do_not_cover_is_not_integrated() -> None:
    buffer = ImuBuffer(ImuConfig(max_gap_s=0.05), 10.0)
    for i in (*range(10), *range(30, 40)):
        buffer.add(ImuSample(i * 10 * MS, np.zeros(3)))
    assert buffer.turn(10 * MS, 80 * MS, BIAS) is not None
    assert buffer.turn(10 * MS, 350 * MS, BIAS) is None
    assert buffer.turn(350 * MS, 395 * MS, BIAS) is None
    assert not buffer.add(ImuSample(390 * MS, np.zeros(3)))
    assert not buffer.add(ImuSample(400 * MS, np.array([np.nan, 0.0, 0.0])))


def test_the_factors_of_an_imu() -> None:
    rng = np.random.default_rng(3)
    states = random_states(rng)
    C = lie.so3_exp(rng.normal(size=(3, 3)) * 0.3)
    relative = states.C[INDEX[:, 1]] @ np.swapaxes(states.C[INDEX[:, 0]], -1, -2)
    edges = [
        ImuTurn(lie.so3_exp(0.2 * rng.normal(size=3)) @ c, np.eye(3), 0.01 * rng.normal(size=3), j)
        for c, j in zip(relative, C, strict=True)
    ]
    check_jacobian(lambda s: imu.turns(s, INDEX, edges), states, INDEX, imu.TURN_AND_BIAS)
    check_jacobian(lambda s: imu.bias_walk(s, INDEX), states, INDEX, imu.TWO_IMU_BIASES)
    up = rng.normal(size=(3, 3))
    check_jacobian(
        lambda s: imu.gravity(s, INDEX[:, :1], up, UP), states, INDEX[:, :1], imu.GRAVITY
    )


# --- in the fusion -------------------------------------------------------------------------------


class Robot:
    """Wheels at 50 Hz, a camera at 10 Hz, an IMU at 100 Hz; each can be told to be wrong."""

    def __init__(self, seed: int = 0, **settings: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.fusion = Fusion(replace(FusionConfig(odometry="wheels"), **settings))
        self.time, self.T_w_c, self.last = 0, np.eye(4), np.eye(4)
        self.state: FusedState | None = None
        self.states: list[FusedState] = []

    def drive(
        self,
        seconds: float,
        speed: float = 0.0,
        rate: float = 0.0,
        wheels: tuple[float, float] | None = None,
        seen: float | None = None,
        imu: bool = True,
        shaken: float = 0.01,
        camera: bool = True,
        moved: bool = True,
    ) -> None:
        """`wheels` (speed, rate) and `seen` (rate) are what they say where it is not the truth."""
        told = (speed, rate) if wheels is None else wheels
        for _ in range(round(seconds * 100)):
            step = lie.se3_exp(np.array([0.0, 0.0, -speed, 0.0, rate, 0.0]) * 0.01)
            self.T_w_c = self.T_w_c @ lie.se3_inverse(step)
            self.time += 10 * MS
            if imu:
                w = np.array([0.0, -rate, 0.0]) + BIAS + 3e-3 * self.rng.normal(size=3)
                up = self.T_w_c[:3, :3].T @ UP
                felt = 9.81 * up + shaken * self.rng.normal(size=3)
                self.fusion.add_imu(ImuSample(self.time, w, felt), np.eye(3))
            if moved and self.time % (20 * MS) == 0:
                xi = np.array([0.0, 0.0, -told[0], 0.0, told[1], 0.0]) * 0.02
                T = lie.se3_exp(xi)
                span = self.time - 20 * MS, self.time
                self.take(self.fusion.add(RelativePose(T, SIGMA_WHEELS, *span)))
            if self.time % (100 * MS) == 0:
                C = self.T_w_c[:3, :3].T @ self.last[:3, :3]
                self.last = self.T_w_c
                if seen is not None:
                    C = lie.so3_exp(np.array([0.0, seen * 0.1, 0.0]))
                noise = lie.so3_exp(np.deg2rad(0.03) * self.rng.normal(size=3))
                span = self.time - 100 * MS, self.time
                if camera:
                    self.take(self.fusion.add(RelativeRotation(noise @ C, SIGMA_GYRO, *span)))

    def take(self, states: list[FusedState]) -> None:
        self.states += states
        self.state = states[-1] if states else self.state

    @property
    def turned_deg(self) -> float:
        """How far the fused heading is from the true one."""
        assert self.state is not None
        C = self.state.T_w_c[:3, :3].T @ self.T_w_c[:3, :3]
        return float(np.rad2deg(np.linalg.norm(lie.so3_log(C))))


def test_the_bias_is_found_while_moving_and_told_with_its_sigma() -> None:
    robot = Robot()
    for turn in (0.4, -0.3, 0.5, -0.6):
        robot.drive(3.0, 0.5, turn)
    assert robot.state is not None
    assert robot.state.Sigma_imu_bias is not None
    error = robot.state.imu_bias - BIAS
    assert error @ np.linalg.solve(robot.state.Sigma_imu_bias, error) < 16.0
    assert np.rad2deg(np.abs(error)).max() < 0.15


def test_the_bias_is_found_by_standing_still() -> None:
    robot = Robot()
    robot.drive(3.0)
    assert robot.state is not None
    assert robot.state.still
    assert np.rad2deg(np.abs(robot.state.imu_bias - BIAS)).max() < 0.05
    assert robot.state.Sigma_imu_bias is not None
    assert np.rad2deg(np.sqrt(np.diagonal(robot.state.Sigma_imu_bias))).max() < 0.06


@pytest.mark.parametrize("with_imu", [True, False])
def test_an_imu_carries_through_the_dark(with_imu: bool) -> None:
    """The camera sees nothing, and the wheels turn by a quarter too much."""
    robot = Robot()
    robot.drive(2.0, imu=with_imu)
    robot.drive(2.0, 0.4, 0.4, imu=with_imu)
    robot.drive(4.0, 0.4, 0.5, wheels=(0.4, 0.625), camera=False, imu=with_imu)
    if with_imu:
        assert robot.turned_deg < 2.0
    else:
        assert robot.turned_deg > 10.0


def test_a_crowd_that_passes_does_not_turn_a_robot_that_stands() -> None:
    robot = Robot()
    robot.drive(2.0)
    robot.drive(4.0, seen=np.deg2rad(4.0))
    assert robot.state is not None
    assert robot.state.still
    assert robot.turned_deg < 0.05


def test_a_robot_that_is_pushed_with_still_wheels_is_not_held() -> None:
    robot = Robot()
    robot.drive(2.0)
    robot.drive(4.0, 0.1, 0.3, wheels=(0.0, 0.0), shaken=0.5)
    assert robot.state is not None
    assert not robot.state.still
    assert robot.turned_deg < 3.0  # of 69
    assert robot.fusion.window.gate.slips > 10


def test_a_robot_that_drives_straight_is_not_held() -> None:
    robot = Robot()
    robot.drive(2.0)
    robot.drive(3.0, 0.3)
    assert robot.state is not None
    assert not robot.state.still
    assert np.linalg.norm(robot.state.T_w_c[:3, 3] - robot.T_w_c[:3, 3]) < 0.05


def test_a_stuck_wheel_is_noticed_and_does_not_turn_the_robot() -> None:
    robot = Robot()
    robot.drive(2.0)
    robot.drive(2.0, 0.4, 0.2)
    before = robot.fusion.window.gate.slips
    robot.drive(3.0, 0.4, 0.0, wheels=(0.2, 0.6))  # the left one stands
    assert robot.fusion.window.gate.slips - before > 20
    assert robot.turned_deg < 2.0  # of 103
    reasons = {each.reason for state in robot.states for each in state.rejected}
    assert any("slips" in reason for reason in reasons)


def test_an_imu_in_wrong_axes_is_outvoted() -> None:
    robot = Robot()
    robot.drive(1.0)
    add = robot.fusion.add_imu
    swap = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    robot.fusion.add_imu = lambda sample, _: add(sample, swap)  # type: ignore[method-assign]
    robot.drive(4.0, 0.3, 0.6)
    assert robot.turned_deg < 5.0  # of 137
    robot.drive(3.0, 0.3, 0.6, camera=False)
    assert robot.turned_deg < 8.0  # of 240: the wheels alone go on, nobody asks it again


def test_gravity_holds_roll_and_pitch() -> None:
    """Rotations from images that roll by half a degree a second, with and without gravity."""
    found = {}
    for gravity in ("auto", "off"):
        config = FusionConfig(imu=ImuConfig(gravity=gravity, noise_deg=1.0))
        fusion, rng = Fusion(config), np.random.default_rng(0)
        for i in range(300):
            for k in range(5):
                stamp = i * 50 * MS + k * 10 * MS
                felt = 9.81 * UP + 0.05 * rng.normal(size=3)
                fusion.add_imu(ImuSample(stamp, 0.01 * rng.normal(size=3), felt), np.eye(3))
            roll = lie.so3_exp([0.0, 0.0, np.deg2rad(0.025)])
            span = i * 50 * MS, (i + 1) * 50 * MS
            moved = lie.se3_from(roll, np.array([0.0, 0.0, -0.05]))
            states = fusion.add(RelativePose(moved, np.eye(6) * 1e-6, *span))
            states += fusion.passed(span[1])
        up = fusion.state.T_w_c[:3, :3].T @ UP if fusion.state is not None else UP
        found[gravity] = float(np.rad2deg(np.arccos(np.clip(up @ UP, -1.0, 1.0))))
    assert found["off"] > 6.0
    assert found["auto"] < 0.4 * found["off"]


@pytest.mark.parametrize("apart_s", [1000, -1000])
def test_an_imu_of_another_time_tells_nothing_of_the_gyro(apart_s: int) -> None:
    """Its scale is as well known as without an IMU."""
    sigmas = []
    for with_imu in (True, False):
        robot = with_clock_apart(Robot(), apart_s * 1000 * MS)
        robot.drive(0.5, 1.0, imu=with_imu)
        assert robot.state is not None
        assert robot.state.Sigma_scales is not None
        sigmas.append(np.sqrt(robot.state.Sigma_scales[0, 0]))
    assert sigmas[0] == pytest.approx(sigmas[1], rel=0.01)


def with_clock_apart(robot: Robot, apart_ns: int) -> Robot:
    """The IMU has a clock of its own."""
    add = robot.fusion.add_imu

    def shifted(sample: ImuSample, C: np.ndarray | None) -> None:
        add(replace(sample, stamp_ns=sample.stamp_ns + apart_ns), C)

    robot.fusion.add_imu = shifted  # type: ignore[method-assign]
    return robot


def listened(robot: Robot) -> list[tuple[str, str]]:
    """What the fusion will warn of."""
    said: list[tuple[str, str]] = []
    robot.fusion._warn = lambda kind, text: said.append((kind, text))
    return said


def test_one_imu_stamp_in_the_future_does_not_end_the_imu() -> None:
    robot = Robot()
    said = listened(robot)
    robot.drive(0.5, 0.5, 0.2)
    late = ImuSample(robot.time + 3600 * 1000 * MS, np.zeros(3))
    robot.fusion.add_imu(late, np.eye(3))
    robot.drive(0.5, 0.5, 0.2)
    samples = robot.fusion.window.imu
    assert samples.turn(robot.time - 400 * MS, robot.time, BIAS) is not None
    assert said == [("imu", f"sample at {late.stamp_ns} ns is not used: a lone stamp")]


def test_imu_stamps_that_go_back_are_said_and_used_from_there() -> None:
    robot = Robot()
    said = listened(robot)
    robot.drive(0.5, 0.5, 0.2)
    robot = with_clock_apart(robot, -400 * MS)
    robot.drive(0.3, 0.5, 0.2)
    now = robot.time - 400 * MS
    samples = robot.fusion.window.imu
    assert samples.turn(now - 200 * MS, now, BIAS) is not None
    assert samples.turn(now, now + 50 * MS, BIAS) is None, "what was there before is void"
    assert [kind for kind, _ in said] == ["imu"]
    assert "went back" in said[0][1]


def test_a_setting_leaves_the_vertical_as_it_was_found() -> None:
    robot = Robot()
    robot.drive(1.0)
    up_w = robot.fusion.window.window.up_w
    assert up_w is not None
    config = robot.fusion.config
    calibration = replace(config.calibration, wheels=False)
    robot.fusion.apply(replace(config, calibration=calibration))
    robot.drive(0.1)
    np.testing.assert_array_equal(robot.fusion.window.window.up_w, up_w)


@pytest.mark.parametrize(
    "variances",
    [[0.25, 0.25, -5e-10, 0.0, 0.0, 0.07], [1e12] * 6],
    ids=["negative by rounding", "not known at all"],
)
def test_a_pose_is_set_with_any_covariance(variances: list[float]) -> None:
    robot = Robot()
    said = listened(robot)
    robot.drive(0.5, 1.0, 0.1)
    placed, robot.states = robot.T_w_c, []
    robot.fusion.set_pose(placed, np.diag(variances))
    robot.drive(1.0, 1.0, 0.1)
    assert len(robot.states) > 50
    assert said == []
    for state in robot.states:
        assert np.linalg.eigvalsh(state.Sigma_c_w)[0] > 0.0
    assert np.linalg.norm(robot.states[-1].T_w_c[:3, 3] - robot.T_w_c[:3, 3]) < 0.1
    sigmas = np.sqrt(np.diagonal(robot.states[-1].Sigma_c_w))
    assert (sigmas > 0.9 * np.sqrt(np.clip(variances, 0.0, 1e4))).all()


def test_a_pose_that_is_set_leaves_what_was_learnt_of_the_sensors() -> None:
    robot = Robot()
    robot.drive(2.0)
    robot.drive(3.0, 0.4, 0.5)
    before = robot.state
    assert before is not None
    robot.fusion.set_pose(robot.T_w_c, np.eye(6) * 0.01)
    robot.drive(0.2, 0.4, 0.5)
    after = robot.state
    assert after is not None
    assert after is not before
    assert after.Sigma_imu_bias is not None
    assert before.Sigma_imu_bias is not None
    np.testing.assert_allclose(after.imu_bias, before.imu_bias, atol=np.deg2rad(0.05))
    assert np.trace(after.Sigma_imu_bias) < 1.5 * np.trace(before.Sigma_imu_bias)
    assert np.trace(after.Sigma_scales) < 1.5 * np.trace(before.Sigma_scales)
    robot.fusion.reset()
    robot.drive(0.2, 0.4, 0.5)
    assert robot.state is not None
    assert robot.state.Sigma_imu_bias is not None
    assert np.trace(robot.state.Sigma_imu_bias) > 4.0 * np.trace(after.Sigma_imu_bias)


def test_wheels_and_imu_that_come_late_find_the_scale_of_the_gyro() -> None:
    """Before them rotations are all there is, and no scale shows."""
    robot = Robot()
    robot.drive(3.0, 0.3, 0.3, seen=0.3 * 1.05, imu=False, moved=False)
    for turn in (0.3, -0.3, 0.4):
        robot.drive(2.0, 0.3, turn, seen=turn * 1.05)
    assert robot.state is not None
    assert robot.state.Sigma_imu_bias is not None
    error = robot.state.imu_bias - BIAS
    assert error @ np.linalg.solve(robot.state.Sigma_imu_bias, error) < 16.0
    assert robot.state.scales[0] == pytest.approx(0.05, abs=0.02)


def test_what_was_learnt_is_less_sure_after_a_pause_and_forgotten_in_another_drive() -> None:
    robot = Robot()
    robot.drive(2.0)
    window = robot.fusion.window
    assert robot.state is not None
    assert robot.state.Sigma_imu_bias is not None
    before = np.trace(robot.state.Sigma_imu_bias)
    robot.fusion.set_pose(robot.T_w_c, np.eye(6) * 0.01)
    robot.fusion.apply(replace(robot.fusion.config, max_wait_s=0.2))  # nothing of the states
    robot.time += 600_000 * MS
    robot.drive(0.1, 0.4, 0.5)
    walk = 3.0 * np.deg2rad(robot.fusion.config.imu.bias_walk_deg_s) ** 2 * 600.0
    assert robot.state.Sigma_imu_bias is not None
    assert np.trace(robot.state.Sigma_imu_bias) == pytest.approx(before + walk, rel=0.3)
    robot.fusion.set_pose(robot.T_w_c, np.eye(6) * 0.01)
    window.restart()  # before anything was measured at the new pose
    assert len(window.imu) == 0
    robot.drive(0.1, 0.4, 0.5)
    assert robot.state.Sigma_imu_bias is not None
    assert np.trace(robot.state.Sigma_imu_bias) > 10.0 * before


def test_an_imu_that_comes_late_is_used_from_then_on() -> None:
    robot = Robot()
    robot.drive(2.0, 0.4, 0.3, imu=False)
    before = robot.turned_deg
    robot.drive(0.1, 0.4, 0.3)
    assert robot.turned_deg == pytest.approx(before, abs=0.3)
    robot.drive(2.0)
    assert robot.state is not None
    assert np.rad2deg(np.abs(robot.state.imu_bias - BIAS)).max() < 0.1
