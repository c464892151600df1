"""Farneback's optical flow and the canonical grid in torch: batched, on any device.

The flow is that of OpenCV's `calcOpticalFlowFarneback` with its box window, up to rounding and to
the border. Nothing leaves the device on the way. Filters are sums of shifted images and not
convolutions, which recent GPUs round to 10 bits (TF32) and may compute differently in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.gyro.device import choose_device
from hydranet_ros.gyro.flow import FarnebackConfig, Image
from hydranet_ros.gyro.grid import Axis, CanonicalView, GridFlow

_SMALLEST_LEVEL_PX = 32
# Trust in the equations of the outermost pixels, whose neighbourhoods are half invented.
_BORDER_TRUST = (0.14, 0.14, 0.4472, 0.4472, 0.4472)
# Added to the determinant, in grey levels^4 per pixel^4: where there is no texture, no flow.
_LEAST_DETERMINANT = 1e-3


# --- Farneback -----------------------------------------------------------------------------------


@torch.no_grad()
def farneback(previous: Tensor, current: Tensor, config: FarnebackConfig | None = None) -> Tensor:
    """Flow in pixels (B, 2, h, w) from grey images (B, h, w) to grey images (B, h, w).

    Grey levels are 0..255, of any type; computed in float32, or float64 if they are.
    """
    config = config or FarnebackConfig()
    _check_pair(previous, current)
    batch = len(previous)
    images = torch.cat([previous, current])[:, None]
    if images.dtype != torch.float64:
        images = images.to(torch.float32)
    height, width = images.shape[-2:]
    flow = images.new_zeros(batch, 2, 1, 1)
    for level in range(_levels(height, width, config), -1, -1):
        scale = config.pyramid_scale**level
        size = round(height * scale), round(width * scale)
        flow = _resize(flow, size) / config.pyramid_scale
        expansion = _expand(_resize(_smooth(images, scale), size), config)
        first, second = expansion[:batch], expansion[batch:]
        trust = _trust(size, images)
        for _ in range(config.iterations):
            flow = _solve(_mean(_equations(first, second, flow, trust), config.window))
    return flow


def _check_pair(previous: Tensor, current: Tensor) -> None:
    if previous.ndim != 3 or previous.shape != current.shape:
        raise ValueError(
            "expected two batches of images of the same shape (B, h, w), got "
            f"{tuple(previous.shape)} and {tuple(current.shape)}"
        )
    if previous.dtype != current.dtype or previous.device != current.device:
        raise ValueError(
            "expected images of one type on one device, got "
            f"{previous.dtype} on {previous.device} and {current.dtype} on {current.device}"
        )


def _levels(height: int, width: int, config: FarnebackConfig) -> int:
    """How many times the image is reduced."""
    level = 0
    while (
        level < config.levels
        and min(height, width) * config.pyramid_scale ** (level + 1) >= _SMALLEST_LEVEL_PX
    ):
        level += 1
    return level


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    return functional.interpolate(image, size, mode="bilinear", align_corners=False)


def _smooth(images: Tensor, scale: float) -> Tensor:
    """Blur before reducing by `scale`; a little at full size as well."""
    sigma = 0.5 * (1.0 / scale - 1.0)
    if sigma == 0.0:
        return _separable(images, [0.25, 0.5, 0.25])
    taps = max(round(5.0 * sigma) | 1, 3)
    return _separable(images, _gaussian(taps // 2, sigma))


def _gaussian(radius: int, sigma: float) -> list[float]:
    weights = [math.exp(-0.5 * (x / sigma) ** 2) for x in range(-radius, radius + 1)]
    return [weight / sum(weights) for weight in weights]


def _separable(images: Tensor, kernel: Sequence[float]) -> Tensor:
    """Filter rows and columns with one symmetric kernel, mirrored at the border."""
    return _mirrored(_mirrored(images, kernel, -2), kernel, -1)


def _mirrored(images: Tensor, kernel: Sequence[float], axis: int) -> Tensor:
    """Filter along an axis, mirrored at the border."""
    radius = len(kernel) // 2
    pad = (0, 0, radius, radius) if axis == -2 else (radius, radius, 0, 0)
    return _correlate(functional.pad(images, pad, mode="reflect"), kernel, axis)


def _correlate(padded: Tensor, kernel: Sequence[float], axis: int) -> Tensor:
    """sum_k kernel[k] padded[i + k] along an axis."""
    length = padded.shape[axis] - len(kernel) + 1
    total = padded.narrow(axis, 0, length) * kernel[0]
    for k, weight in enumerate(kernel[1:], start=1):
        if weight != 0.0:
            total.add_(padded.narrow(axis, k, length), alpha=weight)
    return total


def _expand(images: Tensor, config: FarnebackConfig) -> Tensor:
    """f(p + d) ~ c + b.d + d'A d about every pixel p: (B, 5, h, w) b_y, b_x, A_yy, A_xx, 2 A_xy.

    Least squares with Gaussian weights: the moments of the image times the inverse of the moments
    of the weights, in which only 1, x^2 and y^2 are coupled.
    """
    n = config.poly_n
    g = np.array(_gaussian(n, config.poly_sigma))
    x = np.arange(-n, n + 1)
    kernels = [(g * x**power).tolist() for power in range(3)]
    rows = functional.pad(images, (0, 0, n, n), mode="replicate")
    along_y = [_correlate(rows, kernel, -2) for kernel in kernels]
    padded = [functional.pad(moment, (n, n, 0, 0), mode="replicate") for moment in along_y]

    def moment(x_power: int, y_power: int) -> Tensor:
        return _correlate(padded[y_power], kernels[x_power], -1)

    second, fourth = float(g @ x**2), float(g @ x**4)
    coupled = np.array(
        [[1.0, second, second], [second, fourth, second**2], [second, second**2, fourth]]
    )
    inverse = np.linalg.inv(coupled)
    of_mean, of_own = float(inverse[0, 1]), float(inverse[1, 1])
    mean = moment(0, 0) * of_mean
    return torch.cat(
        [
            moment(0, 1) / second,
            moment(1, 0) / second,
            mean + moment(0, 2) * of_own,
            mean + moment(2, 0) * of_own,
            moment(1, 1) / second**2,
        ],
        dim=1,
    )


def _trust(size: tuple[int, int], like: Tensor) -> Tensor:
    """(h, w) weights that fall towards the border."""
    axes = []
    for length in size:
        weight = like.new_ones(length)
        edge = like.new_tensor(_BORDER_TRUST[:length])
        weight[: len(edge)] *= edge
        weight[length - len(edge) :] *= edge.flip(0)
        axes.append(weight)
    return axes[0][:, None] * axes[1]


def _equations(first: Tensor, second: Tensor, flow: Tensor, trust: Tensor) -> Tensor:
    """G d = h of every pixel: (B, 5, h, w) G_yy, G_xy, G_xx, h_y, h_x.

    A is the mean of both images' quadratic terms, taken in the second at the end of the flow so
    far, d0; then 2 A d = b_1 - b_2 + 2 A d0, and G = A'A, h = A'(...)/2.
    """
    moved, inside = _look_up(second, flow)
    quadratic = 0.5 * (first[:, 2:] + moved[:, 2:])
    quadratic = torch.where(inside, quadratic, first[:, 2:]) * trust
    a_yy, a_xx, a_xy = quadratic[:, 0], quadratic[:, 1], 0.5 * quadratic[:, 2]
    b_y, b_x = (0.5 * trust * (first[:, :2] - moved[:, :2])).unbind(1)
    d_x, d_y = flow.unbind(1)
    b_y = b_y + a_yy * d_y + a_xy * d_x
    b_x = b_x + a_xy * d_y + a_xx * d_x
    return torch.stack(
        [
            a_yy * a_yy + a_xy * a_xy,
            (a_yy + a_xx) * a_xy,
            a_xx * a_xx + a_xy * a_xy,
            a_yy * b_y + a_xy * b_x,
            a_xy * b_y + a_xx * b_x,
        ],
        dim=1,
    )


def _look_up(images: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Bilinear values at the end of the flow, and (B, 1, h, w) whether it ends inside; else 0."""
    height, width = flow.shape[-2:]
    x = flow[:, 0] + torch.arange(width, device=flow.device, dtype=flow.dtype)
    y = flow[:, 1] + torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None]
    inside = (x >= 0) & (x < width - 1) & (y >= 0) & (y < height - 1)
    at = torch.stack([x * (2.0 / (width - 1)) - 1.0, y * (2.0 / (height - 1)) - 1.0], dim=-1)
    at = torch.where(inside[..., None], at, 0.0)
    values = functional.grid_sample(images, at, mode="bilinear", align_corners=True)
    return torch.where(inside[:, None], values, 0.0), inside[:, None]


def _mean(values: Tensor, window: int) -> Tensor:
    """Mean over a square window; the border goes on outside."""
    r = window // 2
    columns = _sum(functional.pad(values, (0, 0, r, r), mode="replicate"), window, -2)
    return _sum(functional.pad(columns, (r, r, 0, 0), mode="replicate"), window, -1) / window**2


def _sum(padded: Tensor, count: int, axis: int) -> Tensor:
    """Sums of `count` neighbours along an axis, from sums of 1, 2, 4, ... of them."""
    length = padded.shape[axis] - count + 1
    block, size, start = padded, 1, 0
    total: Tensor | None = None
    while True:
        if count & size:
            part = block.narrow(axis, start, length)
            total = part if total is None else total + part
            start += size
        if start == count:
            assert total is not None
            return total
        pairs = block.shape[axis] - size
        block = block.narrow(axis, 0, pairs) + block.narrow(axis, size, pairs)
        size *= 2


def _solve(equations: Tensor) -> Tensor:
    """Solve G d = h, (B, 2, h, w) d_x, d_y."""
    g_yy, g_xy, g_xx, h_y, h_x = equations.unbind(1)
    determinant = g_yy * g_xx - g_xy * g_xy + _LEAST_DETERMINANT
    d = torch.stack([g_yy * h_x - g_xy * h_y, g_xx * h_y - g_xy * h_x], dim=1)
    return d / determinant[:, None]


# --- the canonical grid --------------------------------------------------------------------------


class DeviceFlow:
    """Grey images of one camera to flow on the canonical grid, on a device from end to end."""

    def __init__(
        self,
        view: CanonicalView,
        config: FarnebackConfig | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.view, self.config = view, config or FarnebackConfig()
        self.device = choose_device(device) if isinstance(device, str) else device
        self.mask = torch.from_numpy(view.mask.copy()).to(self.device)
        self._rows = _Sampler(view.y, self.device)
        self._columns = _Sampler(view.x, self.device)

    @torch.no_grad()
    def __call__(self, previous: Tensor, current: Tensor) -> Tensor:
        """Images (B, h, w), two batches -> flow (B, 2, rows, columns) in normalised units."""
        return self.to_grid(farneback(self.image(previous), self.image(current), self.config))

    @torch.no_grad()
    def image(self, images: Tensor) -> Tensor:
        """(B, h, w) images of the camera -> (B, h', w') of the canonical camera, float32."""
        if images.ndim != 3 or tuple(images.shape[1:]) != self.view.image_shape:
            raise ValueError(
                f"expected images of shape (B, *{self.view.image_shape}), "
                f"got {tuple(images.shape)}"
            )
        return self._warp(images.to(torch.float32)[:, None])[:, 0]

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
        camera = self.view.camera
        focal = flow.new_tensor([camera.fx, camera.fy])[:, None, None]
        return self._average(self._warp(flow) / focal)

    def upload(self, image: Image) -> Tensor:
        """Bring an image of the camera to the device, warped: (1, h', w')."""
        return self.image(torch.from_numpy(image.copy()).to(self.device)[None])

    def download(self, first: Tensor, second: Tensor) -> GridFlow:
        """The flow between two warped images, as NumPy."""
        flow = self.to_grid(farneback(first, second, self.config))[0]
        return GridFlow(flow.cpu().numpy(), self.view.mask, cell=self.view.grid.cell)

    def _warp(self, images: Tensor) -> Tensor:
        return self._columns(self._rows(images, -2), -1)

    def _average(self, normalised: Tensor) -> Tensor:
        view, k = self.view, self.view.pixels_per_cell
        width, height = view.grid.columns * k, view.grid.rows * k
        x, y = view.x, view.y
        # Negative padding crops the margin.
        edges = (
            x.first,
            width - x.first - x.count,
            y.first,
            height - y.first - y.count,
        )
        mean = functional.avg_pool2d(functional.pad(normalised, edges), k)
        return torch.where(self.mask, mean, 0.0)


class _Sampler:
    """Blur and linear interpolation along one axis."""

    def __init__(self, axis: Axis, device: torch.device) -> None:
        at = axis.offset + axis.scale * np.arange(axis.count)
        last = axis.stop - axis.start - 1
        at = np.clip(at, 0.0, last)
        below = np.floor(at).astype(np.int64)
        self.axis = axis
        self._below = torch.from_numpy(below).to(device)
        self._above = torch.from_numpy(np.minimum(below + 1, last)).to(device)
        self._share = torch.from_numpy((at - below).astype(np.float32)).to(device)

    def __call__(self, images: Tensor, dim: int) -> Tensor:
        """(..., h, w) -> resampled along dimension -2 or -1."""
        part = images.narrow(dim, self.axis.start, self.axis.stop - self.axis.start)
        if self.axis.radius:
            part = _mirrored(part, _gaussian(self.axis.radius, self.axis.sigma), dim)
        share = self._share[:, None] if dim == -2 else self._share
        below, above = part.index_select(dim, self._below), part.index_select(dim, self._above)
        return below + share * (above - below)
