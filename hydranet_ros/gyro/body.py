"""The body for flow: from a flow field to features and a first guess of the rotation.

The paper's own bodies are in `paper_bodies`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydranet_ros.gyro import epipolar, quaternion
from hydranet_ros.gyro.config import NetworkConfig
from hydranet_ros.gyro.search_settings import (
    DEEP,
    FLOW_UNIT,
    NOISE_UNIT,
    QUALITIES,
    REFINED_SCALE,
    REFINEMENTS,
    RESIDUAL_UNIT,
    STATISTICS,
    TEXTURE_UNIT,
)


class Body(NamedTuple):
    """Features (batch, n) for the heads, and the rotation that they correct (batch, 4).

    `quality` (batch, m) is what the covariance is judged by, and does not depend on how the camera
    is mounted; None where the covariance head gets the features.
    """

    features: Tensor
    anchor: Tensor | None = None
    root: Tensor | None = None  # (batch, 3, 3), what the covariance head scales
    quality: Tensor | None = None


def conv_norm(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution 3x3, batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation),
        nn.BatchNorm2d(outputs),
    )


def conv_unit(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution 3x3, batch norm, ReLU."""
    return conv_norm(inputs, outputs, stride, dilation).append(nn.ReLU(inplace=True))


class Residual(nn.Module):
    """ReLU(x + unit(unit(x))) at one resolution."""

    def __init__(self, width: int, dilation: int = 1) -> None:
        super().__init__()
        self.first = conv_unit(width, width, dilation=dilation)
        self.second = conv_norm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width, rows, columns), the same shape."""
        return torch.relu(x + self.second(self.first(x)))


class FlowBody(nn.Module):
    """For flow on the canonical grid: search the motion, weigh its residuals, solve again.

    A robust solution of the epipolar geometry comes first and has nothing to learn. The network
    sees what it leaves of the flow, gives each cell a weight, and the solution is refined with
    these weights. Then it looks once more: the heads correct what is left, and the covariance head
    scales what the geometry says of the covariance.

    Everything is convolved or pooled, so one network serves grids of any size. What the weights
    and the covariance are judged by has no direction in it: a camera on its side gets the same.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        assert config.grid is not None
        self.cell = config.grid.cell
        self.near = conv_unit(8, 16)
        self.look = nn.Sequential(
            conv_unit(16, 32, stride=2), Residual(32, dilation=2), Residual(32, dilation=4)
        )
        self.evidence = nn.Conv2d(48, 1, 1)  # log weight
        # Start with the geometry as it is: all weights equal.
        nn.init.zeros_(self.evidence.weight)
        nn.init.zeros_(self.evidence.bias)  # type: ignore[arg-type]
        self.review = nn.Sequential(conv_unit(34, 32, stride=2), conv_unit(32, DEEP))
        self.signed = nn.Sequential(conv_unit(35, 32, stride=2), nn.Conv2d(32, DEEP, 1))
        self.linear = nn.Linear(3 * DEEP, config.features)
        self.width = config.features + STATISTICS
        self.quality_width = 2 * DEEP + QUALITIES

    def forward(self, x: Tensor, trusted: Tensor | None = None) -> Body:
        """(batch, 6, rows, columns) -> features, rotation (batch, 4), root of Sigma, quality.

        The channels are flow u v, mask, structure tensor xx xy yy. Only cells that are `trusted`
        (batch, 1, rows, columns) count in the geometry; the network looks at all of them.
        """
        flow, mask, texture = x[:, :2], x[:, 2:3].clamp(0.0, 1.0), x[:, 3:]
        shape = x.shape[2] // 2, x.shape[3] // 2
        sure = mask if trusted is None else mask * trusted
        with torch.autocast(x.device.type, enabled=False):  # angles of 1e-4 need float32
            points = epipolar.cell_centres(x.shape[2], x.shape[3], self.cell, x)
            fine = epipolar.pool(points, flow, mask, texture, 2)
            counted = epipolar.whole(sure, 2)
            with torch.no_grad():
                first, ambiguity = epipolar.search(epipolar.pool(points, flow, sure, texture, 4))
            tensor = functional.avg_pool2d(texture, 2).flatten(2)
            seen = self._seen(fine, first, counted, tensor).view(len(x), 8, *shape)
        near = self.near(seen)
        far = self.look(near)
        up = functional.interpolate(far, shape, mode="bilinear", align_corners=False)
        evidence = self.evidence(torch.cat([near, up], dim=1))
        with torch.autocast(x.device.type, enabled=False):
            log_weight = 4.0 * torch.tanh(evidence.to(x.dtype).flatten(1) / 4.0)
            weight = counted[:, 0] * torch.exp(log_weight)
            # In double: what is left of millions of products shall not depend on their order.
            exact, weights = epipolar.doubled(fine), weight.double()
            found = epipolar.CameraMotion(first.C.double(), first.t.double())
            for _ in range(REFINEMENTS):
                found = epipolar.step(exact, found, weights, REFINED_SCALE)
            wide = epipolar.covariance_root(exact, found, weights, REFINED_SCALE, ambiguity)
            root = wide.to(x.dtype)
            motion = epipolar.CameraMotion(*(each.to(x.dtype) for each in found))
            left = epipolar.residuals(fine, motion)
            across = left.across * left.variance.rsqrt()
            scalars = torch.stack([across.abs() / RESIDUAL_UNIT, log_weight], dim=1)
            vectors = torch.stack([*(each / RESIDUAL_UNIT for each in left.f), across], dim=1)
            maps = torch.cat([scalars, vectors], dim=1).clamp(-5.0, 5.0) * counted
            maps = functional.avg_pool2d(maps.view(len(x), 5, *shape), 2)
        deep = self.review(torch.cat([far, maps[:, :2]], dim=1))
        turned = self.signed(torch.cat([far, maps[:, 2:]], dim=1))
        with torch.autocast(x.device.type, enabled=False):
            inside = functional.adaptive_avg_pool2d(mask, deep.shape[2:])
            where = functional.adaptive_avg_pool2d(points, deep.shape[2:])
            quality = torch.cat(
                [
                    _mean(deep.to(x.dtype), inside),
                    (deep.to(x.dtype) * inside).amax(dim=(2, 3)),
                    self._qualities(motion, root, left, weight, counted, fine.valid, tensor),
                ],
                dim=1,
            )
            turned = turned.to(x.dtype)
            moments = [_mean(turned * each, inside) for each in (1.0, where[:, :1], where[:, 1:])]
            statistics = self._statistics(motion, root, left, weight)
        features = torch.cat(
            [functional.relu(self.linear(torch.cat(moments, dim=1))), statistics], dim=1
        )
        return Body(features, quaternion.from_matrix(motion.C), root, quality)

    def _seen(
        self, cells: epipolar.Cells, motion: epipolar.CameraMotion, sure: Tensor, tensor: Tensor
    ) -> Tensor:
        """(batch, 8, n): what the solution leaves, how textured it is, how far from the middle."""
        left = epipolar.residuals(cells, motion)
        across = (left.across.abs() * left.variance.rsqrt())[:, None]
        along = left.along.abs()[:, None]
        weak, strong = (each[:, None] for each in epipolar.eigenvalues(tensor))
        maps = [
            sure,
            _squashed(across / RESIDUAL_UNIT),
            _squashed(across / (along + NOISE_UNIT)),
            _squashed(along / (left.depth[:, None] + NOISE_UNIT)),
            _squashed(
                torch.hypot(*(cells.target - cells.points).unbind(dim=1))[:, None] / FLOW_UNIT
            ),
            torch.log1p(weak / TEXTURE_UNIT),
            torch.log1p(strong / TEXTURE_UNIT),
            (cells.points * cells.points).sum(dim=1, keepdim=True).expand_as(sure),
        ]
        return torch.cat(maps, dim=1) * cells.valid

    def _statistics(
        self,
        motion: epipolar.CameraMotion,
        root: Tensor,
        left: epipolar.Residuals,
        weight: Tensor,
    ) -> Tensor:
        """(batch, 15): what the heads should know of the solution."""
        turn = 2.0 * quaternion.from_matrix(motion.C)[:, 1:] / FLOW_UNIT
        diagonal = root.diagonal(dim1=1, dim2=2)
        below = torch.stack([root[:, 1, 0], root[:, 2, 0], root[:, 2, 1]], dim=1)
        return torch.cat(
            [
                _squashed(turn),
                motion.t,
                torch.log(diagonal / 1e-3),
                _squashed(below / 1e-3),
                torch.log(_rms(left, weight) / RESIDUAL_UNIT),
                torch.log(left.depth / FLOW_UNIT + 1e-3),
                torch.log1p(left.across.abs().mean(dim=1, keepdim=True) / RESIDUAL_UNIT),
            ],
            dim=1,
        )

    def _qualities(
        self,
        motion: epipolar.CameraMotion,
        root: Tensor,
        left: epipolar.Residuals,
        weight: Tensor,
        sure: Tensor,
        valid: Tensor,
        tensor: Tensor,
    ) -> Tensor:
        """(batch, 9): the same whichever way up the camera is."""
        turn = 2.0 * quaternion.from_matrix(motion.C)[:, 1:].norm(dim=1, keepdim=True)
        size = root.square().sum(dim=(1, 2))[:, None].sqrt()
        textured = torch.log1p(epipolar.eigenvalues(tensor)[0] / TEXTURE_UNIT)[:, None]
        seen = valid.sum(dim=2) + 1e-6
        return torch.cat(
            [
                _squashed(turn / FLOW_UNIT),
                torch.log(size / 1e-3),
                torch.log(_rms(left, weight) / RESIDUAL_UNIT),
                torch.log(left.depth / FLOW_UNIT + 1e-3),
                valid.mean(dim=2),
                (sure * valid).sum(dim=2) / seen,
                torch.log(weight.sum(dim=1, keepdim=True) / seen + 1e-3),
                (textured * valid).sum(dim=2) / seen,
                torch.log1p(left.across.abs().mean(dim=1, keepdim=True) / RESIDUAL_UNIT),
            ],
            dim=1,
        )


def _rms(left: epipolar.Residuals, weight: Tensor) -> Tensor:
    """(batch, 1): of the residuals across, each in units of its deviation."""
    total = weight.sum(dim=1, keepdim=True) + 1e-6
    square = (weight * left.across**2 / left.variance).sum(dim=1, keepdim=True)
    return (square / total + 1e-10).sqrt()


def _mean(maps: Tensor, inside: Tensor) -> Tensor:
    """(batch, channels): over the part of the grid that the camera sees."""
    return (maps * inside).sum(dim=(2, 3)) / (inside.sum(dim=(2, 3)) + 1e-6)


def _squashed(x: Tensor) -> Tensor:
    """Nearly x up to 2, and never more than 4: outliers must not dominate."""
    return 4.0 * torch.tanh(x / 4.0)
