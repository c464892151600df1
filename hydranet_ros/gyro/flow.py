"""Dense optical flow of a calibrated camera, resampled to the canonical grid.

An image is first warped to the canonical camera, whose image is the grid with a few pixels to a
cell; the flow found there is averaged over each cell and divided by the focal length. So a network
sees the same scale of image and of flow whatever the camera, and never its intrinsics.

Flow is wrong where a picture tells little: on smooth roads, at high speed, behind what is near. So
it is checked by the flow back: cells from which the two do not lead to where they began are not
trusted with the geometry.

The methods `dis` (the best, and fast on a CPU) and `farneback` (as in the paper) are OpenCV's;
`dis_torch` and `farneback_torch` are the same on any torch device (`flow_torch`, imported only
when asked for). `auto` is `dis_torch` on a GPU and `dis` on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import HydraNetError, compiled_loops
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.gyro.grid import (
    LEAST_PX,
    MARGIN_CELLS,
    PIXELS_PER_CELL,
    CanonicalGrid,
    CanonicalView,
    Field,
    GridFlow,
)
from hydranet_ros.settings import Configuration, section, setting

Image = NDArray[np.uint8]

FlowMethodName = Literal["auto", "dis", "farneback", "dis_torch", "farneback_torch"]
IN_TORCH: dict[str, FlowMethodName] = {"dis": "dis_torch", "farneback": "farneback_torch"}
ON_DEVICE = tuple(IN_TORCH.values())
CPU = "cpu"
_FAR_PX = 1e6  # flow back from outside the image: it agrees with nothing


@dataclass(frozen=True)
class DisConfig(Configuration):
    """Dense inverse search (Kroeger et al., 2016).

    The defaults are for three pixels to a cell. On KITTI they are as accurate as OpenCV's FAST
    preset on the full image, in half its time (benchmarks/flow.py prints the comparison).

    Patches further apart save a fifth of the gyro's time at 85 deg. In 34 simulated rooms and
    halls they are no worse, and better on EuRoC; at 60 deg an indoor robot loses frames in fast
    turns.
    """

    finest_scale: int = setting(
        0, "how often the image is halved at the finest level that is searched"
    )
    patch_size: int = setting(8, "edge of a patch in pixels", 4)
    patch_stride: int = setting(5, "pixels from one patch to the next", 1)
    iterations: int = setting(16, "steps of gradient descent for a patch", 1)
    refinements: int = setting(
        0, "steps of variational refinement; they cost as much as all the rest"
    )
    tolerance_px: float = setting(
        0.5, "flow and flow back may differ by so many pixels; 0 is no check"
    )
    tolerance_share: float = setting(0.1, "and by this share of the flow's length")
    back_scale: int = setting(1, "how much coarser than the flow the flow back ends")
    patches: int = setting(
        4500,
        "where there would be more of them, patches lie further apart, by at most a pixel less "
        "than their size: a wide camera takes little longer",
        1,
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if self.patch_stride > self.patch_size:
            raise ValueError(
                f"patch_stride {self.patch_stride} leaves gaps between patches of "
                f"{self.patch_size} pixels"
            )

    def for_image(self, shape: tuple[int, int]) -> DisConfig:
        """The same with the stride that an image of (height, width) pixels has."""
        wide = round(math.sqrt(shape[0] * shape[1] / self.patches))
        return replace(self, patch_stride=max(self.patch_stride, min(wide, self.patch_size - 1)))


@dataclass(frozen=True)
class FarnebackConfig(Configuration):
    """Farneback's polynomial expansion with a box window; the defaults are the paper's."""

    pyramid_scale: float = setting(
        0.5, "size of a pyramid level relative to the one below", 0.0, 1.0
    )
    levels: int = setting(3, "pyramid levels above the image")
    window: int = setting(15, "edge of the window the flow is constant in, odd", 3)
    iterations: int = setting(3, "repetitions at each level", 1)
    poly_n: int = setting(5, "radius of the neighbourhood a polynomial is fitted to", 1)
    poly_sigma: float = setting(1.2, "standard deviation of that neighbourhood")
    tolerance_px: float = setting(
        0.5, "flow and flow back may differ by so many pixels; 0 is no check"
    )
    tolerance_share: float = setting(0.1, "and by this share of the flow's length")

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if not 0.0 < self.pyramid_scale < 1.0:
            raise ValueError(f"pyramid_scale must be between 0 and 1, got {self.pyramid_scale}")
        if self.window % 2 == 0:
            raise ValueError(f"window must be odd, got {self.window}")
        if not self.poly_sigma > 0.0:
            raise ValueError(f"poly_sigma must be positive, got {self.poly_sigma}")


@dataclass(frozen=True)
class FlowConfig(Configuration):
    """How flow is computed for the canonical grid."""

    method: FlowMethodName = setting("auto", "how flow is computed")
    pixels_per_cell: int = setting(
        PIXELS_PER_CELL, "pixels, along a cell's edge, of the image flow is computed on", 1
    )
    margin_cells: int = setting(
        MARGIN_CELLS,
        "cells beyond the edge of the grid that are computed as well, where the camera sees "
        "them, so that what moves out of the grid can be followed",
    )
    dis: DisConfig = section(DisConfig)
    farneback: FarnebackConfig = section(FarnebackConfig)

    def method_on(self, device: str) -> str:
        """The method in use on a device; "auto" is DIS, by OpenCV on the CPU, else by torch."""
        on_cpu = device.partition(":")[0] == CPU
        if self.method == "auto":
            return "dis" if on_cpu else "dis_torch"
        if self.method not in ON_DEVICE and not on_cpu:
            raise ValueError(
                f"{self.method} runs on the CPU only, got device {device!r}: "
                f"use device 'cpu' or method '{self.method}_torch'"
            )
        return self.method

    def for_view(self, view: CanonicalView) -> FlowConfig:
        """The same for the canonical images of a camera."""
        return replace(self, dis=self.dis.for_image((view.y.count, view.x.count)))


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


def _checked(
    forth: Callable[[Image, Image], Field],
    back: Callable[[Image, Image], Field],
    config: DisConfig | FarnebackConfig,
    view: CanonicalView,
) -> Callable[[Image, Image], GridFlow]:
    """Flow on the grid, and where the flow back agrees with it; the two are computed at once."""
    tolerance, fast = (config.tolerance_px, config.tolerance_share), compiled()
    y, x = np.indices((view.y.count, view.x.count), dtype=np.float32)
    here = cv2.merge([x, y])
    beside = ThreadPoolExecutor(1, "flow_back")  # OpenCV leaves Python alone meanwhile

    def solve(previous: Image, current: Image) -> GridFlow:
        waiting = beside.submit(back, current, previous)
        flow, returning = forth(previous, current), waiting.result()
        if fast is not None:
            return view.of_means(*fast.checked_means(flow, returning, *view.layout, *tolerance))
        returned = cv2.remap(
            returning,
            here + flow,
            None,  # type: ignore[call-overload]
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=(_FAR_PX, _FAR_PX),
        )
        allowed = tolerance[0] + tolerance[1] * _length(flow)
        return view.to_grid(flow, _length(flow + returned) < allowed)

    return solve


compiled = partial(compiled_loops, "hydranet_ros.gyro.flow_numba")
"""The loops over pixels; None where numba is not installed."""


def _length(vectors: NDArray[Any]) -> NDArray[Any]:
    return cv2.magnitude(vectors[..., 0], vectors[..., 1])


def _check_pair(previous: Image, current: Image) -> None:
    _check_image(previous, previous.shape)
    _check_image(current, previous.shape)
    if min(previous.shape) < LEAST_PX:
        raise ValueError(f"images need {LEAST_PX} rows and columns, got {previous.shape}")


def _check_image(image: Image, shape: tuple[int, ...]) -> None:
    if image.ndim != 2 or image.dtype != np.uint8 or image.shape != shape:
        raise ValueError(
            f"expected a grey uint8 image of shape {shape if len(shape) == 2 else '(h, w)'}, "
            f"got {image.dtype} of shape {image.shape}"
        )


# --- images in, flow on the grid out -------------------------------------------------------------


Made = TypeVar("Made")


def same_pixels(one: Image, other: Image) -> bool:
    """Whether two images are equal; most that are not differ in the middle row already."""
    if one.shape != other.shape:
        return False
    middle = len(one) // 2
    return np.array_equal(one[middle], other[middle]) and np.array_equal(one, other)


class Prepared(Generic[Made]):
    """What is made of images before flow: once of each image in a sequence.

    The last two are known, since time may run backward. They are told by their content: a caller
    may fill the same buffer again.
    """

    def __init__(self, make: Callable[[Image], Made]) -> None:
        self._make = make
        self._known: list[tuple[Image, Made]] = []

    def pair(self, first: Image, second: Image) -> tuple[Made, Made]:
        """Of two images, which are those that are known next."""
        made = self.one(first), self.one(second)
        self._known = [(first.copy(), made[0]), (second.copy(), made[1])]
        return made

    def one(self, image: Image) -> Made:
        """Of an image that may be known."""
        for known, made in self._known:
            if same_pixels(known, image):
                return made
        return self._make(image)


class _Warped(NamedTuple):
    """What the canonical camera makes of an image, and the structure tensor of its cells."""

    canonical: Any
    tensor: Field


class FlowEstimator:
    """Flow on the canonical grid between grey images (h, w) of one camera.

    In a sequence every image is warped once: the current one of a call is kept for the next. The
    result is in NumPy; what stays on a device is in `flow_torch`.
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
        self.view = CanonicalView(
            camera, image_shape, grid, config.pixels_per_cell, config.margin_cells
        )
        self.grid, self.mask = self.view.grid, self.view.mask
        self._images = Prepared(self._warped)
        self._warp: Callable[[Image], Any]
        self._flow: Callable[[Any, Any], GridFlow]
        self._tensor: Callable[[Any], Field]
        if self.method in ON_DEVICE:
            on_device = _flow_torch(self.method).DeviceFlow(self.view, config, device, self.method)
            self._warp, self._flow = on_device.upload, on_device.download
            self._tensor = on_device.download_texture
        else:
            self._warp, self._tensor = self.view.image, self._structure
            self._flow = _grid_solver(self.method, config.for_view(self.view), self.view)

    def __call__(self, previous: Image, current: Image) -> GridFlow:
        """The flow from the previous image to the current one, with the texture of the former."""
        for image in (previous, current):
            _check_image(image, self.view.image_shape)
        first, second = self._images.pair(previous, current)
        return replace(self._flow(first.canonical, second.canonical), texture=first.tensor)

    def texture(self, image: Image) -> Field:
        """(rows, columns): RMS gradient along the weaker direction, grey levels per pixel.

        0 where there is none, or along one direction only: there flow is not known. In pixels of
        the canonical image. Sensor noise of 2 grey levels stays below 0.5, of 6 below 1.
        """
        xx, xy, yy = self._images.one(image).tensor
        least = 0.5 * (xx + yy) - np.sqrt(0.25 * (xx - yy) ** 2 + xy * xy)
        weakest: Field = np.sqrt(np.maximum(least, 0.0))
        return weakest

    def _structure(self, canonical: Image) -> Field:
        """(3, rows, columns): the structure tensor xx, xy, yy, over the patches of the flow."""
        fast = compiled()
        if fast is not None:
            return np.asarray(fast.structure(canonical, *self.view.layout), dtype=np.float32)
        gx, gy = (cv2.Sobel(canonical, cv2.CV_32F, *d, scale=0.125) for d in ((1, 0), (0, 1)))
        side = 2 * self.view.pixels_per_cell + 1
        products = cv2.merge([gx * gx, gx * gy, gy * gy])
        smooth = np.asarray(cv2.blur(products, (side, side)), dtype=np.float32)
        return np.ascontiguousarray(np.moveaxis(self.view.to_cells(smooth), -1, 0))

    def correlation(self, previous: Image, current: Image, found: GridFlow) -> Field:
        """(rows, columns): how alike the images are where the flow leads, 1 for the same.

        Between unrelated images flow finds likeness by chance, and the flow back agrees with some
        of it; their correlation stays low.
        """
        first, second = (self.view.image(each).astype(np.float32) for each in (previous, current))
        y, x = np.indices(first.shape, dtype=np.float32)
        flow = self.view.to_pixels(found)
        moved: Field = np.asarray(
            cv2.remap(second, x + flow[..., 0], y + flow[..., 1], cv2.INTER_LINEAR), np.float32
        )
        side = 3 * self.view.pixels_per_cell

        def covariance(a: Field, b: Field) -> Field:
            blurred = (cv2.blur(each, (side, side)) for each in (a * b, a, b))
            both, one, other = blurred
            return both - one * other

        variances = (np.maximum(covariance(each, each), 1.0) for each in (first, moved))
        product = np.sqrt(np.prod(list(variances), axis=0))
        return self.view.to_cells(covariance(first, moved) / product)

    def _warped(self, image: Image) -> _Warped:
        canonical = self._warp(image)
        return _Warped(canonical, self._tensor(canonical))


def _grid_solver(
    method: str, config: FlowConfig, view: CanonicalView
) -> Callable[[Image, Image], GridFlow]:
    forth: Callable[[Image, Image], Field]
    settings: DisConfig | FarnebackConfig
    if method == "dis":
        settings = c = config.dis
        forth = _dis_solver(c)
        back = _dis_solver(replace(c, finest_scale=c.finest_scale + c.back_scale))
    else:
        settings = config.farneback
        forth = back = partial(farneback, config=config.farneback)
    if settings.tolerance_px > 0.0:
        return _checked(forth, back, settings, view)
    return lambda previous, current: view.to_grid(forth(previous, current))


def _flow_torch(method: str) -> Any:
    try:
        from hydranet_ros.gyro import flow_torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise HydraNetError(
            f"flow method {method} needs PyTorch: pip install torch, or use method 'dis'"
        ) from None
    return flow_torch


# --- a picture of flow ---------------------------------------------------------------------------

PICTURE_WIDTH = 640
PICTURE_CELLS = 4  # from one arrow to the next
TRUSTED, DOUBTED = (78, 200, 60), (60, 80, 230)  # BGR


def flow_picture(image: Image, flow: GridFlow, camera: Camera) -> NDArray[np.uint8]:
    """(h, w, 3) bgr8: a grey image, and the flow that leads to it, at most 640 px wide.

    Lines go from where a point was to where it is. Green cells are trusted; in red ones the flow
    back does not agree.
    """
    height, width = image.shape
    shrink = min(1.0, PICTURE_WIDTH / width)
    size = round(width * shrink), max(1, round(height * shrink))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    picture = cv2.cvtColor(small, cv2.COLOR_GRAY2BGR)
    part = slice(PICTURE_CELLS // 2, None, PICTURE_CELLS)
    seen = flow.mask[part, part]
    rows, columns = flow.mask.shape
    begin = CanonicalGrid(rows, columns, flow.cell).centres[part, part][seen]
    end = begin + np.moveaxis(flow.flow, 0, -1)[part, part][seen]
    trusted = seen[seen] if flow.trusted is None else flow.trusted[part, part][seen]
    # OpenCV draws with a sixteenth of a pixel.
    lines = np.stack([begin, end], axis=1) * (camera.fx, camera.fy) + (camera.cx, camera.cy)
    shifted = np.round(np.clip(lines * shrink, -1e4, 1e4) * 16.0).astype(np.int32)
    for chosen, colour in ((~trusted, DOUBTED), (trusted, TRUSTED)):
        cv2.polylines(picture, list(shifted[chosen]), False, colour, 1, cv2.LINE_AA, 4)
    return np.asarray(picture, dtype=np.uint8)
