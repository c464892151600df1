"""Two frames compared on a device, from the images to the heads of the network.

Every image is brought there once. Its canonical image and texture stay for the next frame. Flow
forth and back of both cameras is one batch, and so is the network; what is asked of the images
besides, shares and a correlation, is computed there as well. One array comes back for a frame: the
shares, what the heads and the covariance head say, and the flow on the grid, which the memory and
pictures need. The mean of the heads and its covariance are made of that on the CPU, in double.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydranet_ros.geometry.camera import Camera, Frame, Image
from hydranet_ros.gyro.comparison import Compared, right_images
from hydranet_ros.gyro.epipolar import eigenvalues
from hydranet_ros.gyro.flow import FlowConfig, Prepared
from hydranet_ros.gyro.flow_torch import CellFlow, DeviceFlow
from hydranet_ros.gyro.grid import CanonicalGrid, CanonicalView, FlowInputs, GridFlow
from hydranet_ros.gyro.network import HydraOutput
from hydranet_ros.gyro.prediction import Prediction

if TYPE_CHECKING:
    from hydranet_ros.gyro.predictor import Predictor


class _OnDevice(NamedTuple):
    """A canonical image (1, h', w') and the structure tensor (1, 3, rows, columns)."""

    image: Tensor
    texture: Tensor


class DeviceComparison:
    """`comparison.Comparison` on the device of a predictor."""

    def __init__(
        self,
        camera: Camera,
        image_shape: tuple[int, int],
        config: FlowConfig,
        grid: CanonicalGrid,
        predictor: Predictor,
        stereo: bool,
    ) -> None:
        self.image_shape, self._predictor, self._stereo = image_shape, predictor, stereo
        self._view = CanonicalView(
            camera, image_shape, grid, config.pixels_per_cell, config.margin_cells
        )
        self._flow = DeviceFlow(self._view, config, predictor.device, config.method)
        self._images = [Prepared(self._brought) for _ in range(1 + stereo)]

    def __call__(self, first: Frame, second: Frame, min_texture: float) -> Compared:
        """The left camera forward in time, the right one, if there is, backward."""
        pairs = [self._images[0].pair(first.left, second.left)]
        if self._stereo:
            pairs.append(self._images[1].pair(*right_images(first, second)))
        packed = self._compared(pairs, min_texture).cpu().numpy()  # all that comes back
        return self._unpacked(packed)

    @torch.no_grad()
    def textured(self, image: Image, min_texture: float) -> float:
        """Share of the visible cells that are textured."""
        found = self._textured(self._images[0].one(image), min_texture)
        return float(found.sum() / self._view.mask.sum())

    # --- steps -----------------------------------------------------------------------------------

    @torch.no_grad()
    def _brought(self, image: Image) -> _OnDevice:
        canonical = self._flow.upload(image)
        return _OnDevice(canonical, self._flow.texture(canonical))

    def _textured(self, image: _OnDevice, min_texture: float) -> Tensor:
        """(rows, columns)."""
        return self._flow.mask & (eigenvalues(image.texture)[0][0] > min_texture**2)

    @torch.no_grad()
    def _compared(self, pairs: list[tuple[_OnDevice, _OnDevice]], min_texture: float) -> Tensor:
        """One vector: shares, correlation, the heads, the root, the flow, what is trusted."""
        start, end = (torch.cat([pair[k].image for pair in pairs]) for k in (0, 1))
        found = self._flow.between(start, end)
        texture = torch.cat([pair[0].texture for pair in pairs])
        mask = self._flow.mask.expand(len(pairs), -1, -1)
        heads = self._predictor.heads(FlowInputs(found.flow, mask, found.trusted, texture))
        left = pairs[0]
        trusted = self._flow.mask if found.trusted is None else found.trusted[0]
        parts = [
            self._judged(left, found, trusted, min_texture),
            *(each.flatten() for each in heads),
            found.flow[0].flatten(),
            trusted.flatten(),
        ]
        return torch.cat([each.to(torch.float32) for each in parts])

    def _judged(
        self, left: tuple[_OnDevice, _OnDevice], found: CellFlow, trusted: Tensor, least: float
    ) -> Tensor:
        """(3,): share of textured cells, of known ones among them, their median correlation."""
        textured = self._textured(left[1], least)
        known = textured & self._textured(left[0], least) & trusted
        alike = self._flow.correlation(left[0].image, left[1].image, found.flow[:1])[0]
        count, all_of_them = textured.sum(), self._flow.mask.sum()
        return torch.stack(
            [count / all_of_them, known.sum() / count.clamp_min(1), _median(alike, known)]
        )

    def _unpacked(self, packed: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Compared:
        batch, heads = 1 + self._stereo, self._predictor.config.heads
        rows, columns = self._view.mask.shape
        sizes = [3, batch * heads * 4, batch * 9, 2 * rows * columns]
        judged, quaternions, root, flow, trusted = np.split(packed, np.cumsum(sizes))
        output = HydraOutput(
            torch.from_numpy(quaternions).view(batch, heads, 4),
            torch.from_numpy(root).view(batch, 3, 3),
        )
        textured, known, alike = map(float, judged)

        def prediction() -> Prediction:
            return self._predictor.combined(output, self._stereo)

        return Compared(
            GridFlow(
                flow.reshape(2, rows, columns),
                self._view.mask,
                trusted.reshape(rows, columns) > 0.5,
                cell=self._view.grid.cell,
            ),
            textured,
            known,
            lambda: alike,
            prediction,
        )


def _median(values: Tensor, chosen: Tensor) -> Tensor:
    """Of those that are chosen, by position after sorting: no shape depends on how many."""
    ordered = torch.where(chosen, values, torch.inf).flatten().sort().values
    count = chosen.sum()
    middle = torch.stack([(count - 1).clamp_min(0) // 2, count // 2])
    return ordered[middle].mean()
