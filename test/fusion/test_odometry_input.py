"""Odometry as robots really send it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.error_models import OdometryModel
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.odometry_input import OdometryInputConfig, OdometryReader
from hydranet_ros.fusion.twist_agreement import OdometrySample
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose

SPEED = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.5])  # wheels: forward, and a turn to the left
SIGMA = np.diag([0.02, 0.02, 0.02, 0.01, 0.01, 0.01]) ** 2


def drive(
    count: int, rate_hz: float = 50.0, Sigma_twist: np.ndarray = SIGMA
) -> list[OdometrySample]:
    """A circle, with poses and twists."""
    step_ns = round(1e9 / rate_hz)
    return [
        OdometrySample(
            10**9 + i * step_ns,
            "base_link",
            lie.se3_exp(SPEED * i / rate_hz),
            np.eye(6) * 1e-6 * (i + 1),
            SPEED,
            Sigma_twist,
        )
        for i in range(count)
    ]


def read(samples: list[OdometrySample], **settings: object) -> list[RelativePose | None]:
    reader = OdometryReader(OdometryInputConfig(**settings))
    return [reader.read(sample) for sample in samples]


def with_axes(value: float, *axes: int) -> np.ndarray:
    Sigma = SIGMA.copy()
    for axis in axes:
        Sigma[axis, axis] = value
    return Sigma


@pytest.mark.parametrize(
    ("Sigma", "sigma_m", "sigma_rad"),
    [
        (np.zeros((6, 6)), 0.05, np.deg2rad(0.1)),
        (with_axes(0.0, 2, 3, 4), 0.05, np.deg2rad(0.1)),
        (with_axes(1e6, 2, 3, 4), None, None),
    ],
    ids=["zeros", "zeros on unused axes", "1e6 on z, roll, pitch"],
)
def test_covariances_are_read_axis_by_axis(
    Sigma: np.ndarray, sigma_m: float | None, sigma_rad: float | None
) -> None:
    motion = read(drive(3, 10.0, Sigma))[-1]
    assert motion is not None
    sigmas = np.sqrt(np.diag(motion.Sigma_2_1))
    filled = np.diagonal(Sigma)[:6] == 0.0
    known = (np.diagonal(Sigma) < 1.0) & ~filled
    np.testing.assert_allclose(sigmas[known], np.sqrt(np.diagonal(SIGMA))[known] * 0.1)
    if sigma_m is not None and sigma_rad is not None:
        expected = np.array([sigma_m] * 3 + [sigma_rad] * 3)
        np.testing.assert_allclose(sigmas[filled], expected[filled])
    else:
        assert sigmas[2] > 1.0
        assert sigmas[3:5].min() > 0.2


def test_a_covariance_that_is_singular_seen_from_the_camera_is_refused() -> None:
    """What the base turns moves a camera before it: of its motion the base's is 1e-15."""
    fusion = Fusion(odometry=OdometryInputConfig(covariance="pose_accumulated"))
    T_b_c = lie.se3_exp([1.5, 0.1, 1.2, 0.0, 0.0, 0.0])
    unsure = np.diag([1e-15] * 3 + [1.0] * 3)
    samples = [replace(each, Sigma_b_w=np.zeros((6, 6))) for each in drive(4, rate_hz=1.0)]
    fusion.add_odometry(samples[0], T_b_c)
    with pytest.raises(BadInput, match=r"seen from the camera.*not positive definite") as error:
        fusion.add_odometry(replace(samples[1], Sigma_b_w=unsure), T_b_c)
    assert error.value.kind == "covariance"
    for sample in (samples[2], replace(samples[3], Sigma_b_w=np.eye(6) * 1e-4)):
        with suppress(BadInput):
            fusion.add_odometry(sample, T_b_c)
    assert fusion.passed(samples[3].stamp_ns)[-1].stamp_ns == samples[3].stamp_ns


@pytest.mark.parametrize("rate_hz", [10.0, 50.0, 100.0])
def test_what_stands_in_for_a_covariance_is_per_time(rate_hz: float) -> None:
    """Over a second the variances add up to the same, however many messages there are."""
    motions = read(drive(round(rate_hz) + 1, rate_hz, np.zeros((6, 6))))[1:]
    total = sum(motion.Sigma_2_1[0, 0] for motion in motions if motion is not None)
    assert total == pytest.approx(10 * 0.05**2, rel=1e-6)


@pytest.mark.parametrize("rate_hz", [10.0, 50.0])
def test_floors_of_the_error_models_are_per_time(rate_hz: float) -> None:
    model = OdometryModel()
    motions = read(drive(round(rate_hz) + 1, rate_hz, SIGMA * 1e-12))[1:]
    total = sum(model.covariance(m)[0, 0] for m in motions if m is not None)
    floor = 10 * model.floor_m**2
    assert total == pytest.approx(floor + model.scale * 10 * 0.05**2, rel=1e-3) or (
        total == pytest.approx(floor, rel=1e-3)
    )


def test_all_axes_unknown_is_lost() -> None:
    with pytest.raises(BadInput, match="no motion was measured"):
        read(drive(2, Sigma_twist=np.eye(6) * 9999.0))
    with pytest.raises(BadInput, match="no motion was measured"):
        read(drive(2, Sigma_twist=np.full((6, 6), np.nan)))


def standing(samples: list[OdometrySample]) -> list[OdometrySample]:
    """Twist-only odometry: the pose never moves."""
    return [replace(sample, T_w_b=np.eye(4)) for sample in samples]


def test_a_pose_that_never_moves_is_noticed() -> None:
    reader = OdometryReader()
    motions = [reader.read(sample) for sample in standing(drive(20))]
    for motion in motions[6:]:
        assert motion is not None
        np.testing.assert_allclose(lie.se3_log(motion.T_2_1), -SPEED / 50.0, atol=1e-12)
    assert any("twist" in note for note in reader.notes)


def test_a_robot_that_really_stands_is_not_taken_for_twist_only() -> None:
    reader = OdometryReader()
    still = [replace(sample, twist=np.zeros(6)) for sample in standing(drive(50))]
    motions = [reader.read(sample) for sample in still][1:]
    assert all(np.array_equal(m.T_2_1, np.eye(4)) for m in motions if m is not None)
    assert not reader.notes


@pytest.mark.parametrize("source", ["pose", "twist"])
def test_the_source_can_be_chosen(source: str) -> None:
    motion = read(standing(drive(20)), source=source)[-1]
    assert motion is not None
    moved = np.linalg.norm(lie.se3_log(motion.T_2_1))
    assert (moved > 0.01) == (source == "twist")


def test_twist_only_odometry_turns_the_fused_pose() -> None:
    said: list[str] = []
    fusion = Fusion(
        FusionConfig(odometry="wheels", max_wait_s=0.0), warn=lambda _, text: said.append(text)
    )
    states = []
    for sample in standing(drive(150)):
        states += fusion.add_odometry(sample, np.eye(4))
    turned = np.rad2deg(np.linalg.norm(lie.so3_log(states[-1].T_w_c[:3, :3])))
    assert turned == pytest.approx(np.rad2deg(0.5 * 149 / 50.0), abs=5.0)
    assert sum("twist" in text for text in said) == 1


def test_wheels_of_which_z_roll_and_pitch_are_unknown_are_fused() -> None:
    fusion = Fusion(FusionConfig(odometry="wheels", max_wait_s=0.0))
    for sample in drive(150, Sigma_twist=with_axes(1e6, 2, 3, 4)):
        states = fusion.add_odometry(sample, np.eye(4))
    assert not states[-1].rejected
    sigmas = np.sqrt(np.diag(states[-1].Sigma_c_w))
    assert sigmas[[0, 1, 5]].max() < 1.0
    assert np.isfinite(states[-1].T_w_c).all()


# --- messages that contradict themselves ---------------------------------------------------------


def moved(sample: OdometrySample, *xyz: float) -> OdometrySample:
    T = sample.T_w_b.copy()
    T[:3, 3] += xyz
    return replace(sample, T_w_b=T)


def read_on(samples: list[OdometrySample], **settings: object) -> list[RelativePose | str | None]:
    """Motions, or the kind of what was refused."""
    reader = OdometryReader(OdometryInputConfig(**settings))
    out: list[RelativePose | str | None] = []
    for sample in samples:
        try:
            out.append(reader.read(sample))
        except BadInput as error:
            out.append(error.kind)
    return out


def test_a_pose_that_its_twist_contradicts_is_bridged() -> None:
    """A metre to the side is no jump for a car, but the twist knows better."""
    samples = drive(20, 10.0)
    samples[12] = moved(samples[12], 0.0, 1.0, 0.0)
    found = read_on(samples)
    assert found[12] == "contradiction"
    motion = found[13]
    assert isinstance(motion, RelativePose)
    assert (motion.stamp_1_ns, motion.stamp_2_ns) == (samples[11].stamp_ns, samples[13].stamp_ns)
    np.testing.assert_allclose(motion.T_2_1, lie.se3_exp(-SPEED * 0.2), atol=1e-9)
    assert all(isinstance(each, RelativePose) for each in found[14:])


@pytest.mark.parametrize("twist", [np.full(6, np.nan), np.full(6, 1e300), -8.0 * SPEED])
def test_a_twist_that_its_pose_contradicts_is_bridged(twist: np.ndarray) -> None:
    samples = drive(20, 10.0)
    samples[12] = replace(samples[12], twist=twist)
    found = read_on(samples)
    assert found[12] == "contradiction"
    motion = found[13] if isinstance(found[13], RelativePose) else found[14]
    assert isinstance(motion, RelativePose)
    seconds = 1e-9 * (motion.stamp_2_ns - samples[11].stamp_ns)
    np.testing.assert_allclose(motion.T_2_1, lie.se3_exp(-SPEED * seconds), atol=1e-9)


def test_a_pose_that_was_set_anew_is_gone_on_from() -> None:
    samples = drive(20, 10.0)
    samples[12:] = [moved(each, 0.0, 3.0, 0.0) for each in samples[12:]]
    found = read_on(samples)
    assert found[12] == "contradiction"
    motion = found[13]
    assert isinstance(motion, RelativePose)
    assert motion.stamp_1_ns == samples[12].stamp_ns
    assert all(isinstance(each, RelativePose) for each in found[13:])


def test_a_jump_without_a_twist_to_tell_is_no_motion() -> None:
    """Eight metres in a tenth of a second, and back: the next pose may go on from either."""
    samples = [replace(each, twist=np.zeros(6)) for each in drive(20, 10.0)]
    samples[12] = moved(samples[12], 8.0, 0.0, 0.0)
    found = read_on(samples, max_speed=70.0)
    assert found[12] == "jump"
    assert found[13] == "jump" or isinstance(found[13], RelativePose)
    assert not any(
        isinstance(each, RelativePose) and np.linalg.norm(each.T_2_1[:3, 3]) > 1.0
        for each in found
    )


@pytest.mark.parametrize("factor", [0.0, 2.0, -1.0], ids=["empty", "another unit", "mirrored"])
def test_twists_that_never_agree_say_nothing(factor: float) -> None:
    samples = [replace(each, twist=factor * 10.0 * SPEED) for each in drive(30, 10.0)]
    assert all(isinstance(each, RelativePose) for each in read_on(samples)[1:])


def test_a_source_that_stops_filling_in_its_twist_is_believed_again() -> None:
    samples = drive(40, 10.0)
    samples[15:] = [replace(each, twist=np.full(6, np.nan)) for each in samples[15:]]
    found = read_on(samples)
    assert all(isinstance(each, RelativePose) for each in found[26:])
    # Not surely at first: a source that has gone wrong looks the same.
    doubted, believed = (found[i].Sigma_2_1[0, 0] for i in (27, 38))
    assert doubted > 25.0 * believed


def test_a_pose_that_may_never_be_filled_in_is_not_believed_surely() -> None:
    """The first message says a pose that is a centimetre off the ones after it."""
    samples = [replace(each, T_w_b=np.eye(4), twist=10.0 * SPEED) for each in drive(6, 10.0)]
    samples[0] = moved(samples[0], 0.01, 0.0, 0.0)
    first, *others = (each for each in read_on(samples)[1:])
    assert isinstance(first, RelativePose)
    assert np.sqrt(first.Sigma_2_1[0, 0]) > 0.9
    for motion in others:
        assert isinstance(motion, RelativePose)
        np.testing.assert_allclose(motion.T_2_1, lie.se3_exp(-SPEED), atol=1e-9)


def test_over_a_gap_a_motion_is_no_surer_than_pose_and_twist_agree() -> None:
    samples = drive(20, 10.0)
    turn = lie.se3_from(lie.so3_exp([0.0, 0.0, np.deg2rad(4.0)]), np.zeros(3))
    late = replace(samples[16], T_w_b=samples[16].T_w_b @ turn)
    motion = read_on([*samples[:12], late])[-1]
    assert isinstance(motion, RelativePose)
    assert np.sqrt(motion.Sigma_2_1[5, 5]) > np.deg2rad(3.5)
