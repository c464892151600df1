"""Points of a reference image, followed into later ones: the eyes of the gyro's memory.

Every point is followed from the reference image itself, not from frame to frame, so that its
errors do not add up. The flow that the gyro has anyway says where to look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.camera import Camera, Image
from hydranet_ros.geometry.corners import corner_strength, strongest
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.windows import brightened, brightness_ratio, smooth, window_centroids
from hydranet_ros.settings import Configuration, setting

Points = NDArray[np.float32]  # (n, 2) pixels

_LARGEST_PX = 1400  # a larger image is halved
_BORDER_PX = 8  # no points so near to the edge
_SPACING = 0.5  # least distance of points, relative to that of a square lattice of as many
_QUALITY = 0.003  # of the weakest corner, relative to the best
_CORNER_PX = 3  # edge of the patch whose structure tensor tells a corner
_ITERATIONS, _PRECISION_PX = 15, 0.01
_STEREO_LEVELS = 4  # of the pyramid: disparities are not known beforehand
_ROWS_APART_PX = 1.0  # of rectified images, at the most
_STRAIGHT = 1.0 + 2.0 * np.cos(np.radians(1.0))  # trace of a turn that bends nothing
_NEAREST = 0.05  # of z: what is behind a camera must not be divided by


@dataclass(frozen=True)
class TrackConfig(Configuration):
    """How points are chosen and followed."""

    points: int = setting(200, "points of a reference image", 30, 2000)
    window_px: int = setting(15, "edge of the patch that is followed, odd", 7, 63)
    levels: int = setting(1, "how often the image is halved when a point is looked for", 0, 6)
    return_px: float = setting(
        0.7, "a point that is followed there and back must end so near to its start", 0.05, 10.0
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if self.window_px % 2 == 0:
            raise ValueError(f"window_px must be odd, got {self.window_px}")


class Seen(NamedTuple):
    """Where the points are now, in normalised coordinates (n, 2), and which were found (n,)."""

    at: Array
    found: NDArray[np.bool_]


class Tracks:
    """The points of one reference image of a camera."""

    def __init__(
        self,
        image: Image,
        camera: Camera,
        config: TrackConfig,
        carried: Array | None = None,
    ) -> None:
        self.config = config
        self._scale = 1.0 if max(image.shape) <= _LARGEST_PX else 0.5
        k = self._scale
        # The centre of pixel u is at k (u + 1/2) - 1/2 of the smaller image.
        self.camera = Camera(
            k * camera.fx, k * camera.fy, k * (camera.cx + 0.5) - 0.5, k * (camera.cy + 0.5) - 0.5
        )
        self._image = self._small(image)
        self._smoothed = smooth(self._image, config.window_px)
        old = np.zeros((0, 2)) if carried is None else carried
        kept: Points = self._pixels(old).astype(np.float32)
        self._start: Points = np.concatenate([kept, self._corners(kept)])
        self._last: Points = self._start.copy()
        self.alive = np.ones(len(self._start), dtype=bool)
        self._shown = window_centroids(self._image, self._start, config.window_px)
        """(n, 2) pixels, from the middle of the window of each to what it shows."""
        self.bearings: Array = self.camera.normalise(self._start + self._shown)
        """(n, 2) what they show, normalised in the reference image; first those carried over."""

    def __len__(self) -> int:
        return len(self._start)

    def follow(self, image: Image, moved: Array, C: Array) -> Seen:
        """Find the points in a later image; `moved` (n, 2) is where to look, normalised.

        C is about how the camera has turned since the reference. The later image is looked at as
        if it had not: a turn bends patches, the more the wider the field of view. A point that
        was lost stays lost: what is found again may be something else.
        """
        now = self._small(image)
        if np.trace(C) > _STRAIGHT:
            C = np.eye(3)
        else:
            now = self._turned_back(now, C)
        guess: Points = self._pixels(_turned(moved, C.T)).astype(np.float32)
        now = self._like_reference(now, guess)
        there, found = self._there_and_back(now, guess, self.config.levels)
        at = _turned(self.camera.normalise(there + self._shown), C)
        there = self._pixels(_turned(self.camera.normalise(there), C)).astype(np.float32)
        self.alive &= found & _inside(there, now.shape)
        self._last = np.where(self.alive[:, None], there, self._last).astype(np.float32)
        return Seen(at, self.alive.copy())

    def disparities(self, right: Image) -> tuple[Array, NDArray[np.bool_]]:
        """(n,) x_left - x_right of the reference pair, normalised, and which are known."""
        now = self._like_reference(self._small(right), self._start)
        there, found = self._there_and_back(now, self._start, _STEREO_LEVELS)
        apart = self._start - there
        found &= np.abs(apart[:, 1]) < _ROWS_APART_PX
        found &= apart[:, 0] > -0.5  # noise about points that are far away
        return apart[:, 0] / self.camera.fx, found

    @property
    def last(self) -> Array:
        """(n, 2): where the middles of their windows were found last, normalised."""
        return self.camera.normalise(self._last)

    # --- steps -----------------------------------------------------------------------------------

    def _small(self, image: Image) -> Image:
        if self._scale == 1.0:
            return image
        size = image.shape[1] // 2, image.shape[0] // 2
        return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)

    def _pixels(self, at: Array) -> Array:
        c = self.camera
        return np.asarray(at * (c.fx, c.fy) + (c.cx, c.cy))

    def _corners(self, taken: Points) -> Points:
        wanted = self.config.points - len(taken)
        if wanted < 0.1 * self.config.points:
            return np.zeros((0, 2), dtype=np.float32)
        apart = max(int(_SPACING * np.sqrt(self._image.size / self.config.points)), 2)
        at, strength = _strongest(self._image, apart)
        order = np.argsort(-strength, kind="stable")
        order = order[strength[order] > _QUALITY * strength.max(initial=0.0)]
        near = np.zeros(self._image.shape, dtype=bool)
        chosen: list[tuple[int, int]] = []
        for x, y in [*taken.astype(int).tolist(), *at[order].tolist()]:
            if len(chosen) < len(taken) or not near[y, x]:
                chosen.append((x, y))
                near[max(y - apart, 0) : y + apart, max(x - apart, 0) : x + apart] = True
            if len(chosen) == self.config.points:
                break
        new = np.array(chosen[len(taken) :], dtype=np.float32)
        return new.reshape(-1, 2)

    def _turned_back(self, image: Image, C: Array) -> Image:
        """What would be seen of a later image, had the camera not turned by C."""
        K = self.camera.matrix
        turned = cv2.warpPerspective(
            image,
            K @ C @ np.linalg.inv(K),
            (image.shape[1], image.shape[0]),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return np.asarray(turned, dtype=np.uint8)

    def _like_reference(self, image: Image, guess: Points) -> Image:
        """As bright as the reference image about the points: cameras change their exposure."""
        there, here = guess[self.alive], self._start[self.alive]
        smoothed = smooth(image, self.config.window_px)
        return brightened(image, brightness_ratio(self._smoothed, here, smoothed, there))

    def _there_and_back(
        self, now: Image, guess: Points, levels: int
    ) -> tuple[Points, NDArray[np.bool_]]:
        there, ok = self._flow(self._image, now, self._start, guess, levels)
        # The way back begins as wrong as the way there did: at its end it would find itself right.
        wrong = self._start + there - guess
        back, also = self._flow(now, self._image, there, wrong, levels)
        near = np.abs(back - self._start).max(axis=1, initial=0.0) < self.config.return_px
        return there, ok & also & _inside(there, now.shape) & near

    def _flow(
        self, first: Image, second: Image, points: Points, guess: Points, levels: int
    ) -> tuple[Points, NDArray[np.bool_]]:
        if len(points) == 0:
            return points, np.zeros(0, dtype=bool)
        side = self.config.window_px
        there, status, _ = cv2.calcOpticalFlowPyrLK(
            first,
            second,
            points[:, None],
            guess[:, None].copy(),
            winSize=(side, side),
            maxLevel=levels,
            criteria=(
                cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT,
                _ITERATIONS,
                _PRECISION_PX,
            ),
            flags=cv2.OPTFLOW_USE_INITIAL_FLOW,
        )
        return np.asarray(there[:, 0], dtype=np.float32), status[:, 0] > 0


def _turned(at: Array, C: Array) -> Array:
    """(n, 2) normalised points after a turn of the camera."""
    ray = at @ C[:, :2].T + C[:, 2]
    return np.asarray(ray[:, :2] / np.maximum(ray[:, 2:], _NEAREST))


def _inside(pixels: Points, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    x, y = pixels.T
    inside: NDArray[np.bool_] = (x > 3) & (y > 3) & (x < shape[1] - 4) & (y < shape[0] - 4)
    return inside


def _strongest(image: Image, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The strongest corner of each square of so many pixels, (n, 2) x, y, and how strong it is."""
    strength = np.zeros(image.shape, dtype=np.float32)
    corner_strength(image, _CORNER_PX, _BORDER_PX - 1, strength)
    rows, columns = ((length - 2 * _BORDER_PX) // side for length in image.shape)
    return strongest(strength, _BORDER_PX, side, (max(rows, 0), max(columns, 0)), peaks=True)
