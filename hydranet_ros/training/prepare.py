"""Data sets made once and kept: a file of flow pairs per drive, in a folder named by a digest.

What is there is not made again, so that an interruption costs one drive and a second training
starts at once. The digest is of everything that the flow depends on.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import cv2
from tqdm import tqdm

from hydranet_ros import __version__
from hydranet_ros.errors import FileError
from hydranet_ros.flow import FlowConfig
from hydranet_ros.training.config import DataConfig, TrainingConfig
from hydranet_ros.training.dataset import FlowDataset
from hydranet_ros.training.kitti import kitti_pairs
from hydranet_ros.training.pairs import read_pairs, rendered_pairs, write_pairs
from hydranet_ros.training.streets import STREETS_PER_TEXTURE, random_street


def prepare(
    config: TrainingConfig, cache: Path, processes: int | None = None
) -> tuple[FlowDataset, FlowDataset]:
    """The pairs to learn from and those to validate on."""
    if config.data.kitti:
        return _folders(config, cache, config.data.kitti), _folders(
            config, cache, config.data.kitti_validation
        )
    data = config.data
    files = _streets(config, cache, processes or os.cpu_count() or 1)
    drives = [read_pairs(path) for path in files]
    return FlowDataset(drives[: data.streets]), FlowDataset(drives[data.streets :])


def _folders(config: TrainingConfig, cache: Path, names: tuple[str, ...]) -> FlowDataset:
    drives = []
    for name in names:
        path = _folder_file(config, cache, name)
        if not path.exists():
            write_pairs(path, kitti_pairs(config, name))
        drives.append(read_pairs(path))
    return FlowDataset(drives)


def _streets(config: TrainingConfig, cache: Path, processes: int) -> list[Path]:
    """Render what is missing, in parallel; one texture after the other in each process."""
    data = config.data
    folder = _folder(cache, _street_settings(config))
    files = [folder / f"{n:05d}.npz" for n in range(data.streets + data.validation_streets)]
    missing = [n for n, path in enumerate(files) if not path.exists()]
    if not missing:
        return files
    make = partial(_make_street, folder, config.seed, data)
    spawn = multiprocessing.get_context("spawn")  # fork would copy the threads of torch
    with ProcessPoolExecutor(processes, spawn, cv2.setNumThreads, (1,)) as pool:
        made = pool.map(make, missing, chunksize=STREETS_PER_TEXTURE)
        for _ in tqdm(
            made,
            "render",
            len(files),
            initial=len(files) - len(missing),
            unit="street",
            disable=None,
        ):
            pass
    return files


def _make_street(folder: Path, seed: int, data: DataConfig, number: int) -> None:
    street = random_street(seed, number, data.frames_per_street)
    pairs = rendered_pairs(street, FlowConfig(data.flow), None, data.gaps, data.unusual)
    write_pairs(folder / f"{number:05d}.npz", pairs)


def _street_settings(config: TrainingConfig) -> dict[str, object]:
    data = config.data
    return {
        "seed": config.seed,
        "frames": data.frames_per_street,
        "gaps": data.gaps,
        "unusual": data.unusual,
        "flow": asdict(FlowConfig(data.flow)),
    }


def _folder_file(config: TrainingConfig, cache: Path, name: str) -> Path:
    sequence = Path(name).resolve()
    settings = {"sequence": str(sequence), "preset": config.preset, **asdict(config.data)}
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
