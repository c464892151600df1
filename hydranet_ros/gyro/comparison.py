"""Two frames compared: the flow between them, whether it tells anything, the network's rotation.

On the CPU, with OpenCV's flow; `comparison_torch` does the same on a device to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hydranet_ros.geometry.camera import Camera, Frame, Image
from hydranet_ros.gyro.flow import FlowConfig, FlowEstimator
from hydranet_ros.gyro.grid import CanonicalGrid, FlowInputs, GridFlow
from hydranet_ros.gyro.prediction import Prediction

if TYPE_CHECKING:
    from hydranet_ros.gyro.predictor import Predictor
    from hydranet_ros.gyro.predictor_numpy import NumpyPredictor

    AnyPredictor = Predictor | NumpyPredictor


@dataclass(frozen=True, eq=False)
class Compared:
    """What two frames tell; shares are of cells of the (left) camera's grid."""

    flow: GridFlow  # of the (left) camera
    textured: float  # share of the visible cells that are textured in the second image
    known: float  # share of these that are textured in the first as well, and trusted
    alike: Callable[[], float]  # median correlation of the images along the flow, in known cells
    prediction: Callable[[], Prediction]


class Comparison(Protocol):
    """Compare frames of one camera, or of both of a pair."""

    @property
    def image_shape(self) -> tuple[int, int]:
        """(height, width) of the images."""

    def __call__(self, first: Frame, second: Frame, min_texture: float) -> Compared:
        """The left camera forward in time, the right one, if there is, backward."""

    def textured(self, image: Image, min_texture: float) -> float:
        """Share of the visible cells that are textured."""


def right_images(first: Frame, second: Frame) -> tuple[Image, Image]:
    """Those of the second camera, whose flow goes backward in time."""
    assert first.right is not None
    assert second.right is not None
    return second.right, first.right


class HostComparison:
    """`Comparison` with OpenCV's flow, whatever computes the network."""

    def __init__(
        self,
        camera: Camera,
        image_shape: tuple[int, int],
        config: FlowConfig,
        grid: CanonicalGrid,
        predictor: AnyPredictor,
        stereo: bool,
    ) -> None:
        self.image_shape, self._predictor = image_shape, predictor
        self._flows = [FlowEstimator(camera, image_shape, config, grid) for _ in range(1 + stereo)]
        self._beside = ThreadPoolExecutor(1, "right_flow") if stereo else None

    def __call__(self, first: Frame, second: Frame, min_texture: float) -> Compared:
        """The left camera forward in time, the right one, if there is, backward."""
        left = self._flows[0]
        flows = self._both(first, second) if self._beside else [left(first.left, second.left)]
        flow = flows[0]
        textured = left.mask & (left.texture(second.left) > min_texture)
        known = textured & (left.texture(first.left) > min_texture)
        known = known if flow.trusted is None else known & flow.trusted

        def alike() -> float:
            return float(np.median(left.correlation(first.left, second.left, flow)[known]))

        def prediction() -> Prediction:
            inputs = [_network_inputs(each) for each in flows]
            if len(inputs) > 1:
                return self._predictor.predict_stereo(*inputs)
            return self._predictor.predict(*inputs[0])

        count = int(textured.sum())
        return Compared(
            flow,
            float(count / left.mask.sum()),
            float(known.sum() / max(count, 1)),
            alike,
            prediction,
        )

    def _both(self, first: Frame, second: Frame) -> list[GridFlow]:
        """The right camera's flow beside the left one's: OpenCV leaves Python alone meanwhile."""
        assert self._beside is not None
        right = self._beside.submit(self._flows[1], *right_images(first, second))
        try:
            left = self._flows[0](first.left, second.left)
        finally:
            wait([right])
        return [left, right.result()]

    def textured(self, image: Image, min_texture: float) -> float:
        """Share of the visible cells that are textured."""
        left = self._flows[0]
        textured = left.mask & (left.texture(image) > min_texture)
        return float(textured.sum() / left.mask.sum())


def _network_inputs(each: GridFlow) -> FlowInputs:
    trusted = None if each.trusted is None else each.trusted[None]
    texture = None if each.texture is None else each.texture[None]
    return FlowInputs(each.flow[None], each.mask[None], trusted, texture)
