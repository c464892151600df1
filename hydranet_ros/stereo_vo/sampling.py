"""Three-point random samples on stereo reprojection error, all hypotheses at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array

# Nearest depth at which a point may project, in metres: keeps wild samples finite.
MIN_DEPTH_M = 0.1
# Far below the information of any usable sample (a pixel per metre at 30 m is 500 per m^2): it
# only keeps collinear samples solvable, which then lose by their count.
_DAMPING = 1e-3
# Largest step per iteration in metres and radians: a sample that asks for more is wrong anyway.
_MAX_STEP = 3.0


def transform(pose: Array, points: Array) -> Array:
    """(..., 4, 4) and (..., n, 3) -> (..., n, 3), kept in front of the camera."""
    out: Array = points @ np.swapaxes(pose[..., :3, :3], -1, -2) + pose[..., None, :3, 3]
    out[..., 2] = np.maximum(out[..., 2], MIN_DEPTH_M)
    return out


def pose_jacobian(camera: StereoCamera, points: Array) -> tuple[Array, Array]:
    """Differentiate pi(Exp(xi) p) by xi: d pi/d p [I, -hat(p)], (..., 3, 6), and d pi/d p."""
    by_point = camera.project_jacobian(points)
    return np.concatenate([by_point, -by_point @ lie.hat(points)], axis=-1), by_point


def draw_samples(count: int, hypotheses: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(h, 3) indices below `count`, different within a sample."""
    draws = rng.random((hypotheses, count), dtype=np.float32)
    return np.argpartition(draws, 3, axis=1)[:, :3]


def fit_samples(
    camera: StereoCamera,
    points: Array,
    measured: Array,
    guess: Array,
    samples: NDArray[np.int64],
    iterations: int,
) -> Array:
    """Fit a motion to each (h, 3) sample of (n, 3) points and measurements: (h, 4, 4).

    Gauss-Newton on the nine stereo reprojection errors, from one guess.
    """
    count = len(samples)
    poses = np.broadcast_to(guess, (count, 4, 4))
    p1, y2 = points[samples], measured[samples]
    for _ in range(iterations):
        p2 = transform(poses, p1)
        j = pose_jacobian(camera, p2)[0].reshape(count, 9, 6)
        e = (y2 - camera.project(p2)).reshape(count, 9, 1)
        jt = np.swapaxes(j, 1, 2)
        step = np.linalg.solve(jt @ j + _DAMPING * np.eye(6), jt @ e)[..., 0]
        poses = lie.se3_exp(np.clip(step, -_MAX_STEP, _MAX_STEP)) @ poses
    return poses


def best_sample(
    camera: StereoCamera, points: Array, measured: Array, poses: Array, inlier_px: float
) -> tuple[Array, NDArray[np.bool_]]:
    """The motion with the least truncated squared error over all tracks, and its inliers."""
    error2 = np.sum((measured - camera.project(transform(poses, points))) ** 2, axis=-1)
    best = int(np.argmin(np.sum(np.minimum(error2, inlier_px**2), axis=1)))
    return poses[best], error2[best] < inlier_px**2
