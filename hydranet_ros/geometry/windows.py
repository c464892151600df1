"""What tracking windows see: where their texture is, and how bright it is."""

from __future__ import annotations

import cv2
import numpy as np

from hydranet_ros.geometry.camera import Image
from hydranet_ros.geometry.corners import compiled
from hydranet_ros.geometry.lie import Array

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


def window_centroids(image: Image, pixels: Array, window_px: int) -> Array:
    """Where windows around (n, 2) pixels have their texture: (n, 2), relative to their centres.

    Lucas-Kanade finds the mean motion of a window, weighed by its squared gradients: along a row
    by those along the row, along a column likewise. Where the motion changes within the window it
    is that of this centroid, not of the centre. On a road the texture grows towards the camera, as
    the motion does: on a rendered one, rows 20 to 80 px below the horizon, the motion of the
    centre comes out wrong by 0.08 px in the median, that of the centroid by 0.001, with half the
    scatter.
    """
    half, (height, width), fast = window_px // 2, image.shape, compiled()
    if fast is not None:
        return np.asarray(fast.window_centroids(image, pixels, half))
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


def smooth(image: Image, window_px: int) -> Array:
    """Mean grey levels of the tracking windows around every fourth pixel in either direction."""
    height, width = image.shape[0] // _STRIDE, image.shape[1] // _STRIDE
    cut = image[: height * _STRIDE, : width * _STRIDE]
    small = cv2.resize(cut, (width, height), interpolation=cv2.INTER_AREA)
    side = max(round(window_px / _STRIDE), 1)
    return np.asarray(cv2.boxFilter(small, cv2.CV_32F, (side, side)))


def brightness_ratio(target: Array, there: Array, source: Array, here: Array) -> float:
    """Median ratio of two smoothed images at (n, 2) corresponding pixels; 1 unless significant.

    Lucas-Kanade takes a difference in exposure for motion, so the source is multiplied by this.
    Whole images do not tell: a camera that turns sees something else. Pixels need only be good to
    a few.
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
