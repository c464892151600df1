"""Motion between two stereo frames from matched points: a robust solve and its covariance.

A track is four pixels, (u, v, u_right, v_right), before and after. With y1, y2 the (u, v, u_right)
without rectification error, tau the triangulation and pi the projection, it gives

    e = y2 - pi(T_2_1 tau(y1))      three stereo reprojection errors, and
    e_row = v_right - v             one row error of the current pair.

Unknown are the motion xi (6), the rectification error theta (9, see rectification.py), and its
jitter from frame to frame (3: horizontally before and after, vertically after): the two exposures
of a pair are never of quite the same instant, so on a shaking vehicle their relative direction is
not the same in every frame. theta comes with what earlier frames say of it, the jitter with a
standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.noise import ROW_RATIO, TrackNoise, error_covariance, inverse_3x3
from hydranet_ros.stereo_vo.rectification import SIZE, RectificationError, offset_basis

# Columns of the unknowns.
_XI = slice(0, 6)
_THETA = slice(6, 6 + SIZE)
_JITTER = slice(6 + SIZE, 9 + SIZE)
_WIDTH = 9 + SIZE
# Mahalanobis distance of 3 residuals from which a track counts less (Huber), and above which it
# is no inlier: the 70 % and 99.5 % points of chi with 3 degrees of freedom.
_HUBER = 1.9
_GATE = 3.6
# Median of chi with 3 degrees of freedom, to read a scale off the median distance.
_CHI3_MEDIAN = 1.538
# Side of an image patch whose tracks may err alike, as an angle.
_PATCH_RAD = 0.17
# Far points must not pass infinity while the rectification is being estimated.
_MIN_DISPARITY_PX = 0.2
# The scale never falls below this: residuals of a tenth of the expected noise are rounding.
_MIN_SCALE = 0.1


@dataclass(frozen=True, eq=False)
class Tracks:
    """(n, 4) pixels (u, v, u_right, v_right) of the same points before and after, as measured."""

    before: Array
    after: Array

    def __len__(self) -> int:
        return len(self.before)

    def select(self, chosen: NDArray[np.bool_]) -> Tracks:
        """The chosen tracks."""
        return Tracks(self.before[chosen], self.after[chosen])


@dataclass(frozen=True, eq=False)
class MotionFit:
    """A solved motion: T_2_1, the covariance of its left perturbation, and the fit.

    `clustering` compares the scatter of the gradients summed over image patches with what
    independent residuals would make it, 1. `message` is the (9, 9) information and (9,)
    information vector of this pair about theta. `rivals` are tracks that agree on another motion.
    """

    T_2_1: Array
    Sigma_2_1: Array
    inliers: NDArray[np.bool_]
    scale: float
    clustering: float
    message: tuple[Array, Array]
    rivals: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))


@dataclass(frozen=True, eq=False)
class _Linearised:
    """Residuals (n, 4), the Jacobian (n, 4, 18) of their prediction, and weights (n, 4, 4)."""

    residuals: Array
    jacobian: Array
    weights: Array

    def distances(self) -> Array:
        """(n, 2) Mahalanobis distances of the reprojection error and of the row error."""
        e, w = self.residuals, self.weights
        stereo = np.einsum("ni,nij,nj->n", e[:, :3], w[:, :3, :3], e[:, :3])
        return np.asarray(np.sqrt(np.stack([stereo, e[:, 3] ** 2 * w[:, 3, 3]], axis=1)))


class MotionSolver:
    """Robust Gauss-Newton over the 18 unknowns for one set of tracks."""

    def __init__(
        self,
        camera: StereoCamera,
        tracks: Tracks,
        rectification: RectificationError,
        noise: TrackNoise,
        jitter_px: float,
    ) -> None:
        self._camera = camera
        self._tracks = tracks
        self._basis_1 = offset_basis(camera.left, tracks.before[:, 2:])
        self._basis_2 = offset_basis(camera.left, tracks.after[:, 2:])
        rows = (tracks.after[:, 3] - tracks.after[:, 1]) - self._basis_2[:, 1] @ rectification.mean
        disparity = tracks.after[:, 0] - tracks.after[:, 2]
        self._noise = noise.with_rows(rows, disparity, camera.left.fx)
        self._mean = np.zeros(_WIDTH)
        self._mean[_THETA] = rectification.mean
        self._prior = np.zeros((_WIDTH, _WIDTH))
        self._prior[_THETA, _THETA] = rectification.information
        self._prior[_JITTER, _JITTER] = np.eye(3) / jitter_px**2

    def solve(self, guess: Array, iterations: int) -> MotionFit:
        """Iterate from a guess that is good to a few pixels.

        The covariance is the motion's block of the inverse information of all unknowns, times the
        squared scale of the residuals: it contains what is not known of the rectification.
        """
        pose, state = guess, self._mean.copy()
        for _ in range(iterations):
            system = self.linearise(pose, state)
            information, gradient, _ = self._normal(system)
            information += self._prior
            gradient += self._prior @ (self._mean - state)
            step = np.linalg.solve(information, gradient)
            pose, state = lie.se3_exp(step[_XI]) @ pose, state + step
            state[_XI] = 0.0
            if np.abs(step[_XI]).max() < 1e-5:
                break
        return self._finish(pose, state)

    def linearise(self, pose: Array, state: Array) -> _Linearised:
        """Residuals, Jacobian and weights at a pose and the (18,) other unknowns."""
        camera, (y1, y2) = self._camera, self._corrected(state)
        p1 = camera.triangulate(y1[:, :3])
        p2 = transform(pose, p1)
        by_xi, by_point = pose_jacobian(camera, p2)
        through = by_point @ pose[:3, :3] @ camera.triangulate_jacobian(y1[:, :3])
        residuals = np.empty((len(y1), 4))
        residuals[:, :3] = y2[:, :3] - camera.project(p2)
        residuals[:, 3] = y2[:, 3] - y2[:, 1]
        focal, noise = camera.left.fx, self._noise
        stereo_1 = noise.stereo_variance(y1[:, 0] - y1[:, 2], focal)
        stereo_2 = noise.stereo_variance(focal * camera.baseline_m / p2[:, 2], focal)
        tracking = noise.tracking_variance(p1[:, 2] / p2[:, 2])
        weights = np.zeros((len(y1), 4, 4))
        covariance = error_covariance(through, tracking, stereo_1, stereo_2)
        weights[:, :3, :3] = inverse_3x3(covariance)
        weights[:, 3, 3] = ROW_RATIO**2 / stereo_2
        return _Linearised(residuals, self._jacobian(by_xi, through[:, :, 2]), weights)

    def _corrected(self, state: Array) -> tuple[Array, Array]:
        """The (n, 4) pixels before and after without rectification error and jitter."""
        jitter = state[_JITTER]
        before, after = self._tracks.before.copy(), self._tracks.after.copy()
        before[:, 2:] -= self._basis_1 @ state[_THETA]
        before[:, 2] -= jitter[0]
        after[:, 2:] -= self._basis_2 @ state[_THETA] + jitter[1:]
        before[:, 2] = np.minimum(before[:, 2], before[:, 0] - _MIN_DISPARITY_PX)
        return before, after

    def _jacobian(self, by_xi: Array, by_right: Array) -> Array:
        """(n, 4, 18); `by_right` is d y2 / d u_right,1, (n, 3)."""
        out = np.zeros((len(by_xi), 4, _WIDTH))
        out[:, :3, _XI] = by_xi
        out[:, 2:, _THETA] = self._basis_2
        out[:, :3, _THETA] -= by_right[:, :, None] * self._basis_1[:, None, 0]
        first = _JITTER.start
        out[:, :3, first] = -by_right
        out[:, 2, first + 1] = out[:, 3, first + 2] = 1.0
        return out

    def _normal(self, system: _Linearised) -> tuple[Array, Array, float]:
        """(18, 18) information, (18,) gradient, and the scale of the residuals."""
        distances = system.distances()
        scale = max(float(np.median(distances[:, 0])) / _CHI3_MEDIAN, _MIN_SCALE)
        limits = scale * np.array([_HUBER, 1.0])
        robust = limits / np.maximum(distances, limits) / scale**2
        rows = 4 * len(distances)
        weighted = (system.weights @ system.jacobian) * np.repeat(robust, [3, 1], axis=1)[
            ..., None
        ]
        weighted = weighted.reshape(rows, _WIDTH)
        information = weighted.T @ system.jacobian.reshape(rows, _WIDTH)
        return information, weighted.T @ system.residuals.ravel(), scale

    def _finish(self, pose: Array, state: Array) -> MotionFit:
        """Covariance, inliers and the message about theta at the solution."""
        system = self.linearise(pose, state)
        information, gradient, scale = self._normal(system)
        covariance = np.linalg.inv(information + self._prior)[_XI, _XI]
        information[_JITTER, _JITTER] += self._prior[_JITTER, _JITTER]
        gradient[_JITTER] -= self._prior[_JITTER, _JITTER] @ state[_JITTER]
        inliers = system.distances()[:, 0] < _GATE * scale
        clustering = self._clustering(system, scale)
        message = _message(information, gradient, state[_THETA])
        return MotionFit(
            pose, 0.5 * (covariance + covariance.T), inliers, scale, clustering, message
        )

    def _clustering(self, system: _Linearised, scale: float) -> float:
        """tr(H^-1 sum_c g_c g_c^T) / 6, g_c the summed gradients of patch c; 1 if independent."""
        distances, limit = system.distances()[:, 0], scale * _HUBER
        robust = limit / np.maximum(distances, limit) / scale**2
        jacobian = system.jacobian[:, :3, _XI]
        weighted = (system.weights[:, :3, :3] @ jacobian) * robust[:, None, None]
        information = np.einsum("nia,nib->ab", weighted, jacobian)
        gradients = np.einsum("nia,ni->na", weighted, system.residuals[:, :3])
        white = np.linalg.solve(np.linalg.cholesky(information), gradients.T).T
        patches = (self._tracks.after[:, :2] // (_PATCH_RAD * self._camera.left.fx)).astype(int)
        _, index = np.unique(patches, axis=0, return_inverse=True)
        sums = np.zeros((len(white), 6))
        np.add.at(sums, index.ravel(), white)
        return float(np.sum(sums**2)) / 6.0


def _message(information: Array, gradient: Array, theta: Array) -> tuple[Array, Array]:
    """Information about theta with all other unknowns marginalised out."""
    others = np.r_[_XI, _JITTER]
    across = information[_THETA, others]
    gain = np.linalg.solve(information[np.ix_(others, others)], across.T).T
    marginal = information[_THETA, _THETA] - gain @ across.T
    return marginal, marginal @ theta + gradient[_THETA] - gain @ gradient[others]


# --- three-point random samples on stereo reprojection error, all hypotheses at once -------------

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
