"""Motion between two stereo frames from matched points: a robust solve and its covariance.

A track is four pixels, (u, v, u_right, v_right), before and after. With y1, y2 the (u, v, u_right)
without errors of the calibration, tau the triangulation and pi the projection, it gives

    e = y2 - pi(T_2_1 tau(y1))      three stereo reprojection errors, and
    e_row = v_right - v             one row error of the current pair.

Unknown are the motion xi (6), the error of the calibration theta (17, see calibration.py), and its
jitter from frame to frame (3: horizontally before and after, vertically after): the two exposures
of a pair are never of quite the same instant, so on a shaking vehicle their relative direction is
not the same in every frame. theta comes with what earlier frames say of it, the jitter with a
standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.calibration import SIZE, Calibration, compiled, offset_basis
from hydranet_ros.stereo_vo.noise import (
    PERSISTENCE,
    ROW_RATIO,
    TrackNoise,
    error_covariance,
    inverse_3x3,
)

# Columns of the unknowns.
_XI = slice(0, 6)
_JITTER = slice(6, 9)
_OWN = slice(0, 9)  # of this pair of frames alone
_THETA = slice(9, 9 + SIZE)
_WIDTH = 9 + SIZE
# Behind them, where it is asked for, what is not estimated: the time a rolling shutter takes.
_READOUT = _WIDTH
# Mahalanobis distance of 3 residuals from which a track counts less (Huber), and above which it
# is no inlier: the 70 % and 99.5 % points of chi with 3 degrees of freedom.
_HUBER = 1.9
_GATE = 3.6
# Median of chi with 3 degrees of freedom, to read a scale off the median distance.
_CHI3_MEDIAN = 1.538
# Side of an image patch whose tracks may err alike, as an angle.
_PATCH_RAD = 0.17
# Far points must not pass infinity while the calibration is being estimated.
_MIN_DISPARITY_PX = 0.2
# Steps below this, in metres and radians, are the last.
_CONVERGED = 1e-5
# The scale never falls below this: residuals of a tenth of the expected noise are rounding.
_MIN_SCALE = 0.1


def median(values: Array) -> float:
    """np.median's of (n,) values: of some hundreds that takes longer to start than to compute."""
    n = len(values)
    middle = np.partition(values, (n // 2 - 1, n // 2) if n % 2 == 0 else n // 2)
    return 0.5 * float(middle[(n - 1) // 2] + middle[n // 2])


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

    `Sigma_2_1` is that of a known calibration, `by_theta` (6, 17) how the motion would change with
    the calibration, and `by_readout` (6,) how with the time from the first to the last row, in
    times between frames; None where it was not asked for. Both are of what is taken off pixels.

    `clustering` compares the scatter of the gradients summed over image patches with what the
    information takes it for. `message` is the (17, 17) information and (17,)
    information vector of this pair about theta. `rolling` is the same about a rolling shutter, see
    `_rolling`. `rivals` are tracks that agree on another motion.
    """

    T_2_1: Array
    Sigma_2_1: Array
    inliers: NDArray[np.bool_]
    scale: float
    clustering: float
    message: tuple[Array, Array]
    by_theta: Array
    by_readout: Array | None = None
    rolling: tuple[float, float] = (0.0, 0.0)
    rivals: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))


@dataclass(frozen=True, eq=False)
class _Linearised:
    """Residuals (n, 4), the Jacobian (n, 4, ...) of their prediction, and weights (n, 4, 4).

    `gain` (n, 3) gives the most likely error of u_right before, from the reprojection errors.
    """

    residuals: Array
    jacobian: Array
    weights: Array
    through: Array
    gain: Array

    def errors(self) -> Array:
        """(n,) most likely errors of u_right before; those of outliers are limited."""
        distance = self.distances()[:, 0]
        limit = _HUBER * max(median(distance) / _CHI3_MEDIAN, _MIN_SCALE)
        error = np.einsum("ni,ni->n", self.gain, self.residuals[:, :3])
        return np.asarray(error * limit / np.maximum(distance, limit))

    def distances(self) -> Array:
        """(n, 2) Mahalanobis distances of the reprojection error and of the row error."""
        e, w = self.residuals, self.weights
        stereo = np.einsum("ni,nij,nj->n", e[:, :3], w[:, :3, :3], e[:, :3])
        return np.asarray(np.sqrt(np.stack([stereo, e[:, 3] ** 2 * w[:, 3, 3]], axis=1)))


@dataclass(frozen=True, eq=False)
class Rolling:
    """What a rolling shutter needs: the (6,) twist of the motion before, and an image's height.

    The twist is that over as much time as the motion to be solved takes; None: the same motion.
    """

    twist: Array | None
    height: int


class MotionSolver:
    """Robust Gauss-Newton over the 26 unknowns for one set of tracks."""

    def __init__(
        self,
        camera: StereoCamera,
        tracks: Tracks,
        calibration: Calibration,
        noise: TrackNoise,
        jitter_px: float,
        rolling: Rolling | None = None,
    ) -> None:
        self._camera = camera
        self._shutter = rolling
        self._tracks = tracks
        self._basis_1 = offset_basis(camera.left, tracks.before)
        self._basis_2 = offset_basis(camera.left, tracks.after)
        after = tracks.after - self._basis_2 @ calibration.mean
        rows, disparity = after[:, 3] - after[:, 1], after[:, 0] - after[:, 2]
        self._noise = noise.with_rows(rows, disparity, camera.left.fx)
        self._mean = np.zeros(_WIDTH)
        self._mean[_THETA] = calibration.mean
        self._prior = np.zeros((_WIDTH, _WIDTH))
        self._prior[_THETA, _THETA] = calibration.information
        self._prior[_JITTER, _JITTER] = np.eye(3) / jitter_px**2

    def solve(self, guess: Array, iterations: int) -> MotionFit:
        """Iterate from a guess that is good to a few pixels.

        First the motion with the calibration held, then a step on all unknowns. The information
        is divided by the squared scale of the residuals.
        """
        pose, state = guess, self._mean.copy()
        errors = np.zeros(len(self._tracks))
        for _ in range(iterations):
            system = self.linearise(pose, state, errors)
            pose, state, step = self._step(system, pose, state, _OWN)
            errors = system.errors()
            if np.abs(step[_XI]).max() < _CONVERGED:
                break
        system = self.with_calibration(self.linearise(pose, state, errors), errors)
        pose, state, _ = self._step(system, pose, state, slice(0, _WIDTH))
        return self._finish(pose, state, errors)

    def _step(
        self, system: _Linearised, pose: Array, state: Array, unknowns: slice
    ) -> tuple[Array, Array, Array]:
        """A Gauss-Newton step on some of the unknowns: pose, state, and the step itself."""
        information, gradient, _ = self._normal(system)
        information += self._prior[unknowns, unknowns]
        gradient += (self._prior @ (self._mean - state))[unknowns]
        step = np.linalg.solve(information, gradient)
        state = state.copy()
        state[unknowns] += step
        state[_XI] = 0.0
        return lie.se3_exp(step[_XI]) @ pose, state, step

    def linearise(self, pose: Array, state: Array, errors: Array) -> _Linearised:
        """Residuals, Jacobian and weights at a pose and the (26,) other unknowns.

        The point of a track is taken where both of its frames want it: (n,) `errors` of u_right
        before are taken off. A Jacobian at the point as measured has the same noise in it as the
        residual, and their product is no longer zero in the mean (errors in variables): motions
        come out too short, and what tracks hardly show runs away.
        """
        camera, (y1, y2) = self._camera, self._corrected(state)
        y1[:, 2] = np.minimum(y1[:, 2] - errors, y1[:, 0] - _MIN_DISPARITY_PX)
        p1 = camera.triangulate(y1[:, :3])
        p2 = transform(pose, p1)
        by_xi, by_point = pose_jacobian(camera, p2)
        through = by_point @ pose[:3, :3] @ camera.triangulate_jacobian(y1[:, :3])
        residuals = np.empty((len(y1), 4))
        residuals[:, :3] = y2[:, :3] - camera.project(p2) - through[:, :, 2] * errors[:, None]
        residuals[:, 3] = y2[:, 3] - y2[:, 1]
        focal, noise = camera.left.fx, self._noise
        stereo_1 = noise.stereo_variance(y1[:, 0] - y1[:, 2], focal)
        stereo_2 = noise.stereo_variance(focal * camera.baseline_m / p2[:, 2], focal)
        tracking = noise.tracking_variance(p1[:, 2] / p2[:, 2])
        weights = np.zeros((len(y1), 4, 4))
        covariance = error_covariance(through, tracking, stereo_1, stereo_2)
        weights[:, :3, :3] = inverse_3x3(covariance)
        weights[:, 3, 3] = ROW_RATIO**2 / stereo_2
        across = -stereo_1[:, None] * through[:, :, 2]
        across[:, 2] += PERSISTENCE * np.sqrt(stereo_1 * stereo_2)
        gain = np.einsum("ni,nij->nj", across, weights[:, :3, :3])
        jacobian = self._jacobian(by_xi, through[:, :, 2])
        return _Linearised(residuals, jacobian, weights, through, gain)

    def with_calibration(self, system: _Linearised, errors: Array) -> _Linearised:
        """The same with the columns of theta.

        Those are taken where the pixels most likely are, not where they were measured: else a
        magnification that shrinks the image, and with it the noise, would seem to fit better.
        """
        before, after = self._tracks.before.copy(), self._tracks.after.copy()
        before[:, 2] -= errors
        noise = system.residuals[:, :3] + system.through[:, :, 2] * errors[:, None]
        after[:, :3] -= noise
        after[:, 3] -= noise[:, 1] + system.residuals[:, 3]
        basis_1, basis_2 = (offset_basis(self._camera.left, y) for y in (before, after))
        by_theta = np.empty((len(before), 4, SIZE))
        by_theta[:, :3] = basis_2[:, :3] - system.through @ basis_1[:, :3]
        by_theta[:, 3] = basis_2[:, 3] - basis_2[:, 1]
        return replace(system, jacobian=np.concatenate([system.jacobian, by_theta], axis=2))

    def _corrected(self, state: Array) -> tuple[Array, Array]:
        """The (n, 4) pixels before and after without errors of the calibration and jitter."""
        jitter = state[_JITTER]
        before = self._tracks.before - self._basis_1 @ state[_THETA]
        after = self._tracks.after - self._basis_2 @ state[_THETA]
        before[:, 2] -= jitter[0]
        after[:, 2:] -= jitter[1:]
        return before, after

    def _jacobian(self, by_xi: Array, by_right: Array) -> Array:
        """(n, 4, 9), of the motion and the jitter; `by_right` is d y2 / d u_right,1, (n, 3)."""
        out = np.zeros((len(by_xi), 4, _OWN.stop))
        out[:, :3, _XI] = by_xi
        first = _JITTER.start
        out[:, :3, first] = -by_right
        out[:, 2, first + 1] = out[:, 3, first + 2] = 1.0
        return out

    def _normal(self, system: _Linearised) -> tuple[Array, Array, float]:
        """Information, gradient, and the scale of the residuals."""
        distances = system.distances()
        scale = max(median(distances[:, 0]) / _CHI3_MEDIAN, _MIN_SCALE)
        limits = scale * np.array([_HUBER, 1.0])
        robust = limits / np.maximum(distances, limits) / scale**2
        rows, width = 4 * len(distances), system.jacobian.shape[2]
        weighted = (system.weights @ system.jacobian) * np.repeat(robust, [3, 1], axis=1)[
            ..., None
        ]
        weighted = weighted.reshape(rows, width)
        information = weighted.T @ system.jacobian.reshape(rows, width)
        return information, weighted.T @ system.residuals.ravel(), scale

    def _finish(self, pose: Array, state: Array, errors: Array) -> MotionFit:
        """Covariance, inliers and the message about theta at the solution."""
        system = self.with_calibration(self.linearise(pose, state, errors), errors)
        information, gradient, scale = self._normal(self._with_readout(system, pose))
        information[_JITTER, _JITTER] += self._prior[_JITTER, _JITTER]
        inverse = np.linalg.inv(information[_OWN, _OWN])
        covariance = inverse[_XI, _XI]
        by_theta = -inverse[_XI] @ information[_OWN, _THETA]
        by_readout = None
        if self._shutter is not None:
            by_readout = -inverse[_XI] @ information[_OWN, _READOUT]
        information, gradient = information[:_WIDTH, :_WIDTH], gradient[:_WIDTH]
        gradient[_JITTER] -= self._prior[_JITTER, _JITTER] @ state[_JITTER]
        inliers = system.distances()[:, 0] < _GATE * scale
        clustering = self._clustering(system, scale)
        message = _message(information, gradient, state[_THETA])
        symmetric = 0.5 * (covariance + covariance.T)
        rolling = self._rolling(system, information, gradient, scale)
        return MotionFit(
            *(pose, symmetric, inliers, scale, clustering, message, by_theta, by_readout, rolling)
        )

    def _with_readout(self, system: _Linearised, pose: Array) -> _Linearised:
        """The same with the column of a rolling shutter's readout, if that is asked for.

        A point in a row v is seen (v / height - 1/2) readouts after the stamp, in which it moves
        on at the velocity of that frame: half of this motion and the one before, or what goes on
        from these. The column is how that moves y2, less what it moves y1.
        """
        if self._shutter is None:
            return system
        twist = lie.se3_log(pose)
        before = twist if self._shutter.twist is None else self._shutter.twist
        y1, y2 = self._tracks.before[:, :3], self._tracks.after[:, :3]
        first = self._late(y1, 0.5 * (before + twist), self._shutter.height)
        second = self._late(y2, 1.5 * twist - 0.5 * before, self._shutter.height)
        column = np.zeros((len(y1), 4, 1))
        column[:, :3, 0] = second - np.einsum("nij,nj->ni", system.through, first)
        return replace(system, jacobian=np.concatenate([system.jacobian, column], axis=2))

    def _late(self, y: Array, twist: Array, height: int) -> Array:
        """(n, 3): how far points at (n, 3) y move until their rows are read, of one readout."""
        flow = pose_jacobian(self._camera, self._camera.triangulate(y))[0] @ twist
        return np.asarray((y[:, 1:2] / height - 0.5) * flow)

    def _rolling(
        self, system: _Linearised, information: Array, gradient: Array, scale: float
    ) -> tuple[float, float]:
        """Information and information vector about a rolling shutter, all else marginalised out.

        Rows that are read one after the other see a point that moves down by dv rows later by dv
        line times: its motion is longer by the factor 1 + s dv, with s the line time over the time
        between the frames.
        """
        y1, y2 = self._tracks.before, self._tracks.after
        column = (y2 - y1)[:, :3] * (y2 - y1)[:, 1:2]
        limit = scale * _HUBER
        robust = limit / np.maximum(system.distances()[:, 0], limit) / scale**2
        weighted = np.einsum("nij,nj->ni", system.weights[:, :3, :3], column) * robust[:, None]
        across = np.einsum("ni,nia->a", weighted, system.jacobian[:, :3])
        gain = np.linalg.solve(information + self._prior, across)
        known = float(np.sum(weighted * column)) - float(across @ gain)
        return known, float(np.sum(weighted * system.residuals[:, :3])) - float(gain @ gradient)

    def _clustering(self, system: _Linearised, scale: float) -> float:
        """tr(sum_c g_c g_c^T) / tr(sum_c H_c - H_c^2), g_c the summed gradients of patch c.

        Gradients and information H_c are whitened: the H_c sum to the identity. If patches err
        independently, those of a fit have E g_c g_c^T = k (H_c - H_c^2), and k times the inverse
        information is the covariance (the sandwich of robust statistics). Of independent
        Gaussian residuals it is 0.83, as weights limit what is far out. Where all information is
        in one patch nothing tells: 1.
        """
        distances, limit = system.distances()[:, 0], scale * _HUBER
        robust = limit / np.maximum(distances, limit) / scale**2
        jacobian = system.jacobian[:, :3, _XI]
        weighted = (system.weights[:, :3, :3] @ jacobian) * robust[:, None, None]
        information = np.einsum("nia,nib->ab", weighted, jacobian)
        root = np.linalg.inv(np.linalg.cholesky(information)).T
        white = np.einsum("nia,ni->na", weighted, system.residuals[:, :3]) @ root
        patches = (self._tracks.after[:, :2] // (_PATCH_RAD * self._camera.left.fx)).astype(int)
        _, index = np.unique(patches, axis=0, return_inverse=True)
        count = int(index.max()) + 1
        sums, parts = np.zeros((count, 6)), np.zeros((count, 6, 6))
        np.add.at(sums, index.ravel(), white)
        each = np.swapaxes(weighted @ root, 1, 2) @ (jacobian @ root)
        np.add.at(parts, index.ravel(), each)
        left = 6.0 - float(np.sum(parts**2))
        return (float(np.sum(sums**2)) + max(1.0 - left, 0.0)) / max(left, 1.0)


def _message(information: Array, gradient: Array, theta: Array) -> tuple[Array, Array]:
    """Information about theta with all other unknowns marginalised out."""
    across = information[_THETA, _OWN]
    gain = np.linalg.solve(information[_OWN, _OWN], across.T).T
    marginal = information[_THETA, _THETA] - gain @ across.T
    return marginal, marginal @ theta + gradient[_THETA] - gain @ gradient[_OWN]


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


def _lens(camera: StereoCamera) -> tuple[float, float, float, float, float]:
    c = camera.left
    return c.fx, c.fy, c.cx, c.cy, c.fx * camera.baseline_m


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
    fast = compiled()
    if fast is not None:
        known = points, measured, guess, samples, iterations
        constants = _lens(camera), _DAMPING, _MAX_STEP, MIN_DEPTH_M
        return np.asarray(fast.fit_samples(*known, *constants))
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
    fast = compiled()
    if fast is not None:
        cost = fast.costs(points, measured, poses, inlier_px, _lens(camera), MIN_DEPTH_M)
        pose = poses[int(np.argmin(cost))]
        return pose, _squared_errors(camera, points, measured, pose) < inlier_px**2
    error2 = _squared_errors(camera, points, measured, poses)
    best = int(np.argmin(np.sum(np.minimum(error2, inlier_px**2), axis=1)))
    return poses[best], error2[best] < inlier_px**2


def _squared_errors(camera: StereoCamera, points: Array, measured: Array, poses: Array) -> Array:
    error = measured - camera.project(transform(poses, points))
    return np.asarray(np.sum(error**2, axis=-1))
