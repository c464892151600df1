"""The canonical grid in torch: images of a camera to flow on the grid, on a device to the end.

What `flow.FlowEstimator` does by OpenCV, batched over images and cameras: the warp to the
canonical camera, flow forth and back in one batch and where the two agree, the texture of the
cells. Nothing leaves the device on the way, and nothing waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.gyro.device import choose_device
from hydranet_ros.gyro.dis_torch import dis, dis_both_ways
from hydranet_ros.gyro.farneback_torch import farneback
from hydranet_ros.gyro.flow import ON_DEVICE, FlowConfig, FlowMethodName, Image
from hydranet_ros.gyro.grid import Axis, CanonicalView, Field, GridFlow
from hydranet_ros.gyro.image_torch import box_mean, gaussian, look_up, mirrored, sobel


class CellFlow(NamedTuple):
    """Flow (B, 2, rows, columns) in normalised units, and which cells (B, rows, columns) agree."""

    flow: Tensor
    trusted: Tensor | None  # None: not checked


class DeviceFlow:
    """Grey images of one camera to flow on the canonical grid, on a device from end to end."""

    def __init__(
        self,
        view: CanonicalView,
        config: FlowConfig | None = None,
        device: str | torch.device = "cpu",
        method: FlowMethodName = "dis_torch",
    ) -> None:
        if method not in ON_DEVICE:
            raise ValueError(f"method must be one of {', '.join(ON_DEVICE)}, got {method!r}")
        self.view, self.method = view, method
        self.config = (config or FlowConfig()).for_view(view)
        self.device = choose_device(device) if isinstance(device, str) else device
        self.mask = torch.from_numpy(view.mask.copy()).to(self.device)
        self._rows = _Sampler(view.y, self.device)
        self._columns = _Sampler(view.x, self.device)

    @torch.no_grad()
    def __call__(self, previous: Tensor, current: Tensor) -> CellFlow:
        """Images (B, h, w) of the camera, two batches."""
        return self.between(self.image(previous), self.image(current))

    @torch.no_grad()
    def image(self, images: Tensor) -> Tensor:
        """(B, h, w) images of the camera -> (B, h', w') of the canonical camera, float32.

        As whole grey levels, which is what flow was trained on.
        """
        if images.ndim != 3 or tuple(images.shape[1:]) != self.view.image_shape:
            raise ValueError(
                f"expected images of shape (B, *{self.view.image_shape}), "
                f"got {tuple(images.shape)}"
            )
        blurred = torch.round(self._blur(images.to(torch.float32)[:, None]))
        return torch.round(self._sample(blurred))[:, 0]

    @torch.no_grad()
    def between(self, first: Tensor, second: Tensor) -> CellFlow:
        """Canonical images (B, h', w'), two batches -> flow, checked by the flow back."""
        settings = self.config.dis if self.method == "dis_torch" else self.config.farneback
        if settings.tolerance_px == 0.0:
            return CellFlow(self.to_grid(self._flow(first, second)), None)
        forth, back = self._both_ways(first, second)
        returned, inside = look_up(back, forth)
        allowed = settings.tolerance_px + settings.tolerance_share * _length(forth)
        agrees = inside[:, 0] & (_length(forth + returned) < allowed)
        share = self._cells(agrees[:, None].to(torch.float32))[:, 0]
        return CellFlow(self.to_grid(forth), self.mask & (share > 0.5))

    @torch.no_grad()
    def texture(self, canonical: Tensor) -> Tensor:
        """(B, h', w') -> (B, 3, rows, columns): the structure tensor xx, xy, yy of the cells."""
        gx, gy = sobel(canonical)
        products = torch.stack([gx * gx, gx * gy, gy * gy], dim=1)
        side = 2 * self.view.pixels_per_cell + 1
        return self._cells(box_mean(products, side, "reflect"))

    @torch.no_grad()
    def correlation(self, first: Tensor, second: Tensor, flow: Tensor) -> Tensor:
        """(B, rows, columns): how alike canonical images are where the flow on the grid leads."""
        moved, _ = look_up(second[:, None], self._pixels(flow))
        side = 3 * self.view.pixels_per_cell

        def covariance(a: Tensor, b: Tensor) -> Tensor:
            both, one, other = (box_mean(each, side, "reflect") for each in (a * b, a, b))
            return both - one * other

        one = first[:, None]
        sizes = covariance(one, one).clamp_min(1.0) * covariance(moved, moved).clamp_min(1.0)
        return self._cells(covariance(one, moved) / sizes.sqrt())[:, 0]

    @torch.no_grad()
    def to_grid(self, flow: Tensor) -> Tensor:
        """(B, 2, h', w') flow in pixels of the canonical image -> its mean over each cell."""
        view = self.view
        if tuple(flow.shape[1:]) != (2, view.y.count, view.x.count):
            raise ValueError(
                f"expected canonical flow of shape (B, 2, {view.y.count}, {view.x.count}), "
                f"got {tuple(flow.shape)}"
            )
        return self._average(flow / view.focal)

    @torch.no_grad()
    def camera_flow_to_grid(self, flow: Tensor) -> Tensor:
        """(B, 2, h, w) flow in pixels of the camera -> its mean over each cell."""
        if tuple(flow.shape[1:]) != (2, *self.view.image_shape):
            raise ValueError(
                f"expected flow of shape (B, 2, *{self.view.image_shape}), got {tuple(flow.shape)}"
            )
        warped = self._sample(self._blur(flow))
        camera = self.view.camera
        return self._average(
            torch.stack([warped[:, 0] / camera.fx, warped[:, 1] / camera.fy], dim=1)
        )

    def upload(self, image: Image) -> Tensor:
        """Bring an image of the camera to the device, warped: (1, h', w')."""
        return self.image(torch.from_numpy(image.copy()).to(self.device)[None])

    def download(self, first: Tensor, second: Tensor) -> GridFlow:
        """The flow between two warped images, as NumPy."""
        found = self.between(first, second)
        return GridFlow(
            found.flow[0].cpu().numpy(),
            self.view.mask,
            None if found.trusted is None else found.trusted[0].cpu().numpy(),
            cell=self.view.grid.cell,
        )

    def download_texture(self, canonical: Tensor) -> Field:
        """`texture` of one warped image, as NumPy (3, rows, columns)."""
        found: Field = self.texture(canonical)[0].cpu().numpy()
        return found

    # --- steps -----------------------------------------------------------------------------------

    def _flow(self, first: Tensor, second: Tensor) -> Tensor:
        if self.method == "dis_torch":
            return dis(first, second, self.config.dis)
        return farneback(first, second, self.config.farneback)

    def _both_ways(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        if self.method == "dis_torch":
            return dis_both_ways(first, second, self.config.dis)
        there, here = torch.cat([first, second]), torch.cat([second, first])
        found = farneback(there, here, self.config.farneback)
        return found[: len(first)], found[len(first) :]

    def _blur(self, images: Tensor) -> Tensor:
        return self._columns.blurred(self._rows.blurred(images, -2), -1)

    def _sample(self, part: Tensor) -> Tensor:
        return self._columns.sampled(self._rows.sampled(part, -2), -1)

    def _average(self, normalised: Tensor) -> Tensor:
        return torch.where(self.mask, self._cells(normalised), 0.0)

    def _cells(self, pixels: Tensor) -> Tensor:
        """(B, c, h', w') -> (B, c, rows, columns), the mean over each cell."""
        return functional.avg_pool2d(functional.pad(pixels, self._edges), self._k)

    def _pixels(self, flow: Tensor) -> Tensor:
        """(B, 2, rows, columns) -> (B, 2, h', w'): the flow of each pixel's cell, in pixels."""
        cells = self.view.focal * flow
        wide = cells.repeat_interleave(self._k, dim=-1).repeat_interleave(self._k, dim=-2)
        left, right, top, bottom = self._edges
        return functional.pad(wide, (-left, -right, -top, -bottom))

    @property
    def _k(self) -> int:
        return self.view.pixels_per_cell

    @property
    def _edges(self) -> tuple[int, int, int, int]:
        """What the canonical image lacks of the grid, left, right, top, bottom; negative: beyond.

        Negative padding crops the margin.
        """
        x, y, grid = self.view.x, self.view.y, self.view.grid
        right = grid.columns * self._k - x.first - x.count
        return x.first, right, y.first, grid.rows * self._k - y.first - y.count


class _Sampler:
    """Blur and linear interpolation along one axis, with OpenCV's numbers.

    It takes the weights of a blur in 1/256, and places between pixels in 1/32.
    """

    def __init__(self, axis: Axis, device: torch.device) -> None:
        at = np.round(32.0 * (axis.offset + axis.scale * np.arange(axis.count))) / 32.0
        last = axis.stop - axis.start - 1
        at = np.clip(at, 0.0, last)
        below = np.floor(at).astype(np.int64)
        self._start, self._count, self._kernel = axis.start, last + 1, _weights(axis)
        self._below = torch.from_numpy(below).to(device)
        self._above = torch.from_numpy(np.minimum(below + 1, last)).to(device)
        self._share = torch.from_numpy((at - below).astype(np.float32)).to(device)

    def blurred(self, images: Tensor, dim: int) -> Tensor:
        """(..., h, w) -> the part that is needed along dimension -2 or -1, blurred."""
        part = images.narrow(dim, self._start, self._count)
        return part if len(self._kernel) == 1 else mirrored(part, self._kernel, dim)

    def sampled(self, part: Tensor, dim: int) -> Tensor:
        """(..., h, w) -> resampled along dimension -2 or -1."""
        share = self._share[:, None] if dim == -2 else self._share
        below, above = part.index_select(dim, self._below), part.index_select(dim, self._above)
        return below + share * (above - below)


def _weights(axis: Axis) -> list[float]:
    """Of the blur, in 1/256; they sum to 1."""
    if axis.radius == 0:
        return [1.0]
    weights = [round(256.0 * each) / 256.0 for each in gaussian(axis.radius, axis.sigma)]
    weights[axis.radius] += 1.0 - sum(weights)
    return weights


def _length(vectors: Tensor) -> Tensor:
    """(B, 2, h, w) -> (B, h, w)."""
    return torch.hypot(vectors[:, 0], vectors[:, 1])
