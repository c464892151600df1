"""From images to tracks: features followed through the four images of two stereo frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import numpy as np

from hydranet_ros.geometry.camera import Frame, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.windows import (
    brightened,
    brightness_ratio,
    smooth,
    window_centroids,
)
from hydranet_ros.stereo_vo.calibration import Calibration, compiled
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.features import CornerDetector, Image, Mask
from hydranet_ros.stereo_vo.motion import Tracks, median, transform
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
    smoothed = smooth(left, config.window_px)
    if frame.depth is not None:
        pair = smoothed, smoothed
        return TrackedFrame(stamp_ns, left, left, pair, none, none[:, :2], frame.depth.copy())
    assert frame.right is not None
    pair = smoothed, smooth(frame.right, config.window_px)
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
        usual = median(error[found]) if found.any() else 0.0
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
# The medians of left and right differ by less where both are exposed alike: by 9 % at most on
# KITTI 06, more where something near fills half of one image.
_SEEN_ALIKE = 0.25


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


def _as_right(frame: TrackedFrame) -> Image:
    """The left image at the brightness of the right one, by their medians: no match is known yet.

    Both see nearly the same, but not quite: the image itself where they differ little.
    """
    left, right = (float(np.median(each)) for each in frame.smooth)
    ratio = right / max(left, 1.0)
    return frame.left if abs(ratio - 1.0) < _SEEN_ALIKE else brightened(frame.left, ratio)


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
    fast = compiled()
    if fast is not None:
        return np.asarray(fast.nearest_disparity(pixels, known, disparities))
    gap = pixels[:, None, :] - known[None, :, :]
    return np.asarray(disparities[np.argmin(np.einsum("nmi,nmi->nm", gap, gap), axis=1)])
