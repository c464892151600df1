"""`predictor.Predictor` without torch: flow in, rotations with covariances out, by NumPy alone.

The same numbers within 1e-6 rad, and 1e-4 of the root of the covariance.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import FileError
from hydranet_ros.gyro.config import FLOW_CHANNELS, Calibration, NetworkConfig
from hydranet_ros.gyro.epipolar_numpy import Field, compiled
from hydranet_ros.gyro.grid import WELL_TEXTURED, FlowInputs
from hydranet_ros.gyro.network_numpy import FlowNetwork, flow_layout
from hydranet_ros.gyro.prediction import Prediction, combine, combine_pair, not_finite
from hydranet_ros.gyro.weights_file import FlowMethod, Layout, Provenance, read_file


class Heads(NamedTuple):
    """What the heads say: (batch, H, 4), and L with Sigma_a = L L^T, (batch, 3, 3)."""

    quaternions: NDArray[np.float64]
    root: NDArray[np.float64]


class NumpyPredictor:
    """A trained HydraNet on flow, on the CPU."""

    flow_device = "cpu"

    def __init__(self, weights: str | PathLike[str]) -> None:
        found = read_file(weights, _layout)
        self.config: NetworkConfig = found.config
        self.provenance: Provenance = found.provenance
        self._calibration: Calibration = found.calibration
        self._network = FlowNetwork(found.config, found.tensors)

    def __repr__(self) -> str:
        return f"NumpyPredictor({self.config.preset!r} on {self.device_name})"

    @property
    def device_name(self) -> str:
        """For logs and diagnostics."""
        return "cpu (NumPy)" if compiled is None else "cpu (NumPy, numba)"

    @property
    def flow_method(self) -> FlowMethod:
        """The flow to feed it with."""
        return self.provenance.flow

    def predict(
        self,
        flow: NDArray[Any],
        mask: NDArray[Any] | None = None,
        trusted: NDArray[Any] | None = None,
        texture: NDArray[Any] | None = None,
    ) -> Prediction:
        """Flow (batch, 2, rows, columns) and what is known of it (`FlowInputs`) -> C_2_1."""
        return combine(self._heads(FlowInputs(flow, mask, trusted, texture)), self._calibration)

    def predict_stereo(self, left: FlowInputs, right: FlowInputs) -> Prediction:
        """What `predict` takes, of both cameras of a rectified pair -> one estimate of both."""
        sides = [self._heads(side) for side in (left, right)]
        heads = Heads(*(np.concatenate(each) for each in zip(*sides, strict=True)))
        found = combine(heads, replace(self._calibration, floor_rad=0.0))
        return combine_pair(found, self._calibration)

    def _heads(self, given: FlowInputs) -> Heads:
        quaternions, roots = [], []
        for number, (x, trusted) in enumerate(network_inputs(given)):
            if not np.isfinite(x).all():
                raise not_finite(number)
            q, root = self._network(x, trusted)
            quaternions.append(q)
            roots.append(root)
        return Heads(np.stack(quaternions), np.stack(roots))


def network_inputs(given: FlowInputs) -> list[tuple[Field, Field | None]]:
    """Of each sample u, v, mask and texture (6, rows, columns), and the trusted cells."""
    flow = np.asarray(given.flow, dtype=np.float32)
    if flow.ndim != 4 or flow.shape[1] != 2:
        raise ValueError(f"flow must be (batch, 2, rows, columns), got {flow.shape}")
    cells = flow.shape[0], *flow.shape[2:]
    known = np.ones(cells, dtype=bool) if given.mask is None else np.asarray(given.mask) != 0
    trusted = None if given.trusted is None else np.asarray(given.trusted) != 0
    if given.texture is None:
        well = np.array([WELL_TEXTURED, 0.0, WELL_TEXTURED], dtype=np.float32)
        texture = np.broadcast_to(well[:, None, None], (len(flow), 3, *flow.shape[2:]))
    else:
        texture = np.asarray(given.texture, dtype=np.float32)
    for name, array, shape in (
        ("mask", known, cells),
        ("trusted", trusted, cells),
        ("texture", texture, (len(flow), 3, *flow.shape[2:])),
    ):
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} of flow {flow.shape} must be {shape}, got {array.shape}")
    x = np.zeros((len(flow), FLOW_CHANNELS, *flow.shape[2:]), dtype=np.float32)
    inside = known[:, None]
    x[:, :2], x[:, 2], x[:, 3:] = (
        np.where(inside, flow, 0.0),
        known,
        np.where(inside, texture, 0.0),
    )
    sure = [None] * len(x) if trusted is None else list(trusted.astype(np.float32))
    return list(zip(x, sure, strict=True))


def _layout(path: Path, config: NetworkConfig) -> Layout:
    if config.body != "flow":
        raise FileError(
            path,
            f"has a body {config.body!r}, which needs torch: pip install 'hydranet_ros[learning]'",
        )
    return flow_layout(config)
