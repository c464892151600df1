"""The window against GTSAM's batch solution, and against Monte Carlo."""

from __future__ import annotations

import numpy as np
import pytest
from fusion.fusion_worlds import Problem, correlated, draw, random_problem
from hypothesis import given
from hypothesis import strategies as st

from hydranet_ros.fusion.normal_equations import Kernel
from hydranet_ros.fusion.window import Window, WindowNoise
from hydranet_ros.geometry import lie

gtsam = pytest.importorskip("gtsam", reason="GTSAM is the oracle: pip install gtsam")

from fusion import gtsam_twin

PRECISE = {"max_iterations": 100, "tolerance": 1e-12}
NEVER_CARRIED = WindowNoise(np.ones(6), np.ones(6), 1.0, 2.0)


def poses_of(window: Window) -> np.ndarray:
    return lie.se3_from(window.states.C, window.states.r)


def relative_covariance(joint: np.ndarray, T_2_1: np.ndarray) -> np.ndarray:
    """Of Log(T_2_1) from the joint covariance (12, 12) of the poses 1 and 2."""
    jacobian = np.hstack([-lie.se3_adjoint(T_2_1), np.eye(6)])
    return jacobian @ joint @ jacobian.T


# --- the optimum ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["none", "huber", "cauchy"])
@pytest.mark.parametrize(("with_bias", "gaps"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("seed", range(2))
def test_the_optimum_is_that_of_gtsam(
    seed: int, with_bias: bool, gaps: bool, kernels: str
) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, with_bias=with_bias, gaps=gaps, kernels=kernels)
    window = problem.window()
    # Reweighting converges slowly: it stops some micrometres short unless told otherwise.
    window.optimise(100, 1e-5 if kernels == "none" else 1e-8)
    _, values = gtsam_twin.solve(problem)
    count = len(problem.stamps)
    apart = np.abs(poses_of(window) - gtsam_twin.poses_of(values, count)).max()
    assert apart < 1e-6
    assert np.abs(poses_of(window) - problem.guess).max() > 1e-3
    if with_bias:
        biases = np.array([values.atVector(gtsam_twin.BIAS + i) for i in range(count)])
        np.testing.assert_allclose(window.states.b, biases, atol=1e-7)
        assert np.abs(biases).max() > 1e-4


def test_states_held_by_the_motion_prior_from_the_start_on() -> None:
    problem = random_problem(np.random.default_rng(3), gaps=True)
    problem.poses = [edge for edge in problem.poses if edge[0] > 1]
    window = problem.window()
    window.optimise(100)
    _, values = gtsam_twin.solve(problem)
    expected = gtsam_twin.poses_of(values, len(problem.stamps))
    np.testing.assert_allclose(poses_of(window), expected, atol=1e-6)


def test_a_gap_longer_than_the_velocity_is_carried() -> None:
    problem = random_problem(np.random.default_rng(4), gaps=True)
    problem.stamps[4:] += 5_000_000_000
    window = problem.window()
    window.optimise(100)
    _, values = gtsam_twin.solve(problem)
    expected = gtsam_twin.poses_of(values, len(problem.stamps))
    np.testing.assert_allclose(poses_of(window), expected, atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.permutations(range(1, 7)))
def test_the_order_of_insertion_does_not_matter(seed: int, order: list[int]) -> None:
    problem = random_problem(np.random.default_rng(seed), 7, gaps=True)
    window = problem.window()
    window.optimise(100)
    shuffled = problem.empty_window()
    for i in order:
        shuffled.insert(int(problem.stamps[i]), problem.guess[i])
    shuffled.poses, shuffled.rotations = window.poses, window.rotations
    shuffled.optimise(100)
    np.testing.assert_array_equal(shuffled.stamps, problem.stamps)
    np.testing.assert_allclose(poses_of(shuffled), poses_of(window), atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_guess_still_converges(seed: int) -> None:
    """With guesses up to 60 degrees and metres wrong, undamped Gauss-Newton steps overshoot."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, with_bias=False, kernels="none")
    near = problem.window()
    near.optimise(100)
    wrong = rng.normal(size=(len(problem.stamps), 6)) * [3, 3, 3, 0.6, 0.6, 0.6]
    wrong[0] = 0.0
    problem.guess = lie.se3_exp(wrong) @ problem.guess
    far = problem.window()
    far.optimise(200)
    np.testing.assert_allclose(poses_of(far), poses_of(near), atol=1e-6)


def test_a_step_that_raises_the_cost_is_not_taken() -> None:
    """From a guess that is a radian wrong, a full Gauss-Newton step makes it worse."""
    rng = np.random.default_rng(1)
    problem = random_problem(rng, with_bias=False)
    near = problem.window()
    near.optimise(100)
    wrong = rng.normal(size=(len(problem.stamps), 6)) * [10, 10, 10, 1, 1, 1]
    wrong[0] = 0.0
    problem.guess = lie.se3_exp(wrong) @ problem.guess
    graph, _ = gtsam_twin.graph_of(problem)
    costs = []
    for steps in range(1, 30):
        window = problem.window()
        window.optimise(steps)
        values = gtsam.Values()
        for i in range(len(window)):
            values.insert(i, gtsam.Pose3(lie.se3_inverse(window.pose(i))))
        costs.append(graph.error(values))
    # The prior is linear and GTSAM's is not: over such steps they differ by some hundreds.
    assert (np.diff(costs) < 1e3).all()
    assert costs[0] > 1e7
    for i in range(len(window) - 1):
        expected = near.relative_pose(i, i + 1)
        np.testing.assert_allclose(window.relative_pose(i, i + 1), expected, atol=1e-6)


# --- marginalisation -----------------------------------------------------------------------------


def run_fixed_lag(problem: Problem, size: int, **how: float) -> Window:
    window = problem.empty_window()
    for i in range(1, len(problem.stamps)):
        problem.add_to(window, i)
        window.optimise(**how)
        if len(window) > size and i + 1 < len(problem.stamps):
            window.marginalise_oldest()
    return window


@pytest.mark.parametrize(("with_bias", "gaps"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("seed", range(3))
def test_marginalising_a_linear_problem_loses_nothing(
    seed: int, with_bias: bool, gaps: bool
) -> None:
    """With noise of a micrometre the factors are linear, and the window is the batch solution."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 14, with_bias=with_bias, noise=1e-4)
    if gaps:  # no VO at all for two steps; longer edges would outlive the motion prior
        problem.poses = [e for e in problem.poses if e[1] <= 9 or e[0] >= 11]
    window = run_fixed_lag(problem, 6, **PRECISE)
    batch = problem.window()
    batch.optimise(**PRECISE)
    assert len(window) == 7
    tolerance = 1e-7 if gaps else 1e-9
    np.testing.assert_allclose(poses_of(window), poses_of(batch)[-7:], atol=tolerance)
    size = window.dimension
    scale = np.abs(batch.newest_covariance(1)).max()
    assert np.abs(poses_of(batch) - problem.guess).max() > 1e-6
    np.testing.assert_allclose(
        window.newest_covariance(2)[-size:, -size:],
        batch.newest_covariance(2)[-size:, -size:],
        atol=1e-3 * scale,
    )


def test_marginalising_a_linear_problem_as_the_fusion_does() -> None:
    """The last short step must not be lost from what is marginalised."""
    problem = random_problem(np.random.default_rng(0), 14, with_bias=False, noise=1e-4)
    window = run_fixed_lag(problem, 6)
    batch = problem.window()
    batch.optimise(**PRECISE)
    np.testing.assert_allclose(poses_of(window), poses_of(batch)[-7:], atol=1e-8)


def test_the_linear_batch_solution_is_gtsams() -> None:
    problem = random_problem(np.random.default_rng(0), 14, with_bias=True, noise=1e-3)
    window = run_fixed_lag(problem, 6, **PRECISE)
    _, values = gtsam_twin.solve(problem)
    expected = gtsam_twin.poses_of(values, 14)[-7:]
    np.testing.assert_allclose(poses_of(window), expected, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_marginalising_an_ordinary_drive_costs_little(seed: int) -> None:
    """Within 5 % of a standard deviation of the batch solution, in every direction."""
    problem = random_problem(np.random.default_rng(seed), 40)
    window = run_fixed_lag(problem, 8)
    batch = problem.window()
    batch.optimise(100)
    covariance = batch.newest_covariance(1)[:6, :6]
    error = lie.se3_log(window.pose(-1) @ lie.se3_inverse(batch.pose(-1)))
    assert np.sqrt(error @ np.linalg.solve(covariance, error)) < 0.05
    ours = window.newest_covariance(1)[:6, :6]
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    np.testing.assert_allclose(root @ ours @ root.T, np.eye(6), atol=0.05)


def test_gtsams_fixed_lag_smoother_agrees() -> None:
    """One VO edge per step and rotations t-2 -> t, window of 6, against BatchFixedLagSmoother."""
    problem = random_problem(np.random.default_rng(7), 25, with_bias=False)
    problem.poses = [edge for edge in problem.poses if edge[1] == edge[0] + 1]
    problem.rotations = [edge for edge in problem.rotations if edge[1] <= edge[0] + 2]
    smoother = gtsam.BatchFixedLagSmoother(5.5)
    ours = problem.empty_window()
    start = gtsam.noiseModel.Diagonal.Sigmas(problem.start_sigma[gtsam_twin.ORDER])
    for i in range(25):
        graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
        values.insert(i, gtsam.Pose3(lie.se3_inverse(problem.guess[i])))
        if i == 0:
            graph.add(gtsam.PriorFactorPose3(0, values.atPose3(0), start))
        else:
            problem.add_to(ours, i)
        for a, b, T, Sigma in problem.poses:
            if b == i:
                graph.add(gtsam_twin.pose_factor(problem, a, b, T, Sigma))
        for edge in problem.rotations:
            if edge[1] == i:
                graph.add(gtsam_twin.rotation_factor(problem, *edge))
        smoother.update(graph, values, {i: float(i)})
        if i:
            ours.optimise()
            if len(ours) > 6:
                ours.marginalise_oldest()
    theirs = smoother.calculateEstimate().atPose3(24).inverse().matrix()
    # Both linearise what they marginalise, not at the same point.
    np.testing.assert_allclose(ours.pose(-1), theirs, atol=1e-3)


def test_the_oldest_goes_with_its_edges_only() -> None:
    problem = random_problem(np.random.default_rng(1), 8)
    window = problem.window()
    window.optimise()
    window.marginalise_oldest()
    np.testing.assert_array_equal(window.stamps, problem.stamps[1:])
    assert len(window.poses.stamps) == sum(edge[0] > 0 for edge in problem.poses)
    assert len(window.rotations.stamps) == sum(edge[0] > 0 for edge in problem.rotations)
    # rotation 0 -> 5 makes the prior cover the states 1 to 5
    assert window.covered == 5
    with pytest.raises(ValueError, match="no place"):
        window.insert(int(window.stamps[0]) + 1, np.eye(4))
    with pytest.raises(ValueError, match="optimise before"):
        window.marginalise_oldest()
    with pytest.raises(ValueError, match="optimise before"):
        window.newest_covariance(1)


# --- covariance ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("with_bias", "gaps"), [(False, False), (True, True)])
def test_covariances_are_gtsams_marginals(with_bias: bool, gaps: bool) -> None:
    problem = random_problem(np.random.default_rng(2), with_bias=with_bias, gaps=gaps)
    window = problem.window()
    window.optimise(**PRECISE)
    graph, values = gtsam_twin.solve(problem)
    n = len(problem.stamps)
    size = window.dimension
    ours = window.newest_covariance(2)
    pose = np.r_[0:6, size : size + 6]
    theirs = gtsam_twin.joint_covariance(graph, values, n - 2, n - 1)
    root = np.linalg.inv(np.linalg.cholesky(theirs))
    whitened = root @ ours[np.ix_(pose, pose)] @ root.T
    np.testing.assert_allclose(whitened, np.eye(12), atol=1e-4)
    T_2_1 = window.relative_pose(-2, -1)
    np.testing.assert_allclose(
        relative_covariance(ours[np.ix_(pose, pose)], T_2_1),
        relative_covariance(theirs, T_2_1),
        rtol=1e-3,
        atol=1e-9,
    )
    if with_bias:
        bias = gtsam.Marginals(graph, values).marginalCovariance(gtsam_twin.BIAS + n - 1)
        np.testing.assert_allclose(ours[-3:, -3:], bias, rtol=1e-4, atol=1e-10)


def test_covariances_by_monte_carlo() -> None:
    """Errors of the newest pose and of the last motion, over 400 draws of all measurements."""
    rng = np.random.default_rng(8)
    runs = 400
    Sigma_vo = [correlated(rng, [0.02] * 3 + [2e-3] * 3) for _ in range(4)]
    Sigma_hn = [correlated(rng, [2e-3] * 3) for _ in range(4)]
    truth = [np.eye(4)]
    for _ in range(4):
        truth.append(lie.se3_exp([0.1, 0.0, -1.0, 0.01, 0.05, 0.0]) @ truth[-1])
    newest, steps = [], []
    for _ in range(runs):
        # The origin is a guess too: its prior is as wrong as it says.
        problem = Problem(
            np.arange(5) * 10**8, np.array(truth), NEVER_CARRIED, np.full(6, 1e-3), False
        )
        problem.guess[0] = lie.se3_exp(rng.normal(size=6) * 1e-3) @ truth[0]
        for i in range(4):
            T = truth[i + 1] @ lie.se3_inverse(truth[i])
            problem.poses.append((i, i + 1, lie.se3_exp(draw(rng, Sigma_vo[i])) @ T, Sigma_vo[i]))
            a = max(i - 1, 0)
            C = (truth[i + 1] @ lie.se3_inverse(truth[a]))[:3, :3]
            C = lie.so3_exp(draw(rng, Sigma_hn[i])) @ C
            problem.rotations.append((a, i + 1, C, Sigma_hn[i]))
        window = problem.window()
        window.optimise()
        newest.append(lie.se3_log(window.pose(-1) @ lie.se3_inverse(truth[-1])))
        true_step = truth[-1] @ lie.se3_inverse(truth[-2])
        steps.append(lie.se3_log(window.relative_pose(-2, -1) @ lie.se3_inverse(true_step)))
    joint = window.newest_covariance(2)
    for errors, stated in [
        (newest, joint[6:, 6:]),
        (steps, relative_covariance(joint, window.relative_pose(-2, -1))),
    ]:
        root = np.linalg.inv(np.linalg.cholesky(stated))
        sample = root @ np.cov(np.array(errors).T) @ root.T
        np.testing.assert_allclose(sample, np.eye(6), atol=4.5 * np.sqrt(2 / runs))


# --- robust kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "huber", "cauchy"])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_the_weight_is_the_slope_of_the_cost(name: str, sigma: float) -> None:
    kernel = Kernel(name, sigma)
    squared = np.array([1e-6, 0.1, 0.2, 0.9, 1.5, 15.0, 17.0, 400.0])
    step = 1e-6 * squared
    slope = (
        kernel.cost_and_weight(squared + step)[0] - kernel.cost_and_weight(squared - step)[0]
    ) / (2 * step)
    weight = kernel.cost_and_weight(squared)[1]
    np.testing.assert_allclose(np.ones(8) if weight is None else weight, slope, rtol=1e-5)


@pytest.mark.parametrize("name", ["none", "huber", "cauchy"])
def test_small_residuals_cost_what_they_are_and_large_ones_less(name: str) -> None:
    kernel = Kernel(name, 3.0)
    small, large = np.array([1e-4]), np.array([900.0])
    np.testing.assert_allclose(kernel.cost_and_weight(small)[0], small, rtol=1e-4)
    expected = {"none": 900.0, "huber": 2 * 3 * 30 - 9, "cauchy": 9 * np.log(101)}
    np.testing.assert_allclose(kernel.cost_and_weight(large)[0], expected[name])
    # together in one call as each alone
    both = kernel.cost_and_weight(np.concatenate([small, large]))[0]
    np.testing.assert_allclose(both, [small[0], expected[name]], rtol=1e-4)


@pytest.mark.parametrize("source", ["poses", "rotations"])
def test_an_outlier_moves_the_solution_less_with_a_robust_kernel(source: str) -> None:
    moved = {}
    for kernels in ("none", "huber", "cauchy"):
        problem = random_problem(np.random.default_rng(6), with_bias=False, kernels=kernels)
        clean = problem.window()
        clean.optimise(100)
        a, b, value, Sigma = getattr(problem, source)[5]
        bad = lie.so3_exp([0.0, 0.1, 0.0])
        bad = bad if source == "rotations" else lie.se3_from(bad, np.zeros(3))
        getattr(problem, source)[5] = a, b, bad @ value, Sigma
        outlier = problem.window()
        outlier.optimise(100)
        error = lie.se3_log(poses_of(outlier) @ lie.se3_inverse(poses_of(clean)))
        moved[kernels] = np.abs(error[:, 3:]).max()
    assert max(moved["huber"], moved["cauchy"]) < 0.3 * moved["none"]
    assert moved["none"] > 5e-3
