"""RGB-D frames as stereo ones: a depth is a disparity of a pair that does not exist.

With a virtual baseline b, a pixel (u, v) of depth z is seen at u_right = u - fx b / z in its own
row. Sensors of structured light measure disparities with nearly constant noise, so that

    sigma_z = sigma_1 z^2,    hence    sigma_u_right = fx b sigma_1

with sigma_1 the noise at one metre. All else is as for a pair, but for what only two images can
show: rows tell nothing, and there is no calibration of a right camera to be estimated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.windows import window_centroids
from hydranet_ros.stereo_vo.calibration import PRIOR_SIGMA, SHARED, SIZE, Calibration
from hydranet_ros.stereo_vo.features import Mask
from hydranet_ros.stereo_vo.front_end import Followed, Front, TrackedFrame, follow
from hydranet_ros.stereo_vo.motion import Tracks
from hydranet_ros.stereo_vo.result import Lost

# The four depths around a feature are of one surface if they differ by less than this share.
_ONE_SURFACE = 0.03
# Of the parameters of a right camera that does not exist.
_NONE = 1e-7
# Share of the usual errors of a lens that is assumed: they are not estimated here.
_LENS = 0.1
# There are no two exposures whose instants could differ; it only keeps the solver regular.
DEPTH_JITTER_PX = 0.01


def depth_calibration() -> Calibration:
    """What is known of a camera whose right image is computed from depth."""
    sigma = np.full(SIZE, _NONE)
    sigma[:SHARED] = _LENS * PRIOR_SIGMA[:SHARED]
    return Calibration.prior(sigma)


@dataclass(frozen=True, eq=False)
class DepthFront(Front):
    """The front end for images with depth."""

    def start(self, frame: TrackedFrame) -> TrackedFrame | Lost:
        """A frame that nothing is known about with its features, or why there are none."""
        config = self._config
        corners = self._detector.detect(frame.left, np.zeros((0, 2)), config.max_features)
        if len(corners) < config.min_features:
            return Lost.TOO_FEW_FEATURES
        features, known = self._with_depth(frame, corners)
        if known.sum() < config.min_features:
            return Lost.NO_DEPTH
        return replace(frame, features=features[known], corners=corners)

    def track(self, previous: TrackedFrame, frame: TrackedFrame, guess: Array) -> Followed:
        """Tracks that are found again on their way back, and the features that are new."""
        config, before = self._config, previous.features
        expected = self._expected(before, guess)
        left, _ = self._exposed_as(frame, previous, expected)
        now, found, _ = follow(left, frame.left, before[:, :2], expected[:, :2], config)
        back, again, _ = follow(frame.left, left, now, before[:, :2], config, config.guided_levels)
        found &= again & (np.linalg.norm(back - before[:, :2], axis=1) < config.circle_px)
        before, now = before[found], now[found]
        fresh = self._detector.detect(frame.left, now, config.max_features - len(now))
        shown = window_centroids(previous.left, before[:, :2], config.window_px)
        then, had = self._with_depth(previous, before[:, :2] + shown)
        after, known = self._with_depth(frame, now + shown)
        new, usable = self._with_depth(frame, fresh)
        both = had & known
        tracks = Tracks(then[both], after[both])
        where = after - np.tile(shown, 2)
        return Followed(tracks, where[both], new[usable], np.concatenate([fresh, now]))

    def lag(self, previous: TrackedFrame, frame: TrackedFrame) -> float | None:
        """Depth of another instant does not show in the rows."""
        return None

    def _with_depth(self, frame: TrackedFrame, pixels: Array) -> tuple[Array, Mask]:
        """(n, 4) features of (n, 2) pixels, and which have a depth."""
        assert frame.depth is not None
        inverse, known = inverse_depth(frame.depth, pixels)
        camera = self._camera
        right = pixels - np.stack(
            [camera.left.fx * camera.baseline_m * inverse, np.zeros_like(inverse)], axis=1
        )
        features = np.concatenate([pixels, right], axis=1)
        return features, known & self._valid(features)


def inverse_depth(depth: Array, pixels: Array) -> tuple[Array, Mask]:
    """1 / z at (n, 2) pixels, bilinear; and where all four depths around are of one surface.

    A plane has an inverse depth that is linear in the image. 0 and what is not finite are holes.
    """
    height, width = depth.shape
    u, v = pixels.T
    column = np.clip(np.floor(u).astype(np.int64), 0, width - 2)
    row = np.clip(np.floor(v).astype(np.int64), 0, height - 2)
    z = np.stack([depth[row + i, column + j] for i in (0, 1) for j in (0, 1)])
    holes = ~(np.isfinite(z) & (z > 0.0))
    z = np.where(holes, 1.0, z).astype(np.float64)
    nearest = z.min(axis=0)
    known = ~holes.any(axis=0) & (z.max(axis=0) - nearest < _ONE_SURFACE * nearest)
    a, b = u - column, v - row
    weights = (1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b
    inverse = sum(weight / each for weight, each in zip(weights, z, strict=True))
    return np.where(known, inverse, 0.0), known
