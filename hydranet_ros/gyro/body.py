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
from hydranet_ros.gyro.grid import CanonicalGrid

_FLOW_UNIT = 0.03  # typical flow between frames: inputs of order 1
_RESIDUAL_UNIT = 1e-3  # typical error of flow across the epipolar lines
_NOISE_UNIT = 5e-4
_REFINEMENTS = 3
_REFINED_SCALE = 7e-4


class Body(NamedTuple):
    """Features (batch, n) for the heads, and the rotation that they correct (batch, 4)."""

    features: Tensor
    anchor: Tensor | None = None
    root: Tensor | None = None  # (batch, 3, 3), what the covariance head scales


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
    """For flow on the canonical grid: solve for the motion, weigh its residuals, solve again.

    A robust solution of the epipolar geometry comes first and has nothing to learn. The network
    sees the residuals of the flow, gives each cell a weight, and the solution is
    refined with these weights. Then it looks once more, keeping positions: the heads correct what
    is left, and the covariance head scales what the geometry says of the covariance.
    """

    STATISTICS = 17  # of the solution: see _statistics

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        assert config.grid is not None
        self.shape = config.grid.rows // 2, config.grid.columns // 2
        self.points: Tensor
        self.register_buffer("points", epipolar.grid_points(config.grid)[None])
        self.near = conv_unit(9, 16)
        self.look = nn.Sequential(
            conv_unit(16, 32, stride=2), Residual(32, dilation=2), Residual(32, dilation=4)
        )
        self.evidence = nn.Conv2d(48, 1, 1)  # log weight
        # Start with the geometry as it is: all weights equal.
        nn.init.zeros_(self.evidence.weight)
        nn.init.zeros_(self.evidence.bias)  # type: ignore[arg-type]
        self.review = nn.Sequential(
            conv_unit(34, 48, stride=2),
            conv_unit(48, 64, stride=2),
            nn.Conv2d(64, 24, 1),
            nn.Flatten(),
        )
        self.linear = nn.Linear(24 * _sixteenth(config.grid), config.features)
        self.width = config.features + self.STATISTICS

    def forward(self, x: Tensor, trusted: Tensor | None = None) -> Body:
        """(batch, 3, rows, columns), u v mask -> features, rotation (batch, 4), root of Sigma.

        Only cells that are `trusted` (batch, 1, rows, columns) count in the geometry; the network
        looks at all of them.
        """
        flow, mask = x[:, :2], x[:, 2:].clamp(0.0, 1.0)
        sure = mask if trusted is None else mask * trusted
        with torch.autocast(x.device.type, enabled=False):  # angles of 1e-4 need float32
            fine = epipolar.pool(self.points, flow, mask, 2)
            with torch.no_grad():
                first = epipolar.solve(epipolar.pool(self.points, flow, sure, 4))
            seen = self._seen(fine, first)
        near = self.near(seen)
        far = self.look(near)
        up = functional.interpolate(far, self.shape, mode="bilinear", align_corners=False)
        evidence = self.evidence(torch.cat([near, up], dim=1))
        with torch.autocast(x.device.type, enabled=False):
            log_weight = 4.0 * torch.tanh(evidence.to(x.dtype).flatten(1) / 4.0)
            counts = fine.valid[:, 0] * torch.exp(log_weight)
            weight = counts if trusted is None else counts * epipolar.whole(sure, 2)[:, 0]
            motion = first
            for _ in range(_REFINEMENTS):
                motion = epipolar.step(fine, motion, weight, _REFINED_SCALE)
            root = epipolar.covariance_root(fine, motion, weight, _REFINED_SCALE)
            left = epipolar.residuals(fine, motion)
            statistics = self._statistics(motion, root, left, counts, fine.valid)
            pair = torch.stack([left.across / _RESIDUAL_UNIT, log_weight], dim=1)
            pair = (pair.clamp(-5.0, 5.0) * fine.valid).view(-1, 2, *self.shape)
        z = self.review(torch.cat([far, functional.avg_pool2d(pair, 2)], dim=1))
        features = torch.cat([functional.relu(self.linear(z)), statistics], dim=1)
        return Body(features, quaternion.from_matrix(motion.C), root)

    def _seen(self, cells: epipolar.Cells, motion: epipolar.CameraMotion) -> Tensor:
        """(batch, 9, rows / 2, columns / 2): what the solution leaves, and where."""
        left = epipolar.residuals(cells, motion)
        across, along = left.across[:, None], left.along[:, None]
        maps = [
            cells.points,
            cells.valid,
            _squashed(torch.stack(left.f, dim=1) / _FLOW_UNIT),
            _squashed(across / _RESIDUAL_UNIT),
            _squashed(across.abs() / (along.abs() + _NOISE_UNIT)),
            _squashed(along / (left.depth[:, None] + _NOISE_UNIT)),
            _squashed(
                torch.hypot(*(cells.target - cells.points).unbind(dim=1))[:, None] / _FLOW_UNIT
            ),
        ]
        seen = torch.cat(maps, dim=1) * cells.valid
        return seen.view(len(seen), seen.shape[1], *self.shape)

    def _statistics(
        self,
        motion: epipolar.CameraMotion,
        root: Tensor,
        left: epipolar.Residuals,
        weight: Tensor,
        valid: Tensor,
    ) -> Tensor:
        """(batch, 17): what heads and covariance should know of the solution."""
        total = weight.sum(dim=1, keepdim=True) + 1e-6
        rms = ((weight * left.across**2).sum(dim=1, keepdim=True) / total + 1e-10).sqrt()
        turn = 2.0 * quaternion.from_matrix(motion.C)[:, 1:] / _FLOW_UNIT
        diagonal = root.diagonal(dim1=1, dim2=2)
        below = torch.stack([root[:, 1, 0], root[:, 2, 0], root[:, 2, 1]], dim=1)
        return torch.cat(
            [
                _squashed(turn),
                motion.t,
                torch.log(diagonal / 1e-3),
                _squashed(below / 1e-3),
                torch.log(rms / _RESIDUAL_UNIT),
                torch.log(left.depth / _FLOW_UNIT + 1e-3),
                valid.mean(dim=2),
                torch.log(total / valid.shape[2] + 1e-3),
                torch.log1p(left.across.abs().mean(dim=1, keepdim=True) / _RESIDUAL_UNIT),
            ],
            dim=1,
        )


def _squashed(x: Tensor) -> Tensor:
    """Nearly x up to 2, and never more than 4: outliers must not dominate."""
    return 4.0 * torch.tanh(x / 4.0)


def _sixteenth(grid: CanonicalGrid) -> int:
    """Positions that are left after four strides of 2."""
    return -(-grid.rows // 16) * -(-grid.columns // 16)
