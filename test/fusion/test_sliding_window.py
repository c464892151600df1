"""The sliding window fusion: stamps, gaps, bias, honesty, and never a NaN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fusion.fusion_worlds import (
    HONEST,
    PERIOD_NS,
    PERIOD_S,
    Drive,
    correlated,
    draw,
    honest,
    random_walk_motion,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import covariances

from hydranet_ros.datasets.recording import read_recording
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.error_models import OdometryModel, RotationModel
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

SIGMA_VO = np.diag([0.01**2] * 3 + [5e-4**2] * 3)
SIGMA_HN = np.diag([1e-3**2] * 3)
FORWARD = lie.se3_exp([0.0, 0.0, -1.0, 0.0, 0.01, 0.0])
LATE = 1_700_000_000 * 10**9  # stamps as they come from a clock


def drive(steps: int, seed: int, config: FusionConfig | None = None, **more) -> Drive:
    rng = np.random.default_rng(seed)
    motion = random_walk_motion(rng, steps, config or FusionConfig(acceleration=1.0))
    return Drive(rng, motion, SIGMA_VO, SIGMA_HN, **more)


def vo(begin: float, end: float, T: np.ndarray = FORWARD, Sigma: np.ndarray = SIGMA_VO):
    """VO between two frames, of a steady motion unless told otherwise."""
    if T is FORWARD:
        T = lie.se3_exp(lie.se3_log(FORWARD) * (end - begin))
    return RelativePose(T, Sigma, round(begin * PERIOD_NS), round(end * PERIOD_NS))


def rotation(begin: float, end: float, Sigma: np.ndarray = SIGMA_HN) -> RelativeRotation:
    C = lie.se3_exp(lie.se3_log(FORWARD) * (end - begin))[:3, :3]
    return RelativeRotation(C, Sigma, round(begin * PERIOD_NS), round(end * PERIOD_NS))


def check(state: FusedState) -> None:
    """Everything finite, every covariance symmetric and positive definite."""
    assert np.isfinite(state.T_w_c).all()
    assert np.abs(state.T_w_c[:3, :3] @ state.T_w_c[:3, :3].T - np.eye(3)).max() < 1e-9
    assert np.isfinite(state.velocity).all()
    assert np.isfinite(state.bias).all()
    for covariance in (state.Sigma_c_w, state.Sigma_2_1, state.Sigma_bias):
        if covariance is not None:
            assert np.isfinite(covariance).all()
            deviations = np.sqrt(np.diagonal(covariance))
            correlations = covariance / np.outer(deviations, deviations)
            np.testing.assert_allclose(correlations, correlations.T, atol=1e-9)
            assert np.linalg.eigvalsh(0.5 * (correlations + correlations.T))[0] > 0.0


def pose_error(state: FusedState, world: Drive, frame: int) -> np.ndarray:
    """Log(T_c_w inv(T_true)), the perturbation that Sigma_c_w speaks of."""
    return lie.se3_log(lie.se3_inverse(state.T_w_c) @ lie.se3_inverse(world.T_c_w(frame)))


def nees(error: np.ndarray, covariance: np.ndarray) -> float:
    return float(error @ np.linalg.solve(covariance, error))


# --- the result ----------------------------------------------------------------------------------


def test_the_state_speaks_of_the_newest_frame() -> None:
    start = lie.se3_exp([1.0, 2.0, 3.0, 0.1, 0.2, 0.3])
    fusion = SlidingWindowFusion(T_w_c=start)
    assert not fusion.started
    for i in range(5):
        state = fusion.update(vo(i, i + 1), rotation(i, i + 1))
        check(state)
    assert fusion.started
    assert state.stamp_ns == 5 * PERIOD_NS
    assert state.T_2_1 is not None
    np.testing.assert_allclose(state.T_2_1, FORWARD, atol=1e-9)
    expected = start @ lie.se3_inverse(np.linalg.matrix_power(FORWARD, 5))
    np.testing.assert_allclose(state.T_w_c, expected, atol=1e-9)
    # the camera moves the other way than the world does in its eyes
    np.testing.assert_allclose(state.velocity, -lie.se3_log(FORWARD) / PERIOD_S, atol=1e-7)


@pytest.mark.parametrize("estimate_bias", [True, False])
def test_covariances_are_honest_by_monte_carlo(estimate_bias: bool) -> None:
    """NEES of the newest pose and of the last motion, after the window has moved on."""
    config = FusionConfig(**HONEST, window_size=4, estimate_bias=estimate_bias)
    rng = np.random.default_rng(11)
    of_pose, of_motion, runs = [], [], 80
    for _ in range(runs):
        bias = np.tile(rng.normal(size=3) * np.deg2rad(0.3) * estimate_bias, (8, 1))
        world = Drive(
            rng,
            random_walk_motion(rng, 8, config),
            correlated(rng, [0.01] * 3 + [1e-3] * 3),
            correlated(rng, [1e-3] * 3),
            bias,
        )
        fusion = SlidingWindowFusion(config)
        for measured in world.both():
            state = fusion.update(*measured)
        of_pose.append(nees(pose_error(state, world, 8), state.Sigma_c_w))
        assert state.T_2_1 is not None
        error = lie.se3_log(state.T_2_1 @ lie.se3_inverse(world.T_2_1[-1]))
        of_motion.append(nees(error, state.Sigma_2_1))
    margin = 4 * np.sqrt(12 / runs)
    assert np.mean(of_pose) == pytest.approx(6, abs=margin)
    assert np.mean(of_motion) == pytest.approx(6, abs=margin)


def test_vo_alone_has_the_covariance_of_vo() -> None:
    """The motion since the last state owes nothing to how uncertain that state is."""
    calm = {"acceleration": 30.0, "angular_acceleration_deg": 300.0}  # nothing is doubted
    config = FusionConfig(**HONEST, **calm, window_size=4, estimate_bias=False)
    fusion = SlidingWindowFusion(config)
    rng = np.random.default_rng(12)
    for i in range(10):
        T = lie.se3_exp(rng.normal(size=6) * [0.1, 0.1, 0.1, 0.02, 0.02, 0.02]) @ FORWARD
        Sigma = correlated(rng, [0.02] * 3 + [5e-3] * 3)
        state = fusion.update(vo(i, i + 1, T, Sigma))
        np.testing.assert_allclose(state.Sigma_2_1, Sigma, rtol=1e-4, atol=1e-8)


# --- the bias ------------------------------------------------------------------------------------


def test_a_constant_bias_is_found() -> None:
    config = FusionConfig(**honest(bias_walk_deg_s=0.005), acceleration=1.0)
    bias = np.deg2rad([0.3, -0.2, 0.25])
    world = drive(300, 1, config, bias=np.tile(bias, (300, 1)))
    fusion = SlidingWindowFusion(config)
    for measured in world.both():
        state = fusion.update(*measured)
    assert state.Sigma_bias is not None
    sigma = np.sqrt(np.diagonal(state.Sigma_bias))
    assert (np.abs(state.bias - bias) < 3.0 * sigma).all()
    assert (sigma < np.deg2rad(0.1)).all()
    # and what it does to the trajectory is taken out: alone it would turn it by 13 degrees
    assert np.linalg.norm(pose_error(state, world, 300)[3:]) < np.deg2rad(3)


def test_without_its_state_the_bias_stays_in_the_trajectory() -> None:
    bias = np.tile(np.deg2rad([0.0, 1.0, 0.0]), (100, 1))
    world = drive(100, 2, bias=bias)
    ends = []
    for estimate_bias in (True, False):
        fusion = SlidingWindowFusion(FusionConfig(**honest(2.0), estimate_bias=estimate_bias))
        for measured in world.both():
            state = fusion.update(*measured)
        ends.append(np.linalg.norm(pose_error(state, world, 100)[3:]))
        assert (state.Sigma_bias is None) != estimate_bias
    assert ends[0] < 0.5 * ends[1]


def test_a_walking_bias_is_known_as_well_as_it_is_said() -> None:
    """NEES of the bias over Monte Carlo runs, the walk being the one of the model."""
    config = FusionConfig(**honest(bias_walk_deg_s=0.2), acceleration=1.0, window_size=5)
    rng = np.random.default_rng(3)
    runs, steps, values = 60, 20, []
    for _ in range(runs):
        start = rng.normal(size=3) * np.deg2rad(config.rotation_model.bias_sigma_deg_s)
        walk = rng.normal(size=(steps, 3)) * np.deg2rad(0.2) * np.sqrt(PERIOD_S)
        motion = random_walk_motion(rng, steps, config)
        world = Drive(rng, motion, SIGMA_VO, SIGMA_HN, start + np.cumsum(walk, axis=0))
        fusion = SlidingWindowFusion(config)
        for measured in world.both():
            state = fusion.update(*measured)
        assert state.Sigma_bias is not None
        assert world.bias is not None
        values.append(nees(state.bias - world.bias[-1], state.Sigma_bias))
    assert np.mean(values) == pytest.approx(3, abs=4 * np.sqrt(6 / runs))


# --- silence -------------------------------------------------------------------------------------


def test_a_gap_is_bridged_and_its_covariance_is_honest() -> None:
    """NEES of the pose after ten frames without VO, of motions that follow the model exactly."""
    config = FusionConfig(**HONEST, estimate_bias=False, angular_acceleration_deg=10.0)
    rng = np.random.default_rng(4)
    runs, values = 80, []
    for _ in range(runs):
        world = Drive(rng, random_walk_motion(rng, 14, config), SIGMA_VO, SIGMA_HN)
        fusion = SlidingWindowFusion(config)
        fusion.update(*(world.vo(i) for i in range(4)))
        for i in range(4, 14):
            state = fusion.update(world.rotation(i))
        values.append(nees(pose_error(state, world, 14), state.Sigma_c_w))
    assert np.mean(values) == pytest.approx(6, abs=4 * np.sqrt(12 / runs))
    assert np.linalg.norm(state.T_w_c[:3, 3]) > 5.0


def test_the_covariance_after_a_silent_gap_is_cautious() -> None:
    """One long step stands for ten of the model: its covariance is larger, not smaller."""
    config = FusionConfig(**HONEST, estimate_bias=False, angular_acceleration_deg=10.0)
    rng = np.random.default_rng(4)
    values = []
    for _ in range(80):
        world = Drive(rng, random_walk_motion(rng, 15, config), SIGMA_VO, SIGMA_HN)
        fusion = SlidingWindowFusion(config)
        fusion.update(*(world.vo(i) for i in range(4)))
        state = fusion.update(world.vo(14))
        values.append(nees(pose_error(state, world, 15), state.Sigma_c_w))
    assert 2.0 < np.mean(values) < 7.0


def test_the_covariance_grows_with_a_gap_and_the_motion_goes_on() -> None:
    sizes = []
    for gap in range(1, 11):
        fusion = SlidingWindowFusion()
        for i in range(5):
            fusion.update(vo(i, i + 1))
        expected = lie.se3_inverse(np.linalg.matrix_power(FORWARD, 5 + gap))
        np.testing.assert_allclose(fusion.predict((5 + gap) * PERIOD_NS), expected, atol=1e-3)
        state = fusion.update(vo(5 + gap, 6 + gap))
        check(state)
        sizes.append(np.trace(state.Sigma_c_w[:3, :3]))
    assert (np.diff(sizes) > 0).all()
    # the velocity is a random walk, so that the position's variance grows with the cube
    assert sizes[-1] > 300 * sizes[0] * 0.1


def test_late_vo_takes_the_place_of_the_motion_prior() -> None:
    """The end is as if it had come in time, although the motion was not at all as expected."""
    turn = lie.se3_exp([0.1, 0.0, -1.15, 0.0, 0.02, 0.0])
    config = FusionConfig(rotation="hydranet")
    late, in_time = SlidingWindowFusion(config), SlidingWindowFusion(config)
    for i in range(4):
        late.update(vo(i, i + 1))
        in_time.update(vo(i, i + 1))
    late.update(rotation(4, 5))
    guessed = late.update(vo(5, 6))
    state = late.update(vo(4, 5, turn))
    in_time.update(vo(4, 5, turn), rotation(4, 5))
    expected = in_time.update(vo(5, 6))
    assert state.rejected == expected.rejected == ()
    assert np.abs(guessed.T_w_c - expected.T_w_c).max() > 0.03
    np.testing.assert_allclose(state.T_w_c, expected.T_w_c, atol=1e-6)
    np.testing.assert_allclose(state.Sigma_c_w, expected.Sigma_c_w, rtol=1e-4, atol=1e-12)


def test_a_velocity_is_not_carried_on_for_ever() -> None:
    """10 m/s, then 5 s of silence: 2 s of it are bridged, the rest is uncertainty."""
    fusion = SlidingWindowFusion(FusionConfig(max_gap_s=2.0))
    straight = lie.se3_exp([0.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    for i in range(5):
        before = fusion.update(vo(i, i + 1, straight))
    predicted = fusion.predict(55 * PERIOD_NS)
    assert predicted[2, 3] - before.T_w_c[2, 3] == pytest.approx(20.0, abs=0.5)
    state = fusion.update(vo(55, 56, straight))
    assert np.sqrt(state.Sigma_c_w[2, 2]) > 10.0


def test_hours_of_silence_leave_the_window_solvable() -> None:
    """Drives a quarter of an hour, then a day apart: the pose is unknown, and it goes on."""
    world = drive(400, seed=11)
    fusion, sigmas, offset = SlidingWindowFusion(), [], 0
    for i in range(400):
        if i % 50 == 0:
            offset += (1000 if i < 200 else 86400) * 10**9
        state = fusion.update(
            *(shifted(each, offset) for each in (world.vo(i), world.rotation(i)))
        )
        check(state)
        if i % 50 == 49:
            sigmas.append(float(np.sqrt(np.diagonal(state.Sigma_c_w)[:3].max())))
            motion = lie.se3_log(state.T_2_1 @ lie.se3_inverse(world.vo(i).T_2_1))
            assert np.abs(motion).max() < 0.05
    assert sigmas[0] < 5.0
    assert min(sigmas[1:]) > 100.0


def shifted(measurement: RelativePose | RelativeRotation, by_ns: int):
    stamps = {n: getattr(measurement, n) + by_ns for n in ("stamp_1_ns", "stamp_2_ns")}
    return replace(measurement, **stamps)


def test_nothing_is_predicted_before_a_start_or_before_the_window() -> None:
    fusion = SlidingWindowFusion(FusionConfig(window_size=3))
    with pytest.raises(ValueError, match="nothing is known"):
        fusion.predict(0)
    for i in range(9):
        state = fusion.update(vo(i, i + 1))
    np.testing.assert_allclose(fusion.predict(9 * PERIOD_NS), state.T_w_c, atol=1e-12)
    with pytest.raises(ValueError, match="nothing is known"):
        fusion.predict(PERIOD_NS)


def test_rotations_alone_start_and_go_on() -> None:
    fusion = SlidingWindowFusion()
    for i in range(15):
        state = fusion.update(rotation(i, i + 1))
        check(state)
    expected = lie.se3_inverse(np.linalg.matrix_power(FORWARD, 15))[:3, :3]
    np.testing.assert_allclose(state.T_w_c[:3, :3], expected, atol=1e-2)


def test_covariances_are_believed_as_configured() -> None:
    config = FusionConfig(
        odometry="wheels",
        wheels=OdometryModel(scale=3.0, floor_m=0.2, floor_deg=0.7),
        rotation="hydranet",
        hydranet=RotationModel(inflation=5.0, floor_deg=0.4, scale_noise=0.25),
    )
    fusion = SlidingWindowFusion(config)
    Sigma_vo = correlated(np.random.default_rng(0), [0.1] * 3 + [0.01] * 3)
    Sigma_hn = correlated(np.random.default_rng(1), [0.01] * 3)
    fusion.update(vo(0, 8, Sigma=Sigma_vo), rotation(0, 8, Sigma_hn))
    floor = 8.0 * np.diag([0.2**2] * 3 + [np.deg2rad(0.7) ** 2] * 3)  # 0.8 s
    believed = np.linalg.inv(fusion.window.poses.information[0])
    np.testing.assert_allclose(believed, 3.0 * Sigma_vo + floor, rtol=1e-9, atol=1e-12)
    turned = np.linalg.norm(lie.so3_log(rotation(0, 8).C_2_1))
    assert turned == pytest.approx(0.08)
    own = np.eye(3) * (np.deg2rad(0.4) ** 2 + (0.25 * turned) ** 2)
    believed = np.linalg.inv(fusion.window.rotations.information[0])
    np.testing.assert_allclose(believed, 5.0 * Sigma_hn + own, rtol=1e-9, atol=1e-12)


# --- stamps --------------------------------------------------------------------------------------


def reasons(state: FusedState) -> list[tuple[str, str]]:
    return [(r.source, r.reason) for r in state.rejected]


def test_duplicates_are_rejected_in_one_update_and_later() -> None:
    fusion = SlidingWindowFusion()
    state = fusion.update(vo(0, 1), vo(0, 1), rotation(0, 1))
    assert reasons(state) == [("odometry", "there is one of this interval already")]
    before = state.T_w_c
    state = fusion.update(rotation(0, 1), vo(0, 1))
    assert sorted(source for source, _ in reasons(state)) == ["odometry", "rotation"]
    np.testing.assert_allclose(state.T_w_c, before, atol=1e-9)
    assert len(fusion.window.poses.stamps) == len(fusion.window.rotations.stamps) == 1


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (FusionConfig(window_size=4), "window_size"),
        (FusionConfig(odometry="wheels", window_s=0.3), "window_s"),
    ],
)
def test_what_begins_before_the_window_is_rejected(config: FusionConfig, remedy: str) -> None:
    fusion = SlidingWindowFusion(config)
    for i in range(8):
        fusion.update(vo(i, i + 1))
    state = fusion.update(rotation(2, 5))
    why = "it begins before the window, which has moved on: raise fusion." + remedy
    assert reasons(state) == [("rotation", why)]
    assert fusion.update(rotation(5, 8)).rejected == ()


def test_what_ends_where_no_state_fits_is_rejected() -> None:
    """Long rotations that were marginalised tie several states together: none fits between."""
    fusion = SlidingWindowFusion(FusionConfig(window_size=8))
    for i in range(10):
        fusion.update(vo(i, i + 1), *([rotation(i - 4, i + 1)] if i >= 4 else []))
    oldest = int(fusion.window.stamps[0]) / PERIOD_NS
    state = fusion.update(vo(oldest, oldest + 0.5))
    assert [source for source, _ in reasons(state)] == ["odometry"]
    check(state)
    assert len(fusion.window) == 8


def test_an_interval_within_the_tolerance_is_rejected() -> None:
    short = [vo(0, 0.0005), vo(1, 1.0005), vo(3, 3.0005)]
    with pytest.raises(ValueError, match="nothing to start from: its interval is shorter"):
        SlidingWindowFusion().update(short[0])
    fusion = SlidingWindowFusion()
    fusion.update(vo(0, 1))
    for one in short:
        assert [source for source, _ in reasons(fusion.update(one))] == ["odometry"]
    assert len(fusion.window) == 2


def test_stamps_within_the_tolerance_are_one_state() -> None:
    """Also of the two halves of one update, where neither stamp is known before."""
    fusion = SlidingWindowFusion()
    fusion.update(vo(0, 1), rotation(0.0005, 1.0009))
    assert len(fusion.window) == 2
    fusion.update(vo(1.0005, 2))
    fusion.update(rotation(1.0009, 2.0009))
    np.testing.assert_array_equal(fusion.window.stamps, np.array([0, 1, 2]) * PERIOD_NS)
    assert len(fusion.window.rotations.stamps) == 2
    # and beyond the tolerance they are not
    fusion.update(rotation(2.002, 3))
    assert len(fusion.window) == 5


def test_the_first_update_may_come_in_any_order() -> None:
    fusion = SlidingWindowFusion()
    state = fusion.update(vo(1, 2), vo(0, 3), vo(2, 3))
    assert state.rejected == ()
    np.testing.assert_array_equal(fusion.window.stamps, np.arange(4) * PERIOD_NS)
    expected = lie.se3_inverse(np.linalg.matrix_power(FORWARD, 3))
    np.testing.assert_allclose(state.T_w_c, expected, atol=1e-3)


def test_an_update_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SlidingWindowFusion().update()


def test_reset_forgets_everything() -> None:
    start = lie.se3_exp([1.0, 2.0, 3.0, 0.1, 0.2, 0.3])
    fusion = SlidingWindowFusion(T_w_c=start)
    fresh = SlidingWindowFusion(T_w_c=start)
    world = drive(30, 7)
    for measured in list(world.both())[5:]:
        fusion.update(*measured)
    fusion.reset()
    assert not fusion.started
    assert fusion.gate["odometry"].accepted == 0
    for measured in list(world.both())[:5]:  # earlier than what was forgotten
        ours, expected = fusion.update(*measured), fresh.update(*measured)
    np.testing.assert_array_equal(ours.T_w_c, expected.T_w_c)
    np.testing.assert_array_equal(ours.Sigma_c_w, expected.Sigma_c_w)
    assert ours.nis == expected.nis


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False), st.integers(1, 3))
def test_the_order_of_arrival_does_not_matter(seed: int, random, batch: int) -> None:
    """Of measurements within the window: t-1, t-2, t-5 -> t, some missing."""
    rng = np.random.default_rng(seed)
    config = FusionConfig(
        window_size=20,
        odometry_kernel="none",
        rotation_kernel="none",
        gate_probability=1e-15,  # the gate judges by what came before: it has its own tests
    )
    world = drive(8, seed, config)
    arrivals: list[RelativePose | RelativeRotation] = []
    for i in range(1, 8):
        if rng.random() < 0.7:
            arrivals.append(world.vo(i))
        for step in (1, 2, 5):
            if i + 1 >= step and rng.random() < 0.6:
                T = world.T_c_w(i + 1) @ lie.se3_inverse(world.T_c_w(i + 1 - step))
                C = lie.so3_exp(draw(rng, SIGMA_HN)) @ T[:3, :3]
                stamps = (i + 1 - step) * PERIOD_NS, (i + 1) * PERIOD_NS
                arrivals.append(RelativeRotation(C, SIGMA_HN, *stamps))
    shuffled = arrivals.copy()
    random.shuffle(shuffled)
    ends = []
    for order in (arrivals, shuffled):
        fusion = SlidingWindowFusion(config)
        state = fusion.update(world.vo(0))
        for k in range(0, len(order), batch):
            state = fusion.update(*order[k : k + batch])
            check(state)
            assert state.rejected == ()
        ends.append((fusion, state))
    (ours, state), (theirs, expected) = ends
    np.testing.assert_array_equal(ours.window.stamps, theirs.window.stamps)
    np.testing.assert_allclose(ours.window.states.r, theirs.window.states.r, atol=1e-6)
    np.testing.assert_allclose(ours.window.states.C, theirs.window.states.C, atol=1e-6)
    np.testing.assert_allclose(state.T_w_c, expected.T_w_c, atol=1e-6)
    np.testing.assert_allclose(state.Sigma_c_w, expected.Sigma_c_w, rtol=1e-3, atol=1e-9)


# --- whatever comes ------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_random_gaps_and_stamps_never_break_it(seed: int, estimate_bias: bool) -> None:
    rng = np.random.default_rng(seed)
    config = FusionConfig(window_size=5, estimate_bias=estimate_bias)
    fusion = SlidingWindowFusion(config)
    stamp = LATE
    for _ in range(25):
        after = stamp + int(10 ** rng.uniform(6, 11))
        T = lie.se3_exp(rng.normal(size=6) * [1, 1, 1, 0.3, 0.3, 0.3])
        both = [
            RelativePose(T, SIGMA_VO, stamp, after),
            RelativeRotation(T[:3, :3], SIGMA_HN, stamp, after),
        ]
        heard = [m for m in both if rng.random() < 0.6]
        if heard:
            check(fusion.update(*heard))
        elif fusion.started:
            assert np.isfinite(fusion.predict(after)).all()
        stamp = after
    assert len(fusion.window) <= 5


@settings(max_examples=40)
@given(covariances(6), covariances(3), st.booleans())
def test_any_covariance_is_used_or_refused_with_a_reason(
    Sigma_vo: np.ndarray, Sigma_hn: np.ndarray, trusting: bool
) -> None:
    """Standard deviations from 1e-6 to 1e3 in one matrix, with and without floors."""
    fusion = SlidingWindowFusion(FusionConfig(**HONEST) if trusting else None)
    fusion.update(vo(0, 1), rotation(0, 1))
    fusion.update(vo(1, 2), rotation(1, 2))
    state = fusion.update(vo(2, 3, Sigma=Sigma_vo), rotation(2, 3, Sigma_hn))
    check(state)
    lost = {
        name
        for name, Sigma in (("odometry", Sigma_vo), ("rotation", Sigma_hn))
        if np.diagonal(Sigma).min() > 1e3
    }
    assert lost <= {r.source for r in state.rejected}
    assert all(r.reason for r in state.rejected)
    for i in range(3, 8):
        check(fusion.update(vo(i, i + 1), rotation(i, i + 1)))


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e-18, 1e-12])
@pytest.mark.parametrize("trusting", [False, True])
def test_tiny_covariances(scale: float, trusting: bool) -> None:
    fusion = SlidingWindowFusion(FusionConfig(**HONEST) if trusting else None)
    for i in range(12):
        tiny = i % 3 == 1
        Sigma_vo = scale * np.eye(6) if tiny else SIGMA_VO
        Sigma_hn = scale * np.eye(3) if tiny else SIGMA_HN
        state = fusion.update(vo(i, i + 1, Sigma=Sigma_vo), rotation(i, i + 1, Sigma_hn))
        check(state)
        # taken at its word, what is smaller than the arithmetic can bear is refused
        refused = tiny and trusting and scale < 1e-14
        assert len(state.rejected) == 2 * refused
        assert all("variance below" in r.reason for r in state.rejected)


@pytest.mark.parametrize("variance", [9999.0, 1e6, 1e300])
def test_other_peoples_word_for_lost(variance: float) -> None:
    fusion = SlidingWindowFusion()
    fusion.update(vo(0, 1), rotation(0, 1))
    lost = np.eye(6) * variance
    state = fusion.update(vo(1, 2, Sigma=lost), rotation(1, 2))
    assert reasons(state) == [("odometry", "all variances are above 1000: its source is lost")]
    check(state)
    with pytest.raises(ValueError, match="nothing to start from: all variances"):
        SlidingWindowFusion().update(vo(0, 1, Sigma=lost))


@pytest.mark.parametrize("variance", [9999.0, 1e6, 1e300])
@pytest.mark.parametrize("axis", range(6))
def test_what_is_unknown_along_one_axis_is_used_along_the_others(
    variance: float, axis: int
) -> None:
    fusion = SlidingWindowFusion()
    Sigma = SIGMA_VO.copy()
    Sigma[axis, axis] = variance
    for i in range(12):
        state = fusion.update(vo(i, i + 1, Sigma=Sigma))
        check(state)
        assert not state.rejected
    known = [each for each in range(3) if each != axis]
    assert np.sqrt(np.diag(state.Sigma_2_1))[known].max() < 0.2


def test_what_is_no_covariance_is_refused_where_it_is_made() -> None:
    for bad in (np.zeros((6, 6)), -np.eye(6), np.full((6, 6), np.nan), np.ones((6, 6))):
        with pytest.raises(ValueError, match="Sigma_2_1"):
            vo(0, 1, Sigma=bad)


def test_memory_is_bounded() -> None:
    fusion = SlidingWindowFusion()
    sizes = []
    for i in range(500):
        arrivals = [vo(i, i + 1), rotation(i, i + 1)]
        arrivals += [rotation(i + 1 - n, i + 1) for n in (2, 5) if i + 1 >= n]
        fusion.update(*arrivals)
        sizes.append(
            (
                len(fusion.window),
                len(fusion.window.poses.stamps),
                len(fusion.window.rotations.stamps),
                len(fusion.window.prior.gradient),
                len(fusion._edges),
                len(fusion.gate["odometry"].recent),
            )
        )
    assert sizes[100] == sizes[200] == sizes[-1]
    assert sizes[-1][0] == fusion.config.window_size
    assert max(sizes[-1]) <= 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_size": 2},
        {"odometry": "legs"},
        {"odometry_kernel": "tukey"},
        {"kernel_sigma": float("nan")},
        {"gate_probability": 1.0},
        {"max_gap_s": 0.0},
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FusionConfig(**wrong)


# --- never worse ---------------------------------------------------------------------------------


def figures_of(path: Path, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """The paper's four figures of VO and of the window."""
    recording = read_recording(path, variant)
    config = FusionConfig(rotation=recording.rotation_source)
    fusion = SlidingWindowFusion(config, recording.T_w_c_vo[0])
    poses = [recording.T_w_c_vo[0]]
    none_missing = np.zeros(len(recording.Sigma_vo), dtype=bool)
    for _, measured in recording.steps(none_missing, with_rotations=True):
        poses.append(fusion.update(*measured).T_w_c)
    figures = []
    for estimate in (recording.T_w_c_vo, np.array(poses)):
        assert recording.T_w_c_gt is not None
        errors = metrics.evaluate(estimate, recording.T_w_c_gt)
        figures.append([errors.ate_m, errors.ate_deg, errors.seg_pct, errors.seg_deg_per_100m])
    return np.array(figures[0]), np.array(figures[1])


def test_never_worse_than_vo(recordings: Path) -> None:
    vo_alone, fused = figures_of(recordings / "kitti_05.npz", "")
    assert (fused <= 1.02 * vo_alone).all()
    assert fused[3] < vo_alone[3]


@pytest.mark.slow
def test_never_worse_than_vo_on_any(recordings: Path) -> None:
    turning = []
    each = [(s, v) for s in ("00", "02", "05") for v in ("", "blur")] + [("09", "")]
    for sequence, variant in each:
        vo_alone, fused = figures_of(recordings / f"kitti_{sequence}.npz", variant)
        assert (fused <= 1.02 * vo_alone).all(), (sequence, variant, vo_alone, fused)
        turning.append((vo_alone[3], fused[3]))
    before, after = np.mean(turning, axis=0)
    assert after < before


@pytest.mark.slow
def test_our_gyro_pays(recordings: Path) -> None:
    """Its model was not fitted on this recording, the one of the odometry on others."""
    vo_alone, fused = figures_of(recordings / "kitti_00_gyro.npz", "")
    assert (fused[:2] < vo_alone[:2]).all()
    assert fused[2] <= 1.25
    assert fused[3] <= 0.46


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 25, 50, 75])
def test_our_gyro_carries_through_lost_odometry(recordings: Path, first: int) -> None:
    """10 frames in every 100: the rotation over the gaps, against the motion prior alone."""
    recording = read_recording(recordings / "kitti_00_gyro.npz")
    assert recording.T_w_c_gt is not None
    gaps = [at for at in range(first, len(recording.Sigma_vo) - 10, 100) if at > 5]
    lost = np.zeros(len(recording.Sigma_vo), dtype=bool)
    lost[[at + k for at in gaps for k in range(10)]] = True
    errors = []
    for with_rotations in (True, False):
        config = FusionConfig(rotation=recording.rotation_source)
        fusion = SlidingWindowFusion(config, recording.T_w_c_vo[0])
        poses = [recording.T_w_c_vo[0]]
        for stamp, measured in recording.steps(lost, with_rotations):
            state = fusion.update(*measured) if measured else None
            poses.append(fusion.predict(stamp) if state is None else state.T_w_c)
        error = [
            lie.angular_distance(
                poses[at].T[:3, :3] @ poses[at + 10][:3, :3],
                recording.T_w_c_gt[at].T[:3, :3] @ recording.T_w_c_gt[at + 10][:3, :3],
            )
            for at in gaps
        ]
        errors.append(np.mean(error))
    assert errors[0] < 0.1 * errors[1]
