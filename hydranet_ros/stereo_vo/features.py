"""Corners spread over the image: the strongest of every cell that holds none yet."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.config import StereoVOConfig

Image = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Score = NDArray[np.float32]

# cornerMinEigenVal of an 8 bit image is (2 g / 255)^2 for an RMS gradient of g levels per pixel.
_GRADIENT_UNIT = 2.0 / 255.0


class CornerDetector:
    """Finds corners; keeps its image-sized buffers, as fresh ones cost more than the corners."""

    def __init__(self, config: StereoVOConfig) -> None:
        self._config = config
        self._score = np.zeros((0, 0), dtype=np.float32)
        self._cells = np.zeros(0, dtype=np.float32)

    def detect(self, image: Image, occupied: Array, room: int) -> Array:
        """Find up to `room` new corners, strongest first: (n, 2) pixels.

        `occupied` are the (m, 2) pixels of features that exist; their cells get no second one.
        """
        config = self._config
        score = self._measure(image)
        cell = cell_size(image.shape, config)
        found, strength = self._best_of_cells(score, cell)
        least = (_GRADIENT_UNIT * config.corner_contrast) ** 2
        wanted = (strength > least) & ~_taken(occupied, score.shape, cell)
        wanted &= _is_peak(score, found, strength)
        found, strength = found[wanted], strength[wanted]
        order = np.argsort(-strength, kind="stable")[: max(room, 0)]
        return found[order].astype(np.float64)

    def _measure(self, image: Image) -> Score:
        """The smaller eigenvalue of the gradients around every pixel; 0 along the border."""
        if self._score.shape != image.shape:
            self._score = np.empty(image.shape, dtype=np.float32)
            self._cells = np.empty(image.size, dtype=np.float32)
        score, b = self._score, self._config.border_px
        cv2.cornerMinEigenVal(image, self._config.corner_block_px, dst=score)
        score[:b], score[-b:], score[:, :b], score[:, -b:] = 0.0, 0.0, 0.0, 0.0
        return score

    def _best_of_cells(self, score: Score, cell: int) -> tuple[NDArray[np.int64], Score]:
        """The (cells, 2) pixels of each whole cell's largest score, and that score."""
        rows, columns = score.shape[0] // cell, score.shape[1] // cell
        blocks = score[: rows * cell, : columns * cell].reshape(rows, cell, columns, cell)
        used = rows * columns * cell * cell
        shuffled = self._cells[:used].reshape(rows, columns, cell, cell)
        np.copyto(shuffled, blocks.transpose(0, 2, 1, 3))
        flat = shuffled.reshape(rows * columns, cell * cell)
        best = np.argmax(flat, axis=1)
        row, column = np.divmod(np.arange(rows * columns), columns)
        pixels = np.stack([column * cell + best % cell, row * cell + best // cell], axis=1)
        return pixels, flat[np.arange(len(flat)), best]


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
