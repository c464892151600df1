"""Motion between two stereo frames from matched points: samples, robust solve, covariance.

A track is four pixels: (u, v, u_right, v_right) before and after. The unknowns are the motion
T_2_1 and the rectification error theta of the pair (see rectification.py). With y1, y2 the
corrected (u, v, u_right), tau the triangulation and pi the projection of the pair, a track gives

    e = y2 - pi(T_2_1 tau(y1))                 three stereo reprojection errors, and
    e_row = v_right - v                        one row error of the current pair.

Both ends of a track are noisy. Tracking defines the feature in the previous left image, follows it
with noise sigma_t, and each stereo match adds sigma_s to the right pixel. Hence

    Cov(e) = s^2 (Sigma_2 + A Sigma_1 A^T),    A = d pi/d p . C_2_1 . d tau/d y1,
    Sigma_1 = sigma_s^2 diag(0, 0, 1),         Sigma_2 = sigma_t^2 c c^T + ..., c = (1, 0, 1),

which is the solution with the structure marginalised out to first order: a far point pulls on the
rotation as much as a near one and on the translation hardly at all, and no depth is believed more
than its disparity allows. s is the scale of the residuals, measured in every frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros import lie
from hydranet_ros.camera import StereoCamera
from hydranet_ros.lie import Array
from hydranet_ros.stereo_vo.rectification import SIZE, RectificationError, offset_basis

# Nearest depth in front of the camera at which a point may project: keeps samples finite.
_MIN_DEPTH_M = 0.1
# Mahalanobis distance of 3 residuals from which a track counts less (Huber), and above which it
# is no inlier: the 70 % and 99.5 % points of chi with 3 degrees of freedom.
_HUBER = 1.9
_GATE = 3.6
# Median of chi with 3 degrees of freedom, to read a scale off the median distance.
_CHI3_MEDIAN = 1.538


@dataclass(frozen=True, eq=False)
class Tracks:
    """(n, 4) pixels (u, v, u_right, v_right) of the same points before and after, as measured."""

    before: Array
    after: Array

    def __len__(self) -> int:
        return len(self.before)

    def select(self, chosen: Array | np.ndarray) -> Tracks:
        """The chosen tracks, by mask or index."""
        return Tracks(self.before[chosen], self.after[chosen])


@dataclass(frozen=True)
class Noise:
    """Standard deviations of tracking over time and of stereo matching, in pixels."""

    tracking_px: float
    stereo_px: float

    def before(self) -> Array:
        """Sigma_1 of (u, v, u_right): the feature is where it is; its disparity is measured."""
        return np.diag([0.0, 0.0, self.stereo_px**2])

    def after(self) -> Array:
        """Sigma_2: tracking noise moves both images' pixels, stereo noise only the right one."""
        along = np.array([1.0, 0.0, 1.0])
        return self.tracking_px**2 * (
            np.outer(along, along) + np.diag([0.0, 1.0, 0.0])
        ) + np.diag([0.0, 0.0, self.stereo_px**2])


@dataclass(frozen=True, eq=False)
class Motion:
    """A solved motion: T_2_1, the covariance of its left perturbation, and the fit.

    `rectification_information` and `rectification_vector` are what this pair says of theta.
    """

    T_2_1: Array
    Sigma_2_1: Array
    inliers: np.ndarray
    scale: float
    rectification_information: Array
    rectification_vector: Array


def corrected(camera: StereoCamera, pixels: Array, theta: Array) -> tuple[Array, Array]:
    """(n, 4) measured pixels without rectification error, and the (n, 2, 9) basis of it."""
    basis = offset_basis(camera.left, pixels[:, 2:])
    out = pixels.copy()
    out[:, 2:] -= basis @ theta
    return out, basis


def transform(pose: Array, points: Array) -> Array:
    """(..., 4, 4) and (n, 3) -> (..., n, 3), kept in front of the camera."""
    out = points @ np.swapaxes(pose[..., :3, :3], -1, -2) + pose[..., None, :3, 3]
    np.maximum(out[..., 2], _MIN_DEPTH_M, out=out[..., 2])
    return out


def pose_jacobian(camera: StereoCamera, points: Array) -> tuple[Array, Array]:
    """d pi(Exp(xi) p)/d xi = d pi/d p [I, -hat(p)]: (..., 3, 6), and d pi/d p: (..., 3, 3)."""
    by_point = camera.project_jacobian(points)
    return np.concatenate([by_point, -by_point @ lie.hat(points)], axis=-1), by_point


def sample_motions(
    camera: StereoCamera,
    points: Array,
    measured: Array,
    guess: Array,
    samples: np.ndarray,
    iterations: int,
) -> Array:
    """Fit a motion to each (h, 3) sample of (n, 3) points and measurements: (h, 4, 4).

    Gauss-Newton on the nine stereo reprojection errors from a common guess, all samples at once.
    """
    poses = np.broadcast_to(guess, (len(samples), 4, 4)).copy()
    p1, y2 = points[samples], measured[samples]
    for _ in range(iterations):
        p2 = p1 @ np.swapaxes(poses[:, :3, :3], -1, -2) + poses[:, None, :3, 3]
        np.maximum(p2[..., 2], _MIN_DEPTH_M, out=p2[..., 2])
        jacobian, _ = pose_jacobian(camera, p2)
        j = jacobian.reshape(len(samples), 9, 6)
        e = (y2 - camera.project(p2)).reshape(len(samples), 9, 1)
        jt = np.swapaxes(j, 1, 2)
        # The damping is far below any real information (1 px per metre at 30 m is 500); it only
        # keeps collinear samples finite, which then lose by their count.
        step = np.linalg.solve(jt @ j + 1e-3 * np.eye(6), jt @ e)[..., 0]
        poses = lie.se3_exp(np.clip(step, -3.0, 3.0)) @ poses
    return poses


def best_sample(
    camera: StereoCamera, points: Array, measured: Array, poses: Array, inlier_px: float
) -> tuple[Array, np.ndarray]:
    """The motion with the least truncated squared error over all tracks, and its inliers."""
    error2 = np.sum((measured - camera.project(transform(poses, points))) ** 2, axis=-1)
    best = int(np.argmin(np.sum(np.minimum(error2, inlier_px**2), axis=1)))
    return poses[best], error2[best] < inlier_px**2


def draw_samples(count: int, hypotheses: int, rng: np.random.Generator) -> np.ndarray:
    """(h, 3) indices below `count`, different within a sample."""
    draws = rng.random((hypotheses, count))
    return np.argpartition(draws, 3, axis=1)[:, :3]


@dataclass(frozen=True, eq=False)
class _Linearised:
    """Residuals (n, 4), their Jacobian (n, 4, 15) by (xi, theta), and their weights (n, 4, 4)."""

    residuals: Array
    jacobian: Array
    weights: Array


def _linearise(
    camera: StereoCamera, tracks: Tracks, pose: Array, theta: Array, noise: Noise
) -> _Linearised:
    y1, basis1 = corrected(camera, tracks.before, theta)
    y2, basis2 = corrected(camera, tracks.after, theta)
    p2 = transform(pose, camera.triangulate(y1[:, :3]))
    by_xi, by_point = pose_jacobian(camera, p2)
    chain = by_point @ pose[:3, :3] @ camera.triangulate_jacobian(y1[:, :3])
    residuals = np.empty((len(tracks), 4))
    residuals[:, :3] = y2[:, :3] - camera.project(p2)
    residuals[:, 3] = y2[:, 3] - y2[:, 1]
    jacobian = np.zeros((len(tracks), 4, 6 + SIZE))  # of the prediction: minus that of e
    jacobian[:, :3, :6] = by_xi
    jacobian[:, 2, 6:] = basis2[:, 0]
    jacobian[:, :3, 6:] -= chain[:, :, 2:] * basis1[:, None, 0]
    jacobian[:, 3, 6:] = basis2[:, 1]
    weights = np.zeros((len(tracks), 4, 4))
    spread = noise.after() + chain @ noise.before() @ np.swapaxes(chain, 1, 2)
    weights[:, :3, :3] = np.linalg.inv(spread)
    weights[:, 3, 3] = noise.stereo_px**-2
    return _Linearised(residuals, jacobian, weights)


def _distances(system: _Linearised) -> Array:
    """(n,) Mahalanobis distances of the three reprojection errors."""
    e = system.residuals[:, :3]
    return np.sqrt(np.einsum("ni,nij,nj->n", e, system.weights[:, :3, :3], e))


def _robust(system: _Linearised, scale: float) -> Array:
    """(n, 2) Huber weights of the reprojection error and of the row error, at the given scale."""
    row = np.abs(system.residuals[:, 3]) * np.sqrt(system.weights[:, 3, 3])
    both = np.stack([_distances(system), row], axis=1) / scale
    limits = np.array([_HUBER, 1.0])
    return limits / np.maximum(both, limits)


def _normal(system: _Linearised, robust: Array) -> tuple[Array, Array, Array]:
    """(15, 15) information, (15,) gradient, and the gradient's (n, 15) terms."""
    n, width = len(system.residuals), system.jacobian.shape[2]
    per_row = np.repeat(robust, [3, 1], axis=1)
    weighted = system.weights @ system.jacobian * per_row[:, :, None]
    information = weighted.reshape(4 * n, width).T @ system.jacobian.reshape(4 * n, width)
    terms = np.einsum("nia,ni->na", weighted, system.residuals)
    return information, terms.sum(axis=0), terms


def solve_motion(
    camera: StereoCamera,
    tracks: Tracks,
    guess: Array,
    rectification: RectificationError,
    noise: Noise,
    iterations: int,
) -> Motion:
    """Robust Gauss-Newton over (T_2_1, theta) from a guess good to a few pixels.

    The covariance is the block of T_2_1 in the inverse information of all 15 unknowns, so it
    contains what is not known of the rectification.
    """
    pose, theta = guess, rectification.mean
    for _ in range(iterations):
        system = _linearise(camera, tracks, pose, theta, noise)
        scale = max(float(np.median(_distances(system))) / _CHI3_MEDIAN, 0.1)
        information, gradient, _ = _normal(system, _robust(system, scale))
        information, gradient = information / scale**2, gradient / scale**2
        information[6:, 6:] += rectification.information
        gradient[6:] += rectification.information @ (rectification.mean - theta)
        step = np.linalg.solve(information, gradient)
        pose, theta = lie.se3_exp(step[:6]) @ pose, theta + step[6:]
        if np.abs(step[:6]).max() < 1e-6:
            break
    return _finish(camera, tracks, pose, theta, rectification, noise)


def _finish(
    camera: StereoCamera,
    tracks: Tracks,
    pose: Array,
    theta: Array,
    rectification: RectificationError,
    noise: Noise,
) -> Motion:
    """Covariance, inliers and the message to the rectification at the solution."""
    system = _linearise(camera, tracks, pose, theta, noise)
    distances = _distances(system)
    scale = max(float(np.median(distances)) / _CHI3_MEDIAN, 0.1)
    information, gradient, terms = _normal(system, _robust(system, scale))
    information, gradient = information / scale**2, gradient / scale**2
    h_xx, h_tx = information[:6, :6], information[6:, :6]
    eliminate = np.linalg.solve(h_xx, h_tx.T).T
    message = information[6:, 6:] - eliminate @ h_tx.T
    vector = message @ theta + gradient[6:] - eliminate @ gradient[:6]
    information[6:, 6:] += rectification.information
    covariance = np.linalg.inv(information)[:6, :6]
    return Motion(
        pose, 0.5 * (covariance + covariance.T), distances < _GATE * scale, scale, message, vector
    )
