"""Farneback's optical flow in torch: batched, on any device.

The flow is that of OpenCV's `calcOpticalFlowFarneback` with its box window, up to rounding and to
the border. Nothing leaves the device on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.gyro.flow import FarnebackConfig
from hydranet_ros.gyro.image_torch import (
    box_mean,
    check_pair,
    correlate,
    gaussian,
    look_up,
    mirrored,
    resized,
)

_SMALLEST_LEVEL_PX = 32
# Trust in the equations of the outermost pixels, whose neighbourhoods are half invented.
_BORDER_TRUST = (0.14, 0.14, 0.4472, 0.4472, 0.4472)
# Added to the determinant, in grey levels^4 per pixel^4: where there is no texture, no flow.
_LEAST_DETERMINANT = 1e-3


@torch.no_grad()
def farneback(previous: Tensor, current: Tensor, config: FarnebackConfig | None = None) -> Tensor:
    """Flow in pixels (B, 2, h, w) from grey images (B, h, w) to grey images (B, h, w).

    Grey levels are 0..255, of any type; computed in float32, or float64 if they are.
    """
    config = config or FarnebackConfig()
    check_pair(previous, current)
    batch = len(previous)
    images = torch.cat([previous, current])[:, None]
    if images.dtype != torch.float64:
        images = images.to(torch.float32)
    height, width = images.shape[-2:]
    flow = images.new_zeros(batch, 2, 1, 1)
    for level in range(_levels(height, width, config), -1, -1):
        scale = config.pyramid_scale**level
        size = round(height * scale), round(width * scale)
        flow = resized(flow, size) / config.pyramid_scale
        expansion = _expand(resized(_smooth(images, scale), size), config)
        first, second = expansion[:batch], expansion[batch:]
        trust = _trust(size, images.device, images.dtype)
        for _ in range(config.iterations):
            flow = _solve(box_mean(_equations(first, second, flow, trust), config.window))
    return flow


def _levels(height: int, width: int, config: FarnebackConfig) -> int:
    """How many times the image is reduced."""
    level = 0
    while (
        level < config.levels
        and min(height, width) * config.pyramid_scale ** (level + 1) >= _SMALLEST_LEVEL_PX
    ):
        level += 1
    return level


def _smooth(images: Tensor, scale: float) -> Tensor:
    """Blur before reducing by `scale`; a little at full size as well."""
    sigma = 0.5 * (1.0 / scale - 1.0)
    if sigma == 0.0:
        return _separable(images, [0.25, 0.5, 0.25])
    taps = max(round(5.0 * sigma) | 1, 3)
    return _separable(images, gaussian(taps // 2, sigma))


def _separable(images: Tensor, kernel: Sequence[float]) -> Tensor:
    """Filter rows and columns with one symmetric kernel, mirrored at the border."""
    return mirrored(mirrored(images, kernel, -2), kernel, -1)


def _expand(images: Tensor, config: FarnebackConfig) -> Tensor:
    """f(p + d) ~ c + b.d + d'A d about every pixel p: (B, 5, h, w) b_y, b_x, A_yy, A_xx, 2 A_xy.

    Least squares with Gaussian weights: the moments of the image times the inverse of the moments
    of the weights, in which only 1, x^2 and y^2 are coupled.
    """
    n = config.poly_n
    g = np.array(gaussian(n, config.poly_sigma))
    x = np.arange(-n, n + 1)
    kernels = [(g * x**power).tolist() for power in range(3)]
    rows = functional.pad(images, (0, 0, n, n), mode="replicate")
    along_y = [correlate(rows, kernel, -2) for kernel in kernels]
    padded = [functional.pad(moment, (n, n, 0, 0), mode="replicate") for moment in along_y]

    def moment(x_power: int, y_power: int) -> Tensor:
        return correlate(padded[y_power], kernels[x_power], -1)

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


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _trust(size: tuple[int, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """(h, w) weights that fall towards the border."""
    axes = []
    for length in size:
        weight = np.ones(length)
        edge = np.array(_BORDER_TRUST[:length])
        weight[: len(edge)] *= edge
        weight[length - len(edge) :] *= edge[::-1]
        axes.append(weight)
    return torch.from_numpy(np.outer(*axes)).to(device, dtype)


def _equations(first: Tensor, second: Tensor, flow: Tensor, trust: Tensor) -> Tensor:
    """G d = h of every pixel: (B, 5, h, w) G_yy, G_xy, G_xx, h_y, h_x.

    A is the mean of both images' quadratic terms, taken in the second at the end of the flow so
    far, d0; then 2 A d = b_1 - b_2 + 2 A d0, and G = A'A, h = A'(...)/2.
    """
    moved, inside = look_up(second, flow)
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


def _solve(equations: Tensor) -> Tensor:
    """Solve G d = h, (B, 2, h, w) d_x, d_y."""
    g_yy, g_xy, g_xx, h_y, h_x = equations.unbind(1)
    determinant = g_yy * g_xx - g_xy * g_xy + _LEAST_DETERMINANT
    d = torch.stack([g_yy * h_x - g_xy * h_y, g_xx * h_y - g_xy * h_x], dim=1)
    return d / determinant[:, None]
