"""The gyro's memory: rotation since a reference image, with depths that are remembered.

Two images alone have little parallax indoors, and what is missed between two frames adds up over
many. So points of a reference image are followed for as long as they are in view, and the motions
and depths that fit all of it are found together (`bundle`), with the network's rotations from
frame to frame beside the points.

With one camera the scale is free: rho has a wide prior about 1, and t_k takes its scale from that.
With two cameras rho comes from the disparity, in 1/m. When too few points are left, the current
image becomes the reference; the points that are left keep their depths. At rest the reference
stays, and nothing drifts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Image
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.bundle import Bundle, Equations, Noise, Spread, View
from hydranet_ros.gyro.bundle_sums import STEP
from hydranet_ros.gyro.grid import GridFlow
from hydranet_ros.gyro.tracks import TrackConfig, Tracks
from hydranet_ros.settings import Configuration, section, setting

_INLIER = 0.3  # least weight of a point that counts as seen
_MOST_CARRIED = 1e5  # information of a depth that is carried over to a new reference
_KERNEL = 2.4  # of the robust kernel, in standard deviations of a point
_LEAST_FRAMES = 3  # with fewer, depths can explain nearly anything
CHECKED_AT = (4, 8, 16)  # frames after which a better minimum is looked for
_NOTHING = 1e6  # variance of a rotation that is not believed
_DRAWN = 0.1  # share of what steps and the rotation since the reference differ by
_PATIENCE, _WORST_PX, _WORST_DOUBT = 0.1, 5.0, 10.0  # of running averages
_LEAST_DOUBT = 2.25  # of 1, 2.25 and 4, by NEES over one frame of KITTI 09


@dataclass(frozen=True)
class MemoryConfig(Configuration):
    """How long the gyro remembers.

    The deviations were chosen on simulated worlds (NEES over 1, 10 and 40 frames), between values
    that are equally good there by KITTI 09, EuRoC, TUM and 7-Scenes; `unseen` and `neighbours` on
    the same (NEES over 1, 10 and 50 frames), with KITTI 06 and the robot looked at.
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
        2.5,
        "factor of the deviations of the network's rotations, times by how much they differ from "
        "what points say: where two images leave a doubt, the next two leave the same one",
        1.0,
        100,
    )
    unseen: float = setting(
        6.0,
        "variance of the rotation over what the residuals of single points make of it: the fit "
        "and its robust kernel hide some of the errors",
        1.0,
        100,
    )
    neighbours: float = setting(
        10.0,
        "and over the excess of blocks of neighbours over single points: the fit hides most of "
        "what a rolling shutter or a wrong calibration does",
        0.0,
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
class _Errors:
    """What points do to the rotation, against what the bundle expects; slowly averaged.

    `alone` is the logarithm of how much more single points do, `blocks` over `single` how much
    more neighbours do together than each by itself: 1 where errors are white.
    """

    frames: int = 0
    alone: float = 0.0
    single: float = 0.0
    blocks: float = 0.0

    def take(self, spread: Spread) -> None:
        """Add what a frame shows."""
        self.frames += 1
        share = max(_PATIENCE, 1.0 / self.frames)
        size = float(np.trace(spread.points))
        ratio = float(np.trace(np.linalg.solve(spread.points, spread.alone))) / 3.0
        now = np.log(max(ratio, 1e-6)), np.trace(spread.alone), np.trace(spread.blocks)
        self.alone += share * (float(now[0]) - self.alone)
        self.single += share * (float(now[1]) / size - self.single)
        self.blocks += share * (float(now[2]) / size - self.blocks)

    def factor(self, unseen: float, neighbours: float) -> float:
        """Of the covariance that points have by curvature."""
        if self.frames == 0:
            return 1.0
        excess = max(self.blocks / max(self.single, 1e-12) - 1.0, 0.0)
        return unseen * float(np.exp(self.alone)) * (1.0 + neighbours * excess)


@dataclass(eq=False)
class Memory:
    """Follow one camera; `baseline_m` where there is a second one."""

    camera: Camera
    config: MemoryConfig = field(default_factory=MemoryConfig)
    baseline_m: float | None = None
    restarts: int = 0

    def __post_init__(self) -> None:
        self._residual_px = self.config.sigma_px
        self._network = 1.0  # squared deviations of its rotations from the points, averaged
        self._errors = _Errors(), _Errors()  # of steps, and since the reference
        self.tracks: Tracks | None = None
        """The points of the reference; None before the first image."""
        self.bundle = Bundle(np.zeros((0, 3)), np.zeros(0), np.zeros(0))
        """What is known of them."""
        self.reference_ns = 0

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
        if self.tracks is None or self._stamp_ns != rotation.stamp_1_ns:
            self.begin(image, rotation.stamp_2_ns, right)
            return None
        found = self._found(image, flow, rotation)
        if found is None:
            self.restarts += 1
            self.begin(image, rotation.stamp_2_ns, right)
            return None
        remembered, equations = found
        if self._leaves(equations):
            self._move_on(image, rotation.stamp_2_ns, right, equations)
        return remembered

    def _found(
        self, image: Image, flow: GridFlow, rotation: RelativeRotation
    ) -> tuple[Remembered, Equations] | None:
        self._add(image, flow, rotation)
        equations = self._solve()
        if self._contradicts() or not self._agree(equations):
            self.bundle.views[-1].Sigma_f = _NOTHING * np.eye(3)
            equations = self._solve()
            if not (self._is_sure(equations) and self._is_surer(equations, rotation)):
                return None
        # Depths that a next reference inherits are looked at once more, too.
        due = self._since in CHECKED_AT or self._leaves(equations)
        if len(self.bundle.views) >= _LEAST_FRAMES and due:
            equations = self._search(equations)
        self._judge(equations, rotation)
        remembered = self._remembered(equations, rotation)
        return None if remembered is None else (remembered, equations)

    def _leaves(self, equations: Equations) -> bool:
        """Whether too little of the reference is in view.

        In a noisy image many corners are none, and are never found. A young reference is held to
        those that its first view has: else there is a new one in every frame, and never a depth.
        """
        assert self.tracks is not None
        views, least = self.bundle.views, self.config.keep_share * len(self.tracks)
        if len(views) <= _LEAST_FRAMES:
            begun = self.config.keep_share * int(views[0].seen.sum())
            least = min(least, max(begun, self.config.min_points))
        return self._points(equations) < least

    def _contradicts(self) -> bool:
        """Whether the network's last rotation is not where the points say."""
        return self._apart(self.bundle.views[-1].Sigma_f) > self.config.gate

    def _apart(self, Sigma: Array) -> float:
        """Squared deviations between the network's last rotation, of Sigma, and the solution."""
        last = self.bundle.views[-1]
        before = self.bundle.views[-2].C if len(self.bundle.views) > 1 else np.eye(3)
        e = lie.so3_log(last.C @ before.T @ last.C_f.T)
        return float(e @ np.linalg.solve(Sigma, e))

    def _is_sure(self, equations: Equations) -> bool:
        """Whether the points agree with each other, over more than two images."""
        older = self._known or len(self.bundle.views) >= _LEAST_FRAMES
        many = self._points(equations) >= 2 * self.config.min_points
        return older and many and self._agree(equations)

    def _agree(self, equations: Equations) -> bool:
        """Whether enough points, and enough of those in view, are where they should be."""
        seen = int(self.bundle.views[-1].seen.sum())
        enough = max(self.config.min_points, self.config.agreeing_share * seen)
        return self._points(equations) >= enough

    def _is_surer(self, equations: Equations, rotation: RelativeRotation) -> bool:
        """Whether the points alone know the last step better than the network does."""
        spreads = self.bundle.spreads(equations)
        if spreads is None:
            return False
        alone = self._errors[0].factor(self.config.unseen, self.config.neighbours)
        return float(np.trace(alone * spreads[0].points)) < float(np.trace(rotation.Sigma_2_1))

    def _points(self, equations: Equations) -> int:
        """How many are seen where they should be in the last frame."""
        return int((self.bundle.views[-1].seen & (equations.weights[-1] > _INLIER)).sum())

    # --- the reference ---------------------------------------------------------------------------

    @property
    def _stamp_ns(self) -> int:
        return self.bundle.views[-1].stamp_ns if self.bundle.views else self.reference_ns

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
        self.tracks = tracks = Tracks(image, self.camera, self.config.tracks, carried)
        self.reference_ns, self._known = stamp_ns, known
        self._since, self._chain, self._was_wrong = 0, np.eye(3), False
        new = len(tracks) - len(rho)
        wide = self.config.depth_deviation**-2
        scale = 1.0 if self.baseline_m is None or not len(rho) else float(np.median(rho))
        rho = np.concatenate([rho, np.full(new, scale)])
        information = np.concatenate([information, np.full(new, wide / scale**2)])
        if right is not None and self.baseline_m is not None:
            rho, information = self._with_disparities(right, rho, information)
        bearings = np.column_stack([tracks.bearings, np.ones(len(tracks))])
        self.bundle = Bundle(bearings, rho, information)

    def _with_disparities(
        self, right: Image, rho: Array, information: Array
    ) -> tuple[Array, Array]:
        """Inverse depths in 1/m from the second camera, with what was known before."""
        assert self.tracks is not None
        assert self.baseline_m is not None
        disparity, known = self.tracks.disparities(right)
        measured = disparity / self.baseline_m
        sigma = self.config.disparity_px / (self.tracks.camera.fx * self.baseline_m)
        if known.sum() < self.config.min_points:
            return rho, information
        typical = max(float(np.median(measured[known])), sigma)
        unknown = ~known & (information <= self.config.depth_deviation**-2)
        rho = np.where(known, measured, np.where(unknown, typical, rho))
        wide = (self.config.depth_deviation * typical) ** -2
        self._known = True
        return rho, np.where(known, sigma**-2, np.maximum(information, wide))

    def _move_on(
        self, image: Image, stamp_ns: int, right: Image | None, equations: Equations
    ) -> None:
        """Make the current image the reference; points in view keep their depths."""
        assert self.tracks is not None
        bundle, last = self.bundle, self.bundle.views[-1]
        X = bundle.bearings @ last.C.T + bundle.rho[:, None] * last.t
        kept = last.seen & (equations.weights[-1] > _INLIER) & (X[:, 2] > 0.2)
        kept &= len(bundle.views) >= _LEAST_FRAMES  # else the depths are of two images alone
        z = X[kept, 2]
        rho = bundle.rho[kept] / z
        information = self.config.carried_share * equations.depth_H[kept] * z**2
        if self.baseline_m is None and len(rho):  # the scale is free: keep it near 1
            median = max(float(np.median(rho)), 1e-2)
            rho, information = rho / median, information * median**2
        self._refer(
            image,
            stamp_ns,
            right,
            self.tracks.last[kept],
            rho,
            np.minimum(information, _MOST_CARRIED * np.median(rho) ** -2 if len(rho) else 0.0),
            known=bool(kept.sum() >= self.config.min_points),
        )

    # --- a frame ---------------------------------------------------------------------------------

    def _add(self, image: Image, flow: GridFlow, rotation: RelativeRotation) -> None:
        assert self.tracks is not None
        last, views = self.tracks.last, self.bundle.views
        C = rotation.C_2_1 @ views[-1].C if views else rotation.C_2_1
        seen = self.tracks.follow(image, last + _sampled(flow, last), C)
        t = rotation.C_2_1 @ views[-1].t if views else np.zeros(3)
        Sigma_f = self._doubt() * rotation.Sigma_2_1
        self.bundle.add(
            View(rotation.stamp_2_ns, C, t, seen.at, seen.found, rotation.C_2_1, Sigma_f)
        )
        self._since += 1
        if len(views) > max(self.config.frames, 2):
            # Recent frames are needed; of the others, every second.
            self.bundle.drop(1 + self._since % 2)

    def _solve(self) -> Equations:
        fresh = not self._known and len(self.bundle.views) == 1
        return self.bundle.solve(self._noise, self.config.iterations, fresh)

    def _search(self, equations: Equations) -> Equations:
        found = self.bundle.search(self._noise, self.config.iterations, equations)
        self._was_wrong |= found is not equations
        return found

    @property
    def _noise(self) -> Noise:
        """Of a point, in normalised units.

        What is followed badly, sigma_t, differs from point to point. What the model lacks, sigma_m
        (a rolling shutter, lens distortion, things that move), is shared by neighbours, so many
        points are worth few: sigma^2 = sigma_t^2 + shared sigma_m^2. With few frames the depths
        explain nearly anything, so sigma_m is not seen, and assumed.
        """
        assert self.tracks is not None
        white = self.config.sigma_px**2
        model = max(self._residual_px**2 - white, 0.0)
        if len(self.bundle.views) < _LEAST_FRAMES:
            model = max(model, self.config.model_px**2)
        sigma = float(np.sqrt(white + self.config.shared * model))
        fx = self.tracks.camera.fx
        return Noise(sigma / fx, _KERNEL * self._residual_px / fx)

    def _doubt(self) -> float:
        """By how much the variance of the network's rotations is larger than it says."""
        return max(_LEAST_DOUBT, self.config.network_scale**2 * self._network)

    def _judge(self, equations: Equations, rotation: RelativeRotation) -> None:
        """How well points are followed and the network is right here, slowly averaged."""
        K, seen = equations.weights.shape[0], equations.weights > 0.0
        free = 2.0 * seen.sum() - len(self.bundle.rho) - STEP * K
        if K < _LEAST_FRAMES or free < 4.0 * self.config.min_points:
            return
        off = self._apart(rotation.Sigma_2_1) / 3.0
        self._network += _PATIENCE * (min(off, _WORST_DOUBT) - self._network)
        assert self.tracks is not None
        measured = np.sqrt(equations.squares / free) * self.tracks.camera.fx
        self._residual_px += _PATIENCE * (measured - self._residual_px)
        self._residual_px = float(np.clip(self._residual_px, self.config.sigma_px, _WORST_PX))

    # --- what it gives ---------------------------------------------------------------------------

    def _remembered(self, equations: Equations, rotation: RelativeRotation) -> Remembered | None:
        last, K = self.bundle.views[-1], len(self.bundle.views)
        points, spreads = self._points(equations), self.bundle.spreads(equations)
        if spreads is None or not self._agree(equations):
            return None
        # Two images are what the network has judged already, unless depths are remembered.
        if K == 1 and (self.baseline_m is not None or not self._known):
            self._chain = rotation.C_2_1
            return Remembered(rotation, rotation, points)
        step, since = spreads
        alone = last.C if K == 1 else last.C @ self.bundle.views[-2].C.T
        drawn = self._drawn(alone, last.C)
        # What is put right now is an error of this step, as large as the correction.
        Sigma = self._covariance(step, 0) + np.outer(drawn, drawn)
        C_2_1 = np.asarray(lie.so3_exp(drawn) @ alone)
        return Remembered(
            self._estimate(C_2_1, Sigma, rotation.stamp_1_ns, rotation),
            self._estimate(last.C, self._covariance(since, 1), self.reference_ns, rotation),
            points,
        )

    def _drawn(self, C_2_1: Array, since: Array) -> Array:
        """By how much the step is drawn to where the rotation since the reference is.

        Steps between frames that are solved for together are best one by one, but they do not add
        up: a frame is estimated anew when the next one comes. At rest that would be a random walk,
        so they are drawn a little. Where a search has shown that the motion so far was a wrong
        minimum, the steps that were given are wrong together, and put right at once.
        """
        self._chain = C_2_1 @ self._chain
        share = 1.0 if self._was_wrong else _DRAWN if self._since >= self.config.frames else 0.0
        self._was_wrong = False
        drawn = share * lie.so3_log(since @ self._chain.T)
        self._chain = lie.so3_exp(drawn) @ self._chain
        return drawn

    def _covariance(self, spread: Spread, which: int) -> Array:
        errors = self._errors[which]
        errors.take(spread)
        factor = errors.factor(self.config.unseen, self.config.neighbours)
        Sigma = factor * spread.points + spread.rotations
        return 0.5 * (Sigma + Sigma.T)

    def _estimate(
        self, C: Array, Sigma: Array, stamp_1_ns: int, rotation: RelativeRotation
    ) -> RelativeRotation:
        """Up to the stamp of the network's rotation, with the epistemic share of that."""
        part = _same_share(rotation, Sigma)
        return RelativeRotation(C, Sigma, stamp_1_ns, rotation.stamp_2_ns, part)


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
