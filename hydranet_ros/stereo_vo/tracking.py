"""Following features between the four images of two stereo frames."""

from __future__ import annotations

import cv2
import numpy as np

from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.features import Image, Mask

# Disparities to start a stereo search from where nothing is known, as shares of the image width.
# Each search reaches some 50 pixels to either side. The last looks for swapped cameras.
_BLIND_SHARES = (0.01, 0.05, 0.1, -0.03)
# Pixels per element of a smoothed image.
_STRIDE = 4
# Grey levels between which a ratio of brightness means something.
_DARK, _BRIGHT = 8.0, 245.0
# Fewer pairs than this give no reliable median.
_FEWEST_RATIOS = 15
# Standard errors by which a ratio must differ from 1 to be used: noise would do harm.
_SIGNIFICANT = 3.0
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
    left: Image, right: Image, pixels: Array, config: StereoVOConfig
) -> tuple[Array, Mask]:
    """Stereo matches without any idea of depth: the best of several starts per feature.

    Disparities of either sign are returned, so that swapped cameras can be told.
    """
    best = np.zeros_like(pixels)
    best_error = np.full(len(pixels), np.inf)
    for share in _BLIND_SHARES:
        start = pixels - (share * left.shape[1], 0.0)
        where, found, error = follow(left, right, pixels, start, config)
        found &= np.abs(where[:, 1] - pixels[:, 1]) < config.row_px
        better = found & (error < best_error)
        best[better], best_error[better] = where[better], error[better]
    back, found, _ = follow(right, left, best, pixels, config)
    agree = np.linalg.norm(back - pixels, axis=1) < config.circle_px
    return best, np.isfinite(best_error) & found & agree


def nearest_disparity(pixels: Array, known: Array, disparities: Array) -> Array:
    """For (n, 2) pixels, the disparity of the nearest of (m, 2) known ones."""
    gap = pixels[:, None, :] - known[None, :, :]
    return np.asarray(disparities[np.argmin(np.einsum("nmi,nmi->nm", gap, gap), axis=1)])
