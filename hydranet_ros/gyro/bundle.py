"""Points of one reference image seen in some later ones: motions and depths that fit them all.

A point is seen along b = (x, 1) from the reference, at the inverse depth rho, and in view k at

    z_k = pi(C_k b + rho t_k) + noise,

with C_k, t_k the motion since the reference. All of C_k, t_k and rho are found together, by
Gauss-Newton with a Cauchy kernel; the inverse depths are eliminated (Schur complement). Beside the
points stand rotations from view to view that are known otherwise, with their covariances:

    e_k = Log(C_f (C_k C_{k-1}^T)^T),   e_k ~ N(0, Sigma_f).

How far the solution is off is not told by the curvature alone. With A the reduced normal matrix
and s_i what point i adds to the moment, the covariance is A^-1 (sum s_i s_i^T) A^-1 if every point
errs on its own, and A^-1 (sum_b S_b S_b^T) A^-1, S_b the sum of s_i over a block of the image, if
neighbours err together (the cluster-robust covariance of White and of Liang and Zeger). `Spread`
holds both: what a rolling shutter, a lens or a walker does is shared by neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import compiled_loops
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.bundle_sums import STEP, sums

compiled = compiled_loops("hydranet_ros.gyro.bundle_numba")
"""The sums, compiled; None where numba is not installed."""

_NEAREST = 0.05  # of z: what is behind a camera must not be divided by
_DEPTHS = (-0.2, 20.0)  # of rho, in units of its median: noise makes distant ones negative
_LARGEST_TURN = 0.3  # rad, of one step
_T_INFORMATION = 1e-2  # of each t, in units of the scale: keeps it finite where nothing is seen
_RESECTION = (4.0, 2.0, 1.0)  # kernels for a new view, in units of the kernel
_PRIOR_KERNEL = 4.0  # a depth further from where it was expected, in deviations, counts little
# Views so near to each other, in deviations of a point, are from one place. Of 0.5, 2, 4 and 8, on
# twelve simulated worlds with 7-Scenes, EuRoC and TUM looked at.
_SAME_PLACE = 2.0
_CAUCHY = 1.45  # what the kernel takes from squares of normal residuals is given back
_CLEARLY = 0.97  # a better minimum has less than this share of the cost
_SAME_RAD, _SAME_COSINE = 0.003, 0.98  # of rotations and directions that are one minimum
_BLOCKS = (4, 3)  # of the image, across and down, whose points may err together


@dataclass(eq=False)
class View:
    """A later image: its motion, where points are seen, the rotation since the view before."""

    stamp_ns: int
    C: Array  # (3, 3), reference to view
    t: Array  # (3,)
    z: Array  # (n, 2)
    seen: NDArray[np.bool_]
    C_f: Array  # (3, 3), from the view before
    Sigma_f: Array


class Noise(NamedTuple):
    """Standard deviation that a point counts with, and scale of the kernel; normalised units."""

    sigma: float
    kernel: float


@dataclass(eq=False)
class Equations:
    """Normal equations over some views, phi and t of each, and over the depths of the points."""

    H: Array  # (6 views, 6 views)
    g: Array
    rotations: Array  # the part of H that is of the rotations known otherwise
    weights: Array  # (views, n), of the kernel
    squares: float  # sum of squared residuals, as the kernel counts them
    cost: float  # what is minimised: of the kernel
    depth_H: Array  # (n,)
    depth_g: Array
    cross: Array  # (6 views, n)
    moments: Array  # (6 views, n), what each point adds to g

    def reduced(self) -> tuple[Array, Array]:
        """Without the depths, the Schur complement: H - W D^-1 W^T, g - W D^-1 g_rho."""
        scaled = self.cross / self.depth_H
        return self.H - scaled @ self.cross.T, self.g - scaled @ self.depth_g


class Spread(NamedTuple):
    """Covariances (3, 3) of a rotation.

    By curvature, of points and of rotations known otherwise; by what the points do to it, each by
    itself or in blocks of neighbours.
    """

    points: Array
    rotations: Array
    alone: Array
    blocks: Array


@dataclass(eq=False)
class Bundle:
    """The points of a reference, (n, 3) bearings, and the views of them."""

    bearings: Array
    rho_0: Array  # inverse depths that are expected, and what is known of them
    information: Array
    rho: Array = field(init=False)
    views: list[View] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rho = self.rho_0.copy()
        place = self.bearings[:, :2]
        low = place.min(axis=0, initial=0.0)
        size = place.max(axis=0, initial=0.0) - low + 1e-9
        x, y = np.minimum((place - low) / size * _BLOCKS, np.array(_BLOCKS) - 1).astype(int).T
        self._block = x * _BLOCKS[1] + y
        self._scale = float(np.median(self.rho_0)) if len(self.rho_0) else 1.0

    # --- views -----------------------------------------------------------------------------------

    def add(self, view: View) -> None:
        """The next view; the first one's t is found from the parallax."""
        if not self.views:
            view.t = self._first_translation(view)
        self.views.append(view)

    def drop(self, index: int) -> None:
        """Leave a view out: the rotations to it and from it become one. The newest two stay.

        What is wrong about a scene in one rotation is wrong in the next, so their errors are not
        taken as independent: the covariance of both holds whatever their correlation is, A / w +
        B / (1 - w), with the w of the least trace.
        """
        index = min(index, len(self.views) - 3)
        gone, after = self.views.pop(index), self.views[index]
        carried = after.C_f @ gone.Sigma_f @ after.C_f.T
        ratio = np.sqrt(np.trace(after.Sigma_f) / np.trace(carried))
        both = (1.0 + ratio) * carried + (1.0 + 1.0 / ratio) * after.Sigma_f
        after.C_f, after.Sigma_f = after.C_f @ gone.C_f, both

    def _first_translation(self, view: View) -> Array:
        """The t that explains the parallax best, given the depths: f = rho (t_xy - h t_z)."""
        ray = self.bearings @ view.C.T
        h = ray[:, :2] / np.maximum(ray[:, 2:], _NEAREST)
        f, rho = view.z - h, self.rho_0
        w = np.where(view.seen, 1.0, 0.0)
        A = np.zeros((len(h), 2, 3))
        A[:, 0, 0] = A[:, 1, 1] = rho
        A[:, :, 2] = -rho[:, None] * h
        for _ in range(3):
            normal = np.einsum("n,nia,nib->ab", w, A, A) + 1e-6 * np.eye(3)
            t: Array = np.linalg.solve(normal, np.einsum("n,nia,ni->a", w, A, f))
            left = np.linalg.norm(f - A @ t, axis=1)
            scale = max(float(np.median(left[view.seen])) if view.seen.any() else 0.0, 1e-4)
            w = view.seen / (1.0 + (left / scale) ** 2)
        return t

    # --- the solution ----------------------------------------------------------------------------

    def solve(self, noise: Noise, iterations: int, with_depths: bool) -> Equations:
        """The newest view first, with its depths or without, then all of them together."""
        self._resect(noise, [len(self.views) - 1], with_depths)
        return self._together(noise, iterations)

    def search(self, noise: Noise, iterations: int, found: Equations) -> Equations:
        """Look for a better minimum, of the reference and the last view alone, over all motions.

        Depths that were guessed from little parallax can be wrong, all together, and stay so.
        """
        view = self.views[-1]
        two = two_images(self.bearings[view.seen], view.z[view.seen], noise.kernel)
        if two is None or _alike(*two, view):
            return found
        known = self.rho, [(each.C, each.t) for each in self.views]
        C, t = two
        rho = _triangulated(self.bearings, view.z, C, t)
        typical = float(np.median(rho[view.seen]))
        if typical > 0.0:
            size = self._scale / typical
            low, high = (each * typical * size for each in _DEPTHS)
            self.rho = np.where(view.seen, np.clip(rho * size, low, high), self.rho_0)
            view.C, view.t = C, t / size
            self._resect(noise, range(len(self.views)), with_depths=False)
            better = self._together(noise, 2 * iterations)
            if better.cost < _CLEARLY * found.cost:
                return better
        self.rho = known[0]
        for each, (C, t) in zip(self.views, known[1], strict=True):
            each.C, each.t = C, t
        return found

    def _resect(self, noise: Noise, views: Sequence[int], with_depths: bool) -> None:
        for times in _RESECTION:
            wider = noise._replace(kernel=times * noise.kernel)
            self._step(self.equations(wider, views), views, with_depths)

    def _together(self, noise: Noise, iterations: int) -> Equations:
        everything = range(len(self.views))
        for _ in range(iterations):
            self._step(self.equations(noise), everything, depths=True)
        return self.equations(noise)

    def _step(self, equations: Equations, views: Sequence[int], depths: bool) -> None:
        """One step of Gauss-Newton, with the depths or without."""
        H, g = equations.reduced() if depths else (equations.H, equations.g)
        scale = self._scale
        least = np.tile([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], len(views)) * _T_INFORMATION * scale**2
        size = np.trace(H) / len(H)
        delta = np.linalg.solve(H + np.diag(least + 1e-9 * size + 1e-12), g)
        if depths:
            rho = self.rho + (equations.depth_g - delta @ equations.cross) / equations.depth_H
            self.rho = np.clip(rho, _DEPTHS[0] * scale, _DEPTHS[1] * scale)
        steps = delta.reshape(-1, STEP)
        turns = lie.so3_exp(np.clip(steps[:, :3], -_LARGEST_TURN, _LARGEST_TURN))
        for k, turn, d in zip(views, turns, steps, strict=True):
            view = self.views[k]
            view.C, view.t = turn @ view.C, view.t + d[3:]

    def equations(self, noise: Noise, views: Sequence[int] | None = None) -> Equations:
        """Normal equations of some views, all if None."""
        numbers = range(len(self.views)) if views is None else views
        chosen = [self.views[k] for k in numbers]
        C, t = np.array([each.C for each in chosen]), np.array([each.t for each in chosen])
        z, seen = np.array([each.z for each in chosen]), np.array([each.seen for each in chosen])
        summed = sums if compiled is None else compiled.sums
        sigma = noise.sigma * np.sqrt(self._places(C, t, noise.sigma))
        found = summed(self.bearings, self.rho, C, t, z, seen, sigma, noise.kernel, _NEAREST)
        K, n = len(chosen), len(self.rho)
        blocks = np.zeros((K, STEP, K, STEP))
        blocks[np.arange(K), :, np.arange(K), :] = found.H
        moments, cross = (each.reshape(STEP * K, n) for each in (found.moments, found.cross))
        rotations, moment = self._rotations(numbers)
        off = self.rho_0 - self.rho  # disparities may be of something else altogether
        prior = self.information / (1.0 + self.information * off * off / _PRIOR_KERNEL**2)
        return Equations(
            H=blocks.reshape(STEP * K, STEP * K) + rotations,
            g=moments.sum(axis=1) + moment,
            rotations=rotations,
            weights=found.weights,
            squares=_CAUCHY * found.squares,
            cost=found.cost,
            depth_H=found.depth_H + prior,
            depth_g=found.depth_g + prior * off,
            cross=cross,
            moments=moments,
        )

    def _places(self, C: Array, t: Array, sigma: float) -> Array:
        """(views,): how many are at the place of each.

        What is wrong about a point in the reference is wrong in all views. From different places
        it is something else each time; views from one place tell no more than one of them.
        """
        at = -np.swapaxes(C, 1, 2) @ t[:, :, None]
        apart = np.linalg.norm(at[:, None, :, 0] - at[None, :, :, 0], axis=2)
        same = apart * self._scale < _SAME_PLACE * sigma
        return np.asarray(same.sum(axis=1), dtype=np.float64)

    def _rotations(self, views: Sequence[int]) -> tuple[Array, Array]:
        """H and g of rotations that are known otherwise; that before the first view is fixed.

        `views` follow each other.
        """
        K, first = len(views), views[0]
        chosen = self.views[first : first + K]
        C = np.array([self.views[first - 1].C if first else np.eye(3), *(v.C for v in chosen)])
        A = C[1:] @ np.swapaxes(C[:-1], 1, 2)
        back = np.swapaxes(A, 1, 2)
        L = np.linalg.inv(np.array([each.Sigma_f for each in chosen]))
        e = (L @ lie.so3_log(np.array([each.C_f for each in chosen]) @ back)[..., None])[..., 0]
        H, g = np.zeros((K, STEP, K, STEP)), np.zeros((K, STEP))
        k = np.arange(K)
        H[k, :3, k, :3] = L
        g[:, :3] = e
        if K > 1:
            here, there, cross = k[1:], k[:-1], L[1:] @ A[1:]
            H[there, :3, there, :3] += back[1:] @ cross
            H[here, :3, there, :3] = -cross
            H[there, :3, here, :3] = -np.swapaxes(cross, 1, 2)
            g[:-1, :3] -= (back[1:] @ e[1:, :, None])[..., 0]
        return H.reshape(STEP * K, STEP * K), g.ravel()

    # --- how far it may be off -------------------------------------------------------------------

    def spreads(self, equations: Equations) -> tuple[Spread, Spread] | None:
        """Of the rotation since the view before the last, and since the reference."""
        H, _ = equations.reduced()
        try:
            covariance = np.linalg.inv(H + 1e-12 * np.trace(H) / len(H) * np.eye(len(H)))
        except np.linalg.LinAlgError:
            return None
        if not np.isfinite(covariance).all():
            return None
        K, last = len(self.views), self.views[-1]
        D = np.zeros((3, STEP * K))
        D[:, STEP * (K - 1) : STEP * (K - 1) + 3] = np.eye(3)
        scores = equations.moments - equations.cross * (equations.depth_g / equations.depth_H)
        since = self._spread(D @ covariance, H, equations.rotations, scores)
        if K > 1:
            D[:, STEP * (K - 2) : STEP * (K - 2) + 3] = -last.C @ self.views[-2].C.T
        return self._spread(D @ covariance, H, equations.rotations, scores), since

    def _spread(self, gain: Array, H: Array, rotations: Array, scores: Array) -> Spread:
        """`gain` (3, 6 views) takes a score to what it turns the rotation by."""
        known = gain @ rotations @ gain.T
        turned = gain @ scores  # (3, n)
        count = _BLOCKS[0] * _BLOCKS[1]
        blocks = np.stack([np.bincount(self._block, each, count) for each in turned])
        return Spread(gain @ H @ gain.T - known, known, turned @ turned.T, blocks @ blocks.T)


def two_images(bearings: Array, z: Array, kernel: float) -> tuple[Array, Array] | None:
    """C and t of unit length from two images alone, by the five-point method."""
    if len(z) < 8:
        return None
    first = np.ascontiguousarray(bearings[:, :2])
    E, inliers = cv2.findEssentialMat(
        first, z, np.eye(3), cv2.USAC_MAGSAC, 0.999, threshold=2.0 * kernel
    )
    if E is None or E.shape != (3, 3) or inliers is None or int(inliers.sum()) < 8:
        return None
    _, C, t, _ = cv2.recoverPose(E, first, z, np.eye(3), mask=inliers)
    return np.asarray(C, dtype=np.float64), np.asarray(t[:, 0], dtype=np.float64)


def _alike(C: Array, t: Array, view: View) -> bool:
    """Whether Gauss-Newton has been here already."""
    turned = float(np.linalg.norm(lie.so3_log(C @ view.C.T)))
    length = float(np.linalg.norm(t) * np.linalg.norm(view.t))
    return turned < _SAME_RAD and float(t @ view.t) > _SAME_COSINE * length


def _triangulated(bearings: Array, z: Array, C: Array, t: Array) -> Array:
    """(n,) the rho that fit best: rho (t_xy - z t_z) = z (C b)_z - (C b)_xy."""
    ray = bearings @ C.T
    d, f = t[:2] - z * t[2], z * ray[:, 2:] - ray[:, :2]
    rho: Array = (d * f).sum(axis=1) / np.maximum((d * d).sum(axis=1), 1e-9)
    return rho
