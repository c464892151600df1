"""Dense optical flow of a calibrated camera, resampled to the canonical grid.

An image is first warped to the canonical camera, whose image is the grid with a few pixels to a
cell; the flow found there is averaged over each cell and divided by the focal length. So a network
sees the same scale of image and of flow whatever the camera, and never its intrinsics.

Flow is wrong where a picture tells little: on smooth roads, at high speed, behind what is near. So
`dis` is checked by the flow back: cells from which the two do not lead to where they began are not
trusted with the geometry.

The methods `dis` (the best, and fast on a CPU) and `farneback` (as in the paper) are OpenCV's;
`farneback_torch` is the latter on any torch device (`flow_torch`, imported only when asked for).
`auto` is `farneback_torch` on a GPU and `dis` on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry.camera import Camera, CanonicalGrid
from hydranet_ros.settings import about, check

Image = NDArray[np.uint8]
Field = NDArray[np.float32]

METHODS = ("auto", "dis", "farneback", "farneback_torch")
CPU = "cpu"
_EDGE_PX = 1e-6  # a pixel on the very edge of the view must not be lost to rounding
_LEAST_PX = 32  # rows and columns that a flow method needs
_FAR_PX = 1e6  # flow back from outside the image: it agrees with nothing


@dataclass(frozen=True)
class DisConfig:
    """Dense inverse search (Kroeger et al., 2016).

    The defaults are for three pixels to a cell. On KITTI they are as accurate as OpenCV's FAST
    preset on the full image, in half its time (benchmarks/flow.py prints the comparison).
    """

    finest_scale: int = field(
        default=0,
        metadata=about("how often the image is halved at the finest level that is searched"),
    )
    patch_size: int = field(default=8, metadata=about("edge of a patch in pixels", 4))
    patch_stride: int = field(default=4, metadata=about("pixels from one patch to the next", 1))
    iterations: int = field(default=16, metadata=about("steps of gradient descent for a patch", 1))
    refinements: int = field(
        default=0,
        metadata=about("steps of variational refinement; they cost as much as all the rest"),
    )
    tolerance_px: float = field(
        default=0.5,
        metadata=about("flow and flow back may differ by so many pixels; 0 is no check"),
    )
    tolerance_share: float = field(
        default=0.1, metadata=about("and by this share of the flow's length")
    )
    back_scale: int = field(
        default=1, metadata=about("how much coarser than the flow the flow back ends")
    )

    def __post_init__(self) -> None:
        check(self)
        if self.patch_stride > self.patch_size:
            raise ValueError(
                f"patch_stride {self.patch_stride} leaves gaps between patches of "
                f"{self.patch_size} pixels"
            )


@dataclass(frozen=True)
class FarnebackConfig:
    """Farneback's polynomial expansion with a box window; the defaults are the paper's."""

    pyramid_scale: float = field(
        default=0.5, metadata=about("size of a pyramid level relative to the one below", 0.0, 1.0)
    )
    levels: int = field(default=3, metadata=about("pyramid levels above the image"))
    window: int = field(
        default=15, metadata=about("edge of the window the flow is constant in, odd", 3)
    )
    iterations: int = field(default=3, metadata=about("repetitions at each level", 1))
    poly_n: int = field(
        default=5, metadata=about("radius of the neighbourhood a polynomial is fitted to", 1)
    )
    poly_sigma: float = field(
        default=1.2, metadata=about("standard deviation of that neighbourhood")
    )

    def __post_init__(self) -> None:
        check(self)
        if not 0.0 < self.pyramid_scale < 1.0:
            raise ValueError(f"pyramid_scale must be between 0 and 1, got {self.pyramid_scale}")
        if self.window % 2 == 0:
            raise ValueError(f"window must be odd, got {self.window}")
        if not self.poly_sigma > 0.0:
            raise ValueError(f"poly_sigma must be positive, got {self.poly_sigma}")


@dataclass(frozen=True)
class FlowConfig:
    """How flow is computed for the canonical grid."""

    method: str = field(default="auto", metadata=about("how flow is computed", choices=METHODS))
    pixels_per_cell: int = field(
        default=3,
        metadata=about("pixels, along a cell's edge, of the image flow is computed on", 1),
    )
    margin_cells: int = field(
        default=8,
        metadata=about(
            "cells beyond the edge of the grid that are computed as well, where the camera sees "
            "them, so that what moves out of the grid can be followed"
        ),
    )
    dis: DisConfig = field(default_factory=DisConfig)
    farneback: FarnebackConfig = field(default_factory=FarnebackConfig)

    def __post_init__(self) -> None:
        check(self)

    def method_on(self, device: str) -> str:
        """The method in use on a device; "auto" is DIS on the CPU and torch elsewhere."""
        on_cpu = device.partition(":")[0] == CPU
        if self.method == "auto":
            return "dis" if on_cpu else "farneback_torch"
        if self.method != "farneback_torch" and not on_cpu:
            raise ValueError(
                f"{self.method} runs on the CPU only, got device {device!r}: "
                "use device 'cpu' or method 'farneback_torch'"
            )
        return self.method


def unchecked_flow(method: str) -> FlowConfig:
    """For training: a network learns to tell wrong flow by itself, and gets more of it."""
    return FlowConfig(method, dis=DisConfig(tolerance_px=0.0))


@dataclass(frozen=True, eq=False)
class GridFlow:
    """Flow on the canonical grid: a point seen at x/z, y/z is next seen at x/z + flow."""

    flow: Field  # (2, rows, columns) normalised units, x then y; 0 where the mask is False
    mask: NDArray[np.bool_]  # (rows, columns): all of the cell is in the camera's view
    trusted: NDArray[np.bool_] | None = None  # where the flow back agrees; None: not checked


# --- flow between two images ---------------------------------------------------------------------


def dis(previous: Image, current: Image, config: DisConfig | None = None) -> Field:
    """(h, w, 2) flow in pixels, by dense inverse search."""
    _check_pair(previous, current)
    return _dis_solver(config or DisConfig())(previous, current)


def farneback(previous: Image, current: Image, config: FarnebackConfig | None = None) -> Field:
    """(h, w, 2) flow in pixels, by Farneback's method."""
    _check_pair(previous, current)
    c = config or FarnebackConfig()
    flow = cv2.calcOpticalFlowFarneback(
        previous,
        current,
        None,  # type: ignore[call-overload]
        c.pyramid_scale,
        c.levels,
        c.window,
        c.iterations,
        c.poly_n,
        c.poly_sigma,
        0,
    )
    return np.asarray(flow, dtype=np.float32)


def _dis_solver(config: DisConfig) -> Callable[[Image, Image], Field]:
    """Keep the buffers of one image size from call to call."""
    solver = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    solver.setFinestScale(config.finest_scale)
    solver.setPatchSize(config.patch_size)
    solver.setPatchStride(config.patch_stride)
    solver.setGradientDescentIterations(config.iterations)
    solver.setVariationalRefinementIterations(config.refinements)

    def solve(previous: Image, current: Image) -> Field:
        flow = solver.calc(previous, current, None)  # type: ignore[call-overload]
        return np.asarray(flow, dtype=np.float32)

    return solve


def _checked_dis(config: DisConfig, view: CanonicalView) -> Callable[[Image, Image], GridFlow]:
    """Flow on the grid, and where the flow back agrees with it."""
    forth = _dis_solver(config)
    back = _dis_solver(replace(config, finest_scale=config.finest_scale + config.back_scale))
    y, x = np.indices((view.y.count, view.x.count), dtype=np.float32)

    def solve(previous: Image, current: Image) -> GridFlow:
        flow = forth(previous, current)
        returned = cv2.remap(
            back(current, previous),
            x + flow[..., 0],
            y + flow[..., 1],
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=(_FAR_PX, _FAR_PX),
        )
        allowed = config.tolerance_px + config.tolerance_share * _length(flow)
        return view.to_grid(flow, _length(flow + returned) < allowed)

    return solve


def _length(vectors: NDArray[Any]) -> NDArray[Any]:
    return cv2.magnitude(vectors[..., 0], vectors[..., 1])


def _check_pair(previous: Image, current: Image) -> None:
    _check_image(previous, previous.shape)
    _check_image(current, previous.shape)
    if min(previous.shape) < _LEAST_PX:
        raise ValueError(f"images need {_LEAST_PX} rows and columns, got {previous.shape}")


def _check_image(image: Image, shape: tuple[int, ...]) -> None:
    if image.ndim != 2 or image.dtype != np.uint8 or image.shape != shape:
        raise ValueError(
            f"expected a grey uint8 image of shape {shape if len(shape) == 2 else '(h, w)'}, "
            f"got {image.dtype} of shape {image.shape}"
        )


# --- the canonical camera ------------------------------------------------------------------------


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
        config: FlowConfig | None = None,
    ) -> None:
        self.grid = grid = grid or CanonicalGrid()
        config = config or FlowConfig()
        self.camera, self.image_shape = camera, (int(image_shape[0]), int(image_shape[1]))
        self.pixels_per_cell = k = config.pixels_per_cell
        self.focal = grid.camera(k).fx
        height, width = self.image_shape
        margin = config.margin_cells * k
        self.x = _axis(camera.fx, camera.cx, width, self.focal, grid.columns * k, margin)
        self.y = _axis(camera.fy, camera.cy, height, self.focal, grid.rows * k, margin)
        self.mask = grid.seen_by(camera, self.image_shape)
        self.mask.setflags(write=False)
        if min(self.x.count, self.y.count) < _LEAST_PX or not self.mask.any():
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
        share = self._cells(agrees.astype(np.float32))
        return replace(found, trusted=self.mask & (share > 0.5))

    def camera_flow_to_grid(self, flow: Field) -> GridFlow:
        """(h, w, 2) flow in pixels of the camera -> its mean over each cell."""
        if flow.shape != (*self.image_shape, 2):
            raise ValueError(f"expected flow of shape {(*self.image_shape, 2)}, got {flow.shape}")
        focal = np.array([self.camera.fx, self.camera.fy], dtype=np.float32)
        warped: Field = self.image(np.asarray(flow, dtype=np.float32))
        return self._average(np.divide(warped, focal, dtype=np.float32))

    def _average(self, normalised: Field) -> GridFlow:
        mean = self._cells(normalised)
        mean[~self.mask] = 0.0
        return GridFlow(np.ascontiguousarray(np.moveaxis(mean, -1, 0)), self.mask)

    def _cells(self, pixels: Field) -> Field:
        """Pixels of the canonical image, with channels or without -> their mean over each cell."""
        grid, k = self.grid, self.pixels_per_cell
        canvas = np.zeros((grid.rows * k, grid.columns * k, *pixels.shape[2:]), dtype=np.float32)
        inner = canvas[max(self.y.first, 0) :, max(self.x.first, 0) :]
        part = pixels[self.y.overlap, self.x.overlap][: len(inner), : inner.shape[1]]
        inner[: len(part), : part.shape[1]] = part
        size = grid.columns, grid.rows
        return np.asarray(cv2.resize(canvas, size, interpolation=cv2.INTER_AREA), np.float32)


# --- images in, flow on the grid out -------------------------------------------------------------


class FlowEstimator:
    """Flow on the canonical grid between grey images (h, w) of one camera.

    In a sequence every image is warped once: the current one of a call is kept for the next. The
    result is in NumPy; to stay on a device use `flow_torch.DeviceFlow`.
    """

    def __init__(
        self,
        camera: Camera,
        image_shape: tuple[int, int],
        config: FlowConfig | None = None,
        grid: CanonicalGrid | None = None,
        device: str = CPU,
    ) -> None:
        self.config = config = config or FlowConfig()
        self.method = config.method_on(device)
        self.view = CanonicalView(camera, image_shape, grid, config)
        self.grid, self.mask = self.view.grid, self.view.mask
        self._last: list[tuple[Image, Any]] = []
        self._warp: Callable[[Image], Any]
        self._flow: Callable[[Any, Any], GridFlow]
        if self.method == "farneback_torch":
            on_device = _flow_torch().DeviceFlow(self.view, config.farneback, device)
            self._warp, self._flow = on_device.upload, on_device.download
        else:
            self._warp = self.view.image
            self._flow = _grid_solver(self.method, config, self.view)

    def __call__(self, previous: Image, current: Image) -> GridFlow:
        """The flow from the previous image to the current one."""
        for image in (previous, current):
            _check_image(image, self.view.image_shape)
        first, second = self._warped(previous), self._warped(current)
        # Both, since time may run backward; by content: a caller may fill the same buffer again.
        self._last = [first, second]
        return self._flow(first[1], second[1])

    def _warped(self, image: Image) -> tuple[Image, Any]:
        """The image, kept, and what the canonical camera makes of it."""
        for known in self._last:
            if np.array_equal(known[0], image):
                return known
        return image.copy(), self._warp(image)


def _grid_solver(
    method: str, config: FlowConfig, view: CanonicalView
) -> Callable[[Image, Image], GridFlow]:
    if method == "dis" and config.dis.tolerance_px > 0.0:
        return _checked_dis(config.dis, view)
    if method == "dis":
        solve = _dis_solver(config.dis)
        return lambda previous, current: view.to_grid(solve(previous, current))
    return lambda previous, current: view.to_grid(farneback(previous, current, config.farneback))


def _flow_torch() -> Any:
    try:
        from hydranet_ros import flow_torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise HydraNetError(
            "flow method farneback_torch needs PyTorch: pip install torch, or use method 'dis'"
        ) from None
    return flow_torch
