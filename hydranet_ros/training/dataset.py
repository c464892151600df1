"""All pairs of a data set in memory, and batches of them by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.training.pairs import FlowPairs


class Batch(NamedTuple):
    """Flow (batch, 2, rows, columns), mask (batch, 1, rows, columns), C_2_1 as (batch, 4)."""

    flow: Tensor
    mask: Tensor
    target: Tensor


class FlowDataset:
    """Flow pairs of many drives, in float16 as they were stored: 30 kB each."""

    def __init__(self, drives: Sequence[FlowPairs]) -> None:
        if not any(len(drive) for drive in drives):
            raise HydraNetError("there are no pairs of images to learn from")
        self._flow = torch.from_numpy(np.concatenate([drive.flow for drive in drives]))
        self._masks = torch.from_numpy(np.array([drive.mask for drive in drives]))
        phi = np.concatenate([drive.phi for drive in drives])
        self.targets = torch.from_numpy(lie.quaternion_exp(phi)).to(torch.float32)
        self.drive = np.repeat(np.arange(len(drives)), [len(drive) for drive in drives])
        self._unusual = torch.from_numpy(np.concatenate([drive.unusual for drive in drives]))
        counts = [len(drive.unusual) for drive in drives]
        self._unusual_drive = np.repeat(np.arange(len(drives)), counts)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def unusual_count(self) -> int:
        """How many unusual pairs there are."""
        return len(self._unusual)

    def batch(self, numbers: np.ndarray) -> Batch:
        """Pairs by number, in float32."""
        mask = self._masks[self.drive[numbers]][:, None].float()
        return Batch(self._flow[numbers].float(), mask, self.targets[numbers])

    def unusual(self, numbers: np.ndarray) -> Tensor:
        """Unusual pairs as network inputs, u v mask."""
        mask = self._masks[self._unusual_drive[numbers]][:, None].float()
        return torch.cat([self._unusual[numbers].float(), mask], dim=1)
