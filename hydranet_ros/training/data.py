"""Data sets: made once, kept in files, and held in memory for a training.

There is a file of flow pairs per drive, in a folder that is named by a digest of the settings.

What is there is not made again, so that an interruption costs one drive and a second training
starts at once. The digest is of everything that the flow depends on. Where torchrun started
several processes, they share the drives out, and send each other what is not on a common disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from hydranet_ros import __version__
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.files import remove_left_behind
from hydranet_ros.geometry import lie
from hydranet_ros.gyro.config import FLOW_CHANNELS
from hydranet_ros.gyro.flow import FlowConfig
from hydranet_ros.gyro.predictor import network_input
from hydranet_ros.settings import dump
from hydranet_ros.simulation.street import LEFT, RIGHT
from hydranet_ros.training.config import DataConfig, TrainingConfig
from hydranet_ros.training.distributed import Processes
from hydranet_ros.training.pairs import (
    FlowPairs,
    exact_pairs,
    kitti_pairs,
    read_pairs,
    rendered_pairs,
    write_pairs,
)
from hydranet_ros.training.streets import FIRST_EXACT, STREETS_PER_TEXTURE, random_street
from hydranet_ros.training.worlds import random_world, strange_world

_PR_SET_PDEATHSIG = 1
_RENDERED, _EXACT, _LEFT, _RIGHT = _KINDS = ("rendered", "exact", "strange-left", "strange-right")


# --- in memory -----------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Flow (batch, 2, rows, columns), its mask, trusted and texture, C_2_1 as (batch, 4).

    mask and trusted are (batch, 1, rows, columns), texture (batch, 3, rows, columns).
    """

    flow: Tensor
    mask: Tensor
    target: Tensor
    trusted: Tensor
    texture: Tensor

    def inputs(self, channels: int) -> tuple[Tensor, ...]:
        """What the network takes, which has so many channels."""
        x = network_input(self.flow, self.mask[:, 0], channels, self.texture)
        return (x, self.trusted) if channels == FLOW_CHANNELS else (x,)


class FlowDataset:
    """Flow pairs of many drives, in float16 as they were stored: 230 kB each."""

    def __init__(self, drives: Sequence[FlowPairs]) -> None:
        if not any(len(drive) for drive in drives):
            raise HydraNetError("there are no pairs of images to learn from")
        self._cells = torch.from_numpy(np.concatenate([drive.cells for drive in drives]))
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
        mask = self._masks[self.drive[numbers]]
        return _batch(self._cells[numbers], mask, self.targets[numbers])

    def unusual(self, numbers: np.ndarray) -> Batch:
        """Unusual pairs by number; their targets mean nothing."""
        mask = self._masks[self._unusual_drive[numbers]]
        return _batch(self._unusual[numbers], mask, torch.zeros(len(numbers), 4))


def _batch(cells: Tensor, mask: Tensor, target: Tensor) -> Batch:
    single = cells.float()
    flow, trusted, texture = single[:, :2], single[:, 2:3], single[:, 3:]
    return Batch(flow, mask[:, None].float(), target, trusted, texture)


# --- in files ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Data:
    """Pairs to learn from, to validate on, and, from both cameras, to calibrate on."""

    training: FlowDataset
    validation: FlowDataset
    calibration: tuple[FlowDataset, FlowDataset] | None = None


def prepare(
    config: TrainingConfig,
    cache: Path,
    workers: int | None = None,
    processes: Processes | None = None,
) -> Data:
    """Make what is missing, and read all of it; each of the `processes` its part."""
    data, processes = config.data, processes or Processes()
    if data.kitti:
        return Data(
            _folders(config, cache, data.kitti, processes),
            _folders(config, cache, data.kitti_validation, processes),
        )
    jobs = _jobs(config, cache)
    mine = _mine([job.path for job in jobs], STREETS_PER_TEXTURE, processes)
    workers = workers or max(1, (os.cpu_count() or 1) // processes.here())
    _make([jobs[n] for n in mine], config, workers)
    processes.exchange([job.path for job in jobs])
    drives: dict[str, list[FlowPairs]] = {kind: [] for kind in _KINDS}
    for job in jobs:
        drives[job.kind].append(read_pairs(job.path))
    calibration = FlowDataset(drives[_LEFT]), FlowDataset(drives[_RIGHT])
    return Data(
        FlowDataset(drives[_RENDERED][: data.streets] + drives[_EXACT]),
        FlowDataset(drives[_RENDERED][data.streets :]),
        calibration if data.calibration_streets else None,
    )


def _folders(
    config: TrainingConfig, cache: Path, names: tuple[str, ...], processes: Processes
) -> FlowDataset:
    paths = [_folder_file(config, cache, name) for name in names]
    for number in _mine(paths, 1, processes):
        write_pairs(paths[number], kitti_pairs(config, names[number]))
    processes.exchange(paths)
    return FlowDataset([read_pairs(path) for path in paths])


def _mine(paths: Sequence[Path], together: int, processes: Processes) -> list[int]:
    """The numbers of files that nobody has and this process makes, up to so many in a row.

    Textures take longer than drives: those of one texture stay in one process.
    """
    known = frozenset[int]().union(*processes.have(paths))
    missing = [n for n in range(len(paths)) if n not in known]
    together = max(1, min(together, -(-len(missing) // processes.count)))
    rows = [missing[i : i + together] for i in range(0, len(missing), together)]
    return [n for row in rows[processes.rank :: processes.count] for n in row]


@dataclass(frozen=True)
class _Job:
    """A drive, and the file it belongs in."""

    kind: str
    number: int
    path: Path


def _jobs(config: TrainingConfig, cache: Path) -> list[_Job]:
    data, folder = config.data, _folder(cache, _street_settings(config))
    counts = {
        _RENDERED: data.streets + data.validation_streets,
        _EXACT: data.exact_streets,
        _LEFT: data.calibration_streets,
        _RIGHT: data.calibration_streets,
    }
    return [
        _Job(kind, n, folder / f"{kind}-{n:05d}.npz")
        for kind, count in counts.items()
        for n in range(count)
    ]


def _make(jobs: list[_Job], config: TrainingConfig, workers: int) -> None:
    """Render drives in parallel; one texture after the other in each worker."""
    if not jobs:
        return
    remove_left_behind(jobs[0].path.parent)
    make = partial(_make_one, config.seed, config.data)
    with _workers(min(workers, len(jobs))) as pool:
        with _uninterrupted_children():
            made = pool.map(make, jobs, chunksize=STREETS_PER_TEXTURE)
        for _ in tqdm(made, "render", len(jobs), unit="street", disable=None):
            pass


@contextmanager
def _workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, whatever ends it, and at once where it is interrupted."""
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")  # fork would copy the threads of torch
    pool = ProcessPoolExecutor(processes, spawn, _start_worker, (os.getpid(),))
    try:
        yield pool
        pool.shutdown()
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise HydraNetError(
                "a process that renders streets was ended from outside, perhaps for want of "
                "memory: start again, what is done is kept"
            ) from None
        raise


@contextmanager
def _uninterrupted_children() -> Iterator[None]:
    """Processes that are started here leave Ctrl-C to their parent, which gets it afterwards."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(parent: int) -> None:
    cv2.setNumThreads(1)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _make_one(seed: int, data: DataConfig, job: _Job) -> None:
    flow, frames = FlowConfig(data.flow), data.frames_per_street
    if job.kind == _RENDERED:
        world = random_world(seed, job.number, frames)
        pairs = rendered_pairs(world, flow, None, data.gaps, data.unusual)
    elif job.kind == _EXACT:
        street = random_street(seed, FIRST_EXACT + job.number, frames)
        pairs = exact_pairs(street, None, data.gaps)
    else:
        world = strange_world(seed, job.number, frames)
        right = job.kind == _RIGHT  # and backward in time, as the gyro uses it
        pairs = rendered_pairs(world, flow, None, (1,), 0, RIGHT if right else LEFT, right)
    write_pairs(job.path, pairs)


def _street_settings(config: TrainingConfig) -> dict[str, object]:
    data = config.data
    return {
        "seed": config.seed,
        "frames": data.frames_per_street,
        "gaps": data.gaps,
        "unusual": data.unusual,
        "flow": dump(FlowConfig(data.flow)),
    }


def _folder_file(config: TrainingConfig, cache: Path, name: str) -> Path:
    sequence = Path(name).resolve()
    settings = {"sequence": str(sequence), "preset": config.preset, **dump(config.data)}
    return _folder(cache, settings) / f"{sequence.name}.npz"


def _folder(cache: Path, settings: dict[str, object]) -> Path:
    text = json.dumps({"version": __version__, **settings}, sort_keys=True)
    folder = cache / hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be made: {error.strerror}: choose --cache") from None
    return folder


def default_cache() -> Path:
    """Where flow is kept: $XDG_CACHE_HOME/hydranet, or ~/.cache/hydranet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hydranet"
