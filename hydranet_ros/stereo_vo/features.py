"""Corners spread over the image: the strongest of every cell that holds none yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.corners import corner_strength, strongest
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.config import StereoVOConfig

Image = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Score = NDArray[np.float32]

# cornerMinEigenVal of an 8 bit image is (2 g / 255)^2 for an RMS gradient of g levels per pixel.
_GRADIENT_UNIT = 2.0 / 255.0


class CornerDetector:
    """Finds corners; keeps its image-sized buffer, as a fresh one costs more than the corners."""

    def __init__(self, config: StereoVOConfig) -> None:
        self._config = config
        self._score = np.zeros((0, 0), dtype=np.float32)

    def detect(self, image: Image, occupied: Array, room: int) -> Array:
        """Find up to `room` new corners, strongest first: (n, 2) pixels.

        `occupied` are the (m, 2) pixels of features that exist; their cells get no second one.
        """
        config = self._config
        score = self._measure(image)
        cell = cell_size(image.shape, config)
        cells = score.shape[0] // cell, score.shape[1] // cell
        found, strength = strongest(score, 0, cell, cells, peaks=False)
        least = (_GRADIENT_UNIT * config.corner_contrast) ** 2
        wanted = (strength > least) & ~_taken(occupied, score.shape, cell)
        wanted &= _is_peak(score, found, strength)
        found, strength = found[wanted], strength[wanted]
        order = np.argsort(-strength, kind="stable")[: max(room, 0)]
        return found[order].astype(np.float64)

    def _measure(self, image: Image) -> Score:
        """The smaller eigenvalue of the gradients around every pixel; 0 along the border."""
        if self._score.shape != image.shape:
            self._score = np.zeros(image.shape, dtype=np.float32)
        config = self._config
        corner_strength(image, config.corner_block_px, config.border_px, self._score)
        return self._score


def cell_size(shape: tuple[int, ...], config: StereoVOConfig) -> int:
    """Side of a cell in pixels.

    Not below 5/4 of the tracking window, lest windows share pixels and with them errors.
    """
    wanted: float = (shape[0] * shape[1] / config.cells) ** 0.5
    return round(max(wanted, 1.25 * config.window_px))


def _taken(occupied: Array, shape: tuple[int, ...], cell: int) -> Mask:
    """Which cells hold a feature already."""
    rows, columns = shape[0] // cell, shape[1] // cell
    taken = np.zeros((rows, columns), dtype=bool)
    column, row = (occupied // cell).astype(np.int64).T
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    taken[row[inside], column[inside]] = True
    return taken.ravel()


def _is_peak(score: Score, pixels: NDArray[np.int64], strength: Score) -> Mask:
    """Whether no neighbour, in the next cell perhaps, is stronger: else it is that one's flank."""
    height, width = score.shape
    peak = np.ones(len(pixels), dtype=bool)
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            x = np.clip(pixels[:, 0] + dx, 0, width - 1)
            y = np.clip(pixels[:, 1] + dy, 0, height - 1)
            peak &= score[y, x] <= strength
    return peak
