from __future__ import annotations

import inspect
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
import pytest
import scipy.linalg
import transforms3d
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from strategies import (
    NEAR_PI,
    SHAPES,
    angles,
    angles_below_pi,
    directions,
    rotation_vectors,
    twists,
)

from hydranet_ros.geometry import lie


class Group(NamedTuple):
    tangents: Callable
    size: int
    tolerance: float  # of a matrix: rounding of its largest element, 1 or about 50 m
    exp: Callable
    log: Callable
    inverse: Callable
    adjoint: Callable
    jacobian: Callable
    jacobian_inverse: Callable


SO3 = Group(
    rotation_vectors,
    3,
    4e-15,
    lie.so3_exp,
    lie.so3_log,
    lie.so3_inverse,
    lie.so3_adjoint,
    lie.so3_left_jacobian,
    lie.so3_left_jacobian_inverse,
)
SE3 = Group(
    twists,
    6,
    2e-13,
    lie.se3_exp,
    lie.se3_log,
    lie.se3_inverse,
    lie.se3_adjoint,
    lie.se3_left_jacobian,
    lie.se3_left_jacobian_inverse,
)
each_group = pytest.mark.parametrize("group", [SO3, SE3], ids=["SO3", "SE3"])


def assert_close(actual, expected, tolerance):
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=tolerance)


def rng(seed=0):
    return np.random.default_rng(seed)


def random_rotations(generator, *shape, spread=3.0):
    return lie.so3_exp(spread * generator.uniform(-1.0, 1.0, (*shape, 3)) / np.sqrt(3.0))


# --- group laws ----------------------------------------------------------------------------------


@each_group
@given(st.data())
def test_exp_undoes_log(group, data):
    element = group.exp(data.draw(group.tangents()))
    assert_close(group.exp(group.log(element)), element, group.tolerance)


@each_group
@given(st.data())
def test_log_undoes_exp_below_pi(group, data):
    x = data.draw(group.tangents(angles=angles_below_pi))
    assert_close(group.log(group.exp(x)), x, group.tolerance)


@each_group
@given(st.data())
def test_exp_of_the_negative_is_the_inverse(group, data):
    x = data.draw(group.tangents())
    assert_close(group.exp(-x), group.inverse(group.exp(x)), group.tolerance)


@each_group
@given(st.data())
def test_inverse_cancels_on_both_sides(group, data):
    element = group.exp(data.draw(group.tangents()))
    identity = np.broadcast_to(np.eye(element.shape[-1]), element.shape)
    assert_close(element @ group.inverse(element), identity, group.tolerance)
    assert_close(group.inverse(element) @ element, identity, group.tolerance)


@each_group
@given(st.data())
def test_products_are_associative_and_stay_on_the_group(group, data):
    a, b, c = group.exp(data.draw(group.tangents(count=3)))
    assert_close((a @ b) @ c, a @ (b @ c), group.tolerance)
    assert_close(group.exp(group.log(a @ b)), a @ b, 2 * group.tolerance)


@each_group
@given(st.data())
def test_adjoint_moves_a_perturbation_across(group, data):
    x, y = data.draw(group.tangents(count=2))
    a, b = group.exp(x), group.exp(y)
    carried = (group.adjoint(a) @ y[..., None])[..., 0]
    # The carried translation reaches 10 + 18 pi m.
    assert_close(a @ b @ group.inverse(a), group.exp(carried), 5 * group.tolerance)


@each_group
@given(st.data())
def test_adjoint_is_a_homomorphism(group, data):
    a, b = group.exp(data.draw(group.tangents(count=2)))
    assert_close(group.adjoint(a @ b), group.adjoint(a) @ group.adjoint(b), 5 * group.tolerance)


@given(rotation_vectors())
def test_rotations_are_orthonormal(phi):
    r = lie.so3_exp(phi)
    assert_close(r @ np.swapaxes(r, -1, -2), np.broadcast_to(np.eye(3), r.shape), 4e-15)
    assert_close(np.linalg.det(r), np.ones(phi.shape[:-1]), 4e-15)


# --- the angles where formulas break -------------------------------------------------------------


@given(direction=directions(1), angle=st.sampled_from(NEAR_PI))
def test_log_keeps_sign_and_precision_next_to_pi(direction, angle):
    phi = angle * direction[0]
    assert_close(lie.so3_log(lie.so3_exp(phi)), phi, 4e-15)
    assert_close(lie.quaternion_log(lie.quaternion_exp(phi)), phi, 4e-15)


@given(direction=directions(1))
def test_log_at_pi_is_right_up_to_sign(direction):
    n = direction[0]
    exact = 2.0 * np.outer(n, n) - np.eye(3)
    log = lie.so3_log(exact)
    assert_close(np.sign(log @ n) * log, np.pi * n, 4e-15)


@pytest.mark.parametrize("angle", [1e-300, 1e-200, 1e-161, 1e-100, 1e-20, 1e-8, 1e-5, 1e-4])
@given(direction=directions(1))
def test_tiny_angles_keep_relative_precision(angle, direction):
    # A float32-sized direction element may itself be far below the angle, hence its floor.
    phi = angle * direction[0]
    floor = 1e-15 * angle
    xi = np.concatenate([angle * np.array([0.5, -2.0, 1.0]), phi])
    for log, exp, x in [
        (lie.so3_log, lie.so3_exp, phi),
        (lie.quaternion_log, lie.quaternion_exp, phi),
        (lie.se3_log, lie.se3_exp, xi),
    ]:
        np.testing.assert_allclose(log(exp(x)), x, rtol=1e-14, atol=floor)


# --- the exponential and its Jacobian against their defining series ------------------------------


def exact_series(matrix, shift):
    """sum_n matrix^n / (n + shift)! to 40 digits: Exp for shift 0, the left Jacobian for 1."""
    with localcontext() as context:
        context.prec = 40
        m = np.array([[Decimal(float(x)) for x in row] for row in matrix])
        term = np.array([[Decimal(int(i == j)) for j in range(len(m))] for i in range(len(m))])
        total = term
        for n in range(1, 60):
            term = term.dot(m) / Decimal(n + shift)
            total = total + term
        return total


def small_adjoint(x):
    """The ad of a tangent: hat(phi), or [[hat(phi), hat(rho)], [0, hat(phi)]]."""
    if len(x) == 3:
        return lie.hat(x)
    phi, rho = lie.hat(x[3:]), lie.hat(x[:3])
    return np.block([[phi, rho], [np.zeros((3, 3)), phi]])


# Both sides of the squared angles 0.25 and 1 where series and closed forms meet, and beyond.
SERIES_ANGLES = [0.0, 1e-8, 1e-3, 0.1, 0.5 - 1e-9, 0.5 + 1e-9, 0.7, 1 - 1e-9, 1 + 1e-9, 2.0, 3.14]


@each_group
@pytest.mark.parametrize("angle", SERIES_ANGLES)
def test_exp_and_jacobians_match_their_series_in_high_precision(group, angle):
    x = np.array([0.8, -0.3, 0.5, *(angle * np.array([0.6, -0.48, 0.64]))])[-group.size :]
    jacobian = exact_series(small_adjoint(x), 1)
    assert_close(group.exp(x), exact_series(lie.hat(x), 0).astype(float), 1e-15)
    # The closed forms lose two digits by cancellation where they take over.
    assert_close(group.jacobian(x), jacobian.astype(float), 4e-15)
    inverse = np.array([[Decimal(v) for v in row] for row in group.jacobian_inverse(x).tolist()])
    assert_close(jacobian.dot(inverse).astype(float), np.eye(group.size), 1e-14)


@each_group
@given(st.data())
def test_jacobian_times_its_inverse_is_the_identity(group, data):
    x = data.draw(group.tangents())
    product = group.jacobian(x) @ group.jacobian_inverse(x)
    assert_close(product, np.broadcast_to(np.eye(group.size), product.shape), group.tolerance)


@each_group
@given(st.data())
def test_jacobian_matches_central_differences(group, data):
    x = data.draw(group.tangents())[..., None, :]
    step = 1e-5 * np.eye(group.size)

    def error(d):
        return group.log(group.exp(x + d) @ group.inverse(group.exp(x)))

    columns = (error(step) - error(-step)) / 2e-5
    # Truncation 1e-10 and rounding 1e-11 per metre or radian of the tangent, which is up to 21.
    assert_close(np.swapaxes(columns, -1, -2), group.jacobian(x[..., 0, :]), 2e-8)


@given(twists())
def test_ad_generates_the_adjoint(xi):
    ad = np.reshape(lie.se3_ad(xi), (-1, 6, 6))
    adjoint = np.reshape(lie.se3_adjoint(lie.se3_exp(xi)), (-1, 6, 6))
    for generator, expected in zip(ad, adjoint, strict=True):
        assert_close(scipy.linalg.expm(generator), expected, 1e-11)


# --- hat and quaternions -------------------------------------------------------------------------


@given(rotation_vectors(count=2))
def test_hat_of_3_is_the_cross_product(vectors):
    a, b = vectors
    assert_close((lie.hat(a) @ b[..., None])[..., 0], np.cross(a, b), 4e-15)


def test_hat_of_6_is_a_twist():
    expected = [[0, -6, 5, 1], [6, 0, -4, 2], [-5, 4, 0, 3], [0, 0, 0, 0]]
    np.testing.assert_array_equal(lie.hat([1, 2, 3, 4, 5, 6]), expected)


@pytest.mark.parametrize("bad", [1.0, [1.0, 2.0], np.zeros((3, 4))])
def test_hat_refuses_other_sizes(bad):
    with pytest.raises(ValueError, match="3 or 6 elements, got shape"):
        lie.hat(bad)


@given(rotation_vectors())
def test_quaternion_and_matrix_convert_both_ways(phi):
    r, q = lie.so3_exp(phi), lie.quaternion_exp(phi)
    assert_close(lie.quaternion_to_matrix(q), r, 4e-15)
    assert_close(lie.quaternion_to_matrix(lie.quaternion_from_matrix(r)), r, 4e-15)
    back = lie.quaternion_from_matrix(lie.quaternion_to_matrix(q))
    assert_close(lie.quaternionic_distance(back, q), np.zeros(q.shape[:-1]), 4e-15)
    assert (back[..., 0] >= 0.0).all()
    assert (q[..., 0] >= 0.0).all()
    assert_close(np.linalg.norm(q, axis=-1), np.ones(q.shape[:-1]), 4e-15)


@given(rotation_vectors(count=2))
def test_quaternion_product_is_the_matrix_product(vectors):
    a, b = vectors
    q = lie.quaternion_multiply(lie.quaternion_exp(a), lie.quaternion_exp(b))
    assert_close(lie.quaternion_to_matrix(q), lie.so3_exp(a) @ lie.so3_exp(b), 4e-15)


@given(rotation_vectors(angles=angles_below_pi))
def test_both_signs_of_a_quaternion_have_one_log(phi):
    q = lie.quaternion_exp(phi)
    np.testing.assert_array_equal(lie.quaternion_log(-q), lie.quaternion_log(q))
    np.testing.assert_array_equal(lie.quaternion_positive(-q), q)


@pytest.mark.parametrize("turns", [0.75, 1.25, 2.4, 7.0])
def test_exp_wraps_beyond_pi(turns):
    phi = 2.0 * np.pi * turns * np.array([0.6, -0.48, 0.64])
    expected = Rotation.from_rotvec(phi)
    assert_close(lie.so3_exp(phi), expected.as_matrix(), 1e-13)
    assert_close(lie.so3_log(lie.so3_exp(phi)), expected.as_rotvec(), 1e-13)
    assert_close(lie.quaternion_to_matrix(lie.quaternion_exp(phi)), expected.as_matrix(), 1e-13)
    assert lie.quaternion_exp(phi)[0] >= 0.0


# --- other people's libraries --------------------------------------------------------------------


@given(direction=directions(2), angle=st.lists(angles, min_size=2, max_size=2))
def test_agrees_with_transforms3d(direction, angle):
    phi = np.array(angle)[:, None] * direction
    q, r = lie.quaternion_exp(phi), lie.so3_exp(phi)
    for i in range(2):
        assert_close(r[i], transforms3d.axangles.axangle2mat(direction[i], angle[i]), 4e-15)
        assert_close(
            lie.quaternion_to_matrix(q[i]), transforms3d.quaternions.quat2mat(q[i]), 4e-15
        )
        # transforms3d takes an eigenvector: half the digits are lost near a double eigenvalue.
        theirs = transforms3d.quaternions.mat2quat(r[i])
        assert lie.quaternionic_distance(lie.quaternion_from_matrix(r[i]), theirs) < 1e-7
    product = transforms3d.quaternions.qmult(q[0], q[1])
    assert_close(lie.quaternion_multiply(q[0], q[1]), product, 4e-15)


@given(rotation_vectors(angles=angles_below_pi))
def test_agrees_with_scipy(phi):
    phi = phi.reshape(-1, 3)
    theirs = Rotation.from_rotvec(phi)
    assert_close(lie.so3_exp(phi), theirs.as_matrix(), 4e-15)
    assert_close(lie.so3_log(theirs.as_matrix()), theirs.as_rotvec(), 1e-14)
    x_y_z_w = theirs.as_quat(canonical=True)
    assert_close(lie.quaternion_exp(phi), np.roll(x_y_z_w, 1, axis=-1), 4e-15)


# --- distances -----------------------------------------------------------------------------------

DISTANCES = {
    "angular": (lie.angular_distance, lie.so3_exp, lambda t: t),
    "chordal": (lie.chordal_distance, lie.so3_exp, lambda t: 2 * np.sqrt(2) * np.sin(t / 2)),
    "quaternionic": (lie.quaternionic_distance, lie.quaternion_exp, lambda t: 2 * np.sin(t / 4)),
}
each_distance = pytest.mark.parametrize(
    ("distance", "exp", "of_angle"), DISTANCES.values(), ids=DISTANCES.keys()
)


@each_distance
@given(direction=directions(2), angle=angles, offset=angles)
def test_distance_is_the_appendix_function_of_the_angle(
    distance, exp, of_angle, direction, angle, offset
):
    a = exp(offset * direction[0])
    step = exp(angle * direction[1])
    b = lie.quaternion_multiply(step, a) if a.shape == (4,) else step @ a
    assert_close(distance(a, b), of_angle(angle), 4e-15)


@given(rotation_vectors(count=2))
def test_quaternionic_distance_ignores_signs(vectors):
    a, b = lie.quaternion_exp(vectors)
    angle = lie.angular_distance(*lie.so3_exp(vectors))
    for sign in (1.0, -1.0):
        assert_close(lie.quaternionic_distance(a, sign * b), 2 * np.sin(angle / 4), 4e-15)


@each_distance
@given(vectors=rotation_vectors(count=3))
def test_distance_is_a_metric(distance, exp, of_angle, vectors):
    a, b, c = exp(vectors)
    assert_close(distance(a, a), np.zeros(vectors.shape[1:-1]), 4e-15)
    assert_close(distance(a, b), distance(b, a), 4e-15)
    assert (distance(a, c) <= distance(a, b) + distance(b, c) + 4e-15).all()
    apart = lie.chordal_distance(*lie.so3_exp(vectors[:2])) > 1e-12
    assert (np.asarray(distance(a, b))[apart] > 0.0).all()


# --- means and spread ----------------------------------------------------------------------------


def quaternion_mean_of_matrices(rotations):
    return lie.quaternion_to_matrix(lie.quaternion_mean(lie.quaternion_from_matrix(rotations)))


def quaternionic_distance_of_matrices(a, b):
    return lie.quaternionic_distance(lie.quaternion_from_matrix(a), lie.quaternion_from_matrix(b))


MEANS = {
    "karcher": (lie.karcher_mean, lie.angular_distance),
    "chordal": (lie.chordal_mean, lie.chordal_distance),
    "quaternion": (quaternion_mean_of_matrices, quaternionic_distance_of_matrices),
}
each_mean = pytest.mark.parametrize("mean", [m for m, _ in MEANS.values()], ids=MEANS.keys())
each_seed = pytest.mark.parametrize("seed", range(5))


def cluster(generator, spread, n=7):
    """`n` rotations within `spread` of a random one."""
    return random_rotations(generator, n, spread=spread) @ random_rotations(generator)


@each_seed
@pytest.mark.parametrize(("mean", "distance"), MEANS.values(), ids=MEANS.keys())
def test_mean_minimises_its_own_cost(mean, distance, seed):
    rotations = cluster(rng(seed), spread=1.5)
    best = mean(rotations)
    # The cost is n h^2 (1 - 2 bias/h) higher at h: this notices a bias of half a step.
    steps = 1e-5 * np.concatenate([np.eye(3), -np.eye(3), rng(seed).normal(size=(10, 3))])
    nearby = (lie.so3_exp(steps) @ best)[:, None]
    assert (
        np.sum(distance(rotations, nearby) ** 2, axis=1) > np.sum(distance(rotations, best) ** 2)
    ).all()


@each_seed
@each_mean
def test_mean_is_equivariant(mean, seed):
    generator = rng(seed)
    rotations, q = cluster(generator, spread=1.5), random_rotations(generator)
    assert_close(mean(q @ rotations), q @ mean(rotations), 1e-12)
    assert_close(mean(rotations @ q), mean(rotations) @ q, 1e-12)


@each_seed
@each_mean
def test_mean_ignores_order_and_keeps_a_single_rotation(mean, seed):
    generator = rng(seed)
    rotations = cluster(generator, spread=1.5)
    assert_close(mean(generator.permutation(rotations)), mean(rotations), 1e-12)
    assert_close(mean(rotations[:1]), rotations[0], 4e-15)


@each_mean
def test_mean_of_two_is_halfway(mean):
    a, phi = random_rotations(rng()), np.array([0.3, -0.9, 0.5])
    assert_close(mean(np.stack([a, lie.so3_exp(phi) @ a])), lie.so3_exp(phi / 2) @ a, 1e-12)


@each_mean
def test_means_agree_for_small_spread(mean):
    rotations = cluster(rng(), spread=1e-3)
    # They differ in the third order of the spread.
    assert_close(mean(rotations), lie.karcher_mean(rotations), 1e-9)


@pytest.mark.parametrize("mean", [lie.karcher_mean, lie.chordal_mean])
def test_mean_of_nothing_is_refused(mean):
    with pytest.raises(ValueError, match="at least 1 rotation"):
        mean(np.zeros((0, 3, 3)))
    with pytest.raises(ValueError, match="at least 1 quaternion"):
        lie.quaternion_mean(np.zeros((0, 4)))


@each_seed
def test_chordal_mean_is_the_mean_of_scipy(seed):
    rotations = cluster(rng(seed), spread=1.5)
    expected = Rotation.from_matrix(rotations).mean().as_matrix()
    assert_close(lie.chordal_mean(rotations), expected, 1e-14)


@each_seed
def test_quaternion_mean_ignores_signs(seed):
    generator = rng(seed)
    q = lie.quaternion_from_matrix(cluster(generator, spread=1.5))
    signs = generator.choice([-1.0, 1.0], size=(20, len(q), 1))
    assert_close(lie.quaternion_mean(signs * q), np.tile(lie.quaternion_mean(q), (20, 1)), 4e-15)


@pytest.mark.parametrize("shape", SHAPES)
def test_sample_covariance_recovers_a_known_one(shape):
    generator = rng(1)
    sigma = np.array([[4.0, 1.0, -0.5], [1.0, 1.0, 0.2], [-0.5, 0.2, 0.5]]) * 1e-4
    phi = generator.multivariate_normal(np.zeros(3), sigma, size=(*shape, 20_000))
    mean = random_rotations(generator, *shape)
    estimate = lie.sample_covariance(lie.so3_exp(phi) @ mean[..., None, :, :], mean)
    # The relative deviation of a variance from 20 000 samples is 1 %.
    error = np.linalg.norm(estimate - sigma, axis=(-2, -1)) / np.linalg.norm(sigma)
    assert (error < 0.04).all()


def test_sample_covariance_divides_by_one_less():
    phi, mean = np.array([0.1, -0.2, 0.3]), random_rotations(rng())
    pair = lie.so3_exp(np.stack([phi, -phi])) @ mean
    assert_close(lie.sample_covariance(pair, mean), 2.0 * np.outer(phi, phi), 1e-15)
    with pytest.raises(ValueError, match="at least 2 rotations, got 1"):
        lie.sample_covariance(pair[:1], mean)


# --- projection ----------------------------------------------------------------------------------


@given(rotation_vectors())
def test_projection_keeps_rotations(phi):
    r = lie.so3_exp(phi)
    assert_close(lie.project_to_so3(r), r, 4e-15)


def test_projection_makes_rounded_rotations_orthonormal():
    rounded = random_rotations(rng(), 20_000).astype(np.float32)
    r = lie.project_to_so3(rounded)
    assert_close(r @ np.swapaxes(r, -1, -2), np.broadcast_to(np.eye(3), r.shape), 6e-15)
    assert_close(r, rounded, 1e-6)


@each_seed
def test_projection_is_the_nearest_rotation(seed):
    generator = rng(seed)
    matrices = generator.normal(size=(50, 3, 3))
    assert (np.linalg.det(matrices) < 0.0).any()
    nearest = lie.project_to_so3(matrices)
    assert_close(np.linalg.det(nearest), np.ones(50), 1e-14)
    assert_close(nearest @ np.swapaxes(nearest, -1, -2), np.tile(np.eye(3), (50, 1, 1)), 1e-14)
    others = np.concatenate(
        [
            lie.so3_exp(1e-3 * generator.normal(size=(20, 1, 3))) @ nearest,
            np.broadcast_to(random_rotations(generator, 200, 1), (200, 50, 3, 3)),
        ]
    )
    assert (
        np.linalg.norm(others - matrices, axis=(-2, -1))
        >= np.linalg.norm(nearest - matrices, axis=(-2, -1))
    ).all()


def test_projection_of_a_reflection_is_a_rotation():
    # The sign of the determinant is mended where it costs least: in the least singular value.
    assert_close(lie.project_to_so3(np.diag([3.0, 2.0, -1.0])), np.eye(3), 1e-15)
    assert_close(lie.project_to_so3(np.diag([-3.0, 2.0, -1.0])), np.diag([-1.0, 1.0, -1.0]), 1e-15)


# --- batches -------------------------------------------------------------------------------------

MAKE = {
    "s": lambda g, s: np.asarray(g.normal(size=s)),
    "phi": lambda g, s: g.normal(size=(*s, 3)),
    "xi": lambda g, s: g.normal(size=(*s, 6)),
    "R": lambda g, s: random_rotations(g, *s),
    "T": lambda g, s: lie.se3_exp(g.normal(size=(*s, 6))),
    "q": lambda g, s: lie.quaternion_exp(g.normal(size=(*s, 3))),
    "M": lambda g, s: g.normal(size=(*s, 3, 3)),
    "Rs": lambda g, s: random_rotations(g, *s, 6, spread=1.0),
    "qs": lambda g, s: (
        g.choice([-1.0, 1.0], (*s, 6, 1)) * lie.quaternion_exp(0.5 * g.normal(size=(*s, 6, 3)))
    ),
}
ARGUMENTS = {
    "hat": "phi",
    "so3_exp": "phi",
    "so3_log": "R",
    "so3_inverse": "R",
    "so3_adjoint": "R",
    "so3_left_jacobian": "phi",
    "so3_left_jacobian_inverse": "phi",
    "project_to_so3": "M",
    "quaternion_positive": "q",
    "quaternion_from_matrix": "R",
    "quaternion_to_matrix": "q",
    "quaternion_multiply": "q q",
    "quaternion_exp": "phi",
    "quaternion_log": "q",
    "se3_from": "R phi",
    "se3_exp": "xi",
    "se3_log": "T",
    "se3_inverse": "T",
    "se3_adjoint": "T",
    "se3_adjoint_of": "R phi",
    "se3_ad": "xi",
    "se3_left_jacobian": "xi",
    "se3_left_jacobian_inverse": "xi",
    "inverse_coefficients": "phi",
    "inverse_corner": "phi phi s s",
    "angular_distance": "R R",
    "chordal_distance": "R R",
    "quaternionic_distance": "q q",
    "karcher_mean": "Rs",
    "chordal_mean": "Rs",
    "quaternion_mean": "qs",
    "sample_covariance": "Rs R",
}


def test_every_public_function_has_a_batch_test():
    public = {
        name
        for name, function in inspect.getmembers(lie, inspect.isfunction)
        if function.__module__ == lie.__name__ and not name.startswith("_")
    }
    assert public == ARGUMENTS.keys()


def results(name, arguments):
    """What a function of `lie` returns, as a tuple of arrays."""
    value = getattr(lie, name)(*arguments)
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("shape", [*SHAPES, (0,)], ids=str)
@pytest.mark.parametrize(("name", "kinds"), ARGUMENTS.items(), ids=ARGUMENTS.keys())
def test_a_batch_is_a_loop(name, kinds, shape):
    generator = rng()
    arguments = [MAKE[kind](generator, shape) for kind in kinds.split()]
    example = results(name, [MAKE[kind](generator, ()) for kind in kinds.split()])
    for k, batched in enumerate(results(name, arguments)):
        assert np.shape(batched) == (*shape, *np.shape(example[k]))
        for index in np.ndindex(shape):
            assert_close(batched[index], results(name, [a[index] for a in arguments])[k], 1e-13)


@pytest.mark.parametrize(
    ("name", "kinds"), [("se3_from", "R phi"), ("quaternion_multiply", "q q")]
)
def test_one_broadcasts_against_many(name, kinds):
    function, generator = getattr(lie, name), rng()
    one, many = (MAKE[k](generator, s) for k, s in zip(kinds.split(), [(), (5,)], strict=True))
    assert_close(function(one, many), np.stack([function(one, each) for each in many]), 1e-15)
