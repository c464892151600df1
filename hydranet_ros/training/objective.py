"""What is minimised: the network's loss, and disagreement where there is nothing to agree on."""

from __future__ import annotations

import torch
from torch import Tensor

from hydranet_ros.gyro import quaternion
from hydranet_ros.gyro.network import HydraOutput

_TOLERANCE = 0.3  # of what heads should differ by: an error of this size costs 1/2 per axis


def own_opinions(heads: int, size_rad: float, seed: int) -> Tensor:
    """(heads, 3): where each head should stand from the mean of all on unusual inputs.

    Random, of mean 0 and of this standard deviation about each axis.
    """
    generator = torch.Generator().manual_seed(seed)
    opinions = torch.randn(heads, 3, generator=generator)
    opinions = opinions - opinions.mean(dim=0)
    return size_rad * opinions / opinions.std(dim=0)


def disagreement_loss(output: HydraOutput, opinions: Tensor) -> Tensor:
    """How far heads are from their own opinions, relative to them; the mean is left free."""
    mean = quaternion.mean(output.quaternions)
    apart = quaternion.difference(output.quaternions, mean[:, None])
    scale = _TOLERANCE * opinions.std()
    # Not squared where it is far off: a wild anchor must not drown the rest of the batch.
    return torch.nn.functional.smooth_l1_loss(apart / scale, opinions.expand_as(apart) / scale)
