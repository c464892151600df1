"""Time one update of the sliding window against GTSAM's fixed-lag smoother, in the same run.

    python benchmarks/fusion_against_gtsam.py [--updates 200]

The same chain of poses, with a visual odometry edge and a rotation edge for every step, goes into
`Window` (add two edges, optimise, marginalise), into GTSAM's BatchFixedLagSmoother (the same, by
its Python interface), and into a GTSAM graph of the window that is built anew and optimised by
Levenberg-Marquardt. An update gives the newest pose and its covariance; for the fixed lags it is
timed without the covariance as well. Ours begins where the fusion begins a new state: at what both
edges say of it together, to first order. GTSAM begins with odometry, and is also timed from our
beginning, which it is given for nothing. Printed are the medians, the ratios of ours to each, and
how far the newest poses are apart: the optimum must agree to 1e-5.
"""

from __future__ import annotations

import argparse
import time

import gtsam
import numpy as np

from hydranet_ros.fusion.gating import RelativeMotion, Turn
from hydranet_ros.fusion.normal_equations import Kernel
from hydranet_ros.fusion.window import Window, WindowNoise
from hydranet_ros.geometry import lie

Result = tuple[list[float], list[np.ndarray]]  # seconds and newest pose of each update

START_SIGMA = 1e-3
PERIOD_NS = 100_000_000


class Chain:
    """A drive, measured by visual odometry and by rotations, with correlated covariances."""

    def __init__(self, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        motion = rng.normal(size=(count, 6)) * [0.02, 0.02, 0.1, 0.005, 0.02, 0.005]
        motion[:, 2] -= 1.0
        factor = rng.normal(size=(count, 6, 6)) * 0.15 + np.eye(6)
        scale = np.array([0.02] * 3 + [1e-3] * 3)
        self.Sigma_vo = (factor @ np.swapaxes(factor, 1, 2)) * np.outer(scale, scale)
        factor = rng.normal(size=(count, 3, 3)) * 0.15 + np.eye(3)
        self.Sigma_hn = factor @ np.swapaxes(factor, 1, 2) * 2e-3**2
        true = lie.se3_exp(motion)
        noise_vo = np.array([rng.multivariate_normal(np.zeros(6), s) for s in self.Sigma_vo])
        noise_hn = np.array([rng.multivariate_normal(np.zeros(3), s) for s in self.Sigma_hn])
        self.T_vo = lie.se3_exp(noise_vo) @ true
        self.C_hn = lie.so3_exp(noise_hn) @ true[:, :3, :3]


def beginning(chain: Chain, i: int) -> np.ndarray:
    """T_2_1 of a step from both of its edges, to first order."""
    T = chain.T_vo[i]
    motion = RelativeMotion(T[:3, :3], T[:3, 3], chain.Sigma_vo[i])
    motion = motion.given(Turn(chain.C_hn[i], chain.Sigma_hn[i]))
    return lie.se3_from(motion.C, motion.r)


def run_window(chain: Chain, size: int, updates: int, covariance: bool = True) -> Result:
    noise = WindowNoise(np.ones(6), np.ones(6), 1.0, 1.0)
    window = Window(noise, Kernel("none", 1.0), Kernel("none", 1.0), with_bias=False)
    window.start(0, np.eye(4), np.eye(6) * START_SIGMA**2)
    times, poses = [], []
    for i in range(updates):
        start = time.perf_counter()
        stamps = i * PERIOD_NS, (i + 1) * PERIOD_NS
        T = chain.T_vo[i]
        window.insert(stamps[1], beginning(chain, i) @ window.pose(-1))
        information = np.linalg.inv(chain.Sigma_vo[i])
        window.poses = window.poses.plus(stamps, T[:3, :3], T[:3, 3], information)
        information = np.linalg.inv(chain.Sigma_hn[i])
        window.rotations = window.rotations.plus(stamps, chain.C_hn[i], np.zeros(3), information)
        window.optimise()
        if covariance:
            window.newest_covariance(1)
        if len(window) > size:
            window.marginalise_oldest()
        pose = lie.se3_inverse(window.pose(-1))
        times.append(time.perf_counter() - start)
        poses.append(pose)
    return times, poses


# GTSAM has (rotation, translation), poses as world from camera, and perturbs them on the right: a
# right perturbation of T_w_c by -xi is a left perturbation of T_c_w by xi, so that the covariance
# of T_2_1 under left perturbation is that of T_1_2 = inv(T_2_1) under right perturbation.
ORDER = np.array([3, 4, 5, 0, 1, 2])


def between(i: int, T_2_1: np.ndarray, Sigma: np.ndarray) -> gtsam.BetweenFactorPose3:
    noise = gtsam.noiseModel.Gaussian.Covariance(Sigma[np.ix_(ORDER, ORDER)])
    pose = gtsam.Pose3(lie.se3_inverse(T_2_1))
    return gtsam.BetweenFactorPose3(i, i + 1, pose, noise)


def rotation(i: int, C_2_1: np.ndarray, Sigma: np.ndarray) -> gtsam.BetweenFactorPose3:
    """A pose edge whose translation has next to no information is a rotation edge."""
    covariance = np.eye(6) * 1e8
    covariance[:3, :3] = Sigma
    noise = gtsam.noiseModel.Gaussian.Covariance(covariance)
    pose = gtsam.Pose3(gtsam.Rot3(C_2_1.T), np.zeros(3))
    return gtsam.BetweenFactorPose3(i, i + 1, pose, noise)


def start_factor(i: int, pose: gtsam.Pose3) -> gtsam.PriorFactorPose3:
    return gtsam.PriorFactorPose3(i, pose, gtsam.noiseModel.Isotropic.Sigma(6, START_SIGMA))


def run_fixed_lag(
    chain: Chain, size: int, updates: int, covariance: bool = True, ours: bool = False
) -> Result:
    smoother = gtsam.BatchFixedLagSmoother(size - 0.5)
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    graph.add(start_factor(0, gtsam.Pose3()))
    values.insert(0, gtsam.Pose3())
    smoother.update(graph, values, {0: 0.0})
    newest, times, poses = gtsam.Pose3(), [], []
    for i in range(updates):
        begun = gtsam.Pose3(lie.se3_inverse(beginning(chain, i))) if ours else None
        start = time.perf_counter()
        graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
        factor = between(i, chain.T_vo[i], chain.Sigma_vo[i])
        graph.add(factor)
        graph.add(rotation(i, chain.C_hn[i], chain.Sigma_hn[i]))
        values.insert(i + 1, newest.compose(factor.measured() if begun is None else begun))
        smoother.update(graph, values, {i + 1: float(i + 1)})
        estimate = smoother.calculateEstimate()
        newest = estimate.atPose3(i + 1)
        if covariance:
            gtsam.Marginals(smoother.getFactors(), estimate).marginalCovariance(i + 1)
        times.append(time.perf_counter() - start)
        poses.append(newest.matrix())
    return times, poses


def run_rebuilt(chain: Chain, size: int, updates: int) -> Result:
    poses, times = [gtsam.Pose3()], []
    for i in range(updates):
        start = time.perf_counter()
        first = max(0, i + 1 - size)
        graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
        graph.add(start_factor(first, poses[first]))
        for k in range(first, i + 1):
            factor = between(k, chain.T_vo[k], chain.Sigma_vo[k])
            graph.add(factor)
            graph.add(rotation(k, chain.C_hn[k], chain.Sigma_hn[k]))
            values.insert(k, poses[k])
        values.insert(i + 1, poses[i].compose(factor.measured()))
        result = gtsam.LevenbergMarquardtOptimizer(graph, values).optimize()
        poses.append(result.atPose3(i + 1))
        gtsam.Marginals(graph, result).marginalCovariance(i + 1)
        times.append(time.perf_counter() - start)
    return times, [pose.matrix() for pose in poses[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=200)
    updates = parser.parse_args().updates
    chain = Chain(updates)
    for size in (10, 50):
        compare(
            size,
            run_window(chain, size, updates),
            {
                "GTSAM fixed lag": run_fixed_lag(chain, size, updates),
                "  from our start": run_fixed_lag(chain, size, updates, ours=True),
                "GTSAM rebuilt": run_rebuilt(chain, size, updates),
            },
        )
        print("  without covariances:")
        bare = run_fixed_lag(chain, size, updates, covariance=False)
        compare(
            size, run_window(chain, size, updates, covariance=False), {"GTSAM fixed lag": bare}
        )


def compare(size: int, ours: Result, others: dict[str, Result]) -> None:
    median = 1e3 * np.median(ours[0][size:])
    print(f"window {size:3d}  hydranet_ros     {median:7.3f} ms")
    for name, (times, poses) in others.items():
        other = 1e3 * np.median(times[size:])
        apart = np.abs(np.array(poses) - np.array(ours[1])).max()
        print(
            f"window {size:3d}  {name:16s} {other:7.3f} ms  ratio {median / other:5.2f}  "
            f"apart {apart:.1e}"
        )


if __name__ == "__main__":
    main()
