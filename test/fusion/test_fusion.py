"""The fusion against wrong stamps and settings that change: never a confident wrong pose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fusion.fusion_worlds import PERIOD_NS, Drive, random_walk_motion

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.error_models import OdometryModel
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

SIGMA_VO = np.diag([0.02**2] * 3 + [5e-4**2] * 3)
SIGMA_HN = np.diag([5e-4**2] * 3)
STEPS = 60


def drive(seed: int = 0, steps: int = STEPS) -> Drive:
    rng = np.random.default_rng(seed)
    calm = FusionConfig(acceleration=0.3, angular_acceleration_deg=3.0)
    return Drive(rng, random_walk_motion(rng, steps, calm), SIGMA_VO, SIGMA_HN)


def errors(state: FusedState, world: Drive, index: int) -> tuple[float, float, float]:
    """Metres and degrees off, and the largest error in sigmas."""
    xi = lie.se3_log(lie.se3_inverse(state.T_w_c) @ lie.se3_inverse(world.T_c_w(index)))
    sigmas = np.sqrt(np.diag(state.Sigma_c_w))
    degrees = float(np.rad2deg(np.linalg.norm(xi[3:])))
    return float(np.linalg.norm(xi[:3])), degrees, float((np.abs(xi) / sigmas).max())


def confident_and_wrong(state: FusedState, world: Drive, index: int) -> bool:
    metres, degrees, in_sigmas = errors(state, world, index)
    return in_sigmas > 5.0 and (metres > 0.5 or degrees > 2.0)


def delayed(measurement: RelativePose | RelativeRotation, seconds: float):
    """The same with a wrong end."""
    return replace(measurement, stamp_2_ns=measurement.stamp_2_ns + round(seconds * 1e9))


@pytest.mark.parametrize("seconds", [0.3, 0.5, 1.0, 2.0, 5.0, 3600.0, 1e9])
@pytest.mark.parametrize("source", ["odometry", "rotation"])
def test_one_stamp_in_the_future_does_no_harm(source: str, seconds: float) -> None:
    world, warnings = drive(), []
    fusion = Fusion(FusionConfig(odometry="own"), warn=lambda kind, _: warnings.append(kind))
    states: list[FusedState] = []
    for i in range(STEPS):
        odometry, rotation = world.vo(i), world.rotation(i)
        if i == 30 and source == "odometry":
            odometry = delayed(odometry, seconds)
        if i == 30 and source == "rotation":
            rotation = delayed(rotation, seconds)
        for measurement in (odometry, rotation):
            states += fusion.add(measurement)
    states += fusion.passed((STEPS + 1) * PERIOD_NS)
    for state in states:
        assert not confident_and_wrong(state, world, round(state.stamp_ns / PERIOD_NS))
    assert states[-1].stamp_ns == STEPS * PERIOD_NS
    assert errors(states[-1], world, STEPS)[0] < 1.0
    assert "stamp outlier" in warnings
    assert len(states) >= STEPS - 1


def test_a_clock_that_goes_back_for_good_is_said_and_the_pose_goes_on() -> None:
    world, reasons = drive(), []
    fusion = Fusion(FusionConfig(odometry="own"), on_reset=reasons.append)
    for i in range(30):
        before = fusion.add(world.vo(i), world.rotation(i))
    again = []
    for i in range(10):
        again += fusion.add(world.vo(i), world.rotation(i))
    assert len(reasons) == 1
    assert [round(state.stamp_ns / PERIOD_NS) for state in again] == list(range(1, 11))
    moved = lie.se3_inverse(before[-1].T_w_c) @ again[0].T_w_c
    assert np.linalg.norm(moved[:3, 3]) < 3.0  # from where it was
    sigmas = np.sqrt(np.diag(again[-1].Sigma_c_w))
    assert sigmas[:3].min() > 50.0
    assert sigmas[3:].min() > 1.0


def test_odometry_that_begins_late_begins_at_the_origin() -> None:
    """3 s of rotations alone say nothing of the position, and need not be remembered for ever."""
    world = drive()
    fusion = Fusion(FusionConfig(odometry="own", max_wait_s=0.0))
    for i in range(30):
        fusion.add(world.rotation(i))
    for i in range(30, STEPS):
        states = fusion.add(world.vo(i), world.rotation(i))
    sigmas = np.sqrt(np.diag(states[-1].Sigma_c_w))
    assert sigmas[:3].max() < 3.0
    turned = lie.so3_log(world.T_c_w(STEPS)[:3, :3] @ states[-1].T_w_c[:3, :3])
    assert np.rad2deg(np.linalg.norm(turned)) < 2.0


@pytest.mark.parametrize(
    "change",
    [
        {"max_wait_s": 1.0},
        {"window_size": 6},
        {"window_size": 20},
        {"rotation_kernel": "cauchy"},
        {"estimate_bias": False},
        {"own": OdometryModel(2.0, 0.01, 0.01)},
        {"gate_probability": 1e-9},
    ],
)
def test_settings_apply_without_touching_the_estimate(change: dict[str, object]) -> None:
    world, config = drive(), FusionConfig(odometry="own")
    changed, steady = Fusion(config), Fusion(config)
    for i in range(STEPS):
        if i == 30:
            before = changed.state
            changed.apply(replace(config, **change))
        ours = changed.add(world.vo(i), world.rotation(i))[-1]
        theirs = steady.add(world.vo(i), world.rotation(i))[-1]
        if i == 30:
            step = lie.se3_inverse(before.T_w_c) @ ours.T_w_c
            assert np.linalg.norm(step[:3, 3]) < 2.0
            ratio = np.diag(ours.Sigma_c_w) / np.diag(theirs.Sigma_c_w)
            assert (ratio > 0.5).all()
            assert (ratio < 3.0).all()
    assert not confident_and_wrong(ours, world, STEPS)
    assert changed.config == replace(config, **change)


# --- outliers in either source -------------------------------------------------------------------


def spoiled(rng: np.random.Generator, measurement, metres: float, degrees: float):
    """A measurement with an error of this size in a random direction."""

    def direction(size: float) -> np.ndarray:
        vector = rng.normal(size=3)
        return size * vector / np.linalg.norm(vector)

    if isinstance(measurement, RelativeRotation):
        C = lie.so3_exp(direction(np.deg2rad(degrees))) @ measurement.C_2_1
        return replace(measurement, C_2_1=C)
    xi = np.concatenate([direction(metres), direction(np.deg2rad(degrees))])
    return replace(measurement, T_2_1=lie.se3_exp(xi) @ measurement.T_2_1)


KINDS = {
    "odometry turns": ("odometry", 0.0, 8.0),
    "odometry jumps": ("odometry", 2.0, 0.0),
    "odometry does both": ("odometry", 2.0, 8.0),
    "rotation turns": ("rotation", 0.0, 8.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_source_is_the_one_rejected(kind: str) -> None:
    source, metres, degrees = KINDS[kind]
    rng = np.random.default_rng(len(kind))
    right = wrong = made = 0
    for seed in range(12):
        world = drive(seed, 50)
        fusion = Fusion(FusionConfig(odometry="own"))
        bad = set(rng.choice(np.arange(8, 50), size=4, replace=False).tolist())
        for i in range(50):
            measured = {"odometry": world.vo(i), "rotation": world.rotation(i)}
            if i in bad:
                factor = rng.uniform(1.0, 3.0)
                measured[source] = spoiled(
                    rng, measured[source], factor * metres, factor * degrees
                )
            for state in fusion.add(*measured.values()):
                for each in state.rejected:
                    hit = each.source == source and each.stamp_2_ns // PERIOD_NS - 1 in bad
                    right, wrong = right + hit, wrong + (not hit)
                    assert "NIS" in each.reason
        made += len(bad)
    assert right / made >= 0.95, (right, made)
    assert right / (right + wrong) >= 0.95, (right, wrong)
