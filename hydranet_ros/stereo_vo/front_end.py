"""From images to tracks: features followed through the four images of two stereo frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import numpy as np

from hydranet_ros.geometry.camera import Frame, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.calibration import Calibration
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.features import CornerDetector, Image, Mask
from hydranet_ros.stereo_vo.motion import Tracks, transform
from hydranet_ros.stereo_vo.result import Lost

# Whether left and right are of one instant is told by corners that move vertically by this much,
# if there are so many of them, of a sample of this size.
LEAST_MOVED_PX, FEWEST_MOVED, LAG_CORNERS = 1.5, 8, 50
LAG_ROWS_PX = 40.0


@dataclass(frozen=True, eq=False)
class TrackedFrame:
    """A stereo frame: images, also smoothed, and (n, 4) features (u, v, u_right, v_right).

    Of an RGB-D camera `right` is the left image again, and `depth` (h, w) is in metres. `corners`
    (m, 2) are corners of the left image, whether the right one has them in their row or not.
    """

    stamp_ns: int
    left: Image
    right: Image
    smooth: tuple[Array, Array]
    features: Array
    corners: Array
    depth: Array | None = None


class Followed(NamedTuple):
    """What was followed from one frame to the next: tracks, new (n, 4) features, all corners.

    Tracks are of what the windows show, `after` (n, 4) is where the windows are.
    """

    tracks: Tracks
    after: Array
    fresh: Array
    corners: Array


def make_frame(frame: Frame, config: StereoVOConfig) -> TrackedFrame:
    """A frame without features; the images are copied, as callers reuse their buffers."""
    none = np.zeros((0, 4))
    left, stamp_ns = frame.left.copy(), frame.stamp_ns
    smoothed = smooth(left, config)
    if frame.depth is not None:
        pair = smoothed, smoothed
        return TrackedFrame(stamp_ns, left, left, pair, none, none[:, :2], frame.depth.copy())
    assert frame.right is not None
    pair = smoothed, smooth(frame.right, config)
    return TrackedFrame(stamp_ns, left, frame.right.copy(), pair, none, none[:, :2])


@dataclass(frozen=True, eq=False)
class Front:
    """The front end, with the calibration as it is known at the moment."""

    _camera: StereoCamera
    _config: StereoVOConfig
    _detector: CornerDetector
    calibration: Calibration

    def start(self, frame: TrackedFrame) -> TrackedFrame | Lost:
        """A frame that nothing is known about with its features, or why there are none."""
        config = self._config
        corners = self._detector.detect(frame.left, np.zeros((0, 2)), config.max_features)
        if len(corners) < config.min_features:
            return Lost.TOO_FEW_FEATURES
        for left in (_as_right(frame), frame.left):
            where, found = match_blindly(left, frame.right, corners, config)
            features = np.concatenate([corners, where], axis=1)[found]
            valid = self._valid(features)
            if valid.sum() >= config.min_features:
                return replace(frame, features=features[valid], corners=corners)
            if left is frame.left:  # of one brightness: no second try
                break
        negative = int(np.sum(features[:, 0] < features[:, 2]))
        swapped = negative > max(config.min_features, 2 * int(valid.sum()))
        return Lost.SWAPPED_CAMERAS if swapped else Lost.NOT_A_STEREO_PAIR

    def track(self, previous: TrackedFrame, frame: TrackedFrame, guess: Array) -> Followed:
        """Tracks that agree both ways round, and the features that are new."""
        config, before = self._config, previous.features
        expected = self._expected(before, guess)
        left, right = self._exposed_as(frame, previous, expected)
        now, found, _ = follow(left, frame.left, before[:, :2], expected[:, :2], config)
        before, now, expected = before[found], now[found], expected[found]
        start = now + expected[:, 2:] - expected[:, :2]
        direct, found, _ = follow(
            right, frame.right, before[:, 2:], start, config, config.guided_levels
        )
        fresh = self._detector.detect(frame.left, now, config.max_features - len(now))
        matched, seen, new = self._match(frame, now, fresh, start)
        after = np.concatenate([now, matched], axis=1)
        found &= seen & self._valid(after)
        found &= np.linalg.norm(matched - direct, axis=1) < config.circle_px
        before, after = before[found], after[found]
        shown = np.tile(window_centroids(previous.left, before[:, :2], config.window_px), 2)
        tracks = Tracks(before + shown, after + shown)
        return Followed(tracks, after, new, np.concatenate([fresh, now]))

    def lag(self, previous: TrackedFrame, frame: TrackedFrame) -> float | None:
        """By how many frames left and right are apart in time; None where nothing tells.

        In a rectified pair of one instant a point is in the same row of both images. If the right
        image is a frame late, it shows the point where the left one had it a frame ago: the rows
        differ by the point's own vertical motion.
        """
        corners = previous.corners[:: max(len(previous.corners) // LAG_CORNERS, 1)]
        now, found, _ = follow(previous.left, frame.left, corners, corners, self._config)
        moved = now[:, 1] - corners[:, 1]
        used = found & (np.abs(moved) > LEAST_MOVED_PX)
        if used.sum() < FEWEST_MOVED:
            return None
        left = _as_right(frame)
        where, seen = match_blindly(left, frame.right, now[used], self._config, LAG_ROWS_PX)
        if seen.sum() < FEWEST_MOVED:
            return None
        y = self.corrected(np.concatenate([now[used], where], axis=1)[seen])
        return float(np.median((y[:, 1] - y[:, 3]) / moved[used][seen]))

    def _exposed_as(
        self, frame: TrackedFrame, previous: TrackedFrame, expected: Array
    ) -> tuple[Image, Image]:
        """The previous images at the brightness of the current ones."""
        here = previous.features
        ratios = (
            brightness_ratio(frame.smooth[k], expected[:, s], previous.smooth[k], here[:, s])
            for k, s in enumerate((slice(0, 2), slice(2, 4)))
        )
        left, right = ratios
        return brightened(previous.left, left), brightened(previous.right, right)

    def _match(
        self, frame: TrackedFrame, now: Array, fresh: Array, start: Array
    ) -> tuple[Array, Mask, Array]:
        """Match followed and fresh features in one pass; fresh ones start from their neighbours.

        The right pixels of the followed ones, whether found, and the (n, 4) new features.
        """
        shift = np.zeros((len(fresh), 2))
        if len(now):
            shift[:, 0] = nearest_disparity(fresh, now, now[:, 0] - start[:, 0])
        pixels = np.concatenate([now, fresh])
        guess = np.concatenate([start, fresh - shift])
        left = brightened(
            frame.left, brightness_ratio(frame.smooth[1], start, frame.smooth[0], now)
        )
        levels = self._config.guided_levels
        where, found, error = follow(left, frame.right, pixels, guess, self._config, levels)
        found &= self._is_one_surface(error, found)
        n = len(now)
        new = np.concatenate([fresh, where[n:]], axis=1)
        return where[:n], found[:n], new[found[n:] & self._valid(new)]

    def _is_one_surface(self, error: Array, found: Mask) -> Mask:
        """Whether windows look alike in left and right, by their (n,) mean differences.

        A window with an edge of something near in it has that one's disparity, not the far one's
        (or something between): always too much, by whole pixels, and in every frame again.
        """
        usual = float(np.median(error[found])) if found.any() else 0.0
        return np.asarray(error <= self._config.match_ratio * max(usual, _LEAST_ERROR))

    def _expected(self, features: Array, guess: Array) -> Array:
        """Where (n, 4) features should be after the motion `guess`."""
        y1 = self.corrected(features)
        y2 = self._camera.project(transform(guess, self._camera.triangulate(y1[:, :3])))
        exact = y2[:, [0, 1, 2, 1]]
        return exact + self.calibration.offsets(self._camera.left, exact)

    def corrected(self, features: Array) -> Array:
        """(n, 4) features without the error of the calibration known so far."""
        return features - self.calibration.offsets(self._camera.left, features)

    def _valid(self, features: Array) -> Mask:
        """Whether (n, 4) features have a positive disparity and lie in one row, as corrected."""
        y = self.corrected(features)
        row = np.abs(y[:, 3] - y[:, 1]) < self._config.row_px
        return np.asarray(row & (y[:, 0] - y[:, 2] > self._config.min_disparity_px))


# --- following features between the four images of two stereo frames -----------------------------

# Disparities to start a stereo search from where nothing is known, as shares of the image width.
# Each search reaches some 50 pixels to either side. The last looks for swapped cameras.
_BLIND_SHARES = (0.01, 0.05, 0.1, -0.03)
# Mean difference of two windows, in grey levels, below which they are alike in any case.
_LEAST_ERROR = 1.0
# Pixels per element of a smoothed image.
_STRIDE = 4
# Grey levels between which a ratio of brightness means something.
_DARK, _BRIGHT = 8.0, 245.0
# Fewer pairs than this give no reliable median.
_FEWEST_RATIOS = 15
# Standard errors by which a ratio must differ from 1 to be used: noise would do harm.
_SIGNIFICANT = 3.0
# The medians of left and right differ by less where both are exposed alike: by 9 % at most on
# KITTI 06, more where something near fills half of one image.
_SEEN_ALIKE = 0.25
# 0.2 % of the brightest level is half a grey level.
_LEAST_CHANGE = 0.002


def follow(
    source: Image,
    target: Image,
    pixels: Array,
    guess: Array,
    config: StereoVOConfig,
    levels: int | None = None,
) -> tuple[Array, Mask, Array]:
    """Track (n, 2) pixels by pyramidal Lucas-Kanade: where they are, found or not, mean error.

    `levels` below the full image; None takes the configured ones.
    """
    if len(pixels) == 0:
        return np.zeros((0, 2)), np.zeros(0, dtype=bool), np.zeros(0)
    found, status, error = cv2.calcOpticalFlowPyrLK(
        source,
        target,
        pixels.astype(np.float32).reshape(-1, 1, 2),
        guess.astype(np.float32).reshape(-1, 1, 2).copy(),
        winSize=(config.window_px, config.window_px),
        maxLevel=config.pyramid_levels if levels is None else levels,
        criteria=(
            cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT,
            config.track_iterations,
            config.track_epsilon_px,
        ),
        flags=cv2.OPTFLOW_USE_INITIAL_FLOW,
        minEigThreshold=1e-4,
    )
    ok = status.ravel() > 0  # elsewhere the other outputs may be anything, NaN included
    where = np.where(ok[:, None], found.reshape(-1, 2), -1.0).astype(np.float64)
    level = np.where(ok, error.ravel(), np.inf).astype(np.float64)
    return where, ok & inside(where, source, config), level


def window_centroids(image: Image, pixels: Array, window_px: int) -> Array:
    """Where windows around (n, 2) pixels have their texture: (n, 2), relative to their centres.

    Lucas-Kanade finds the mean motion of a window, weighed by its squared gradients: along a row
    by those along the row, along a column likewise. Where the motion changes within the window it
    is that of this centroid, not of the centre. On a road the texture grows towards the camera, as
    the motion does: on a rendered one, rows 20 to 80 px below the horizon, the motion of the
    centre comes out wrong by 0.08 px in the median, that of the centroid by 0.001, with half the
    scatter.
    """
    half, (height, width) = window_px // 2, image.shape
    span = np.arange(-half - 1, half + 2)
    centre = np.round(pixels).astype(np.int64)
    column = np.clip(centre[:, :1] + span, 0, width - 1)
    row = np.clip(centre[:, 1:] + span, 0, height - 1)
    patch = image[row[:, :, None], column[:, None, :]].astype(np.float32)
    along = (patch[:, 1:-1, 2:] - patch[:, 1:-1, :-2]) ** 2
    down = (patch[:, 2:, 1:-1] - patch[:, :-2, 1:-1]) ** 2
    offset = span[1:-1].astype(np.float32)
    sums = along.sum(axis=1), down.sum(axis=2)  # over rows, over columns
    x, y = ((each @ offset) / np.maximum(each.sum(axis=1), 1.0) for each in sums)
    return np.stack([x, y], axis=1).astype(np.float64)


def smooth(image: Image, config: StereoVOConfig) -> Array:
    """Mean grey levels of the tracking windows around every fourth pixel in either direction."""
    height, width = image.shape[0] // _STRIDE, image.shape[1] // _STRIDE
    cut = image[: height * _STRIDE, : width * _STRIDE]
    small = cv2.resize(cut, (width, height), interpolation=cv2.INTER_AREA)
    side = max(round(config.window_px / _STRIDE), 1)
    return np.asarray(cv2.boxFilter(small, cv2.CV_32F, (side, side)))


def brightness_ratio(target: Array, there: Array, source: Array, here: Array) -> float:
    """Median ratio of two smoothed images at (n, 2) corresponding pixels; 1 unless significant.

    Lucas-Kanade takes a difference in exposure for motion, so the source is multiplied by this.
    Centres need only be good to a few pixels.
    """
    a, b = _look_up(target, there), _look_up(source, here)
    usable = (a > _DARK) & (b > _DARK) & (a < _BRIGHT) & (b < _BRIGHT)
    if usable.sum() < _FEWEST_RATIOS:
        return 1.0
    ratios = a[usable] / b[usable]
    ratio = float(np.median(ratios))
    # 1.25 sigma / sqrt(n) is the standard error of a median, 1.48 MAD an estimate of sigma.
    error = 1.85 * float(np.median(np.abs(ratios - ratio))) / len(ratios) ** 0.5
    return ratio if abs(ratio - 1.0) > _SIGNIFICANT * error else 1.0


def _as_right(frame: TrackedFrame) -> Image:
    """The left image at the brightness of the right one, by their medians: no match is known yet.

    Both see nearly the same, but not quite: the image itself where they differ little.
    """
    left, right = (float(np.median(each)) for each in frame.smooth)
    ratio = right / max(left, 1.0)
    return frame.left if abs(ratio - 1.0) < _SEEN_ALIKE else brightened(frame.left, ratio)


def brightened(image: Image, ratio: float) -> Image:
    """The image times a ratio, or itself where the change would be less than the rounding."""
    if abs(ratio - 1.0) < _LEAST_CHANGE:
        return image
    return np.asarray(cv2.convertScaleAbs(image, alpha=ratio), dtype=np.uint8)


def _look_up(smoothed: Array, pixels: Array) -> Array:
    height, width = smoothed.shape
    u, v = (pixels / _STRIDE).astype(np.int64).T
    return np.asarray(smoothed[np.clip(v, 0, height - 1), np.clip(u, 0, width - 1)])


def inside(pixels: Array, image: Image, config: StereoVOConfig) -> Mask:
    """Whether pixels are in the image and not at its very edge."""
    height, width = image.shape
    b = 0.5 * config.border_px
    u, v = pixels.T
    return np.asarray((u >= b) & (v >= b) & (u <= width - 1 - b) & (v <= height - 1 - b))


def match_blindly(
    left: Image,
    right: Image,
    pixels: Array,
    config: StereoVOConfig,
    rows_apart: float | None = None,
) -> tuple[Array, Mask]:
    """Stereo matches without any idea of depth: the best of several starts per feature.

    Disparities of either sign are returned, so that swapped cameras can be told. Matches further
    apart than `rows_apart` pixels are left out, by default than `row_px`.
    """
    rows = config.row_px if rows_apart is None else rows_apart
    best = np.zeros_like(pixels)
    best_error = np.full(len(pixels), np.inf)
    for share in _BLIND_SHARES:
        start = pixels - (share * left.shape[1], 0.0)
        where, found, error = follow(left, right, pixels, start, config)
        found &= np.abs(where[:, 1] - pixels[:, 1]) < rows
        better = found & (error < best_error)
        best[better], best_error[better] = where[better], error[better]
    back, found, _ = follow(right, left, best, pixels, config)
    agree = np.linalg.norm(back - pixels, axis=1) < config.circle_px
    return best, np.isfinite(best_error) & found & agree


def nearest_disparity(pixels: Array, known: Array, disparities: Array) -> Array:
    """For (n, 2) pixels, the disparity of the nearest of (m, 2) known ones."""
    gap = pixels[:, None, :] - known[None, :, :]
    return np.asarray(disparities[np.argmin(np.einsum("nmi,nmi->nm", gap, gap), axis=1)])
