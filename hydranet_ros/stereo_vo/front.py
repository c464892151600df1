"""From images to tracks: features followed through the four images of two stereo frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.features import CornerDetector, Image, Mask
from hydranet_ros.stereo_vo.motion import Tracks
from hydranet_ros.stereo_vo.rectification import RectificationError
from hydranet_ros.stereo_vo.result import Lost
from hydranet_ros.stereo_vo.sampling import transform
from hydranet_ros.stereo_vo.tracking import (
    brightened,
    brightness_ratio,
    follow,
    match_blindly,
    nearest_disparity,
    smooth,
)


@dataclass(frozen=True, eq=False)
class Frame:
    """A stereo frame: images, also smoothed, and (n, 4) features (u, v, u_right, v_right)."""

    stamp_ns: int
    left: Image
    right: Image
    smooth: tuple[Array, Array]
    features: Array


def make_frame(stamp_ns: int, left: Image, right: Image, config: StereoVOConfig) -> Frame:
    """A frame without features; the images are copied, as callers reuse their buffers."""
    smoothed = smooth(left, config), smooth(right, config)
    return Frame(stamp_ns, left.copy(), right.copy(), smoothed, np.zeros((0, 4)))


@dataclass(frozen=True, eq=False)
class Front:
    """The front end, with the rectification error as it is known at the moment."""

    _camera: StereoCamera
    _config: StereoVOConfig
    _detector: CornerDetector
    rectification: RectificationError

    def start(self, frame: Frame) -> Array | Lost:
        """The (n, 4) features of a frame that nothing is known about, or why there are none."""
        config = self._config
        corners = self._detector.detect(frame.left, np.zeros((0, 2)), config.max_features)
        if len(corners) < config.min_features:
            return Lost.TOO_FEW_FEATURES
        where, found = match_blindly(frame.left, frame.right, corners, config)
        features = np.concatenate([corners, where], axis=1)[found]
        valid = self._valid(features)
        if valid.sum() >= config.min_features:
            return features[valid]
        negative = int(np.sum(features[:, 0] < features[:, 2]))
        swapped = negative > max(config.min_features, 2 * int(valid.sum()))
        return Lost.SWAPPED_CAMERAS if swapped else Lost.NOT_A_STEREO_PAIR

    def track(self, previous: Frame, frame: Frame, guess: Array) -> tuple[Tracks, Array]:
        """Tracks that agree both ways round, and the (n, 4) features that are new."""
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
        return Tracks(before[found], after[found]), new

    def _exposed_as(self, frame: Frame, previous: Frame, expected: Array) -> tuple[Image, Image]:
        """The previous images at the brightness of the current ones."""
        here = previous.features
        ratios = (
            brightness_ratio(frame.smooth[k], expected[:, s], previous.smooth[k], here[:, s])
            for k, s in enumerate((slice(0, 2), slice(2, 4)))
        )
        left, right = ratios
        return brightened(previous.left, left), brightened(previous.right, right)

    def _match(
        self, frame: Frame, now: Array, fresh: Array, start: Array
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
        where, found, _ = follow(left, frame.right, pixels, guess, self._config, levels)
        n = len(now)
        new = np.concatenate([fresh, where[n:]], axis=1)
        return where[:n], found[:n], new[found[n:] & self._valid(new)]

    def _expected(self, features: Array, guess: Array) -> Array:
        """Where (n, 4) features should be after the motion `guess`."""
        y1 = self.corrected(features)
        y2 = self._camera.project(transform(guess, self._camera.triangulate(y1[:, :3])))
        offset = features[:, 2:] - y1[:, 2:]
        right = np.stack([y2[:, 2], y2[:, 1]], axis=1) + offset
        return np.concatenate([y2[:, :2], right], axis=1)

    def corrected(self, features: Array) -> Array:
        """(n, 4) features without the rectification error known so far."""
        out = features.copy()
        out[:, 2:] -= self.rectification.offsets(self._camera.left, features[:, 2:])
        return out

    def _valid(self, features: Array) -> Mask:
        """Whether (n, 4) features have a positive disparity and lie in one row, as corrected."""
        y = self.corrected(features)
        row = np.abs(y[:, 3] - y[:, 1]) < self._config.row_px
        return np.asarray(row & (y[:, 0] - y[:, 2] > self._config.min_disparity_px))
