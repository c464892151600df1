"""One process or several (torchrun): batches, batch norms and files of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.nn.functional as collective
from torch import Tensor, nn

from hydranet_ros.files import whole_file


@dataclass(frozen=True)
class Processes:
    """Which of how many this is."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this one prints and writes."""
        return self.rank == 0

    def share(self, size: int) -> slice:
        """The part of a batch that is this process's."""
        return slice(size * self.rank // self.count, size * (self.rank + 1) // self.count)

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            torch.distributed.barrier()

    def here(self) -> int:
        """How many of them share this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.count))

    def have(self, paths: Sequence[Path]) -> list[frozenset[int]]:
        """Which of the files each process can see, by their numbers."""
        mine = frozenset(n for n, path in enumerate(paths) if path.exists())
        if self.count == 1:
            return [mine]
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, mine, group=self._files)
        return found

    def exchange(self, paths: Sequence[Path]) -> None:
        """Let every process have all files, of which each is on one machine at least.

        Where all see the same disk there is nothing to send.
        """
        if self.count == 1:
            return
        known = self.have(paths)
        for number, path in enumerate(paths):
            owners = [rank for rank, have in enumerate(known) if number in have]
            if len(owners) == self.count:
                continue
            content = [path.read_bytes() if self.rank == owners[0] else None]
            torch.distributed.broadcast_object_list(content, owners[0], group=self._files)
            if not path.exists():
                assert content[0] is not None
                with whole_file(path) as file:
                    file.write(content[0])
        self.wait()

    @property
    def _files(self) -> torch.distributed.ProcessGroup:
        """Objects go between CPUs, also where gradients go between GPUs."""
        return _cpu_group()

    def model(self, network: nn.Module) -> nn.Module:
        """The network, with gradients averaged over the processes."""
        if self.count == 1:
            return network
        synchronise_batch_norms(network)
        return nn.parallel.DistributedDataParallel(network)


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Join those that torchrun started; alone where it did not."""
    if "WORLD_SIZE" not in os.environ:
        yield Processes()
        return
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        _cpu_group.cache_clear()
        torch.distributed.destroy_process_group()


@lru_cache(maxsize=1)
def _cpu_group() -> torch.distributed.ProcessGroup:
    return torch.distributed.new_group(backend="gloo")


def synchronise_batch_norms(module: nn.Module) -> None:
    """Let batch norms take their statistics over the batches of all processes, in place.

    torch's SyncBatchNorm is for GPUs alone; this one works wherever its collectives do.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            child.__class__ = _SharedBatchNorm2d
        else:
            synchronise_batch_norms(child)
        assert getattr(module, name) is child


class _SharedBatchNorm2d(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        mean = input.mean(dim=(0, 2, 3))
        square = input.square().mean(dim=(0, 2, 3))
        count = torch.distributed.get_world_size()
        both = torch.stack([mean, square])
        mean, square = collective.all_reduce(both) / count  # type: ignore[no-untyped-call]
        variance = (square - mean * mean).clamp_min(0.0)
        self._remember(mean.detach(), variance.detach(), count * input.numel() / len(mean))
        scale = torch.rsqrt(variance + self.eps) * self.weight
        shift = self.bias - mean * scale
        return input * scale[:, None, None] + shift[:, None, None]

    def _remember(self, mean: Tensor, variance: Tensor, samples: float) -> None:
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * samples / (samples - 1.0), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
