"""What a training minimises: how unlikely a target is under each head, and two ways to diversity.

    L = mean over heads and batch of  1/2 phi^T Sigma_a^-1 phi + 1/2 log det Sigma_a,
    phi = Log(q_head (x) q_target^-1)

without the constant 3/2 log 2 pi, as in the paper. Two more parts make the spread of the heads
mean something: `bootstrap_weights` gives each head its own share of the samples, and
`disagreement_loss` asks the heads to differ on pairs of images that no network can read.
"""

from __future__ import annotations

from math import exp, factorial

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, distributed

from hydranet_ros.gyro import quaternion
from hydranet_ros.gyro.network import HydraOutput
from hydranet_ros.training.config import LossConfig


def negative_log_likelihood(phi: Tensor, root: Tensor) -> Tensor:
    """1/2 |L^-1 phi|^2 + log det L: (batch, H, 3), (batch, 3, 3) -> (batch, H)."""
    (a, _, _), (d, b, _), (e, f, c) = (row.unbind(dim=-1) for row in root[:, None].unbind(dim=-2))
    x, y, z = phi.unbind(dim=-1)  # forward substitution
    x = x / a
    y = (y - d * x) / b
    z = (z - e * x - f * y) / c
    return 0.5 * (x * x + y * y + z * z) + torch.log(a) + torch.log(b) + torch.log(c)


def _mean_of_all(values: Tensor) -> Tensor:
    """The mean over the batches of all processes that train together."""
    mean = values.mean()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(mean)
        mean = mean / distributed.get_world_size()
    return mean


def loss(
    output: HydraOutput,
    target: Tensor,
    weights: Tensor | None = None,
    config: LossConfig | None = None,
) -> Tensor:
    """Mean over batch and heads, a scalar; target (batch, 4), bootstrap weights (batch, H)."""
    config = config or LossConfig()
    phi = quaternion.difference(output.quaternions, target[:, None])  # (batch, H, 3)
    if config.kind == "split":
        value = negative_log_likelihood(phi.detach(), output.root)
        value = value + 0.5 * (phi * phi).sum(dim=-1) / config.mean_sigma_rad**2
    else:
        value = negative_log_likelihood(phi, output.root)
    if config.beta > 0.0:
        log_det = 2.0 * output.root.detach().diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        share = torch.exp(config.beta / 3.0 * log_det)
        value = value * (share / _mean_of_all(share))[:, None]
    return (value if weights is None else value * weights).mean()


# --- bootstrap -----------------------------------------------------------------------------------
# Which head takes how much of which sample, fixed for the whole training. A weight is a hash of
# (seed, sample, head): it needs no memory and is the same in every process and epoch. Where
# samples never repeat, as in a simulated stream, number them by something coarser that does (the
# street, the drive): otherwise all heads still see the same distribution.

# P(Poisson(1) <= k); what lies beyond 12 is below the resolution of a float32 weight.
_POISSON = np.cumsum([exp(-1.0) / factorial(k) for k in range(12)])
_KEEP = 0.5  # of a Bernoulli weight, which is 0 or 1 / _KEEP


def bootstrap_weights(samples: ArrayLike, heads: int, kind: str, seed: int = 0) -> Tensor | None:
    """(batch) sample numbers -> (batch, heads) weights of mean 1; None for kind `none`."""
    if kind == "none":
        return None
    number = np.asarray(samples, dtype=np.int64).astype(np.uint64)
    start = _mix(np.array([seed % 2**64], dtype=np.uint64))
    uniform = _uniform(_mix(number + start)[:, None], heads)
    if kind == "poisson":
        weights = np.searchsorted(_POISSON, uniform).astype(np.float32)
    elif kind == "bernoulli":
        weights = (uniform < _KEEP).astype(np.float32) / np.float32(_KEEP)
    else:
        raise ValueError(f"bootstrap must be none, poisson or bernoulli, got {kind!r}")
    return torch.from_numpy(weights)


def _uniform(state: NDArray[np.uint64], heads: int) -> NDArray[np.float64]:
    """(batch, 1) -> (batch, heads) in [0, 1)."""
    bits = _mix(np.add(state, np.arange(1, heads + 1, dtype=np.uint64), dtype=np.uint64))
    return np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits: two rounds of xor-shift and odd multiplication, modulo 2^64."""
    x = x * np.uint64(0x9E3779B97F4A7C15)  # arrays, unlike scalars, wrap without a warning
    for shift, factor in ((32, 0xD6E8FEB86659FD93), (29, 0xCF1BBCDCB7A56463)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(32))


# --- disagreement --------------------------------------------------------------------------------

_TOLERANCE = 0.3  # of what heads should differ by: an error of this size costs 1/2 per axis


def head_offsets(heads: int, size_rad: float, seed: int) -> Tensor:
    """(heads, 3): how far each head should be from the mean of all on unreadable inputs.

    Random, of mean 0 and of this standard deviation about each axis.
    """
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.randn(heads, 3, generator=generator)
    offsets = offsets - offsets.mean(dim=0)
    return size_rad * offsets / offsets.std(dim=0)


def disagreement_loss(output: HydraOutput, offsets: Tensor) -> Tensor:
    """How far the heads are from their offsets, relative to them; the mean is free."""
    mean = quaternion.mean(output.quaternions)
    apart = quaternion.difference(output.quaternions, mean[:, None])
    scale = _TOLERANCE * offsets.std()
    # Linear for large errors: one outlier must not outweigh the rest of the batch.
    return torch.nn.functional.smooth_l1_loss(apart / scale, offsets.expand_as(apart) / scale)
