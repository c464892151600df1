from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import covariances, rotation_vectors, twists

from hydranet_ros.geometry import estimates, lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

SAMPLES = 20_000
# |W - I|_F / |I|_F of a whitened sample covariance has mean sqrt((d + 1) / n): 1.4 % and 1.9 %.
MONTE_CARLO_TOLERANCE = 0.04


def spd(seed, size, scale):
    """A covariance with strong correlations, `scale` the standard deviations."""
    factor = np.random.default_rng(seed).normal(size=(size, size))
    return (factor @ factor.T + 0.1 * np.eye(size)) * np.outer(scale, scale)


def a_rotation(seed, start_ns=0, **changes):
    rng = np.random.default_rng(seed)
    fields = {
        "C_2_1": lie.so3_exp(rng.normal(size=3)),
        "Sigma_2_1": spd(seed, 3, np.array([1.0, 3.0, 0.5]) * 1e-3),
        "stamp_1_ns": start_ns,
        "stamp_2_ns": start_ns + 100,
    }
    return RelativeRotation(**(fields | changes))


def a_pose(seed, start_ns=0, **changes):
    rng = np.random.default_rng(seed)
    fields = {
        "T_2_1": lie.se3_exp(rng.normal(size=6)),
        "Sigma_2_1": spd(seed, 6, np.array([5.0, 2.0, 9.0, 1.0, 3.0, 0.5]) * 1e-3),
        "stamp_1_ns": start_ns,
        "stamp_2_ns": start_ns + 100,
    }
    return RelativePose(**(fields | changes))


def value(estimate):
    return estimate.C_2_1 if isinstance(estimate, RelativeRotation) else estimate.T_2_1


each_kind = pytest.mark.parametrize("make", [a_rotation, a_pose], ids=["rotation", "pose"])

# --- validation ----------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
BAD_ROTATIONS = {
    "shape": (np.eye(4)[:3], r"shape \(3, 3\), got \(3, 4\)"),
    "nan": (np.diag([1.0, 1.0, NAN]), "not finite"),
    "inf": (np.diag([1.0, 1.0, INF]), "not finite"),
    "scaled": (1.001 * np.eye(3), "not a rotation"),
    "zero": (np.zeros((3, 3)), "not a rotation"),
    "reflection": (np.diag([1.0, 1.0, -1.0]), "reflection"),
    "ragged": ([[1.0, 0.0, 0.0], [0.0, 1.0]], "not an array of numbers"),
    "text": ([["a"] * 3] * 3, "not an array of numbers"),
    "none": (None, "shape"),
}


def bad_covariances(size):
    asymmetric, rank_one = np.eye(size), np.ones((size, size))
    asymmetric[0, 1] = 1e-3
    return {
        "shape": (np.eye(size + 1), "shape"),
        "diagonal only": (np.ones(size), "shape"),
        "nan": (np.diag([*[1.0] * (size - 1), NAN]), "not finite"),
        "inf": (np.diag([*[1.0] * (size - 1), INF]), "not finite"),
        "asymmetric": (asymmetric, "not symmetric"),
        "zero": (np.zeros((size, size)), "not positive definite"),
        "negative": (-np.eye(size), "not positive definite"),
        "indefinite": (2.0 * rank_one - np.eye(size), "not positive definite"),
        "singular": (rank_one, "not positive definite"),
        "a zero variance": (np.diag([*[1.0] * (size - 1), 0.0]), "not positive definite"),
        "ragged": ([[1.0], [0.0, 1.0]], "not an array of numbers"),
    }


@pytest.mark.parametrize(("bad", "why"), BAD_ROTATIONS.values(), ids=BAD_ROTATIONS.keys())
def test_a_bad_rotation_is_refused_by_name(bad, why):
    with pytest.raises(ValueError, match=f"^C_2_1 .*{why}"):
        a_rotation(0, C_2_1=bad)


@pytest.mark.parametrize("case", ["nan", "inf", "scaled", "zero", "reflection"])
def test_a_pose_with_a_bad_rotation_is_refused_by_name(case):
    bad, why = BAD_ROTATIONS[case]
    with pytest.raises(ValueError, match=f"T_2_1 .*{why}"):
        a_pose(0, T_2_1=lie.se3_from(bad, [1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (np.eye(3), r"shape \(4, 4\), got \(3, 3\)"),
        (lie.se3_from(np.eye(3), [0.0, 0.0, NAN]), "not finite"),
        ([[1.0], [0.0, 1.0]], "not an array of numbers"),
    ],
    ids=["shape", "nan translation", "ragged"],
)
def test_a_bad_pose_is_refused_by_name(bad, why):
    with pytest.raises(ValueError, match=f"^T_2_1 .*{why}"):
        a_pose(0, T_2_1=bad)


@pytest.mark.parametrize("row", [[0, 0, 0, 2], [0, 0, 0.1, 1], [0, 0, 0, -1]], ids=str)
def test_a_pose_with_another_last_row_is_refused(row):
    with pytest.raises(ValueError, match="T_2_1 must have last row 0 0 0 1"):
        a_pose(0, T_2_1=np.vstack([np.eye(4)[:3], row]))


@pytest.mark.parametrize("case", bad_covariances(3).keys())
@each_kind
def test_a_bad_covariance_is_refused_by_name(make, case):
    bad, why = bad_covariances(len(make(0).Sigma_2_1))[case]
    with pytest.raises(ValueError, match=f"^Sigma_2_1 .*{why}"):
        make(0, Sigma_2_1=bad)


@given(seed=st.integers(0, 2**32 - 1))
def test_a_covariance_that_is_singular_to_rounding_is_refused(seed):
    factor = np.random.default_rng(seed).normal(size=(6, 5))
    with pytest.raises(ValueError, match=r"^Sigma_2_1 is not positive definite"):
        a_pose(0, Sigma_2_1=factor @ factor.T)


@pytest.mark.parametrize(
    ("element", "why"), [((4, 3), "not symmetric"), ((3, 3), "not positive definite")]
)
def test_metres_do_not_hide_faults_in_radians(element, why):
    sigma = np.diag([1e2, 1e2, 1e2, 1e-8, 1e-8, 1e-8])
    sigma[element] = -0.9e-8
    with pytest.raises(ValueError, match=f"^Sigma_2_1 is {why}"):
        a_pose(0, Sigma_2_1=sigma)


@given(covariances(3), covariances(6))
def test_positive_definite_covariances_are_accepted(sigma_3, sigma_6):
    np.testing.assert_allclose(a_rotation(0, Sigma_2_1=sigma_3).Sigma_2_1, sigma_3, rtol=1e-12)
    np.testing.assert_allclose(a_pose(0, Sigma_2_1=sigma_6).Sigma_2_1, sigma_6, rtol=1e-12)


@given(rotation_vectors(), twists())
def test_single_precision_is_mended_not_refused(phi, xi):
    c = lie.so3_exp(phi.reshape(-1, 3)[0]).astype(np.float32)
    t = lie.se3_exp(xi.reshape(-1, 6)[0]).astype(np.float32)
    for rotation, source in [
        (a_rotation(0, C_2_1=c).C_2_1, c),
        (a_pose(0, T_2_1=t).T_2_1[:3, :3], t[:3, :3]),
    ]:
        assert rotation.dtype == np.float64
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), rtol=0, atol=6e-15)
        np.testing.assert_allclose(rotation, source, rtol=0, atol=1e-6)


def test_a_rounded_last_row_and_a_rounded_covariance_are_mended():
    t, sigma = np.eye(4), np.eye(6)
    t[3], sigma[0, 1] = [0.0, 0.0, 1e-10, 1.0 + 1e-6], 1e-7
    pose = a_pose(0, T_2_1=t, Sigma_2_1=sigma)
    np.testing.assert_array_equal(pose.T_2_1, np.eye(4))
    np.testing.assert_array_equal(pose.Sigma_2_1, pose.Sigma_2_1.T)


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (5, 5, "stamp_2_ns must be after stamp_1_ns, got 5 then 5"),
        (5, 4, "stamp_2_ns must be after stamp_1_ns, got 5 then 4"),
        (0.5, 4, "stamp_1_ns must be an int of nanoseconds, got 0.5"),
        (0, NAN, "stamp_2_ns must be an int"),
        (0, "1", "stamp_2_ns must be an int"),
        (0, None, "stamp_2_ns must be an int"),
    ],
)
@each_kind
def test_stamps_are_whole_and_in_order(make, first, second, name):
    with pytest.raises(ValueError, match=name):
        make(0, stamp_1_ns=first, stamp_2_ns=second)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (np.eye(2), "shape"),
        (np.diag([0.0, 0.0, NAN]), "not finite"),
        (np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]]) * 1e-8, "not symmetric"),
        (-1e-6 * np.eye(3), "not a part of the covariance"),
        (1e-2 * np.eye(3), "not a part of the covariance"),
    ],
    ids=["shape", "nan", "asymmetric", "negative", "more than the whole"],
)
def test_a_bad_epistemic_part_is_refused_by_name(bad, why):
    with pytest.raises(ValueError, match=f"^epistemic .*{why}"):
        a_rotation(0, epistemic=bad)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_epistemic_and_aleatoric_add_up(share):
    sigma = spd(3, 3, 1e-3 * np.ones(3))
    estimate = a_rotation(0, Sigma_2_1=sigma, epistemic=share * sigma)
    np.testing.assert_allclose(estimate.epistemic, share * sigma, rtol=1e-14)
    np.testing.assert_allclose(estimate.aleatoric, (1 - share) * sigma, rtol=1e-14, atol=1e-20)


def test_a_part_of_two_heads_is_singular_and_accepted():
    spread = np.outer([1e-3, -2e-3, 1e-3], [1e-3, -2e-3, 1e-3])
    estimate = a_rotation(0, Sigma_2_1=spread + 1e-8 * np.eye(3), epistemic=spread)
    np.testing.assert_allclose(estimate.aleatoric, 1e-8 * np.eye(3), rtol=1e-6, atol=1e-15)


def test_without_an_epistemic_part_neither_part_is_known():
    assert a_rotation(0).epistemic is None
    assert a_rotation(0).aleatoric is None


# --- immutability --------------------------------------------------------------------------------


def test_a_persistent_part_is_a_part_and_lasts_for_some_time():
    sigma = spd(0, 3, np.full(3, 1e-3))
    kept = a_rotation(0, Sigma_2_1=sigma, persistent=0.3 * sigma, persistent_s=2.0)
    np.testing.assert_allclose(kept.persistent, 0.3 * sigma, rtol=1e-14)
    with pytest.raises(ValueError, match=r"^persistent is not a part"):
        a_rotation(0, Sigma_2_1=sigma, persistent=2.0 * sigma, persistent_s=2.0)
    for seconds in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"^persistent_s must be a time above 0"):
            a_rotation(0, Sigma_2_1=sigma, persistent=0.3 * sigma, persistent_s=seconds)


@each_kind
def test_estimates_cannot_be_changed(make):
    estimate = make(0) if make is a_pose else make(0, epistemic=np.zeros((3, 3)))
    for field in dataclasses.fields(estimate):
        held = getattr(estimate, field.name)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(estimate, field.name, held)
        if isinstance(held, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                held[0, 0] = 2.0


@each_kind
def test_estimates_do_not_share_memory_with_what_they_were_made_from(make):
    name = "T_2_1" if make is a_pose else "C_2_1"
    size = 6 if make is a_pose else 3
    given_value, given_sigma = np.eye(4 if make is a_pose else 3), np.eye(size)
    estimate = make(0, **{name: given_value, "Sigma_2_1": given_sigma})
    given_value[:], given_sigma[:] = 7.0, 7.0
    np.testing.assert_array_equal(value(estimate), np.eye(len(given_value)))
    np.testing.assert_array_equal(estimate.Sigma_2_1, np.eye(size))


# --- composition and inversion -------------------------------------------------------------------


def sampled(estimate, rng):
    """Draws Exp(xi) @ mean with xi of the estimate's covariance."""
    mean, sigma = value(estimate), estimate.Sigma_2_1
    xi = rng.multivariate_normal(np.zeros(len(sigma)), sigma, size=SAMPLES)
    return (lie.so3_exp if len(sigma) == 3 else lie.se3_exp)(xi) @ mean


def assert_spread(draws, mean, sigma):
    """The draws' left perturbations of `mean`, whitened by `sigma`, have covariance I."""
    log, inverse = (
        (lie.so3_log, lie.so3_inverse) if mean.shape == (3, 3) else (lie.se3_log, lie.se3_inverse)
    )
    white = np.linalg.solve(np.linalg.cholesky(sigma), log(draws @ inverse(mean)).T)
    identity = np.eye(len(sigma))
    error = np.linalg.norm(white @ white.T / SAMPLES - identity) / np.linalg.norm(identity)
    assert error < MONTE_CARLO_TOLERANCE


@pytest.mark.parametrize("seed", [1, 2])
@each_kind
def test_covariance_of_an_inverse_against_monte_carlo(make, seed):
    estimate = make(seed)
    draws = np.linalg.inv(sampled(estimate, np.random.default_rng(seed)))
    assert_spread(draws, *estimate.inverse())


@pytest.mark.parametrize("seed", [1, 2])
@each_kind
def test_covariance_of_a_composition_against_monte_carlo(make, seed):
    rng = np.random.default_rng(seed)
    first, second = make(seed), make(seed + 10, start_ns=100)
    both = first.then(second)
    assert_spread(sampled(second, rng) @ sampled(first, rng), value(both), both.Sigma_2_1)


@each_kind
def test_then_composes_values_and_stamps(make):
    first, second = make(1), make(2, start_ns=100)
    both = first.then(second)
    assert (both.stamp_1_ns, both.stamp_2_ns) == (0, 200)
    np.testing.assert_allclose(value(both), value(second) @ value(first), rtol=0, atol=1e-14)


@each_kind
def test_then_is_associative(make):
    a, b, c = make(1), make(2, start_ns=100), make(3, start_ns=200)
    left, right = a.then(b).then(c), a.then(b.then(c))
    np.testing.assert_allclose(value(left), value(right), rtol=0, atol=1e-13)
    np.testing.assert_allclose(left.Sigma_2_1, right.Sigma_2_1, rtol=0, atol=1e-15)


@each_kind
def test_inverse_of_a_composition_is_the_composition_of_inverses(make):
    first, second = make(1), make(2, start_ns=100)
    got = first.then(second).inverse()
    expected = estimates.compose_with_covariance(*first.inverse(), *second.inverse())
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(got[1], expected[1], rtol=0, atol=1e-15)


@each_kind
def test_inverting_twice_changes_nothing(make):
    estimate = make(1)
    back = estimates.invert_with_covariance(*estimate.inverse())
    np.testing.assert_allclose(back[0], value(estimate), rtol=0, atol=1e-14)
    np.testing.assert_allclose(back[1], estimate.Sigma_2_1, rtol=0, atol=1e-16)


@each_kind
def test_then_refuses_a_gap(make):
    with pytest.raises(ValueError, match="ends at 100 ns, the next starts at 101 ns"):
        make(1).then(make(2, start_ns=101))


@pytest.mark.parametrize("size", [3, 6])
def test_covariances_of_a_batch_are_a_loop(size):
    exp = lie.so3_exp if size == 3 else lie.se3_exp
    rng = np.random.default_rng(0)
    a, b = exp(rng.normal(size=(2, 4, size)))
    sigma = np.stack([spd(seed, size, np.ones(size)) for seed in range(4)])
    for function, arguments in [
        (estimates.invert_with_covariance, (a, sigma)),
        (estimates.compose_with_covariance, (a, sigma, b, sigma[::-1])),
    ]:
        batched = function(*arguments)
        for i in range(4):
            for whole, one in zip(batched, function(*(x[i] for x in arguments)), strict=True):
                np.testing.assert_allclose(whole[i], one, rtol=0, atol=1e-13)


def test_the_epistemic_part_is_carried_like_the_whole():
    first, second = a_rotation(1), a_rotation(2, start_ns=100)
    split = [dataclasses.replace(e, epistemic=0.25 * e.Sigma_2_1) for e in (first, second)]
    both = split[0].then(split[1])
    np.testing.assert_allclose(both.epistemic, 0.25 * both.Sigma_2_1, rtol=1e-12, atol=1e-20)
    only_second = dataclasses.replace(first, epistemic=np.zeros((3, 3))).then(split[1])
    np.testing.assert_allclose(only_second.epistemic, split[1].epistemic, rtol=1e-14)
    assert first.then(split[1]).epistemic is None
    assert split[0].then(second).epistemic is None


def test_what_persists_is_carried_as_a_rate_error_that_lasts():
    """Monte Carlo over 1, 10, 100 steps: a rate error that is forgotten within 1 s, and noise.

    Steps of 0.1 s in directions of their own, so that what persists is turned on the way.
    """
    rng = np.random.default_rng(0)
    runs, dt, lasting, rate, noise = 4000, 0.1, 1.0, 2e-4, 1e-5
    fine = 8  # the rate error changes within a step, too
    keep = np.exp(-dt / fine / lasting)
    C = lie.so3_exp(np.array([0.02, -0.01, 0.03]))
    x = dt / lasting
    growth = 2.0 * lasting**2 * (x - 1.0 + np.exp(-x))
    part = rate**2 * growth * np.eye(3)
    state = rate * rng.normal(size=(runs, 3))
    drawn = np.broadcast_to(np.eye(3), (runs, 3, 3))
    chain = None
    for k in range(100):
        error = noise * rng.normal(size=(runs, 3))
        for _ in range(fine):
            error = error + state * dt / fine
            state = keep * state + rate * np.sqrt(1.0 - keep**2) * rng.normal(size=(runs, 3))
        drawn = lie.so3_exp(error) @ C @ drawn
        state = state @ C.T  # of the body's axes, which turn
        begin, end = int(k * dt * 1e9), int((k + 1) * dt * 1e9)
        step = RelativeRotation(C, part + noise**2 * np.eye(3), begin, end, None, part, lasting)
        chain = step if chain is None else chain.then(step)
        if k + 1 in (1, 10, 100):
            e = lie.so3_log(drawn @ chain.C_2_1.T)
            spread = np.linalg.solve(chain.Sigma_2_1, e.T @ e / runs)
            assert 0.93 < np.trace(spread) / 3.0 < 1.07, (k, np.trace(spread) / 3.0)
            summed = (k + 1) * np.trace(part + noise**2 * np.eye(3))
            if k + 1 > 1:  # and a plain sum would be far too sure
                assert np.trace(chain.Sigma_2_1) > 4.0 * summed
    assert chain.persistent_s == pytest.approx(lasting)


def test_without_what_persists_in_both_a_composition_does_not_tell_it():
    first, second = a_rotation(1), a_rotation(2, start_ns=100)
    part = dataclasses.replace(first, persistent=0.5 * first.Sigma_2_1, persistent_s=1.0)
    both = part.then(second)
    assert both.persistent is None
    np.testing.assert_allclose(both.Sigma_2_1, first.then(second).Sigma_2_1)


# --- views ---------------------------------------------------------------------------------------


def test_the_rotation_of_a_pose_is_its_marginal():
    pose = a_pose(4)
    rotation = pose.rotation
    np.testing.assert_allclose(rotation.C_2_1, pose.T_2_1[:3, :3], rtol=0, atol=4e-15)
    np.testing.assert_array_equal(rotation.Sigma_2_1, pose.Sigma_2_1[3:, 3:])
    assert (rotation.stamp_1_ns, rotation.stamp_2_ns) == (pose.stamp_1_ns, pose.stamp_2_ns)


def test_the_quaternion_is_that_of_the_rotation():
    rotation = a_rotation(5)
    assert rotation.quaternion[0] >= 0.0
    matrix = lie.quaternion_to_matrix(rotation.quaternion)
    np.testing.assert_allclose(matrix, rotation.C_2_1, rtol=0, atol=4e-15)


def test_a_shared_error_of_scale_is_told_and_kept() -> None:
    T, Sigma = lie.se3_exp([0.1, 0.0, -0.8, 0.0, 0.02, 0.0]), np.diag([1e-4] * 3 + [1e-6] * 3)
    first = RelativePose(T, Sigma, 0, 10, 0.004)
    second = RelativePose(T, Sigma, 10, 20, 0.003)
    assert RelativePose(T, Sigma, 0, 10).scale_sigma == 0.0
    assert first.then(second).scale_sigma == 0.003  # what both share
    for wrong in (-1e-3, np.nan, np.inf):
        with pytest.raises(ValueError, match="scale_sigma must be finite"):
            RelativePose(T, Sigma, 0, 10, wrong)
