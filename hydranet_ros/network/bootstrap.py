"""Bootstrap weights: which head takes how much of which sample, fixed for the whole training.

A weight is a hash of (seed, sample, head), so it needs no memory and is the same in every process
and epoch. Where samples never repeat, as in a simulated stream, number them by something coarser
that does (the street, the drive): otherwise all heads still see the same distribution.
"""

from __future__ import annotations

from math import exp, factorial

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

# P(Poisson(1) <= k); beyond 12 lies less than the resolution of a float32 weight can tell.
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
