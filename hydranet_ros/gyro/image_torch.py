"""Images in torch: filters, sizes, values between pixels; batched, on any device.

Filters are sums of shifted images and not convolutions, which recent GPUs round to 10 bits (TF32)
and may compute differently in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def check_pair(previous: Tensor, current: Tensor) -> None:
    """Raise a ValueError unless both are batches (B, h, w) of one shape, type and device."""
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


def resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, c, h, w) -> (B, c, *size), bilinear, pixels taken as areas."""
    return functional.interpolate(image, size, mode="bilinear", align_corners=False)


def gaussian(radius: int, sigma: float) -> list[float]:
    """2 radius + 1 weights that sum to 1."""
    weights = [math.exp(-0.5 * (x / sigma) ** 2) for x in range(-radius, radius + 1)]
    return [weight / sum(weights) for weight in weights]


def mirrored(images: Tensor, kernel: Sequence[float], axis: int) -> Tensor:
    """Filter along an axis, mirrored at the border."""
    radius = len(kernel) // 2
    pad = (0, 0, radius, radius) if axis == -2 else (radius, radius, 0, 0)
    return correlate(functional.pad(images, pad, mode="reflect"), kernel, axis)


def sobel(images: Tensor) -> tuple[Tensor, Tensor]:
    """(B, h, w) -> derivatives by x and y, in grey levels per pixel; mirrored at the border."""
    smooth, slope = (0.25, 0.5, 0.25), (-0.5, 0.0, 0.5)
    whole = images[:, None]
    return (
        mirrored(mirrored(whole, smooth, -2), slope, -1)[:, 0],
        mirrored(mirrored(whole, smooth, -1), slope, -2)[:, 0],
    )


def correlate(padded: Tensor, kernel: Sequence[float], axis: int) -> Tensor:
    """sum_k kernel[k] padded[i + k] along an axis."""
    length = padded.shape[axis] - len(kernel) + 1
    total = padded.narrow(axis, 0, length) * kernel[0]
    for k, weight in enumerate(kernel[1:], start=1):
        if weight != 0.0:
            total.add_(padded.narrow(axis, k, length), alpha=weight)
    return total


def box_mean(values: Tensor, window: int, mode: str = "replicate") -> Tensor:
    """Mean over a square window; at the border the image goes on, or is mirrored (`reflect`)."""
    r = window // 2
    columns = summed(functional.pad(values, (0, 0, r, r), mode=mode), window, -2)
    return summed(functional.pad(columns, (r, r, 0, 0), mode=mode), window, -1) / window**2


def summed(padded: Tensor, count: int, axis: int) -> Tensor:
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


def look_up(images: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Bilinear values at the end of the flow, and (B, 1, h, w) whether it ends inside; else 0."""
    height, width = flow.shape[-2:]
    x = flow[:, 0] + torch.arange(width, device=flow.device, dtype=flow.dtype)
    y = flow[:, 1] + torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None]
    inside = (x >= 0) & (x < width - 1) & (y >= 0) & (y < height - 1)
    at = torch.stack([x * (2.0 / (width - 1)) - 1.0, y * (2.0 / (height - 1)) - 1.0], dim=-1)
    at = torch.where(inside[..., None], at, 0.0)
    values = functional.grid_sample(images, at, mode="bilinear", align_corners=True)
    return torch.where(inside[:, None], values, 0.0), inside[:, None]
