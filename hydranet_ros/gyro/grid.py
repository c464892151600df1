"""The canonical grid: square cells about the optical axis, the same for every camera.

An image is warped to the canonical camera, whose image is the grid with a few pixels to a cell;
flow found there is averaged over each cell and divided by the focal length. So a network sees the
same scale of image and of flow whatever the camera, and never its intrinsics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting

Field = NDArray[np.float32]

LEAST_PX = 32  # rows and columns that a flow method needs
PIXELS_PER_CELL = 3
MARGIN_CELLS = 8
WELL_TEXTURED = 20.0  # eigenvalues of a structure tensor where flow is known well
GRID_STEP = 8  # a network halves the grid three times
# A grid reaches as far as its camera sees, and no further than this from the axis: 100 x 80 deg.
WIDEST, HIGHEST = 1.19, 0.84
_EDGE_PX = 1e-6  # what lies on the very edge of an image must not be lost to rounding


@dataclass(frozen=True)
class CanonicalGrid(Configuration):
    """Square cells of the plane z = 1 about the optical axis, the same for every camera.

    Cell (r, c) is centred on y/z = (r + 1/2 - rows/2) cell and x/z = (c + 1/2 - columns/2) cell.
    `covering` makes the grid of a camera, which holds all of its view up to 100 x 80 deg; what
    the camera does not see of it is masked. The default, 82.4 x 60.5 deg, is the one of training.
    """

    rows: int = setting(112, "cells from top to bottom", 1, 4096)
    columns: int = setting(168, "cells from left to right", 1, 4096)
    cell: float = setting(1.0 / 96.0, "edge of a cell on the plane z = 1", 1e-4, 1.0)

    def covering(self, camera: Camera, image_shape: tuple[int, int]) -> CanonicalGrid:
        """Cells of this size over all that a camera sees, rows and columns in eights."""
        height, width = image_shape
        x = max(camera.cx + 0.5, width - 0.5 - camera.cx) / camera.fx
        y = max(camera.cy + 0.5, height - 0.5 - camera.cy) / camera.fy
        columns, rows = (
            GRID_STEP * max(1, ceil(2.0 * min(reach, most) / (self.cell * GRID_STEP) - 1e-6))
            for reach, most in ((x, WIDEST), (y, HIGHEST))
        )
        return CanonicalGrid(rows, columns, self.cell)

    @property
    def centres(self) -> Array:
        """(rows, columns, 2) normalised coordinates x/z, y/z of the centres of the cells."""
        c, r = np.meshgrid(np.arange(self.columns), np.arange(self.rows))
        return self.camera().normalise(np.stack([c, r], axis=-1))

    def camera(self, pixels_per_cell: int = 1) -> Camera:
        """The camera whose image is the grid, with so many pixels along the edge of a cell."""
        if pixels_per_cell < 1:
            raise ValueError(f"a cell needs at least one pixel, got {pixels_per_cell}")
        focal = pixels_per_cell / self.cell
        size = np.array([self.columns, self.rows]) * pixels_per_cell
        cx, cy = (float(s) for s in 0.5 * (size - 1))
        return Camera(focal, focal, cx, cy)

    def seen_by(self, camera: Camera, image_shape: tuple[int, int]) -> NDArray[np.bool_]:
        """(rows, columns): whether all of a cell is in an image of (height, width) pixels."""
        half = 0.5 * self.cell * np.array([camera.fx, camera.fy])
        middle = self.centres * (camera.fx, camera.fy) + (camera.cx, camera.cy)
        last = np.array(image_shape[::-1]) - 0.5
        inside = (middle - half >= -0.5 - _EDGE_PX) & (middle + half <= last + _EDGE_PX)
        return np.asarray(inside.all(axis=-1))


@dataclass(frozen=True, eq=False)
class GridFlow:
    """Flow on the canonical grid: a point seen at x/z, y/z is next seen at x/z + flow."""

    flow: Field  # (2, rows, columns) normalised units, x then y; 0 where the mask is False
    mask: NDArray[np.bool_]  # (rows, columns): all of the cell is in the camera's view
    trusted: NDArray[np.bool_] | None = None  # where the flow back agrees; None: not checked
    texture: Field | None = None  # (3, rows, columns) structure tensor xx, xy, yy of the cells
    cell: float = 1.0 / 96.0  # edge of a cell


class FlowInputs(NamedTuple):
    """A batch of flow fields for a network, NumPy or torch, and what is known of their cells.

    flow is (batch, 2, rows, columns), mask and trusted (batch, rows, columns), texture (batch, 3,
    rows, columns) the structure tensor xx xy yy; None: everywhere, and well textured.
    """

    flow: Any
    mask: Any = None
    trusted: Any = None
    texture: Any = None


@dataclass(frozen=True)
class Axis:
    """How pixels of the canonical image lie in the camera's image, along one axis.

    Canonical pixel `first + i`, for i < `count`, is at `offset + i scale` in the part of the
    camera's image that starts at `start` and ends before `stop`, blurred by `sigma` before.
    """

    first: int
    count: int
    start: int
    stop: int
    offset: float
    scale: float
    sigma: float

    @property
    def radius(self) -> int:
        """Of the blur."""
        return ceil(3.0 * self.sigma)

    @property
    def overlap(self) -> slice:
        """The pixels that are not before the first one of the grid."""
        return slice(max(-self.first, 0), None)


def _axis(
    focal: float, centre: float, length: int, canonical: float, size: int, margin: int
) -> Axis:
    """From the two focal lengths and centres, the image's length, and the grid's in pixels."""
    scale = focal / canonical
    middle = 0.5 * (size - 1)
    # The whole canonical pixels in view.
    low = ceil((-0.5 - centre) / scale + middle + 0.5 - _EDGE_PX)
    high = floor((length - 0.5 - centre) / scale + middle - 0.5 + _EDGE_PX)
    low, high = max(low, -margin), min(high, size - 1 + margin)
    at = centre + scale * (low - middle)
    # Blur as the image shrinks, as in Farneback's pyramid; the rest of it is left alone.
    sigma = 0.5 * max(scale - 1.0, 0.0)
    reach = ceil(3.0 * sigma) + 2
    start = max(floor(at) - reach, 0)
    stop = min(ceil(at + scale * (high - low)) + reach + 1, length)
    return Axis(low, high - low + 1, start, stop, at - start, scale, sigma)


class CanonicalView:
    """A camera's images as the canonical camera would take them, and flow on the grid."""

    def __init__(
        self,
        camera: Camera,
        image_shape: tuple[int, int],
        grid: CanonicalGrid | None = None,
        pixels_per_cell: int = PIXELS_PER_CELL,
        margin_cells: int = MARGIN_CELLS,
    ) -> None:
        self.grid = grid = grid or CanonicalGrid()
        self.camera, self.image_shape = camera, (int(image_shape[0]), int(image_shape[1]))
        self.pixels_per_cell = k = pixels_per_cell
        self.focal = grid.camera(k).fx
        height, width = self.image_shape
        margin = margin_cells * k
        self.x = _axis(camera.fx, camera.cx, width, self.focal, grid.columns * k, margin)
        self.y = _axis(camera.fy, camera.cy, height, self.focal, grid.rows * k, margin)
        self.mask = grid.seen_by(camera, self.image_shape)
        self.mask.setflags(write=False)
        if min(self.x.count, self.y.count) < LEAST_PX or not self.mask.any():
            raise ValueError(
                f"{camera} with {width}x{height} pixels sees too little of the canonical grid: "
                f"{max(self.x.count, 0)}x{max(self.y.count, 0)} of its pixels"
            )

    def image(self, image: NDArray[Any]) -> NDArray[Any]:
        """(h, w) or (h, w, n) of the camera -> what the canonical camera has, low-passed."""
        x, y = self.x, self.y
        part = image[y.start : y.stop, x.start : x.stop]
        if x.radius or y.radius:
            taps = 2 * x.radius + 1, 2 * y.radius + 1
            part = cv2.GaussianBlur(part, taps, x.sigma, sigmaY=y.sigma)
        return cv2.warpAffine(
            part,
            np.array([[x.scale, 0.0, x.offset], [0.0, y.scale, y.offset]]),
            (x.count, y.count),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )

    @property
    def layout(self) -> tuple[tuple[int, int], tuple[int, int], int]:
        """The first pixel (x, y) of the grid, rows and columns, the pixels along a cell's edge."""
        shape = self.grid.rows, self.grid.columns
        return (self.x.first, self.y.first), shape, self.pixels_per_cell

    def of_means(self, mean: Field, agreeing: Field) -> GridFlow:
        """Flow of cells (2, rows, columns) in pixels of the canonical image, as `to_grid`'s.

        `agreeing` (rows, columns) is the share that agrees with the flow back.
        """
        flow = np.where(self.mask, mean / np.float32(self.focal), np.float32(0.0))
        return GridFlow(flow, self.mask, self.mask & (agreeing > 0.5), cell=self.grid.cell)

    def to_grid(self, flow: Field, agrees: NDArray[np.bool_] | None = None) -> GridFlow:
        """(h', w', 2) flow in pixels of the canonical image -> its mean over each cell.

        A cell is trusted where the flow of most of its pixels `agrees` with the flow back.
        """
        expected = self.y.count, self.x.count, 2
        if flow.shape != expected:
            raise ValueError(f"expected canonical flow of shape {expected}, got {flow.shape}")
        found = self._average(flow / np.float32(self.focal))
        if agrees is None:
            return found
        share = self.to_cells(agrees.astype(np.float32))
        return replace(found, trusted=self.mask & (share > 0.5))

    def to_pixels(self, found: GridFlow) -> Field:
        """(h', w', 2): the flow of each pixel's cell, in pixels of the canonical image."""
        k = self.pixels_per_cell
        cells = np.moveaxis(found.flow, 0, -1) * np.float32(self.focal)
        canvas = np.repeat(np.repeat(cells, k, axis=0), k, axis=1)
        inner = canvas[max(self.y.first, 0) :, max(self.x.first, 0) :]
        pixels = np.zeros((self.y.count, self.x.count, 2), dtype=np.float32)
        part = pixels[self.y.overlap, self.x.overlap][: len(inner), : inner.shape[1]]
        part[...] = inner[: len(part), : part.shape[1]]
        return pixels

    def camera_flow_to_grid(self, flow: Field) -> GridFlow:
        """(h, w, 2) flow in pixels of the camera -> its mean over each cell."""
        if flow.shape != (*self.image_shape, 2):
            raise ValueError(f"expected flow of shape {(*self.image_shape, 2)}, got {flow.shape}")
        focal = np.array([self.camera.fx, self.camera.fy], dtype=np.float32)
        warped: Field = self.image(np.asarray(flow, dtype=np.float32))
        return self._average(np.divide(warped, focal, dtype=np.float32))

    def _average(self, normalised: Field) -> GridFlow:
        mean = self.to_cells(normalised)
        mean[~self.mask] = 0.0
        flow = np.ascontiguousarray(np.moveaxis(mean, -1, 0))
        return GridFlow(flow, self.mask, cell=self.grid.cell)

    def to_cells(self, pixels: Field) -> Field:
        """Pixels of the canonical image, with channels or without -> their mean over each cell."""
        grid, k = self.grid, self.pixels_per_cell
        canvas = np.zeros((grid.rows * k, grid.columns * k, *pixels.shape[2:]), dtype=np.float32)
        inner = canvas[max(self.y.first, 0) :, max(self.x.first, 0) :]
        part = pixels[self.y.overlap, self.x.overlap][: len(inner), : inner.shape[1]]
        inner[: len(part), : part.shape[1]] = part
        size = grid.columns, grid.rows
        return np.asarray(cv2.resize(canvas, size, interpolation=cv2.INTER_AREA), np.float32)
