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
from hydranet_ros.geometry.lie import Array
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
_GAIN_TOLERANCE = 0.02  # brightness that changes by less is left alone


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
        old = np.zeros((0, 2)) if carried is None else carried
        kept: Points = self._pixels(old).astype(np.float32)
        self._start: Points = np.concatenate([kept, self._corners(kept)])
        self._last: Points = self._start.copy()
        self.alive = np.ones(len(self._start), dtype=bool)
        self.bearings: Array = self.camera.normalise(self._start)
        """(n, 2) normalised coordinates in the reference image; those carried over come first."""

    def __len__(self) -> int:
        return len(self._start)

    def follow(self, image: Image, moved: Array) -> Seen:
        """Find the points in a later image; `moved` (n, 2) is where to look, normalised.

        A point that was lost stays lost: what is found again may be something else.
        """
        now = self._like_reference(self._small(image))
        guess: Points = self._pixels(moved).astype(np.float32)
        there, found = self._there_and_back(now, guess, self.config.levels)
        self.alive &= found
        self._last = np.where(self.alive[:, None], there, self._last).astype(np.float32)
        return Seen(self.camera.normalise(self._last), self.alive.copy())

    def disparities(self, right: Image) -> tuple[Array, NDArray[np.bool_]]:
        """(n,) x_left - x_right of the reference pair, normalised, and which are known."""
        now = self._like_reference(self._small(right))
        there, found = self._there_and_back(now, self._start, _STEREO_LEVELS)
        apart = self._start - there
        found &= np.abs(apart[:, 1]) < _ROWS_APART_PX
        found &= apart[:, 0] > -0.5  # noise about points that are far away
        return apart[:, 0] / self.camera.fx, found

    @property
    def last(self) -> Array:
        """(n, 2): where the points were found last, normalised."""
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

    def _like_reference(self, image: Image) -> Image:
        """As bright as the reference image: cameras change their exposure."""
        gain = float(cv2.mean(self._image)[0]) / max(float(cv2.mean(image)[0]), 1.0)
        if abs(gain - 1.0) < _GAIN_TOLERANCE:
            return image
        return np.asarray(cv2.convertScaleAbs(image, alpha=gain), dtype=np.uint8)

    def _there_and_back(
        self, now: Image, guess: Points, levels: int
    ) -> tuple[Points, NDArray[np.bool_]]:
        there, ok = self._flow(self._image, now, self._start, guess, levels)
        # The way back begins as wrong as the way there did: at its end it would find itself right.
        wrong = self._start + there - guess
        back, also = self._flow(now, self._image, there, wrong, levels)
        height, width = now.shape
        x, y = there.T
        inside = (x > 3) & (y > 3) & (x < width - 4) & (y < height - 4)
        near = np.abs(back - self._start).max(axis=1, initial=0.0) < self.config.return_px
        return there, ok & also & inside & near

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


def _strongest(image: Image, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The strongest corner of each square of so many pixels, (n, 2) x, y, and how strong it is.

    A row of squares at a time: what is needed for it stays in the cache.
    """
    b, reach = _BORDER_PX, 1 + _CORNER_PX // 2 + 1  # of the peak, the patch, the gradient
    columns = (image.shape[1] - 2 * b) // side
    places, strengths = [], []
    for top in range(b, image.shape[0] - b - side + 1, side):
        strength = cv2.cornerMinEigenVal(image[top - reach : top + side + reach], _CORNER_PX)
        # Beside the edge of a square the largest may be the slope of a corner of the next one.
        peak = strength >= cv2.dilate(strength, None)  # type: ignore[call-overload]
        inner = np.where(peak, strength, 0.0)[reach : reach + side, b : b + columns * side]
        squares = inner.reshape(side, columns, side).swapaxes(0, 1).reshape(columns, side * side)
        each = squares.argmax(axis=1)
        x = b + np.arange(columns) * side + each % side
        places.append(np.stack([x, top + each // side], axis=1))
        strengths.append(squares[np.arange(columns), each])
    if not places:
        return np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.float32)
    return np.concatenate(places), np.concatenate(strengths)
