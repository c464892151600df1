"""Stereo visual odometry: two stereo frames in, one relative pose with covariance out."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, Image, StereoCamera
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.calibration import (
    SURE_SIGMAS,
    Calibration,
    large_offset,
    read_calibration,
)
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.covariance import CovarianceModel
from hydranet_ros.stereo_vo.depth import DEPTH_JITTER_PX, DepthFront, depth_calibration
from hydranet_ros.stereo_vo.features import CornerDetector, Mask
from hydranet_ros.stereo_vo.front_end import Followed, Front, TrackedFrame, make_frame
from hydranet_ros.stereo_vo.motion import (
    MotionFit,
    MotionSolver,
    Rolling,
    Tracks,
    best_sample,
    draw_samples,
    fit_samples,
)
from hydranet_ros.stereo_vo.noise import TrackNoise
from hydranet_ros.stereo_vo.result import Lost, VOResult, VOStatistics

# Whether left and right are of one instant is tested at starts, and once in so many frames.
LAG_EVERY = 10
# A rolling shutter is told from this share of the time between frames on, if it is sure.
# On rendered streets it is found to be 0.00, 0.18, 0.42 where it is 0, 0.2, 0.5; on KITTI 06 0.01.
_READOUT_SIGMA, _ROLLING_SHARE, _ROLLING_SIGMAS = 0.3, 0.1, 4.0
# A translation of so many standard deviations of its noise has a length.
_MOVES = 5.0


class _LostError(Exception):
    """Carries the reason out of the steps of an update; never leaves this module."""

    def __init__(self, reason: Lost, statistics: VOStatistics) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.statistics = statistics


class StereoVO:
    """Track stereo frames: `update` once per frame, in order of stamps."""

    def __init__(self, camera: StereoCamera, config: StereoVOConfig | None = None) -> None:
        self.camera = camera
        self.config = config or StereoVOConfig()
        self._detector = CornerDetector(self.config)
        self._known = Calibration.prior()
        if self.config.calibration:
            self._known = read_calibration(self.config.calibration, camera)
        self.reset()

    def reset(self) -> None:
        """Forget everything, the self-calibration included, but what a file said."""
        self._forget_frames()
        self._lag, self._since_lag = 0.0, LAG_EVERY  # of the right image, in frames
        self._calibration, self._has_depth = self._known, False
        self._rolling = np.zeros(2)  # information and vector about a rolling shutter
        self._scale_variance = 0.0  # of distances, by what is not known of the calibration
        self._covariance = CovarianceModel(self.config.shake_share, self.config.scale_sigma)

    def _forget_frames(self) -> None:
        self._frame: TrackedFrame | None = None
        self._last_ns: int | None = None  # of the last frame, usable or not
        self._bridged = 0
        self._velocity: Array | None = None  # twist per second

    @property
    def calibration(self) -> Calibration:
        """What is known of the errors of the pair's calibration so far."""
        return self._calibration

    @property
    def calibration_px(self) -> tuple[float, float] | None:
        """By how much that moves pixels of the left and of the right image at most, so far."""
        if self._frame is None:
            return None
        return self._calibration.largest_px(self.camera.left, self._frame.left.shape)

    def calibration_field(self, columns: int, rows: int) -> tuple[Array, Array] | None:
        """(n, 2) pixels, and (n, 4) by how much they are off in the left and the right image."""
        if self._frame is None:
            return None
        return self._calibration.field(self.camera.left, self._frame.left.shape, columns, rows)

    @property
    def has_depth(self) -> bool:
        """Whether frames have depth: then there is no pair to calibrate."""
        return self._has_depth

    @property
    def readout_share(self) -> tuple[float, float]:
        """The time from the first to the last row over that between frames, and its sigma.

        0 of a global shutter. What the tracks say of it; a prior of 0 to _READOUT_SIGMA.
        """
        if self._frame is None:
            return 0.0, _READOUT_SIGMA
        height = self._frame.left.shape[0]
        known = self._rolling[0] + (height / _READOUT_SIGMA) ** 2
        return float(height * self._rolling[1] / known), float(height / np.sqrt(known))

    @property
    def doubt(self) -> str | None:
        """What to say where the calibration is far off, or the shutter is a rolling one."""
        share, sigma = self.readout_share
        if share > max(_ROLLING_SHARE, _ROLLING_SIGMAS * sigma):
            return (
                f"a rolling shutter: rows are read over {100.0 * share:.0f} % of the time between "
                "frames, which is not allowed for: use a global shutter, or move slowly"
            )
        if self._frame is None or self._has_depth:
            return None
        shape = self._frame.left.shape
        return large_offset(*self._calibration.largest_px(self.camera.left, shape, SURE_SIGMAS))

    def update(self, frame: Frame) -> VOResult:
        """Take a rectified stereo frame; return the motion since the last usable one.

        A frame without a result is either bridged (it was unusable, the next is compared with the
        same earlier frame) or becomes the new start (it is fine, but the motion was not found).
        """
        started = time.perf_counter()
        self._check(frame)
        gap = self._after_gap(frame.stamp_ns)
        if gap:
            self._forget_frames()
        self._last_ns = frame.stamp_ns
        result = self._update(frame)
        if gap and result.lost is Lost.INITIALISING:
            result = replace(result, lost=Lost.LONG_GAP)
        elapsed = 1e3 * (time.perf_counter() - started)
        return replace(result, statistics=replace(result.statistics, milliseconds=elapsed))

    # --- steps -----------------------------------------------------------------------------------

    def _update(self, taken: Frame) -> VOResult:
        previous, stamp_ns = self._frame, taken.stamp_ns
        left, right = taken.left, taken.left if taken.right is None else taken.right
        if previous is not None and (
            np.array_equal(previous.left, left) or np.array_equal(previous.right, right)
        ):
            return self._bridge(stamp_ns, Lost.REPEATED_IMAGE, VOStatistics())
        if self._is_flat(left) or self._is_flat(right):
            return self._bridge(stamp_ns, Lost.FLAT_IMAGE, VOStatistics())
        frame = make_frame(taken, self.config)
        if previous is None:
            return self._start(frame, Lost.INITIALISING, VOStatistics())
        try:
            self._check_step(previous, frame)
            found, motion = self._follow(previous, frame)
            tracks = found.tracks
        except _LostError as lost:
            return self._start(frame, lost.reason, lost.statistics)
        seconds = 1e-9 * (stamp_ns - previous.stamp_ns)
        rate = lie.se3_log(motion.T_2_1) / seconds
        covariance = self._covariance.complete(motion, self._calibration.covariance, seconds)
        scale_sigma = self._scale_sigma(motion)
        pose = RelativePose(
            motion.T_2_1, self._floored(covariance), previous.stamp_ns, stamp_ns, scale_sigma
        )
        kept = found.after[motion.inliers | motion.rivals]
        features = np.concatenate([kept, found.fresh])
        self._accept(motion, rate, replace(frame, features=features, corners=found.corners))
        statistics = VOStatistics(
            len(previous.features), len(tracks), int(motion.inliers.sum()), motion.scale
        )
        return VOResult(stamp_ns, previous.stamp_ns, pose, None, statistics)

    def _check_step(self, previous: TrackedFrame, frame: TrackedFrame) -> None:
        """A _LostError where left and right are not of one instant; tested now and then."""
        self._since_lag += 1
        late = abs(self._lag) > self.config.lag_share
        if self._since_lag >= LAG_EVERY or late or self._velocity is None:
            lag = self._front().lag(previous, frame)
            if lag is not None:
                self._lag, self._since_lag = lag, 0
        if abs(self._lag) > self.config.lag_share:
            raise _LostError(Lost.CAMERAS_DISAGREE, VOStatistics(len(previous.features)))

    def _follow(self, previous: TrackedFrame, frame: TrackedFrame) -> tuple[Followed, MotionFit]:
        """Tracks, new features and motion, from the velocity so far.

        Without one, or where that leads nowhere, track again with the motion found: what moved too
        far for the first search is then found too.
        """
        if self._velocity is not None:
            seconds = 1e-9 * (frame.stamp_ns - previous.stamp_ns)
            with suppress(_LostError):
                return self._tracked(previous, frame, lie.se3_exp(self._velocity * seconds))
        _, motion = self._tracked(previous, frame, np.eye(4))
        return self._tracked(previous, frame, motion.T_2_1)

    def _tracked(
        self, previous: TrackedFrame, frame: TrackedFrame, guess: Array
    ) -> tuple[Followed, MotionFit]:
        found = self._front().track(previous, frame, guess)
        return found, self._solve(previous, found.tracks, guess, frame.stamp_ns)

    def _solve(
        self, previous: TrackedFrame, tracks: Tracks, guess: Array, stamp_ns: int
    ) -> MotionFit:
        """The motion and its inliers among the tracks, or a _LostError."""
        config = self.config
        statistics = VOStatistics(len(previous.features), len(tracks))
        if len(tracks) < config.min_inliers:
            raise _LostError(Lost.TOO_FEW_TRACKS, statistics)
        pose, agree = self._sample(tracks, guess, stamp_ns)
        statistics = replace(statistics, inliers=int(agree.sum()))
        if agree.sum() < max(config.min_inliers, config.min_inlier_share * len(tracks)):
            raise _LostError(Lost.TOO_FEW_INLIERS, statistics)
        motion = self._refine(tracks.select(agree), pose, self._shutter(previous, stamp_ns))
        if motion is None:
            raise _LostError(Lost.DEGENERATE_GEOMETRY, statistics)
        if motion.inliers.sum() < config.min_inliers:
            raise _LostError(Lost.TOO_FEW_INLIERS, statistics)
        inliers = np.zeros(len(tracks), dtype=bool)
        inliers[np.flatnonzero(agree)[motion.inliers]] = True
        motion = replace(motion, inliers=inliers, rivals=np.zeros_like(inliers))
        return self._with_rival(motion, tracks, stamp_ns)

    def _with_rival(self, motion: MotionFit, tracks: Tracks, stamp_ns: int) -> MotionFit:
        """Widen the covariance where the other tracks agree on another motion.

        When much of the image moves by itself, it is not known which motion is the camera's: the
        covariance is that of the mixture, w (1 - w) delta delta^T with w the rival's share.
        """
        config, others = self.config, ~motion.inliers
        count = int(motion.inliers.sum())
        if others.sum() < max(config.min_inliers, config.rival_share * count):
            return motion
        rest = tracks.select(others)
        pose, agree = self._sample(rest, motion.T_2_1, stamp_ns)
        if agree.sum() < max(config.min_inliers, config.rival_share * count):
            return motion
        delta = lie.se3_log(pose @ lie.se3_inverse(motion.T_2_1))
        share = float(agree.sum() / (agree.sum() + count))
        widened = motion.Sigma_2_1 + share * (1.0 - share) * np.outer(delta, delta)
        rivals = np.zeros_like(motion.inliers)
        rivals[np.flatnonzero(others)[agree]] = True
        return replace(motion, Sigma_2_1=widened, rivals=rivals)

    def _shutter(self, previous: TrackedFrame, stamp_ns: int) -> Rolling | None:
        """Of a camera with depth: those that measure depth read row after row, nearly all."""
        if not self._has_depth:
            return None
        seconds, rate = 1e-9 * (stamp_ns - previous.stamp_ns), self._velocity
        return Rolling(None if rate is None else seconds * rate, previous.left.shape[0])

    def _refine(self, tracks: Tracks, pose: Array, rolling: Rolling | None) -> MotionFit | None:
        """The motion of the tracks, None where they do not fix it."""
        config = self.config
        stereo_px, jitter_px = config.stereo_sigma_px, config.jitter_sigma_px
        if self._has_depth:
            stereo_px = self.camera.left.fx * self.camera.baseline_m * config.depth_sigma
            jitter_px = DEPTH_JITTER_PX
        noise = TrackNoise(config.tracking_sigma_px, stereo_px, config.edge_px, config.window_px)
        solver = MotionSolver(self.camera, tracks, self._calibration, noise, jitter_px, rolling)
        try:
            motion = solver.solve(pose, config.iterations)
        except np.linalg.LinAlgError:
            return None
        return None if self._is_degenerate(motion) else motion

    def _sample(self, tracks: Tracks, guess: Array, stamp_ns: int) -> tuple[Array, Mask]:
        """The best three-point motion and the tracks that agree with it."""
        config = self.config
        points = self.camera.triangulate(self._front().corrected(tracks.before)[:, :3])
        measured = self._front().corrected(tracks.after)[:, :3]
        rng = np.random.default_rng((config.seed, stamp_ns % 2**63))
        samples = draw_samples(len(tracks), config.hypotheses, rng)
        poses = fit_samples(
            self.camera, points, measured, guess, samples, config.sample_iterations
        )
        return best_sample(self.camera, points, measured, poses, config.inlier_px)

    def _front(self) -> Front:
        kind = DepthFront if self._has_depth else Front
        return kind(self.camera, self.config, self._detector, self._calibration)

    def _scale_sigma(self, motion: MotionFit) -> float:
        """How well lengths are known that all motions share, relative.

        What no image shows, and what is still to be known of the calibration: with G = d rho /
        d theta, the derivative of log |t| by theta is t^T G / |t|^2. A camera that hardly moves
        tells nothing of it: the last one holds.
        """
        t, noise = motion.T_2_1[:3, 3], float(np.trace(motion.Sigma_2_1[:3, :3]))
        length2 = float(t @ t)
        if length2 > _MOVES**2 * noise:
            by_theta = t @ motion.by_theta[:3] / length2
            self._scale_variance = float(by_theta @ self._calibration.covariance @ by_theta)
        return float(np.sqrt(self.config.scale_sigma**2 + self._scale_variance))

    # --- state -----------------------------------------------------------------------------------

    def _accept(self, motion: MotionFit, rate: Array, frame: TrackedFrame) -> None:
        self._velocity = rate
        self._rolling *= 1.0 - self.config.forget_share
        self._rolling += self.config.information_share * np.array(motion.rolling)
        if self.config.self_calibration == "auto" and not self._has_depth:
            weight = self.config.information_share
            self._calibration = self._calibration.aged(self.config.forget_share).updated(
                weight * motion.message[0], weight * motion.message[1]
            )
        self._frame, self._bridged = frame, 0

    def _start(self, frame: TrackedFrame, reason: Lost, statistics: VOStatistics) -> VOResult:
        """Make this frame the one to compare with, or say why it cannot be."""
        started = self._front().start(frame)
        if isinstance(started, Lost):
            return self._bridge(frame.stamp_ns, started, statistics)
        first = self._frame.stamp_ns if self._frame else None
        self._frame, self._bridged = started, 0
        self._velocity = None
        return VOResult(frame.stamp_ns, first, None, reason, statistics)

    def _bridge(self, stamp_ns: int, reason: Lost, statistics: VOStatistics) -> VOResult:
        """Keep the earlier frame over an unusable one, unless there were too many of those."""
        first = self._frame.stamp_ns if self._frame else None
        self._bridged += 1
        if self._bridged > self.config.max_bridged_frames:
            self._frame, self._velocity = None, None
        return VOResult(stamp_ns, first, None, reason, statistics)

    def _floored(self, covariance: Array) -> Array:
        """No motion is known better than the floors say, whatever its residuals."""
        metres, degrees = self.config.floor_m, self.config.floor_deg
        least = np.array([metres**2] * 3 + [np.deg2rad(degrees) ** 2] * 3)
        return covariance + np.diag(np.maximum(least - np.diagonal(covariance), 0.0))

    def apply(self, config: StereoVOConfig) -> None:
        """Go on with other settings; frames, velocity and self-calibration stay."""
        self.config, self._detector = config, CornerDetector(config)
        self._covariance.vibration.share = config.shake_share
        self._covariance.scale_sigma = config.scale_sigma

    def _is_degenerate(self, motion: MotionFit) -> bool:
        """Whether some direction of the motion is all but free."""
        variances = np.diag(motion.Sigma_2_1)
        if not np.isfinite(variances).all():
            return True
        metres, radians = self.config.max_translation_sigma_m, self.config.max_rotation_sigma_rad
        return bool(variances[:3].max() > metres**2 or variances[3:].max() > radians**2)

    def _is_flat(self, image: Image) -> bool:
        return float(image[::4, ::4].std()) < self.config.min_contrast

    def _after_gap(self, stamp_ns: int) -> bool:
        """Whether the last frame is so long ago that this one is not compared with it."""
        if self._last_ns is None:
            return False
        return stamp_ns - self._last_ns > self.config.max_interval_s * 1e9

    def _check(self, frame: Frame) -> None:
        """Refuse what the caller should not have given; learn from the first frame what it has."""
        left, right, depth = frame.left, frame.right, frame.depth
        if right is None and depth is None:
            raise ValueError("stereo odometry needs both images, or depth: this frame has one")
        for name, image in (("left", left), ("right", right)):
            if image is not None and (image.ndim != 2 or image.dtype != np.uint8):
                raise ValueError(
                    f"the {name} image must be (h, w) uint8, got {image.shape} {image.dtype}"
                )
        least = 4 * self.config.window_px
        if min(left.shape) < least:
            raise ValueError(f"images must be at least {least} pixels a side, got {left.shape}")
        for other in (right, depth):
            if other is not None and left.shape != other.shape:
                raise ValueError(f"images must have one size, got {left.shape} and {other.shape}")
        if self._frame is not None and self._frame.left.shape != left.shape:
            raise ValueError(f"images must stay {self._frame.left.shape}, got {left.shape}")
        if self._frame is not None and frame.stamp_ns <= self._frame.stamp_ns:
            raise ValueError(
                f"stamps must increase, got {self._frame.stamp_ns} ns then {frame.stamp_ns} ns;"
                " call reset() after a jump back"
            )
        if self._has_depth != (depth is not None):
            if self._frame is not None:
                raise ValueError("frames must have depth all, or none")
            self._has_depth = depth is not None
            self._calibration = depth_calibration() if self._has_depth else self._known


@cache
def warm_up() -> None:
    """Two frames of noise that moves: what is compiled takes long for the first time."""
    noise = np.random.default_rng(0).integers(0, 256, (240, 320), dtype=np.uint8)
    image = np.repeat(np.repeat(noise[::4, ::4], 4, axis=0), 4, axis=1)
    odometry = StereoVO(StereoCamera(Camera(250.0, 250.0, 160.0, 120.0), 0.2))
    for k in (0, 1):
        left = np.roll(image, k, axis=1)
        odometry.update(Frame(100_000_000 * k, left, np.roll(left, -6, axis=1)))
