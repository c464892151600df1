"""KITTI folders to learn from, as the paper does, or on the canonical grid."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.errors import HydraNetError
from hydranet_ros.gyro.flow import FlowEstimator, farneback, unchecked_flow
from hydranet_ros.gyro.grid import CanonicalGrid, GridFlow
from hydranet_ros.training.config import TrainingConfig
from hydranet_ros.training.pairs import Flow, FlowPairs, frame_steps, image_pairs

Image = NDArray[np.uint8]


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
    source = KittiFolder(folder)
    if source.T_w_c is None:
        raise HydraNetError(
            f"{folder}: has no ground truth to learn from: put it into poses.txt there, or into "
            "../../poses/NN.txt"
        )
    shown = tqdm(source, f"flow of {source.name}", len(source), unit="frame", disable=None)
    images = [frame.left for frame in shown]
    network = config.network_config()
    flow: Flow
    if network.grid is None:
        flow = CroppedFlow(*network.input_shape[1:])
    else:
        flow = _grid_flow(source, images[0], config.data.flow, network.grid)
    steps = frame_steps(len(images), config.data.gaps)
    return image_pairs(images, source.T_w_c, flow, steps)


def _grid_flow(
    source: KittiFolder, image: Image, method: str, grid: CanonicalGrid
) -> FlowEstimator:
    height, width = image.shape
    return FlowEstimator(source.camera.left, (height, width), unchecked_flow(method), grid)
