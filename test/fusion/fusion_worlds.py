"""Simulated motion and measurements that follow the window's own model exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.error_models import OdometryModel, RotationModel
from hydranet_ros.fusion.normal_equations import Kernel
from hydranet_ros.fusion.window import Window, WindowNoise
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

PERIOD_NS = 100_000_000
PERIOD_S = 0.1
NO_KERNEL = Kernel("none", 1.0)

# A window that takes every covariance as it is.
HONEST = {
    "odometry": "own",
    "own": OdometryModel(scale=1.0, floor_m=0.0, floor_deg=0.0),
    "odometry_kernel": "none",
    "rotation": "hydranet",
    "hydranet": RotationModel(floor_deg=0.0, inflation=1.0, scale_noise=0.0, bias_sigma_deg_s=0.3),
    "rotation_kernel": "none",
}


def honest(bias_sigma_deg_s: float = 0.3, bias_walk_deg_s: float = 0.06) -> dict[str, object]:
    """HONEST, with another bias."""
    model = RotationModel(0.0, 1.0, 0.0, bias_sigma_deg_s, bias_walk_deg_s)
    return {**HONEST, "hydranet": model}


def correlated(rng: np.random.Generator, sigmas: list[float] | np.ndarray) -> np.ndarray:
    """A random covariance with about these standard deviations."""
    size = len(sigmas)
    factor = rng.normal(size=(size, size)) * 0.3 + np.eye(size)
    return factor @ factor.T * np.outer(sigmas, sigmas)


def draw(rng: np.random.Generator, covariance: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(covariance) @ rng.normal(size=len(covariance))


def random_walk_motion(
    rng: np.random.Generator, steps: int, config: FusionConfig, speed: float = 10.0
) -> np.ndarray:
    """T_2_1 (steps, 4, 4): the velocity Log(T_2_1) / dt is a random walk, as the prior says."""
    deviation = [config.acceleration] * 3 + [np.deg2rad(config.angular_acceleration_deg)] * 3
    velocity = np.array([0.0, 0.0, -speed, 0.0, 0.1, 0.0])
    walk = np.cumsum(rng.normal(size=(steps, 6)) * deviation * np.sqrt(PERIOD_S), axis=0)
    return lie.se3_exp((velocity + walk) * PERIOD_S)


@dataclass
class Drive:
    """A motion, its measurements by both sources, and the bias of the rotations (rad/s)."""

    rng: np.random.Generator
    T_2_1: np.ndarray
    Sigma_vo: np.ndarray
    Sigma_hn: np.ndarray
    bias: np.ndarray | None = None

    def __post_init__(self) -> None:
        steps = len(self.T_2_1)
        if self.bias is None:
            self.bias = np.zeros((steps, 3))
        noise_vo = np.array([draw(self.rng, self.Sigma_vo) for _ in range(steps)])
        noise_hn = np.array([draw(self.rng, self.Sigma_hn) for _ in range(steps)])
        self.T_vo = lie.se3_exp(noise_vo) @ self.T_2_1
        biased = lie.so3_exp(self.bias * PERIOD_S) @ self.T_2_1[:, :3, :3]
        self.C_hn = lie.so3_exp(noise_hn) @ biased

    def __len__(self) -> int:
        return len(self.T_2_1)

    def vo(self, i: int) -> RelativePose:
        return RelativePose(self.T_vo[i], self.Sigma_vo, i * PERIOD_NS, (i + 1) * PERIOD_NS)

    def rotation(self, i: int) -> RelativeRotation:
        return RelativeRotation(self.C_hn[i], self.Sigma_hn, i * PERIOD_NS, (i + 1) * PERIOD_NS)

    def both(self) -> Iterator[tuple[RelativePose, RelativeRotation]]:
        for i in range(len(self)):
            yield self.vo(i), self.rotation(i)

    def T_c_w(self, frame: int) -> np.ndarray:
        """The true pose of a frame, the first one being the world."""
        pose = np.eye(4)
        for T in self.T_2_1[:frame]:
            pose = T @ pose
        return pose


@dataclass
class Problem:
    """A graph of states and edges, for the window and for GTSAM alike."""

    stamps: np.ndarray
    guess: np.ndarray  # T_i_w
    noise: WindowNoise
    start_sigma: np.ndarray
    with_bias: bool
    pose_kernel: Kernel = NO_KERNEL
    rotation_kernel: Kernel = NO_KERNEL
    poses: list[tuple[int, int, np.ndarray, np.ndarray]] = field(default_factory=list)
    rotations: list[tuple[int, int, np.ndarray, np.ndarray]] = field(default_factory=list)

    def empty_window(self) -> Window:
        window = Window(self.noise, self.pose_kernel, self.rotation_kernel, self.with_bias)
        window.start(int(self.stamps[0]), self.guess[0], np.diag(self.start_sigma**2))
        return window

    def window(self) -> Window:
        window = self.empty_window()
        for i in range(1, len(self.stamps)):
            self.add_to(window, i)
        return window

    def add_to(self, window: Window, i: int) -> None:
        """The state i and the edges that end there."""
        window.insert(int(self.stamps[i]), self.guess[i])
        for a, b, T, Sigma in self.poses:
            if b == i:
                stamps = int(self.stamps[a]), int(self.stamps[b])
                information = np.linalg.inv(Sigma)
                window.poses = window.poses.plus(stamps, T[:3, :3], T[:3, 3], information)
        for a, b, C, Sigma in self.rotations:
            if b == i:
                stamps = int(self.stamps[a]), int(self.stamps[b])
                information = np.linalg.inv(Sigma)
                window.rotations = window.rotations.plus(stamps, C, np.zeros(3), information)

    def seconds(self, a: int, b: int) -> float:
        return float(self.stamps[b] - self.stamps[a]) * 1e-9

    def unmeasured(self) -> list[int]:
        """The states i that no pose edge joins to i + 1."""
        joined = {(a, b) for a, b, *_ in self.poses}
        return [i for i in range(len(self.stamps) - 1) if (i, i + 1) not in joined]


def random_problem(
    rng: np.random.Generator,
    count: int = 8,
    *,
    with_bias: bool = True,
    noise: float = 1.0,
    gaps: bool = False,
    kernels: str = "none",
    repeated: bool = True,
) -> Problem:
    """A chain with VO between neighbours, longer VO edges, and rotations t-1, t-2, t-5 -> t.

    `noise` scales both the errors and the covariances of an ordinary drive.
    """
    seconds = np.cumsum(rng.uniform(0.05, 0.2, size=count))
    stamps = (seconds * 1e9).astype(np.int64)
    velocity = np.array([0.3, 0.1, -10.0, 0.05, 0.3, -0.05]) + rng.normal(size=6) * 0.05
    truth = [lie.se3_exp(rng.normal(size=6) * 0.3)]
    for dt in np.diff(seconds):
        truth.append(
            lie.se3_exp((velocity + rng.normal(size=6) * [1, 1, 1, 0.1, 0.1, 0.1]) * dt)
            @ truth[-1]
        )
    window_noise = WindowNoise(
        velocity_walk=np.array([9.0] * 3 + [0.1] * 3),
        start_velocity=np.array([900.0] * 3 + [9.0] * 3),
        bias_walk=1e-4 * noise**2,
        max_gap_s=2.0,
    )
    start = np.array([1e-3] * 6 + [5e-3] * 3 * with_bias) * noise
    problem = Problem(
        stamps,
        np.array(truth),
        window_noise,
        start,
        with_bias,
        Kernel(kernels, 1.5),
        Kernel(kernels, 1.5),
    )
    bias = rng.normal(size=3) * 5e-3 * noise
    missing = {3, 4} if gaps else set()
    for a in range(count - 1):
        for b in {a + 1, a + 2 + int(rng.integers(2))} if repeated else {a + 1}:
            if b < count and not (b == a + 1 and a in missing):
                Sigma = correlated(rng, np.array([0.02] * 3 + [2e-3] * 3) * noise)
                T = lie.se3_exp(draw(rng, Sigma)) @ truth[b] @ lie.se3_inverse(truth[a])
                problem.poses.append((a, b, T, Sigma))
        for step in (1, 2, 5) if repeated else (1,):
            b = a + step
            if b < count:
                Sigma = correlated(rng, np.full(3, 2e-3) * noise)
                dt = problem.seconds(a, b)
                C = lie.so3_exp(bias * dt) @ (truth[b] @ lie.se3_inverse(truth[a]))[:3, :3]
                problem.rotations.append((a, b, lie.so3_exp(draw(rng, Sigma)) @ C, Sigma))
    for i in range(1, count):
        problem.guess[i] = lie.se3_exp(rng.normal(size=6) * 0.05 * noise) @ problem.guess[i]
    return problem
