"""The gyro's memory: rotation since a reference image, with depths that are remembered.

Two images alone have little parallax indoors, and what is missed between two frames adds up over
many. So points of a reference image are followed for as long as they are in view. A point is seen
along b = (x, 1) from the reference, at the inverse depth rho, and in frame k at

    z_k = pi(C_k b + rho t_k) + noise,

with C_k, t_k the motion since the reference. All of C_k, t_k and rho are found together, by
Gauss-Newton with a Cauchy kernel; the inverse depths are eliminated (Schur complement). Beside the
points stand the rotations that the network gives from frame to frame, with their covariances:

    e_k = Log(C_f (C_k C_{k-1}^T)^T),   e_k ~ N(0, Sigma_f).

With one camera the scale is free: rho has a wide prior about 1, and t_k takes its scale from that.
With two cameras rho comes from the disparity, in 1/m. When too few points are left, the current
image becomes the reference; the points that are left keep their depths. At rest the reference
stays, and nothing drifts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Image
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.grid import GridFlow
from hydranet_ros.gyro.tracks import TrackConfig, Tracks
from hydranet_ros.settings import Configuration, section, setting

_NEAREST = 0.05  # of z: what is behind a camera must not be divided by
_DEPTHS = (-0.2, 20.0)  # of rho, in units of its median: noise makes distant ones negative
_LARGEST_TURN = 0.3  # rad, of one step
_T_INFORMATION = 1e-2  # of each t, in units of the scale: keeps it finite where nothing is seen
_RESECTION = (4.0, 2.0, 1.0)  # kernels for a new frame, in units of the kernel
_INLIER = 0.3  # least weight of a point that counts as seen
_MOST_CARRIED = 1e5  # information of a depth that is carried over to a new reference
_KERNEL = 2.4  # of the robust kernel, in standard deviations of a point
_CAUCHY = 1.45  # what the kernel takes from squares of normal residuals is given back
_LEAST_FRAMES = 3  # with fewer, depths can explain nearly anything
_CHECKED_AT = (4, 8, 16)  # frames after which a better minimum is looked for
_CLEARLY = 0.97  # a better minimum has less than this share of the cost
_NOTHING = 1e6  # variance of a rotation that is not believed
_DRAWN = 0.1  # share of what steps and the rotation since the reference differ by
_PRIOR_KERNEL = 4.0  # a depth further from where it was expected, in deviations, counts little
_PATIENCE, _WORST_PX = 0.1, 5.0  # of the running average of residuals
_STEP = 6  # numbers of a frame: rotation, translation


@dataclass(frozen=True)
class MemoryConfig(Configuration):
    """How long the gyro remembers.

    The deviations and their factors were chosen on simulated worlds (NEES over 1, 10 and 40
    frames), between values that are equally good there by KITTI 09, EuRoC, TUM and 7-Scenes.
    """

    frames: int = setting(
        8, "frames since the reference that are solved for together; 0: no memory", 0, 30
    )
    tracks: TrackConfig = section(TrackConfig)
    sigma_px: float = setting(
        0.2, "least standard deviation of a followed point per axis; more where residuals say so"
    )
    model_px: float = setting(
        0.15, "errors that points share, such as of the calibration, until residuals tell", 0, 10
    )
    shared: float = setting(40.0, "how many points such an error is shared by", 1, 1000)
    keep_share: float = setting(
        0.5, "of the points of a reference; with fewer in view there is a new one", 0.05, 0.95
    )
    min_points: int = setting(20, "with fewer points the memory starts again", 8, 1000)
    agreeing_share: float = setting(
        0.5, "of the points that are seen; where fewer agree the memory starts again", 0.1, 1.0
    )
    gate: float = setting(
        30.0,
        "squared deviations by which the network may differ from the points; beyond it the points "
        "are believed if most of them agree, otherwise the memory starts again",
    )
    iterations: int = setting(3, "steps of Gauss-Newton for a frame", 1, 20)
    depth_deviation: float = setting(
        1.0, "of inverse depths that are not known, in units of their median", 0.1, 10
    )
    disparity_px: float = setting(0.7, "standard deviation of a disparity", 0.01, 10)
    network_scale: float = setting(
        4.0,
        "factor of the deviations of the network's rotations: where two images leave a doubt, the "
        "next two leave the same one",
        1.0,
        100,
    )
    scale: float = setting(
        1.2,
        "factor of the deviations: neighbouring points, and frames, have errors in common",
        0.1,
        100,
    )
    carried_share: float = setting(
        0.25, "of what is known of a depth: kept by a new reference", 0.0, 1.0
    )


@dataclass(frozen=True)
class Remembered:
    """What the memory makes of a frame: the rotation since the last, and since the reference."""

    frame: RelativeRotation
    reference: RelativeRotation
    points: int  # that were seen


@dataclass(eq=False)
class _Frame:
    """A frame since the reference: its motion, where points are seen, the network's rotation."""

    stamp_ns: int
    C: Array  # (3, 3), reference to frame
    t: Array  # (3,)
    z: Array  # (n, 2)
    seen: NDArray[np.bool_]
    C_f: Array  # (3, 3), from the frame before
    Sigma_f: Array


@dataclass(eq=False)
class _Solution:
    """Normal equations over all frames after the depths are gone, and what is left of points."""

    H: Array
    g: Array
    weights: Array  # (frames, n), of the kernel
    squares: float  # sum of squared residuals, as the kernel counts them
    cost: float  # what is minimised: of the kernel
    depth_H: Array  # (n,)
    depth_g: Array
    cross: Array  # (n, 6 frames)


@dataclass(eq=False)
class Memory:
    """Follow one camera; `baseline_m` where there is a second one."""

    camera: Camera
    config: MemoryConfig = field(default_factory=MemoryConfig)
    baseline_m: float | None = None
    restarts: int = 0

    def __post_init__(self) -> None:
        self._residual_px = self.config.sigma_px
        self._tracks: Tracks | None = None
        self._frames: list[_Frame] = []

    def reset(self) -> None:
        """Forget everything."""
        self._tracks, self._frames = None, []

    def begin(self, image: Image, stamp_ns: int, right: Image | None = None) -> None:
        """Make an image the reference, with nothing known about depths."""
        none = np.zeros((0, 2))
        self._refer(image, stamp_ns, right, none, np.zeros(0), np.zeros(0), known=False)

    def update(
        self,
        image: Image,
        flow: GridFlow,
        rotation: RelativeRotation,
        right: Image | None = None,
    ) -> Remembered | None:
        """Take in the next image, the flow to it from the last, and the network's rotation.

        None, and a new beginning, where the two contradict each other or too little is seen.
        """
        if self._tracks is None or self._stamp_ns != rotation.stamp_1_ns:
            self.begin(image, rotation.stamp_2_ns, right)
            return None
        self._add(image, flow, rotation)
        solution = self._solve()
        if self._contradicts():
            if not self._is_sure(solution):
                self.restarts += 1
                self.begin(image, rotation.stamp_2_ns, right)
                return None
            self._frames[-1].Sigma_f = _NOTHING * np.eye(3)
            solution = self._solve()
        if len(self._frames) >= _LEAST_FRAMES and self._since in _CHECKED_AT:
            solution = self._search(solution)
        self._judge(solution)
        found = self._remembered(solution, rotation)
        if found is None:
            self.restarts += 1
            self.begin(image, rotation.stamp_2_ns, right)
            return None
        if found.points < self.config.keep_share * len(self._tracks):
            if len(self._frames) >= _LEAST_FRAMES:  # depths are carried over
                solution = self._search(solution)
            self._move_on(image, rotation.stamp_2_ns, right, solution)
        return found

    def _contradicts(self) -> bool:
        """Whether the network's last rotation is not where the points say."""
        last = self._frames[-1]
        before = self._frames[-2].C if len(self._frames) > 1 else np.eye(3)
        e = lie.so3_log(last.C @ before.T @ last.C_f.T)
        return bool(e @ np.linalg.solve(last.Sigma_f, e) > self.config.gate)

    def _is_sure(self, solution: _Solution) -> bool:
        """Whether the points agree with each other, over more than two images."""
        seen = int(self._frames[-1].seen.sum())
        points = self._points(solution)
        older = self._known or len(self._frames) >= _LEAST_FRAMES
        return older and points >= max(
            2 * self.config.min_points, self.config.agreeing_share * seen
        )

    def _points(self, solution: _Solution) -> int:
        """How many are seen where they should be in the last frame."""
        return int((self._frames[-1].seen & (solution.weights[-1] > _INLIER)).sum())

    # --- the reference ---------------------------------------------------------------------------

    @property
    def _stamp_ns(self) -> int:
        return self._frames[-1].stamp_ns if self._frames else self._reference_ns

    def _refer(
        self,
        image: Image,
        stamp_ns: int,
        right: Image | None,
        carried: Array,
        rho: Array,
        information: Array,
        known: bool,
    ) -> None:
        self._tracks = tracks = Tracks(image, self.camera, self.config.tracks, carried)
        self._reference_ns, self._frames, self._known = stamp_ns, [], known
        self._since, self._chain = 0, np.eye(3)
        new = len(tracks) - len(rho)
        wide = self.config.depth_deviation**-2
        scale = 1.0 if self.baseline_m is None or not len(rho) else float(np.median(rho))
        self._rho_0 = np.concatenate([rho, np.full(new, scale)])
        self._information = np.concatenate([information, np.full(new, wide / scale**2)])
        if right is not None and self.baseline_m is not None:
            self._take_disparities(right)
        self._rho = self._rho_0.copy()
        self._bearings = np.column_stack([tracks.bearings, np.ones(len(tracks))])

    def _take_disparities(self, right: Image) -> None:
        """Inverse depths in 1/m from the second camera, with what was known before."""
        assert self._tracks is not None
        assert self.baseline_m is not None
        disparity, known = self._tracks.disparities(right)
        rho = disparity / self.baseline_m
        sigma = self.config.disparity_px / (self._tracks.camera.fx * self.baseline_m)
        if known.sum() < self.config.min_points:
            return
        typical = max(float(np.median(rho[known])), sigma)
        self._rho_0[~known & (self._information <= self.config.depth_deviation**-2)] = typical
        self._rho_0 = np.where(known, rho, self._rho_0)
        wide = (self.config.depth_deviation * typical) ** -2
        self._information = np.where(known, sigma**-2, np.maximum(self._information, wide))
        self._known = True

    def _move_on(
        self, image: Image, stamp_ns: int, right: Image | None, solution: _Solution
    ) -> None:
        """Make the current image the reference; points in view keep their depths."""
        assert self._tracks is not None
        last = self._frames[-1]
        X = self._bearings @ last.C.T + self._rho[:, None] * last.t
        kept = last.seen & (solution.weights[-1] > _INLIER) & (X[:, 2] > 0.2)
        kept &= len(self._frames) >= _LEAST_FRAMES  # else the depths are of two images alone
        z = X[kept, 2]
        rho = self._rho[kept] / z
        information = self.config.carried_share * solution.depth_H[kept] * z**2
        if self.baseline_m is None and len(rho):  # the scale is free: keep it near 1
            median = max(float(np.median(rho)), 1e-2)
            rho, information = rho / median, information * median**2
        self._refer(
            image,
            stamp_ns,
            right,
            self._tracks.last[kept],
            rho,
            np.minimum(information, _MOST_CARRIED * np.median(rho) ** -2 if len(rho) else 0.0),
            known=bool(kept.sum() >= self.config.min_points),
        )

    # --- a frame ---------------------------------------------------------------------------------

    def _add(self, image: Image, flow: GridFlow, rotation: RelativeRotation) -> None:
        assert self._tracks is not None
        last = self._tracks.last
        seen = self._tracks.follow(image, last + _sampled(flow, last))
        before = self._frames[-1] if self._frames else None
        C = rotation.C_2_1 if before is None else rotation.C_2_1 @ before.C
        t = np.zeros(3) if before is None else rotation.C_2_1 @ before.t
        Sigma_f = self.config.network_scale**2 * rotation.Sigma_2_1
        frame = _Frame(rotation.stamp_2_ns, C, t, seen.at, seen.found, rotation.C_2_1, Sigma_f)
        if before is None:
            frame.t = self._first_translation(frame)
        self._frames.append(frame)
        self._since += 1
        if len(self._frames) > max(self.config.frames, 2):
            # Recent frames are needed; of the others, every second.
            self._drop(1 + self._since % 2)

    def _drop(self, index: int) -> None:
        """Leave a frame out: the network's rotations to it and from it become one."""
        index = min(index, len(self._frames) - 3)
        gone, after = self._frames.pop(index), self._frames[index]
        carried = after.C_f @ gone.Sigma_f @ after.C_f.T
        after.C_f, after.Sigma_f = after.C_f @ gone.C_f, after.Sigma_f + carried

    def _first_translation(self, frame: _Frame) -> Array:
        """The t that explains the parallax best, given the depths: f = rho (t_xy - h t_z)."""
        ray = self._bearings @ frame.C.T
        h = ray[:, :2] / np.maximum(ray[:, 2:], _NEAREST)
        f, rho = frame.z - h, self._rho_0
        w = np.where(frame.seen, 1.0, 0.0)
        for _ in range(3):
            A = np.zeros((len(h), 2, 3))
            A[:, 0, 0] = A[:, 1, 1] = rho
            A[:, :, 2] = -rho[:, None] * h
            normal = np.einsum("n,nia,nib->ab", w, A, A) + 1e-6 * np.eye(3)
            t: Array = np.linalg.solve(normal, np.einsum("n,nia,ni->a", w, A, f))
            left = np.linalg.norm(f - A @ t, axis=1)
            scale = max(float(np.median(left[frame.seen])) if frame.seen.any() else 0.0, 1e-4)
            w = frame.seen / (1.0 + (left / scale) ** 2)
        return t

    # --- the solution ----------------------------------------------------------------------------

    def _solve(self) -> _Solution:
        fresh = not self._known and len(self._frames) == 1
        newest = [len(self._frames) - 1]
        for times in _RESECTION:
            self._step(self._equations(newest, times), newest, depths=fresh)
        everything = list(range(len(self._frames)))
        for _ in range(self.config.iterations):
            self._step(self._equations(everything), everything, depths=True)
        return self._equations(everything)

    @property
    def _kernel(self) -> float:
        """Scale of the robust kernel, in normalised units."""
        assert self._tracks is not None
        return _KERNEL * self._residual_px / self._tracks.camera.fx

    @property
    def _sigma(self) -> float:
        """Standard deviation that a point counts with, in normalised units.

        What is followed badly, sigma_t, differs from point to point. What the model lacks, sigma_m
        (a rolling shutter, lens distortion, things that move), is shared by neighbours, so many
        points are worth few: sigma^2 = sigma_t^2 + shared sigma_m^2. With few frames the depths
        explain nearly anything, so sigma_m is not seen, and assumed.
        """
        assert self._tracks is not None
        white = self.config.sigma_px**2
        model = max(self._residual_px**2 - white, 0.0)
        if len(self._frames) < _LEAST_FRAMES:
            model = max(model, self.config.model_px**2)
        return float(np.sqrt(white + self.config.shared * model)) / self._tracks.camera.fx

    def _judge(self, solution: _Solution) -> None:
        """How well points are followed here: the residuals of some frames, slowly averaged."""
        K, seen = solution.weights.shape[0], solution.weights > 0.0
        free = 2.0 * seen.sum() - len(self._rho) - _STEP * K
        if K < _LEAST_FRAMES or free < 4.0 * self.config.min_points:
            return
        assert self._tracks is not None
        measured = np.sqrt(solution.squares / free) * self._tracks.camera.fx
        self._residual_px += _PATIENCE * (measured - self._residual_px)
        self._residual_px = float(np.clip(self._residual_px, self.config.sigma_px, _WORST_PX))

    def _search(self, solution: _Solution) -> _Solution:
        """Look for a better minimum, of the reference and the last image alone, over all motions.

        Depths that were guessed from little parallax can be wrong, all together, and stay so.
        """
        frame = self._frames[-1]
        found = _two_images(self._bearings[frame.seen], frame.z[frame.seen], self._kernel)
        if found is None:
            return solution
        known = self._rho, [(each.C, each.t) for each in self._frames]
        C, t = found
        rho = _triangulated(self._bearings, frame.z, C, t)
        typical = float(np.median(rho[frame.seen]))
        if typical > 0.0:
            size = float(np.median(self._rho_0)) / typical
            low, high = (each * typical * size for each in _DEPTHS)
            self._rho = np.where(frame.seen, np.clip(rho * size, low, high), self._rho_0)
            frame.C, frame.t = C, t / size
            for k in range(len(self._frames)):
                for times in _RESECTION:
                    self._step(self._equations([k], times), [k], depths=False)
            everything = list(range(len(self._frames)))
            for _ in range(2 * self.config.iterations):
                self._step(self._equations(everything), everything, depths=True)
            better = self._equations(everything)
            if better.cost < _CLEARLY * solution.cost:
                return better
        self._rho = known[0]
        for each, (C, t) in zip(self._frames, known[1], strict=True):
            each.C, each.t = C, t
        return solution

    def _step(self, equations: _Solution, frames: list[int], depths: bool) -> None:
        """One step of Gauss-Newton, with the depths or without."""
        H, g = equations.H, equations.g
        if depths:
            H, g = _without_depths(equations)
        scale = float(np.median(self._rho_0))
        least = np.tile([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], len(frames)) * _T_INFORMATION * scale**2
        size = np.trace(H) / len(H)
        delta = np.linalg.solve(H + np.diag(least + 1e-9 * size + 1e-12), g)
        if depths:
            rho = self._rho + (equations.depth_g - equations.cross @ delta) / equations.depth_H
            self._rho = np.clip(rho, _DEPTHS[0] * scale, _DEPTHS[1] * scale)
        for k, d in zip(frames, delta.reshape(-1, _STEP), strict=True):
            frame = self._frames[k]
            turn = np.clip(d[:3], -_LARGEST_TURN, _LARGEST_TURN)
            frame.C = lie.so3_exp(turn) @ frame.C
            frame.t = frame.t + d[3:]

    def _equations(self, frames: list[int], kernels: float = 1.0) -> _Solution:
        """Normal equations of some frames, in the order phi, t of each, and of the depths."""
        assert self._tracks is not None
        sigma, kernel = self._sigma, kernels * self._kernel
        chosen = [self._frames[k] for k in frames]
        C, t = np.array([each.C for each in chosen]), np.array([each.t for each in chosen])
        z, seen = np.array([each.z for each in chosen]), np.array([each.seen for each in chosen])
        ray = self._bearings @ np.swapaxes(C, 1, 2)  # (frames, n, 3)
        X = ray + self._rho[:, None] * t[:, None]
        inverse = 1.0 / np.maximum(X[..., 2], _NEAREST)
        hx, hy = X[..., 0] * inverse, X[..., 1] * inverse
        rx, ry = z[..., 0] - hx, z[..., 1] - hy
        weights = seen / (1.0 + (rx * rx + ry * ry) / kernel**2)
        root = np.sqrt(weights) / sigma
        a = inverse * root
        J = _derivatives(a, hx, hy, ray, self._rho)  # (frames, 2 n, 6)
        r = np.concatenate([rx * root, ry * root], axis=1)[..., None]
        J_t = np.swapaxes(J, 1, 2)
        K = len(chosen)
        blocks = np.zeros((K, _STEP, K, _STEP))
        blocks[np.arange(K), :, np.arange(K), :] = J_t @ J
        H, g = blocks.reshape(_STEP * K, _STEP * K), (J_t @ r).reshape(-1)
        self._add_rotations(H, g, frames)
        J_rho = np.concatenate(
            [a * (t[:, None, 0] - hx * t[:, None, 2]), a * (t[:, None, 1] - hy * t[:, None, 2])],
            axis=1,
        )[..., None]  # (frames, 2 n, 1)
        n = len(self._rho)
        cross = (J * J_rho).reshape(K, 2, n, _STEP).sum(axis=1)  # (frames, n, 6)
        off = self._rho_0 - self._rho  # disparities may be of something else altogether
        prior = self._information / (1.0 + self._information * off * off / _PRIOR_KERNEL**2)
        depth_H = (J_rho * J_rho).reshape(K, 2, n).sum(axis=(0, 1)) + prior
        depth_g = (J_rho * r).reshape(K, 2, n).sum(axis=(0, 1)) + prior * off
        squares = _CAUCHY * float((weights * (rx * rx + ry * ry)).sum())
        cost = float((seen * np.log1p((rx * rx + ry * ry) / kernel**2)).sum())
        columns = np.moveaxis(cross, 0, 1).reshape(n, _STEP * K)
        return _Solution(H, g, weights, squares, cost, depth_H, depth_g, columns)

    def _add_rotations(self, H: Array, g: Array, frames: list[int]) -> None:
        """The network's rotations, each from the frame before; that of the first is fixed."""
        for place, k in enumerate(frames):
            frame = self._frames[k]
            before = self._frames[k - 1].C if k > 0 else np.eye(3)
            A = frame.C @ before.T
            e = lie.so3_log(frame.C_f @ A.T)
            L = np.linalg.inv(frame.Sigma_f)
            here = slice(_STEP * place, _STEP * place + 3)
            g[here] += L @ e
            H[here, here] += L
            if place > 0:
                there = slice(_STEP * (place - 1), _STEP * (place - 1) + 3)
                g[there] -= A.T @ L @ e
                H[there, there] += A.T @ L @ A
                H[here, there] -= L @ A
                H[there, here] -= A.T @ L

    def _remembered(self, solution: _Solution, rotation: RelativeRotation) -> Remembered | None:
        H, _ = _without_depths(solution)
        size = np.trace(H) / len(H)
        try:
            covariance = np.linalg.inv(H + 1e-12 * size * np.eye(len(H)))
        except np.linalg.LinAlgError:
            return None
        last, K = self._frames[-1], len(self._frames)
        D = np.zeros((3, _STEP * K))
        D[:, _STEP * (K - 1) : _STEP * (K - 1) + 3] = np.eye(3)
        since = D @ covariance @ D.T
        C_2_1 = last.C if K == 1 else last.C @ self._frames[-2].C.T
        if K > 1:
            D[:, _STEP * (K - 2) : _STEP * (K - 2) + 3] = -C_2_1
        step = D @ covariance @ D.T
        points, seen = self._points(solution), int(last.seen.sum())
        if points < max(self.config.min_points, self.config.agreeing_share * seen):
            return None
        if not np.isfinite(covariance).all():
            return None
        # Two images are what the network has judged already, unless depths are remembered.
        if K == 1 and (self.baseline_m is not None or not self._known):
            self._chain = rotation.C_2_1
            return Remembered(rotation, rotation, points)
        C_2_1 = self._chained(C_2_1, last.C)
        return Remembered(
            self._estimate(C_2_1, step, rotation.stamp_1_ns, rotation),
            self._estimate(last.C, since, self._reference_ns, rotation),
            points,
        )

    def _chained(self, C_2_1: Array, since: Array) -> Array:
        """The step, drawn a little to where the rotation since the reference is.

        Steps between frames that are solved for together are best one by one, but they do not add
        up: a frame is estimated anew when the next one comes. At rest that would be a random walk.
        """
        self._chain = C_2_1 @ self._chain
        if self._since < self.config.frames:
            return C_2_1
        back = lie.so3_exp(_DRAWN * lie.so3_log(since @ self._chain.T))
        self._chain = back @ self._chain
        return np.asarray(back @ C_2_1)

    def _estimate(
        self, C: Array, Sigma: Array, stamp_1_ns: int, rotation: RelativeRotation
    ) -> RelativeRotation:
        """Up to the stamp of the network's rotation, with the epistemic share of that."""
        wider = self.config.scale**2 * 0.5 * (Sigma + Sigma.T)
        part = _same_share(rotation, wider)
        return RelativeRotation(C, wider, stamp_1_ns, rotation.stamp_2_ns, part)


def _two_images(bearings: Array, z: Array, kernel: float) -> tuple[Array, Array] | None:
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


def _triangulated(bearings: Array, z: Array, C: Array, t: Array) -> Array:
    """(n,) the rho that fit best: rho (t_xy - z t_z) = z (C b)_z - (C b)_xy."""
    ray = bearings @ C.T
    d, f = t[:2] - z * t[2], z * ray[:, 2:] - ray[:, :2]
    rho: Array = (d * f).sum(axis=1) / np.maximum((d * d).sum(axis=1), 1e-9)
    return rho


def _derivatives(a: Array, hx: Array, hy: Array, ray: Array, rho: Array) -> Array:
    """(frames, 2 n, 6): d h / d (phi, t) times the root weight, x of all points and then y.

    h = pi(X), X = Exp(phi) ray + rho t: d X = -ray^ d phi + rho d t.
    """
    x, y, z = ray[..., 0], ray[..., 1], ray[..., 2]
    ar, zero = a * rho, np.zeros_like(a)
    first = np.stack([-a * hx * y, a * (z + hx * x), -a * y, ar, zero, -ar * hx], axis=-1)
    second = np.stack([-a * (z + hy * y), a * hy * x, a * x, zero, ar, -ar * hy], axis=-1)
    return np.concatenate([first, second], axis=1)


def _without_depths(equations: _Solution) -> tuple[Array, Array]:
    """The Schur complement: H - W D^-1 W^T, g - W D^-1 g_rho."""
    scaled = equations.cross / equations.depth_H[:, None]
    return (
        equations.H - equations.cross.T @ scaled,
        equations.g - scaled.T @ equations.depth_g,
    )


def _sampled(flow: GridFlow, at: Array) -> Array:
    """(n, 2) flow at normalised points, of the nearest cell; at the edge that of the edge."""
    rows, columns = flow.mask.shape
    cell = flow.cell
    c = np.clip(np.rint(at[:, 0] / cell + 0.5 * columns - 0.5), 0, columns - 1).astype(int)
    r = np.clip(np.rint(at[:, 1] / cell + 0.5 * rows - 0.5), 0, rows - 1).astype(int)
    return np.asarray(flow.flow[:, r, c].T, dtype=np.float64)


def _same_share(rotation: RelativeRotation, Sigma: Array) -> Array | None:
    """The epistemic part of Sigma: of each direction the share that it is in a rotation."""
    if rotation.epistemic is None:
        return None
    L = np.linalg.cholesky(Sigma)
    R = np.linalg.inv(np.linalg.cholesky(rotation.Sigma_2_1))
    root = L @ R
    part: Array = root @ rotation.epistemic @ root.T
    return 0.5 * (part + part.T)
