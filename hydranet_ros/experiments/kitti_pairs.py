"""KITTI sequences as the paper's network saw them: Farneback flow of small grey squares.

    DATASET/sequences/NN/image_2 (colour) or image_0 (grey), and DATASET/poses/NN.txt

Flow is in pixels of the small image and not normalised; the target is C_2_1 of the official poses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydranet_ros import lie
from hydranet_ros.commands.output import progress
from hydranet_ros.errors import FileError
from hydranet_ros.experiments.frames import read_square
from hydranet_ros.flow import farneback
from hydranet_ros.sources import IMAGE_SUFFIXES
from hydranet_ros.trajectory import read_trajectory


@dataclass(frozen=True, eq=False)
class Pairs:
    """Flow (pairs, 2, size, size) in pixels, and C_2_1 as quaternions (pairs, 4)."""

    flow: NDArray[np.float16]
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def inputs(self, numbers: Sequence[int]) -> Tensor:
        """(batch, 2, size, size)."""
        return torch.from_numpy(self.flow[list(numbers)].astype(np.float32))

    def part(self, start: float, end: float) -> Pairs:
        """The pairs between two shares of the whole, in time."""
        rows = slice(round(start * len(self)), round(end * len(self)))
        return Pairs(self.flow[rows], self.targets[rows])


def joined(parts: Sequence[Pairs]) -> Pairs:
    """Several sequences as one set."""
    flow = np.concatenate([part.flow for part in parts])
    return Pairs(flow, torch.cat([part.targets for part in parts]))


def find_sequences(dataset: Path) -> list[str]:
    """The names of the sequences that have images and poses."""
    folder = dataset / "sequences"
    if not folder.is_dir():
        raise FileError(folder, "is missing: --dataset names the folder of KITTI odometry")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = [name for name in names if (dataset / "poses" / f"{name}.txt").is_file()]
    if not names:
        raise FileError(dataset / "poses", "has no poses for the sequences: download them as well")
    return names


def read_pairs(dataset: Path, name: str, size: int, most: int | None, reverse: bool) -> Pairs:
    """Flow between consecutive frames; with `reverse`, also with the images swapped.

    The swapped pair has the inverse rotation: twice the data, and no preferred direction.
    """
    paths = _images(dataset / "sequences" / name)[:most]
    truth = read_trajectory(dataset / "poses" / f"{name}.txt")
    if len(truth) < len(paths):
        raise FileError(truth.name, f"has {len(truth)} poses for {len(paths)} images")
    images = (read_square(path, size, colour=False) for path in paths)
    forward, backward, before = [], [], None
    for image in progress(images, len(paths), f"flow of {name}"):
        if before is not None:
            forward.append(farneback(before, image))
            if reverse:
                backward.append(farneback(image, before))
        before = image
    C_2_1 = truth.T_2_1[: len(forward), :3, :3]
    rotations = np.concatenate([C_2_1, lie.so3_inverse(C_2_1)]) if reverse else C_2_1
    flow = np.moveaxis(np.array(forward + backward, dtype=np.float16), -1, 1)
    targets = torch.tensor(lie.quaternion_from_matrix(rotations), dtype=torch.float32)
    return Pairs(np.ascontiguousarray(flow), targets)


def _images(folder: Path) -> list[Path]:
    for camera in ("image_2", "image_0"):
        if (folder / camera).is_dir():
            found = (folder / camera).iterdir()
            return sorted(path for path in found if path.suffix.lower() in IMAGE_SUFFIXES)
    raise FileError(folder / "image_2", "is missing, and so is image_0: unpack the images")
