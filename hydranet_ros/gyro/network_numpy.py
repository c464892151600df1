"""The forward pass of `network.HydraNet` with the body for flow, in NumPy.

For machines without torch. One flow field at a time; float32 where torch has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.gyro import epipolar_numpy as epipolar
from hydranet_ros.gyro.config import NetworkConfig
from hydranet_ros.gyro.epipolar_numpy import CameraMotion, Cells, Field, Residuals
from hydranet_ros.gyro.grid import CanonicalGrid
from hydranet_ros.gyro.search_settings import (
    DEEP,
    FLOW_UNIT,
    NOISE_UNIT,
    PRIOR_COLUMNS,
    PRIOR_ROWS,
    QUALITIES,
    REFINED_SCALE,
    REFINEMENTS,
    RESIDUAL_UNIT,
    STATISTICS,
    TEXTURE_UNIT,
)

Tensors = Mapping[str, NDArray[np.generic]]
_NORM_EPSILON = 1e-5  # torch's, of a batch norm


class Convolution:
    """3x3 or 1x1, with the batch norm after it folded in."""

    def __init__(
        self, tensors: Tensors, name: str, norm: str = "", stride: int = 1, dilation: int = 1
    ) -> None:
        weight = np.asarray(tensors[f"{name}.weight"], dtype=np.float64)
        bias = np.asarray(tensors[f"{name}.bias"], dtype=np.float64)
        if norm:
            variance, mean, gain, shift = (
                np.asarray(tensors[f"{norm}.{part}"], dtype=np.float64)
                for part in ("running_var", "running_mean", "weight", "bias")
            )
            gain = gain / np.sqrt(variance + _NORM_EPSILON)
            weight, bias = weight * gain[:, None, None, None], (bias - mean) * gain + shift
        self._size = weight.shape[-1]
        # Products with rows of (taps, channels) read memory in order.
        by_tap = weight.transpose(0, 2, 3, 1).reshape(len(weight), -1)
        self._weight = np.ascontiguousarray(by_tap, dtype=np.float32)
        self._bias = bias.astype(np.float32)[:, None]
        self._stride, self._dilation = stride, dilation

    def __call__(self, x: Field) -> Field:
        """(inputs, rows, columns) -> (outputs, rows / stride, columns / stride)."""
        channels, rows, columns = x.shape
        if self._size == 1:
            out = self._weight @ x.reshape(channels, -1)
            out += self._bias
            return out.reshape(-1, rows, columns)
        d, s = self._dilation, self._stride
        padded = np.zeros((channels, rows + 2 * d, columns + 2 * d), dtype=np.float32)
        padded[:, d:-d, d:-d] = x
        high, wide = (rows + s - 1) // s, (columns + s - 1) // s
        taps = np.empty((9, channels, high, wide), dtype=np.float32)
        for i in range(3):
            for j in range(3):
                taps[3 * i + j] = padded[:, i * d : i * d + rows : s, j * d : j * d + columns : s]
        out = self._weight @ taps.reshape(9 * channels, -1)
        out += self._bias
        return out.reshape(-1, high, wide)


class FlowNetwork:
    """HydraNet on flow: quaternions of the heads (H, 4), and L with Sigma_a = L L^T (3, 3)."""

    def __init__(self, config: NetworkConfig, tensors: Tensors) -> None:
        assert config.grid is not None
        self.config, self._cell = config, config.grid.cell
        self._tensors = {
            name: np.asarray(value, dtype=np.float32)
            for name, value in tensors.items()
            if value.dtype == np.float32
        }
        body = "body"
        self._near = Convolution(tensors, f"{body}.near.0", f"{body}.near.1")
        self._down = Convolution(tensors, f"{body}.look.0.0", f"{body}.look.0.1", stride=2)
        self._blocks = [
            (
                Convolution(
                    tensors,
                    f"{body}.look.{i}.first.0",
                    f"{body}.look.{i}.first.1",
                    dilation=dilation,
                ),
                Convolution(tensors, f"{body}.look.{i}.second.0", f"{body}.look.{i}.second.1"),
            )
            for i, dilation in ((1, 2), (2, 4))
        ]
        self._evidence = Convolution(tensors, f"{body}.evidence")
        self._review = (
            Convolution(tensors, f"{body}.review.0.0", f"{body}.review.0.1", stride=2),
            Convolution(tensors, f"{body}.review.1.0", f"{body}.review.1.1"),
        )
        self._signed = (
            Convolution(tensors, f"{body}.signed.0.0", f"{body}.signed.0.1", stride=2),
            Convolution(tensors, f"{body}.signed.1"),
        )

    def __call__(self, x: Field, trusted: Field | None) -> tuple[Field, Field]:
        """(6, rows, columns), (rows, columns) -> (H, 4), (3, 3)."""
        flow, mask, texture = x[:2], np.clip(x[2], 0.0, 1.0), x[3:]
        sure = mask if trusted is None else mask * trusted
        points = _centres(*mask.shape, self._cell)
        fine = epipolar.pool(points, flow, mask, texture, 2)
        counted = epipolar.whole(sure, 2)
        first, ambiguity = epipolar.search(epipolar.pool(points, flow, sure, texture, 4))
        shape = mask.shape[0] // 2, mask.shape[1] // 2
        tensor = epipolar.blocks(texture, 2).reshape(3, -1)

        near = _relu(self._near(self._seen(fine, first, counted, tensor).reshape(8, *shape)))
        far = _relu(self._down(near))
        for one, two in self._blocks:
            far = _relu(far + two(_relu(one(far))))
        evidence = self._evidence(np.concatenate([near, _doubled(far)])).ravel()
        log_weight = 4.0 * np.tanh(evidence / 4.0)
        weight = counted * np.exp(log_weight)

        exact = epipolar.doubled(fine)
        motion = CameraMotion(first.C.astype(np.float64), first.t.astype(np.float64))
        for _ in range(REFINEMENTS):
            motion = epipolar.step(exact, motion, weight.astype(np.float64), REFINED_SCALE)
        root = epipolar.covariance_root(exact, motion, weight, REFINED_SCALE, ambiguity)
        motion = epipolar.single(motion)
        left = epipolar.residuals(fine, motion)
        deep, turned = self._reviewed(far, left, log_weight, counted, shape)

        inside = _pooled(mask[None], deep.shape[1:])[0]
        where = _pooled(points, deep.shape[1:])
        quality = np.concatenate(
            [
                _mean(deep, inside),
                (deep * inside).max(axis=(1, 2)),
                self._qualities(motion, root, left, weight, counted, fine.valid, tensor),
            ]
        )
        moments = [_mean(turned * each, inside) for each in (np.float32(1.0), *where)]
        learned = _relu(self._linear("body.linear", np.concatenate(moments)))
        features = np.concatenate([learned, self._statistics(motion, root, left, weight)])
        return self._rotations(x, features, motion), self._root(quality, root)

    # --- what the network looks at ---------------------------------------------------------------

    def _reviewed(
        self,
        far: Field,
        left: Residuals,
        log_weight: Field,
        counted: Field,
        shape: tuple[int, int],
    ) -> tuple[Field, Field]:
        across = left.across[0] / np.sqrt(left.variance[0])
        u, v = left.f[0][0], left.f[1][0]
        unit = np.float32(RESIDUAL_UNIT)
        maps = np.stack([np.abs(across) / unit, log_weight, u / unit, v / unit, across])
        maps = epipolar.blocks((np.clip(maps, -5.0, 5.0) * counted).reshape(5, *shape), 2)
        deep = np.concatenate([far, maps[:2]])
        for convolution in self._review:
            deep = _relu(convolution(deep))
        turned = self._signed[1](_relu(self._signed[0](np.concatenate([far, maps[2:]]))))
        return deep, turned

    def _seen(self, cells: Cells, motion: CameraMotion, sure: Field, tensor: Field) -> Field:
        """(8, n): what the solution leaves, how textured it is, how far from the middle."""
        left = epipolar.residuals(cells, motion)
        across = np.abs(left.across[0]) / np.sqrt(left.variance[0])
        along, depth = np.abs(left.along[0]), left.depth[0]
        weak, strong = epipolar.eigenvalues(tensor)
        moved = np.hypot(*(cells.target - cells.points))
        maps = np.stack(
            [
                sure,
                _squashed(across / RESIDUAL_UNIT),
                _squashed(across / (along + NOISE_UNIT)),
                _squashed(along / (depth + NOISE_UNIT)),
                _squashed(moved / FLOW_UNIT),
                np.log1p(weak / TEXTURE_UNIT),
                np.log1p(strong / TEXTURE_UNIT),
                np.square(cells.points).sum(axis=0),
            ]
        )
        return (maps * cells.valid).astype(np.float32)

    def _statistics(
        self, motion: CameraMotion, root: Field, left: Residuals, weight: Field
    ) -> Field:
        turn = 2.0 * lie.quaternion_from_matrix(motion.C[0].astype(np.float64))[1:] / FLOW_UNIT
        below = np.array([root[1, 0], root[2, 0], root[2, 1]])
        found = np.concatenate(
            [
                _squashed(turn),
                motion.t[0],
                np.log(np.diagonal(root) / 1e-3),
                _squashed(below / 1e-3),
                [
                    np.log(_rms(left, weight) / RESIDUAL_UNIT),
                    np.log(left.depth[0] / FLOW_UNIT + 1e-3),
                    np.log1p(np.abs(left.across[0]).mean() / RESIDUAL_UNIT),
                ],
            ]
        )
        return found.astype(np.float32)

    def _qualities(
        self,
        motion: CameraMotion,
        root: Field,
        left: Residuals,
        weight: Field,
        sure: Field,
        valid: Field,
        tensor: Field,
    ) -> Field:
        turn = 2.0 * lie.quaternion_from_matrix(motion.C[0].astype(np.float64))[1:]
        textured = np.log1p(epipolar.eigenvalues(tensor)[0] / TEXTURE_UNIT)
        seen = float(valid.sum()) + 1e-6
        found = [
            _squashed(np.asarray(np.linalg.norm(turn) / FLOW_UNIT)),
            np.log(np.linalg.norm(root) / 1e-3),
            np.log(_rms(left, weight) / RESIDUAL_UNIT),
            np.log(left.depth[0] / FLOW_UNIT + 1e-3),
            valid.mean(),
            (sure * valid).sum() / seen,
            np.log(weight.sum() / seen + 1e-3),
            (textured * valid).sum() / seen,
            np.log1p(np.abs(left.across[0]).mean() / RESIDUAL_UNIT),
        ]
        return np.array(found, dtype=np.float32)

    # --- heads -----------------------------------------------------------------------------------

    def _linear(self, name: str, x: Field) -> Field:
        found: Field = self._tensors[f"{name}.weight"] @ x + self._tensors[f"{name}.bias"]
        return found

    def _rotations(self, x: Field, features: Field, motion: CameraMotion) -> Field:
        """(H, 4), float64: heads differ by less than float32 resolves next to 1."""
        t = self._tensors
        hidden = t["heads.first.weight"] @ features + t["heads.first.bias"]
        hidden = np.where(hidden < 0.0, t["heads.slope"] * hidden, hidden)
        raw = np.einsum("hi,hoi->ho", hidden, t["heads.second.weight"]) + t["heads.second.bias"]
        phi = self.config.output_scale_rad * raw
        if self.config.prior_scale_rad > 0.0:
            phi = phi + self._priors(x)
        anchor = lie.quaternion_from_matrix(motion.C[0].astype(np.float64))
        heads: Field = lie.quaternion_multiply(
            lie.quaternion_exp(phi.astype(np.float64)), anchor[None]
        )
        return heads

    def _priors(self, x: Field) -> Field:
        t = self._tensors
        flow = np.concatenate([x[:2] / np.float32(self.config.prior_input_scale), x[2:3]])
        mean = _pooled(flow, (PRIOR_ROWS, PRIOR_COLUMNS))
        square = _pooled(flow * flow, (PRIOR_ROWS, PRIOR_COLUMNS))
        deviation = np.sqrt(np.maximum(square - mean * mean, 1e-12))
        z = np.concatenate([mean, deviation]).ravel()
        waves = np.cos(t["priors.first"] @ z + t["priors.first_bias"])
        sums = np.einsum("hi,hoi->ho", waves, t["priors.second"])
        size = 1.0 + np.square(z).mean()
        return np.asarray(self.config.prior_scale_rad * size * sums, dtype=np.float32)

    def _root(self, quality: Field, root: Field) -> Field:
        hidden = self._linear("covariance.layers.0", quality)
        slope = self._tensors["covariance.layers.1.weight"]
        hidden = np.where(hidden < 0.0, slope * hidden, hidden)
        z = self._linear("covariance.layers.2", hidden).astype(np.float64)
        size, added = np.logaddexp(0.0, z)
        wide = (size + self.config.covariance_floor) * root
        covariance = wide @ wide.T + (self.config.sigma_unit_rad * added) ** 2 * np.eye(3)
        return np.linalg.cholesky(covariance)


# --- what a file has to hold ---------------------------------------------------------------------


def flow_layout(config: NetworkConfig) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every tensor of a HydraNet on flow, as torch has them."""
    layout: dict[str, tuple[tuple[int, ...], str]] = {}

    def add(name: str, *shape: int) -> None:
        layout[name] = shape, "float32"

    def convolution(name: str, outputs: int, inputs: int, norm: str = "", size: int = 3) -> None:
        add(f"body.{name}.weight", outputs, inputs, size, size)
        add(f"body.{name}.bias", outputs)
        if norm:
            for part in ("weight", "bias", "running_mean", "running_var"):
                add(f"body.{norm}.{part}", outputs)
            layout[f"body.{norm}.num_batches_tracked"] = (), "int64"

    convolution("near.0", 16, 8, "near.1")
    convolution("look.0.0", 32, 16, "look.0.1")
    for block in (1, 2):
        for part in ("first", "second"):
            convolution(f"look.{block}.{part}.0", 32, 32, f"look.{block}.{part}.1")
    convolution("evidence", 1, 48, size=1)
    convolution("review.0.0", 32, 34, "review.0.1")
    convolution("review.1.0", DEEP, 32, "review.1.1")
    convolution("signed.0.0", 32, 35, "signed.0.1")
    convolution("signed.1", DEEP, 32, size=1)
    add("body.linear.weight", config.features, 3 * DEEP)
    add("body.linear.bias", config.features)
    heads, hidden, outputs = config.heads, config.head_hidden, 3
    add("heads.first.weight", heads, hidden, config.features + STATISTICS)
    add("heads.first.bias", heads, hidden)
    add("heads.second.weight", heads, outputs, hidden)
    add("heads.second.bias", heads, outputs)
    add("heads.slope", heads, 1)
    add("covariance.layers.0.weight", config.covariance_hidden, 2 * DEEP + QUALITIES)
    add("covariance.layers.0.bias", config.covariance_hidden)
    add("covariance.layers.1.weight", 1)
    add("covariance.layers.2.weight", 2, config.covariance_hidden)
    add("covariance.layers.2.bias", 2)
    if config.prior_scale_rad > 0.0:
        inputs = 2 * 3 * PRIOR_ROWS * PRIOR_COLUMNS
        add("priors.first", heads, config.prior_hidden, inputs)
        add("priors.first_bias", heads, config.prior_hidden)
        add("priors.second", heads, 3, config.prior_hidden)
    return layout


# --- operations on maps --------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _centres(rows: int, columns: int, cell: float) -> Field:
    """(2, rows, columns): where the cells of a grid look."""
    centres = CanonicalGrid(rows, columns, cell).centres
    return np.ascontiguousarray(np.moveaxis(centres, 2, 0), dtype=np.float32)


def _relu(x: Field) -> Field:
    return np.maximum(x, 0.0, out=x)


def _squashed(x: Field) -> Field:
    """Nearly x up to 2, and never more than 4: outliers must not dominate."""
    return 4.0 * np.tanh(x / 4.0)


def _mean(maps: Field, inside: Field) -> Field:
    """(channels,): over the part of the grid that the camera sees."""
    found: Field = (maps * inside).sum(axis=(1, 2)) / (inside.sum() + np.float32(1e-6))
    return found


def _rms(left: Residuals, weight: Field) -> float:
    total = float(weight.sum()) + 1e-6
    square = float((weight * np.square(left.across[0]) / left.variance[0]).sum())
    return float(np.sqrt(square / total + 1e-10))


def _doubled(x: Field) -> Field:
    """Twice the rows and columns, bilinear between the middles of cells."""
    if epipolar.compiled is not None:
        found: Field = epipolar.compiled.doubled(x)
        return found
    for axis in (1, 2):
        ahead, behind = np.roll(x, -1, axis), np.roll(x, 1, axis)
        last, first = [slice(None)] * 3, [slice(None)] * 3
        last[axis], first[axis] = slice(-1, None), slice(0, 1)
        ahead[tuple(last)], behind[tuple(first)] = x[tuple(last)], x[tuple(first)]
        shape = list(x.shape)
        shape[axis] *= 2
        both = np.stack([0.75 * x + 0.25 * behind, 0.75 * x + 0.25 * ahead], axis=axis + 1)
        x = both.reshape(shape)
    return x


def _pooled(maps: Field, shape: tuple[int, int]) -> Field:
    """Means over rows x columns regions that overlap where they must: (c, ...) -> (c, *shape)."""
    rows, columns = (
        _regions(size, count) for size, count in zip(maps.shape[1:], shape, strict=True)
    )
    found: Field = rows.T @ maps @ columns
    return found


@lru_cache
def _regions(size: int, count: int) -> Field:
    """(size, count): the share of each of `size` cells in each of `count` regions."""
    shares = np.zeros((size, count), dtype=np.float32)
    for i in range(count):
        start, end = i * size // count, -((-(i + 1) * size) // count)
        shares[start:end, i] = 1.0 / (end - start)
    return shares
