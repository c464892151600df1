"""Who is believed: the statistics of honest sources, and who is blamed for a wrong one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from fusion.fusion_worlds import (
    HONEST,
    PERIOD_NS,
    Drive,
    correlated,
    honest,
    random_walk_motion,
)
from scipy.stats import chi2

from hydranet_ros.datasets.recording import read_recording
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import Rejection
from hydranet_ros.fusion.error_models import OdometryModel, RotationModel
from hydranet_ros.fusion.gating import Gate, Innovation, RelativeMotion, SourceStatistics, Turn
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

SIGMA_VO = np.diag([0.01**2] * 3 + [5e-4**2] * 3)
SIGMA_HN = np.diag([1e-3**2] * 3)


def drive(steps: int, seed: int, config: FusionConfig | None = None) -> Drive:
    rng = np.random.default_rng(seed)
    motion = random_walk_motion(rng, steps, config or FusionConfig(acceleration=1.0))
    return Drive(rng, motion, SIGMA_VO, SIGMA_HN)


def wrong_turns(rng: np.random.Generator, steps: int, share: float) -> dict[int, np.ndarray]:
    """Rotations of 5 to 20 degrees, for a share of the steps but the first ten."""
    chosen = rng.choice(np.arange(10, steps), round(share * steps), replace=False)
    axes = rng.normal(size=(len(chosen), 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    angles = np.deg2rad(rng.uniform(5, 20, size=(len(chosen), 1)))
    turns = lie.so3_exp(axes * angles)
    return {int(i): turn for i, turn in zip(chosen, turns, strict=True)}


def turned(vo: RelativePose, turn: np.ndarray) -> RelativePose:
    T = vo.T_2_1.copy()
    T[:3, :3] = turn @ T[:3, :3]
    return RelativePose(T, vo.Sigma_2_1, vo.stamp_1_ns, vo.stamp_2_ns)


def score(rejected: list[Rejection], source: str, wrong: dict[int, np.ndarray]) -> tuple:
    """Precision and recall of the rejections of a source, and rejections of the other."""
    steps = [r.stamp_1_ns // PERIOD_NS for r in rejected if r.source == source]
    right = sum(step in wrong for step in steps)
    return right / max(len(steps), 1), right / len(wrong), len(rejected) - len(steps)


# --- the arithmetic ------------------------------------------------------------------------------


def test_nis_and_its_gate() -> None:
    innovation = Innovation(np.array([2.0, 3.0]), np.diag([4.0, 1.0]))
    assert innovation.nis == pytest.approx(10.0)
    statistics = SourceStatistics(6, 1e-3, 2)
    assert chi2.sf(statistics.gate, 6) == pytest.approx(1e-3)
    assert np.isnan(statistics.mean_nis)


def test_a_motion_given_a_turn_is_the_kalman_update() -> None:
    """By the information form: add the information of the turn, move by the weighted mean."""
    rng = np.random.default_rng(0)
    Sigma, Sigma_turn = correlated(rng, [0.01] * 6), correlated(rng, [0.01] * 3)
    T = lie.se3_exp(rng.normal(size=6))
    phi = np.array([0.004, -0.003, 0.005])
    updated = RelativeMotion(T[:3, :3], T[:3, 3], Sigma).given(
        Turn(lie.so3_exp(phi) @ T[:3, :3], Sigma_turn)
    )
    information = np.linalg.inv(Sigma)
    pull = np.zeros(6)
    pull[3:] = np.linalg.solve(Sigma_turn, phi)
    information[3:, 3:] += np.linalg.inv(Sigma_turn)
    expected = np.linalg.inv(information)
    np.testing.assert_allclose(updated.covariance, expected, rtol=1e-9, atol=1e-15)
    moved = lie.se3_log(lie.se3_from(updated.C, updated.r) @ lie.se3_inverse(T))
    np.testing.assert_allclose(moved, expected @ pull, atol=1e-9)


def test_motions_compose_as_their_poses() -> None:
    rng = np.random.default_rng(1)
    first, second = lie.se3_exp(rng.normal(size=(2, 6)))
    Sigma_1, Sigma_2 = correlated(rng, [0.01] * 6), correlated(rng, [0.01] * 6)
    whole = RelativeMotion(first[:3, :3], first[:3, 3], Sigma_1).then(
        RelativeMotion(second[:3, :3], second[:3, 3], Sigma_2)
    )
    expected = RelativePose(first, Sigma_1, 0, 1).then(RelativePose(second, Sigma_2, 1, 2))
    np.testing.assert_allclose(lie.se3_from(whole.C, whole.r), expected.T_2_1, atol=1e-12)
    np.testing.assert_allclose(whole.covariance, expected.Sigma_2_1, rtol=1e-9)


def test_the_further_from_the_motion_prior_is_to_blame() -> None:
    gate = Gate(1e-6, 10)
    prior = RelativeMotion(np.eye(3), np.zeros(3), np.eye(6) * 0.01**2)
    good = RelativeMotion(np.eye(3), np.zeros(3), np.eye(6) * 1e-3**2)
    bad_C = lie.so3_exp([0.0, 0.2, 0.0])
    bad = RelativeMotion(bad_C, np.zeros(3), good.covariance)
    turn, bad_turn = Turn(np.eye(3), np.eye(3) * 1e-6), Turn(bad_C, np.eye(3) * 1e-6)
    assert gate.judge(good, turn, prior).failed == {}
    assert list(gate.judge(bad, turn, prior).failed) == ["odometry"]
    assert list(gate.judge(good, bad_turn, prior).failed) == ["rotation"]
    assert list(gate.judge(bad, None, prior).failed) == ["odometry"]
    assert list(gate.judge(None, bad_turn, prior).failed) == ["rotation"]
    # without a prior the rotation is, and a lone source cannot be tested
    assert list(gate.judge(bad, turn, None).failed) == ["rotation"]
    assert gate.judge(bad, None, None).nis == {}
    # edges that passed one by one are not taken back for a longer rotation
    assert list(gate.judge(bad, turn, prior, chained=True).failed) == ["rotation"]


def test_what_is_doubtful_is_no_surer_than_it_is_near() -> None:
    gate = Gate(1e-6, 10)
    prior = RelativeMotion(np.eye(3), np.zeros(3), np.eye(6) * 0.01**2)
    covariance = np.eye(6) * 1e-3**2
    near, doubtful, far = (
        RelativeMotion(np.eye(3), np.array([0.01 * sigmas, 0.0, 0.0]), covariance)
        for sigmas in (3.0, 5.5, 8.0)
    )
    assert gate.judge(near, None, prior).doubtful == {}
    assert gate.judge(far, None, prior).doubtful == {}  # it is rejected
    judged = gate.judge(doubtful, None, prior)
    assert judged.failed == {}
    wider = RelativeMotion(doubtful.C, doubtful.r, covariance + judged.doubtful["odometry"])
    assert prior.to(wider).nis == pytest.approx(6.0)


def test_an_outlier_below_the_gate_is_not_believed_surely() -> None:
    """Two degrees that the gyro and the motion before disagree with, by five sigmas."""
    # Odometry that is surer than the gyro and the motion before
    world = drive(21, 5, FusionConfig(acceleration=1.0, angular_acceleration_deg=5.0))
    fusion = SlidingWindowFusion(FusionConfig(rotation="hydranet", visual=OdometryModel()))
    for measured in islice(world.both(), 20):
        fusion.update(*measured)
    turn, before = lie.so3_exp(np.deg2rad([0.0, 2.8, 0.0])), fusion.gate.odometry.rejected
    state = fusion.update(turned(world.vo(20), turn), world.rotation(20))
    assert fusion.gate.odometry.rejected == before, "it is beyond the gate: no test of doubt"
    assert state.nis["odometry"] > fusion.gate.odometry.doubt
    error = lie.so3_log(state.T_2_1[:3, :3] @ world.T_2_1[20, :3, :3].T)
    sigma = np.sqrt(np.diag(state.Sigma_2_1)[3:])
    assert (np.abs(error) < 4.0 * sigma).all(), (np.rad2deg(error), np.rad2deg(sigma))


# --- honest sources ------------------------------------------------------------------------------


@pytest.mark.parametrize("bias_deg_s", [None, 0.0, 3.0])
@pytest.mark.parametrize("acceleration", [1.0, 0.05])
def test_honest_sources_have_a_nis_of_their_dimension(
    acceleration: float, bias_deg_s: float | None
) -> None:
    """Where the motion is the greater unknown, where VO is, and with a bias of many sigmas."""
    config = FusionConfig(
        **honest(max(bias_deg_s or 0.0, 0.3)),
        acceleration=acceleration,
        angular_acceleration_deg=20.0 * acceleration,
        estimate_bias=bias_deg_s is not None,
    )
    rng = np.random.default_rng(2)
    bias = np.tile(np.deg2rad([bias_deg_s or 0.0, 0.0, 0.0]), (300, 1))
    world = Drive(rng, random_walk_motion(rng, 300, config), SIGMA_VO, SIGMA_HN, bias)
    fusion = SlidingWindowFusion(config)
    values: dict[str, list[float]] = {"odometry": [], "rotation": []}
    for measured in world.both():
        state = fusion.update(*measured)
        assert state.rejected == ()
        for source, value in state.nis.items():
            values[source].append(value)
    # Neighbouring innovations share a velocity, so that they are not quite independent.
    vo, rotation = np.array(values["odometry"][5:]), np.array(values["rotation"][5:])
    assert vo.mean() == pytest.approx(6, abs=6 * np.sqrt(12 / len(vo)))
    assert rotation.mean() == pytest.approx(3, abs=6 * np.sqrt(6 / len(rotation)))
    assert (vo > chi2.isf(0.05, 6)).mean() == pytest.approx(0.05, abs=0.04)
    assert fusion.gate["odometry"].mean_nis == pytest.approx(vo[-100:].mean())
    assert fusion.gate["odometry"].accepted == fusion.gate.rotation.accepted == 300


# --- wrong ones ----------------------------------------------------------------------------------


def test_wrong_vo_rotations_are_the_ones_rejected() -> None:
    rng = np.random.default_rng(3)
    world = drive(600, 4)
    wrong = wrong_turns(rng, 600, 0.02)
    fusion = SlidingWindowFusion()
    rejected: list[Rejection] = []
    for i, (vo, rotation) in enumerate(world.both()):
        vo = turned(vo, wrong[i]) if i in wrong else vo
        rejected += fusion.update(vo, rotation).rejected
    precision, recall, others = score(rejected, "odometry", wrong)
    assert precision >= 0.9
    assert recall >= 0.9
    assert others == 0
    assert fusion.gate["odometry"].rejected == len(rejected)
    assert all(r.reason.startswith("NIS ") for r in rejected)


def test_wrong_network_rotations_are_rejected_and_not_vo() -> None:
    rng = np.random.default_rng(5)
    world = drive(600, 6)
    wrong = wrong_turns(rng, 600, 0.02)
    fusion = SlidingWindowFusion(
        FusionConfig(rotation="hydranet", hydranet=RotationModel(scale_noise=0.0))
    )
    rejected: list[Rejection] = []
    for i, (vo, rotation) in enumerate(world.both()):
        if i in wrong:
            C = wrong[i] @ rotation.C_2_1
            rotation = RelativeRotation(C, SIGMA_HN, rotation.stamp_1_ns, rotation.stamp_2_ns)
        rejected += fusion.update(vo, rotation).rejected
    precision, recall, others = score(rejected, "rotation", wrong)
    assert precision >= 0.9
    assert recall >= 0.9
    assert others == 0


def test_wrong_vo_rotations_of_a_real_drive_are_the_ones_rejected(recordings: Path) -> None:
    steps = 800
    recording = read_recording(recordings / "kitti_05.npz")
    wrong = wrong_turns(np.random.default_rng(0), steps, 0.02)
    fusion = SlidingWindowFusion()
    rejected: list[Rejection] = []
    none_missing = np.zeros(len(recording.Sigma_vo), dtype=bool)
    for i, (_, measured) in enumerate(recording.steps(none_missing, with_rotations=True)):
        if i == steps:
            break
        vo, rotation = measured
        assert isinstance(vo, RelativePose)
        rejected += fusion.update(turned(vo, wrong[i]) if i in wrong else vo, rotation).rejected
    precision, recall, _ = score(rejected, "odometry", wrong)
    assert precision >= 0.9
    assert recall >= 0.9


def test_a_wrong_vo_edge_moves_nothing_when_rejected() -> None:
    """The state is where it would be had there been no VO at all in that step."""
    world = drive(12, 8)
    with_wrong, without = SlidingWindowFusion(), SlidingWindowFusion()
    for i, (vo, rotation) in enumerate(world.both()):
        if i == 11:
            last = with_wrong.update(turned(vo, lie.so3_exp([0.0, 0.2, 0.0])), rotation)
            expected = without.update(rotation)
        else:
            with_wrong.update(vo, rotation)
            without.update(vo, rotation)
    assert [r.source for r in last.rejected] == ["odometry"]
    np.testing.assert_allclose(last.T_w_c, expected.T_w_c, atol=1e-9)
    np.testing.assert_allclose(last.Sigma_c_w, expected.Sigma_c_w, rtol=1e-6, atol=1e-12)


def test_a_partner_that_comes_later_unmasks_the_first() -> None:
    """A wrong rotation alone may pass; with VO of the interval at hand it is withdrawn."""
    config = FusionConfig(
        angular_acceleration_deg=2000.0,
        rotation="hydranet",
        hydranet=RotationModel(scale_noise=0.0),
    )
    world = drive(12, 9)
    fusion = SlidingWindowFusion(config)
    for vo, rotation in list(world.both())[:11]:
        fusion.update(vo, rotation)
    honest = world.rotation(11)
    C = lie.so3_exp([0.0, 0.3, 0.0]) @ honest.C_2_1
    wrong = RelativeRotation(C, SIGMA_HN, honest.stamp_1_ns, honest.stamp_2_ns)
    assert fusion.update(wrong).rejected == ()
    count = len(fusion.window.rotations.stamps)
    state = fusion.update(world.vo(11))
    assert [r.source for r in state.rejected] == ["rotation"]
    assert len(fusion.window.rotations.stamps) == count - 1
    error = lie.se3_log(lie.se3_inverse(state.T_w_c) @ lie.se3_inverse(world.T_c_w(12)))
    assert np.abs(error[3:]).max() < 0.02


def test_a_long_rotation_that_disagrees_with_good_vo_is_rejected() -> None:
    """VO edges that passed one by one stay, whichever is further from the motion prior."""
    period, Sigma = PERIOD_NS, np.diag([1e-4] * 3 + [1e-6] * 3)
    fusion = SlidingWindowFusion(FusionConfig(window_size=20))
    for i in range(10):
        turn = 0.01 if i < 5 else 0.01 * (i - 3)
        T = lie.se3_exp([0.0, 0.0, -1.0, 0.0, turn, 0.0])
        fusion.update(RelativePose(T, Sigma, i * period, (i + 1) * period))
    straight = lie.so3_exp([0.0, 0.05, 0.0])
    rotation = RelativeRotation(straight, np.eye(3) * 1e-6, 5 * period, 10 * period)
    rejected = fusion.update(rotation).rejected
    assert [(r.source, r.stamp_1_ns, r.stamp_2_ns) for r in rejected] == [
        ("rotation", 5 * period, 10 * period)
    ]
    assert len(fusion.window.poses.stamps) == 10


def test_a_source_is_believed_again_after_so_many_rejections() -> None:
    """The motion really did change: VO says so again and again, nobody else speaks."""
    config = FusionConfig(
        **{**HONEST, "own": OdometryModel(1.0, 0.01, 0.0)}, max_consecutive_rejections=4
    )
    fusion = SlidingWindowFusion(config)
    slow, fast = lie.se3_exp([0, 0, -0.1, 0, 0, 0]), lie.se3_exp([0, 0, -30.0, 0, 0, 0])
    said = []
    for i in range(40):
        T = slow if i < 20 else fast
        state = fusion.update(RelativePose(T, SIGMA_VO, i * PERIOD_NS, (i + 1) * PERIOD_NS))
        said.append(bool(state.rejected))
    assert said[:20] == [False] * 20
    assert said[20:24] == [True] * 4
    assert not any(said[24:])
    np.testing.assert_allclose(state.velocity[:3], [0, 0, 300.0], atol=1.0)


def test_any_acceptance_starts_the_count_of_rejections_again() -> None:
    statistics = SourceStatistics(3, 1e-3, 2)
    for rejected in (True, False, True):
        statistics.count(rejected=rejected)
    assert not statistics.due
    statistics.count(rejected=True)
    assert statistics.due
    assert (statistics.accepted, statistics.rejected) == (1, 3)


def test_nis_counts_what_odometry_measures() -> None:
    """Wheels know one turn; that they stay on the ground is assumed, and must not calm the NIS."""
    rng, gate = np.random.default_rng(0), Gate(1e-6, 10)
    sure, assumed = np.deg2rad(0.05), np.deg2rad(2.0)
    tilted = lie.so3_exp([0.36, 0.0, 0.0])
    Sigma = np.zeros((6, 6))
    Sigma[:3, :3] = 0.01**2 * np.eye(3)
    Sigma[3:, 3:] = tilted @ np.diag([assumed, sure, assumed]) ** 2 @ tilted.T
    Sigma_turn = np.deg2rad(0.03) ** 2 * np.eye(3)
    prior = RelativeMotion(np.eye(3), np.zeros(3), np.diag([0.02] * 3 + [0.5] * 3) ** 2)
    told = []
    for _ in range(2000):
        yaw = tilted @ np.array([0.0, sure * rng.normal(), 0.0])
        r = np.hypot(0.01, 0.02) * rng.normal(size=3)
        odometry = RelativeMotion(lie.so3_exp(yaw), r, Sigma)
        turn = Turn(lie.so3_exp(np.deg2rad(0.03) * rng.normal(size=3)), Sigma_turn)
        told.append(gate.agreement(odometry, turn, prior))
    assert np.mean([each["odometry"] for each in told]) == pytest.approx(6.0, rel=0.1)
    assert np.mean([each["rotation"] for each in told]) == pytest.approx(3.0, rel=0.1)
