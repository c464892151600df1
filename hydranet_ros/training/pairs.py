"""Pairs of images as a network sees them: flow on the canonical grid, and the true rotation.

From rendered streets, from streets with exact flow, and from KITTI folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.errors import FileError, HydraNetError, printable
from hydranet_ros.files import whole_file
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Image, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import read_npz
from hydranet_ros.gyro.flow import FlowConfig, FlowEstimator, farneback
from hydranet_ros.gyro.grid import WELL_TEXTURED, CanonicalGrid, CanonicalView, GridFlow
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import LEFT, Street
from hydranet_ros.training.config import TrainingConfig
from hydranet_ros.training.unreadable import KINDS
from hydranet_ros.training.worlds import WorldConfig, open_world

CELL_CHANNELS = 6  # of what is stored of a pair
_STRONGEST = 6e4  # texture that float16 can hold
LARGEST_PAIRS = 2 << 30  # bytes: all pairs of a sequence of KITTI


class FlowMethod(Protocol):
    """What turns two images into flow for a network."""

    mask: NDArray[np.bool_]

    def __call__(self, previous: Image, current: Image) -> GridFlow:
        """The flow from the previous image to the current one."""


@dataclass(frozen=True, eq=False)
class FlowPairs:
    """Flow fields of one camera on one drive, and the rotation C_2_1 = Exp(phi) behind each."""

    cells: NDArray[np.float16]  # (pairs, 6, rows, columns): u v, trusted, texture xx xy yy
    mask: NDArray[np.bool_]  # (rows, columns)
    phi: Array  # (pairs, 3), rad
    unusual: NDArray[np.float16]  # (any, 6, rows, columns), cells of unreadable pairs

    def __post_init__(self) -> None:
        shape = (CELL_CHANNELS, *self.mask.shape)
        if self.cells.shape != (len(self.phi), *shape) or self.phi.shape[1:] != (3,):
            raise ValueError(
                f"cells {self.cells.shape}, mask {self.mask.shape} and phi {self.phi.shape} "
                "do not belong together"
            )
        if self.unusual.shape[1:] != shape:
            raise ValueError(f"unusual pairs must be of cells {shape}, got {self.unusual.shape}")

    def __len__(self) -> int:
        return len(self.phi)


def image_pairs(
    images: Sequence[Image],
    T_w_c: Array,
    flow: FlowMethod,
    steps: Sequence[tuple[int, int]],
) -> FlowPairs:
    """The flow from image i to image j for each (i, j), in the order that was given."""
    found = [stored_cells(flow(images[i], images[j])) for i, j in steps]
    return _pairs(found, flow.mask, T_w_c, steps)


def stored_cells(found: GridFlow) -> NDArray[np.float16]:
    """(6, rows, columns): u v, trusted, texture xx xy yy, as they are kept.

    Flow that was not checked is trusted; texture that is not known is 0.
    """
    trusted = found.mask if found.trusted is None else found.trusted
    texture = np.zeros((3, *found.mask.shape)) if found.texture is None else found.texture
    cells = np.concatenate([found.flow, trusted[None], np.clip(texture, -_STRONGEST, _STRONGEST)])
    return np.where(found.mask, cells, 0.0).astype(np.float16)


def _pairs(
    cells: Sequence[NDArray[np.float16]],
    mask: NDArray[np.bool_],
    T_w_c: Array,
    steps: Sequence[tuple[int, int]],
) -> FlowPairs:
    first, second = np.array(steps, dtype=np.intp).reshape(-1, 2).T
    C_w_c = T_w_c[:, :3, :3]
    C_2_1 = lie.so3_inverse(C_w_c[second]) @ C_w_c[first]
    stack = np.array(cells, dtype=np.float16).reshape(-1, CELL_CHANNELS, *mask.shape)
    nothing = np.zeros((0, *stack.shape[1:]), dtype=np.float16)
    return FlowPairs(stack, np.array(mask), lie.so3_log(C_2_1), nothing)


def frame_steps(frames: int, gaps: Sequence[int], both_ways: bool = True) -> list[tuple[int, int]]:
    """(i, j) over all gaps; backwards as well, which doubles the data at no cost in images."""
    forward = [(i, i + gap) for gap in gaps for i in range(frames - gap)]
    return forward + [(j, i) for i, j in forward] if both_ways else forward


def rendered_pairs(
    config: WorldConfig,
    flow: FlowConfig | None = None,
    grid: CanonicalGrid | None = None,
    gaps: Sequence[int] = (1, 2, 3),
    unusual: int = 2,
    side: int = LEFT,
    backward: bool = False,
) -> FlowPairs:
    """A simulated drive, photographed by one of its cameras and put through the real flow.

    `unusual` pairs are made of each kind in `training.unreadable`. `backward` exchanges the images
    of every pair, so that pairs of two cameras can be put side by side.
    """
    world = open_world(config)
    images = [world.photograph(i, side) for i in range(len(world))]
    estimator = FlowEstimator(world.camera.left, images[0].shape, flow, grid)
    steps = frame_steps(len(images), gaps)
    steps = [(j, i) for i, j in steps] if backward else steps
    pairs = image_pairs(images, world.T_w_c, estimator, steps)
    rng = np.random.default_rng([config.seed, 3])
    return replace(pairs, unusual=_unusual_flows(images, estimator, unusual, rng))


def exact_pairs(
    config: StreetConfig, grid: CanonicalGrid | None = None, gaps: Sequence[int] = (1, 2, 3)
) -> FlowPairs:
    """A simulated drive with its exact flow, things that move included; no image is made.

    `training.augment` adds errors like those of real flow.
    """
    street = Street(config)
    view = CanonicalView(street.camera.left, (config.height, config.width), grid)
    steps = frame_steps(len(street), gaps)
    found = [view.camera_flow_to_grid(street.flow(i, j).vectors) for i, j in steps]
    textured = np.array([WELL_TEXTURED, 0.0, WELL_TEXTURED], dtype=np.float32)[:, None, None]
    texture = np.broadcast_to(textured, (3, *view.mask.shape))
    cells = [stored_cells(replace(each, texture=texture)) for each in found]
    return _pairs(cells, view.mask, street.T_w_c, steps)


def _unusual_flows(
    images: Sequence[Image], flow: FlowEstimator, each: int, rng: np.random.Generator
) -> NDArray[np.float16]:
    found = []
    for spoil in [*KINDS.values()] * each:
        i = int(rng.integers(len(images) - 1))
        found.append(stored_cells(flow(*spoil(images[i], images[i + 1], rng))))
    return np.array(found, dtype=np.float16).reshape(-1, CELL_CHANNELS, *flow.mask.shape)


def write_pairs(path: Path, pairs: FlowPairs) -> None:
    """Write a file, whole or not at all."""
    with whole_file(path) as file:
        np.savez(file, **{each.name: getattr(pairs, each.name) for each in fields(pairs)})


def read_pairs(path: Path) -> FlowPairs:
    """Read a file of `write_pairs`."""
    try:
        content: dict[str, Any] = {
            each.name: read_npz(path, each.name, "fb", largest=LARGEST_PAIRS)
            for each in fields(FlowPairs)
        }
        for name, value in content.items():
            if not np.isfinite(value).all():
                raise ValueError(f"{name} is not finite")
        return FlowPairs(**content)
    except FileError as error:
        raise FileError(path, f"{error.reason}: delete it, and it is made again") from None
    except ValueError as error:
        raise FileError(path, f"is no file of flow pairs ({error}): delete it") from None


# --- pairs from KITTI folders --------------------------------------------------------------------


class CroppedFlow:
    """The paper's input: images resized and centre-cropped, Farneback, in pixels."""

    def __init__(self, rows: int, columns: int) -> None:
        self.mask = np.ones((rows, columns), dtype=bool)

    def __call__(self, previous: Image, current: Image) -> GridFlow:
        """Flow in pixels of the small images."""
        flow = farneback(self._small(previous), self._small(current))
        return GridFlow(np.ascontiguousarray(np.moveaxis(flow, -1, 0)), self.mask)

    def _small(self, image: Image) -> Image:
        rows, columns = self.mask.shape
        scale = max(rows / image.shape[0], columns / image.shape[1])
        size = round(image.shape[1] * scale), round(image.shape[0] * scale)
        whole = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        top, left = (whole.shape[0] - rows) // 2, (whole.shape[1] - columns) // 2
        return np.ascontiguousarray(whole[top : top + rows, left : left + columns], dtype=np.uint8)


def kitti_pairs(config: TrainingConfig, folder: str) -> FlowPairs:
    """All pairs of a sequence, forwards and backwards."""
    source = KittiFolder(folder, cameras="mono")
    if source.T_w_c is None:
        raise HydraNetError(
            f"{folder}: has no ground truth to learn from: put it into poses.txt there, or into "
            "../../poses/NN.txt"
        )
    shown = tqdm(
        source, f"flow of {printable(source.name)}", len(source), unit="frame", disable=None
    )
    images = [frame.left for frame in shown]
    network = config.network_config()
    flow: FlowMethod
    if network.grid is None:
        flow = CroppedFlow(*network.input_shape[1:])
    else:
        camera = source.camera.left if isinstance(source.camera, StereoCamera) else source.camera
        height, width = images[0].shape
        method = FlowConfig(config.data.flow)
        try:
            flow = FlowEstimator(camera, (height, width), method, network.grid)
        except ValueError as error:
            raise HydraNetError(f"{folder}: {error}") from None
    steps = frame_steps(len(images), config.data.gaps)
    return image_pairs(images, source.T_w_c, flow, steps)
