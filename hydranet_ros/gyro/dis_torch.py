"""Dense inverse search (Kroeger et al., 2016) in torch: batched, on any device.

On each level of a pyramid the image is cut into overlapping patches. A patch T with gradient g is
looked for in the other image I by steps of

    u <- u - gain H^-1 sum g (d - mean d),   d = I(x + u) - T,   H = sum g g^T,

until d grows. All patches of a level are followed at once, those of all images too. Then the flow
of a pixel is the mean over its patches, weighted by 1 / max(1, |d|), and begins the next level.

OpenCV's search visits patches one after the other: each begins where its left or its upper
neighbour has just ended, if that fits better than its own start; then all again from the other
end. On a device that order would leave one patch at a time to work on. But what it ends with is
the fixed point of u_i = steps(best of start_i, u_left, u_up), and Jacobi's sweeps, each of all
patches at once, lead to the same: after k sweeps a patch knows of k neighbours in a row. Starts
stay what they were from sweep to sweep; with the last value as the start another point is reached.
So the flow is that of OpenCV's `DISOpticalFlow` without variational refinement, up to rounding,
the last rows and columns, and what `SWEEPS` leave.

Nothing here waits for the device: no value is read, and no shape depends on one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.gyro.flow import DisConfig
from hydranet_ros.gyro.image_torch import check_pair, resized, sobel

SWEEPS = 8
"""Jacobi sweeps from either end.

On 21 real pairs (KITTI 09, EuRoC, TUM) the mean difference from OpenCV in cells that both trust is
0.14 px with 2, 0.08 with 4, 0.065 with 8, 0.060 with 12 and with 16.
"""

_GAIN = 0.125  # OpenCV's gradients are sums of Sobel's kernel, 8 times too large: H is 64 times
_STRIPES = 8  # bands of patches between which OpenCV hands nothing on
_LEAST_DETERMINANT = 1e-3 / 8**4
_NEVER = 3e38  # more than any sum of squares


@torch.no_grad()
def dis(previous: Tensor, current: Tensor, config: DisConfig | None = None) -> Tensor:
    """Flow in pixels (B, 2, h, w) from grey images (B, h, w) to grey images (B, h, w).

    Grey levels are whole numbers 0..255, of any type; computed in float32.
    """
    config = config or DisConfig()
    first, second = _prepared(previous, current, config)
    coarsest = _coarsest(first.shape[1:], config.patch_size)
    finest = min(config.finest_scale, coarsest)
    found = _descend(first, second, config, coarsest, finest, None)
    return _enlarged(found, finest, first.shape[1:])


@torch.no_grad()
def dis_both_ways(
    previous: Tensor, current: Tensor, config: DisConfig | None = None
) -> tuple[Tensor, Tensor]:
    """The flow from previous to current and the flow back, (B, 2, h, w) each, in one batch.

    The flow back ends `back_scale` levels earlier; the levels that both have are one batch.
    """
    config = config or DisConfig()
    first, second = _prepared(previous, current, config)
    size = first.shape[1:]
    coarsest = _coarsest(size, config.patch_size)
    finest = min(config.finest_scale, coarsest)
    last = min(config.finest_scale + config.back_scale, coarsest)
    both = torch.cat([first, second]), torch.cat([second, first])
    found = _descend(*both, config, coarsest, last, None)
    forth, back = found[: len(first)], found[len(first) :]
    if finest < last:
        forth = _descend(first, second, config, last - 1, finest, forth)
    return _enlarged(forth, finest, size), _enlarged(back, last, size)


def _prepared(previous: Tensor, current: Tensor, config: DisConfig) -> tuple[Tensor, Tensor]:
    check_pair(previous, current)
    if config.refinements:
        raise ValueError(
            f"dis_torch has no variational refinement: refinements must be 0, got "
            f"{config.refinements}; or use method 'dis'"
        )
    return previous.to(torch.float32), current.to(torch.float32)


def _coarsest(size: tuple[int, ...], patch: int) -> int:
    """How often an image is halved: to about four patches, and never below one."""
    wanted = math.log2(max(size) / (4.0 * patch)) + 0.5
    return max(int(min(wanted, math.log2(min(size) / patch))), 0)


def _descend(
    first: Tensor,
    second: Tensor,
    config: DisConfig,
    coarsest: int,
    finest: int,
    flow: Tensor | None,
) -> Tensor:
    """From level to level, from nothing or from the flow of the level before."""
    pyramid = [torch.stack([first, second])]
    for _ in range(coarsest):
        pyramid.append(_halved(pyramid[-1]))
    for level in range(coarsest, finest - 1, -1):
        here = _patches(pyramid[level][0], pyramid[level][1], config)
        rows, columns = here.template.shape[1:3]
        if flow is None:
            start = first.new_zeros(len(first), rows, columns, 2)
        else:
            flow = 2.0 * resized(flow, (here.height, here.width))
            middle, stride = config.patch_size // 2, config.patch_stride
            centres = flow[:, :, middle::stride, middle::stride][:, :, :rows, :columns]
            start = centres.permute(0, 2, 3, 1)
        flow = _densified(here, _searched(here, start, config.iterations // 2))
    assert flow is not None
    return flow


def _enlarged(flow: Tensor, scale: int, size: tuple[int, ...]) -> Tensor:
    return flow if scale == 0 else 2.0**scale * resized(flow, (size[0], size[1]))


# --- a level -------------------------------------------------------------------------------------


class _Patches(NamedTuple):
    """The patches of a level, (B, rows, columns, n, n), and the image they are looked for in."""

    template: Tensor
    gradient: tuple[Tensor, Tensor]  # about their means
    inverse: tuple[Tensor, Tensor, Tensor]  # H^-1 as xx, xy, yy, (B, rows, columns)
    windows: Tensor  # (B, h', w', n + 1, n + 1): what begins at each pixel, a view
    x: Tensor  # (columns,) left edges of the patches
    y: Tensor  # (rows, 1)
    stride: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """Edge of a patch."""
        return self.template.shape[-1]


def _patches(first: Tensor, second: Tensor, config: DisConfig) -> _Patches:
    size, stride = config.patch_size, config.patch_stride
    template, g_x, g_y = (
        each.unfold(1, size, stride).unfold(2, size, stride).contiguous()
        for each in (first, *sobel(first))
    )
    xx, xy, yy = _sum(g_x * g_x), _sum(g_x * g_y), _sum(g_y * g_y)
    scale = 1.0 / (xx * yy - xy * xy).clamp_min(_LEAST_DETERMINANT)
    padded = functional.pad(second[:, None], (size + 1,) * 4, mode="replicate")[:, 0]
    rows, columns = template.shape[1:3]
    number = torch.arange(max(rows, columns), device=first.device)
    return _Patches(
        template,
        (_centred(g_x), _centred(g_y)),
        (yy * scale, -xy * scale, xx * scale),
        padded.unfold(1, size + 1, 1).unfold(2, size + 1, 1),
        stride * number[:columns],
        stride * number[:rows, None],
        stride,
        *first.shape[1:],
    )


def _difference(here: _Patches, u: Tensor) -> Tensor:
    """I(x + u) - T, bilinear, (B, rows, columns, n, n); the border goes on outside."""
    x = (here.x + u[..., 0]).clamp(-here.size, here.width)
    y = (here.y + u[..., 1]).clamp(-here.size, here.height)
    left, top = x.floor(), y.floor()
    image = torch.arange(len(u), device=u.device)[:, None, None]
    offset = here.size + 1
    window = here.windows[image, top.long() + offset, left.long() + offset]
    across, down = (x - left)[..., None, None], (y - top)[..., None, None]
    row = torch.lerp(window[..., :-1], window[..., 1:], across)
    return torch.lerp(row[..., :-1, :], row[..., 1:, :], down) - here.template


def _searched(here: _Patches, start: Tensor, iterations: int) -> Tensor:
    """(B, rows, columns, 2): from the left and from above, then from the right and from below."""
    u = start
    for side in (1, -1):
        u = _swept(here, u, side, iterations)
    # A patch that went further than its own size has found something else.
    near = (u - start).square().sum(dim=-1, keepdim=True) <= here.size**2
    return torch.where(near, u, start)


def _swept(here: _Patches, start: Tensor, side: int, iterations: int) -> Tensor:
    """The fixed point of u = steps(best of start, left neighbour, upper neighbour)."""
    rows, columns = start.shape[1:3]
    edge = _begins(columns, columns, side, start.device)[None, :, None]
    above = _begins(rows, -(-rows // _STRIPES), side, start.device)[:, None, None]
    own = _centred(_difference(here, start))
    u = start
    for _ in range(SWEEPS):
        found, d, least = start, own, _sum(own * own)
        for axis, outside in ((2, edge), (1, above)):
            other = torch.where(outside, start, u.roll(side, axis))
            its = _centred(_difference(here, other))
            square = _sum(its * its)
            better = square < least
            found = torch.where(better[..., None], other, found)
            d = torch.where(better[..., None, None], its, d)
            least = torch.where(better, square, least)
        u = _stepped(here, found, d, iterations)
    return u


def _begins(count: int, band: int, side: int, device: torch.device) -> Tensor:
    """(count,): which have no neighbour in their band, on the left (1) or on the right (-1)."""
    number = torch.arange(count, device=device)
    if side == 1:
        return number % band == 0
    return ((number + 1) % band == 0) | (number + 1 == count)


def _stepped(here: _Patches, u: Tensor, d: Tensor, iterations: int) -> Tensor:
    """Steps of descent; a patch goes on until its difference has grown."""
    (g_x, g_y), (xx, xy, yy) = here.gradient, here.inverse
    goes_on = torch.ones_like(xx, dtype=torch.bool)
    last = torch.full_like(xx, _NEVER)
    for number in range(iterations):
        if number > 0:
            d = _centred(_difference(here, u))
        b_x, b_y = _sum(g_x * d), _sum(g_y * d)
        step = torch.stack([xx * b_x + xy * b_y, xy * b_x + yy * b_y], dim=-1)
        u = torch.where(goes_on[..., None], u - _GAIN * step, u)
        square = _sum(d * d)
        goes_on = goes_on & (square < last)
        last = square
    return u


def _densified(here: _Patches, u: Tensor) -> Tensor:
    """(B, 2, h, w): the mean over the patches of a pixel; what no patch reaches is the nearest."""
    size, stride = here.size, here.stride
    rows, columns = u.shape[1:3]
    weight = 1.0 / _difference(here, u).abs().clamp_min(1.0)
    parts = torch.stack([weight, *(weight * each[..., None, None] for each in u.unbind(-1))], 1)
    reached = (rows - 1) * stride + size, (columns - 1) * stride + size
    blocks = parts.permute(0, 1, 4, 5, 2, 3).reshape(len(u), 3 * size**2, rows * columns)
    sums = functional.fold(blocks, reached, size, stride=stride)
    rest = 0, here.width - reached[1], 0, here.height - reached[0]
    return functional.pad(sums[:, 1:] / sums[:, :1], rest, mode="replicate")


# --- images --------------------------------------------------------------------------------------


def _halved(images: Tensor) -> Tensor:
    """(..., h, w) -> (..., h // 2, w // 2): means over areas, as whole grey levels."""
    for axis in (-2, -1):
        pixels, shares = _areas(images.shape[axis], images.device)
        shape = (-1, 1) if axis == -2 else (-1,)
        parts = [
            share.view(shape) * images.index_select(axis, pixel)
            for pixel, share in zip(pixels, shares, strict=True)
        ]
        images = torch.stack(parts).sum(dim=0)
    return torch.round(images)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _areas(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(4, length // 2): the pixels that those of the smaller image cover, and their shares."""
    count = length // 2
    edges = np.arange(count + 1) * (length / count)
    pixel = np.floor(edges[:-1]).astype(np.int64) + np.arange(4)[:, None]
    shares = np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel)
    weights = np.maximum(shares, 0.0) * (count / length)
    return (
        torch.from_numpy(np.minimum(pixel, length - 1)).to(device),
        torch.from_numpy(weights.astype(np.float32)).to(device),
    )


def _sum(patches: Tensor) -> Tensor:
    return patches.sum(dim=(-1, -2))


def _centred(patches: Tensor) -> Tensor:
    return patches - patches.mean(dim=(-1, -2), keepdim=True)
