"""The same factors in GTSAM, written from their definitions and with its own Lie groups.

GTSAM has (rotation, translation), poses X_i = T_w_i, and perturbs them on the right. A right
perturbation of T_w_i by -xi is a left perturbation of T_i_w by xi, so that covariances are the
same but for the order of their parts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fusion.fusion_worlds import Problem

from hydranet_ros.fusion.normal_equations import Kernel
from hydranet_ros.geometry import lie

gtsam = pytest.importorskip("gtsam", reason="GTSAM is the oracle: pip install gtsam")

ORDER = np.array([3, 4, 5, 0, 1, 2])
BIAS = 1000  # the key of the bias of state i is BIAS + i
STEP = 1e-6


def swapped(covariance: np.ndarray) -> np.ndarray:
    return covariance[np.ix_(ORDER, ORDER)]


def noise_of(covariance: np.ndarray, kernel: Kernel | None = None):
    # Not `smart`: that takes small covariances for diagonal ones.
    gaussian = gtsam.noiseModel.Gaussian.Covariance(covariance, False)
    if kernel is None or kernel.name == "none":
        return gaussian
    estimators = gtsam.noiseModel.mEstimator
    estimator = {"huber": estimators.Huber, "cauchy": estimators.Cauchy}[kernel.name]
    return gtsam.noiseModel.Robust.Create(estimator.Create(kernel.sigma), gaussian)


def custom(noise, keys: list[int], residual: Callable[..., np.ndarray]):
    """A factor of poses and biases with numerical Jacobians."""

    def read(values, key):
        return values.atVector(key) if key >= BIAS else values.atPose3(key)

    def moved(state, delta):
        return state + delta if isinstance(state, np.ndarray) else state.retract(delta)

    def error(_, values, jacobians):
        states = [read(values, key) for key in keys]
        if jacobians is not None:
            for k, state in enumerate(states):
                size = len(state) if isinstance(state, np.ndarray) else 6
                columns = []
                for delta in STEP * np.eye(size):
                    ahead = residual(*states[:k], moved(state, delta), *states[k + 1 :])
                    behind = residual(*states[:k], moved(state, -delta), *states[k + 1 :])
                    columns.append((ahead - behind) / (2.0 * STEP))
                jacobians[k] = np.stack(columns, axis=1)
        return residual(*states)

    return gtsam.CustomFactor(noise, keys, error)


def motion(first, second) -> np.ndarray:
    """Log(T_2_1), (rotation, translation)."""
    return gtsam.Pose3.Logmap(second.inverse().compose(first))


def pose_factor(problem: Problem, a: int, b: int, T: np.ndarray, Sigma: np.ndarray):
    """As BetweenFactorPose3, written as it is defined here."""
    measured = gtsam.Pose3(T)

    def error(first, second):
        T_b_a = second.inverse().compose(first)
        return gtsam.Pose3.Logmap(T_b_a.compose(measured.inverse()))

    return custom(noise_of(swapped(Sigma), problem.pose_kernel), [a, b], error)


def rotation_factor(problem: Problem, a: int, b: int, C: np.ndarray, Sigma: np.ndarray):
    measured, dt = gtsam.Rot3(C), problem.seconds(a, b)

    def turned(first, second, bias):
        seen = gtsam.Rot3.Expmap(bias * dt).compose(
            second.rotation().inverse().compose(first.rotation())
        )
        return gtsam.Rot3.Logmap(seen.compose(measured.inverse()))

    noise = noise_of(Sigma, problem.rotation_kernel)
    if problem.with_bias:
        return custom(noise, [a, b, BIAS + b], turned)
    return custom(noise, [a, b], lambda first, second: turned(first, second, np.zeros(3)))


def carried_velocity(problem: Problem, b: int) -> np.ndarray:
    """The part of the velocity (rotation, translation) that lasts after state b."""
    measured = {(edge[0], edge[1]) for edge in problem.poses}

    def silent(i: int) -> float:
        last = max((end for start, end in measured if end == start + 1 and end <= i), default=0)
        return problem.seconds(last, i)

    carried = np.ones(6)
    if (b, b + 1) in measured or silent(b - 1) >= problem.noise.max_gap_s:
        return carried
    left = problem.noise.max_gap_s - silent(b)
    carried[:] = min(1.0, max(0.0, left / problem.seconds(b, b + 1)))
    if any(edge[1] == b + 1 for edge in problem.rotations):
        carried[:3] = 1.0
    return carried


def velocity_factor(problem: Problem, b: int):
    a, c = b - 1, b + 1
    before, after = problem.seconds(a, b), problem.seconds(b, c)
    carried = carried_velocity(problem, b)
    variance = problem.noise.velocity_walk[ORDER] * 0.5 * (before + after)
    variance += (1.0 - carried) ** 2 * problem.noise.start_velocity[ORDER]

    def change(x_a, x_b, x_c):
        return motion(x_b, x_c) / after - carried * motion(x_a, x_b) / before

    return custom(noise_of(np.diag(variance)), [a, b, c], change)


def graph_of(problem: Problem):
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    first = gtsam.Pose3(lie.se3_inverse(problem.guess[0]))
    start = problem.start_sigma
    graph.add(gtsam.PriorFactorPose3(0, first, noise_of(np.diag(start[ORDER] ** 2))))
    for i, T in enumerate(problem.guess):
        values.insert(i, gtsam.Pose3(lie.se3_inverse(T)))
    for a, b, T, Sigma in problem.poses:
        graph.add(pose_factor(problem, a, b, T, Sigma))
    for edge in problem.rotations:
        graph.add(rotation_factor(problem, *edge))
    if problem.with_bias:
        for i in range(len(problem.stamps)):
            values.insert(BIAS + i, np.zeros(3))
        noise = noise_of(np.diag(start[6:] ** 2))
        graph.add(custom(noise, [BIAS], lambda bias: bias))
        for i in range(len(problem.stamps) - 1):
            noise = noise_of(np.eye(3) * problem.noise.bias_walk * problem.seconds(i, i + 1))
            graph.add(custom(noise, [BIAS + i, BIAS + i + 1], lambda b_1, b_2: b_2 - b_1))
    missing = problem.unmeasured()
    if 0 in missing:
        variance = problem.noise.start_velocity[ORDER] * problem.seconds(0, 1) ** 2
        graph.add(custom(noise_of(np.diag(variance)), [0, 1], motion))
    for b in range(1, len(problem.stamps) - 1):
        if b in missing or b - 1 in missing:
            graph.add(velocity_factor(problem, b))
    return graph, values


def solve(problem: Problem):
    """The batch optimum: the graph and the values."""
    graph, values = graph_of(problem)
    options = gtsam.LevenbergMarquardtParams()
    options.setRelativeErrorTol(1e-15)
    options.setAbsoluteErrorTol(1e-15)
    options.setMaxIterations(200)
    return graph, gtsam.LevenbergMarquardtOptimizer(graph, values, options).optimize()


def poses_of(values, count: int) -> np.ndarray:
    """T_i_w (count, 4, 4)."""
    return np.array([values.atPose3(i).inverse().matrix() for i in range(count)])


def joint_covariance(graph, values, i: int, j: int) -> np.ndarray:
    """The covariance (12, 12) of the left perturbations of two poses."""
    keys = gtsam.KeyVector([i, j])
    joint = gtsam.Marginals(graph, values).jointMarginalCovariance(keys)
    rows = [[swapped(joint.at(a, b)) for b in (i, j)] for a in (i, j)]
    return np.block(rows)
