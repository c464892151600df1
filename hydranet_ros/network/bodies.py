"""Bodies: from an input to a vector of features, and for flow to a first guess of the rotation."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydranet_ros.camera import CanonicalGrid
from hydranet_ros.network import anchor
from hydranet_ros.network.config import NetworkConfig

_UPPER = [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]  # rows and columns of an upper triangle


class Body(NamedTuple):
    """Features (batch, n) for the heads, and the rotation that they correct (batch, 4)."""

    features: Tensor
    anchor: Tensor | None = None


def conv_norm(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution 3x3, batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation),
        nn.BatchNorm2d(outputs),
    )


def conv_unit(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution 3x3, batch norm, ReLU."""
    return conv_norm(inputs, outputs, stride, dilation).append(nn.ReLU(inplace=True))


class PaperBody(nn.Module):
    """The paper's convolutional network: seven units of stride 2, then a linear layer."""

    WIDTHS = (64, 128, 256, 512, 1024, 1024, 1024)

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        channels, *size = config.input_shape
        units = []
        for width in self.WIDTHS:
            units.append(conv_unit(channels, width, stride=2))
            channels, size = width, [(n + 1) // 2 for n in size]
        self.cnn = nn.Sequential(*units)
        self.linear = nn.Linear(channels * prod(size), config.features)
        self.width = config.features

    def forward(self, x: Tensor) -> Body:
        """(batch, 2, rows, columns) -> (batch, features)."""
        return Body(self.linear(self.cnn(x).flatten(1)))


class MLPBody(nn.Module):
    """Five residual blocks x + ReLU(W x) on a vector."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        (width,) = config.input_shape
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(5))
        self.width = width

    def forward(self, x: Tensor) -> Body:
        """(batch, n) -> (batch, n)."""
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return Body(x)


class Residual(nn.Module):
    """ReLU(x + unit(unit(x))) at one resolution."""

    def __init__(self, width: int, dilation: int = 1) -> None:
        super().__init__()
        self.first = conv_unit(width, width, dilation=dilation)
        self.second = conv_norm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width, rows, columns), as it came."""
        return torch.relu(x + self.second(self.first(x)))


class FlowBody(nn.Module):
    """For flow on the canonical grid: look, solve for the rotation, look at what it leaves.

    The first part sees flow, mask and position at a quarter of the resolution, and says per cell
    how much it counts and how much of it is parallax. The second part sees what the least-squares
    rotation leaves over, which is parallax and faults, and keeps positions: it ends in a linear
    layer over all of them instead of a mean.
    """

    STATISTICS = 12  # of the anchor: 3 rotation, 6 normal matrix, 2 residual, 1 valid share

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        assert config.grid is not None
        self.with_anchor = config.anchor
        self.flow_scale = 0.03  # typical flow between frames: inputs of order 1
        self.points: Tensor
        self.register_buffer("points", anchor.grid_points(config.grid)[None])
        self.look = nn.Sequential(
            conv_unit(5, 32, stride=2),
            conv_unit(32, 48, stride=2),
            Residual(48),
            Residual(48, dilation=2),
        )
        self.evidence = nn.Conv2d(48, 4, 1)  # 2 log weights, 2 parallax
        # Start as plain least squares on the whole flow: no weights, no parallax.
        nn.init.zeros_(self.evidence.weight)
        nn.init.zeros_(self.evidence.bias)  # type: ignore[arg-type]
        self.review = nn.Sequential(
            conv_unit(50, 96, stride=2),
            Residual(96),
            conv_unit(96, 128, stride=2),
            Residual(128),
            nn.Conv2d(128, 32, 1),
            nn.Flatten(),
        )
        self.linear = nn.Linear(32 * _sixteenth(config.grid), config.features)
        self.width = config.features + self.STATISTICS

    def forward(self, x: Tensor) -> Body:
        """(batch, 3, rows, columns), u v mask -> (batch, features + 12), (batch, 4)."""
        flow, mask = x[:, :2], x[:, 2:].clamp(0.0, 1.0)
        points = self.points.expand(len(x), -1, -1, -1)
        seen = self.look(torch.cat([flow / self.flow_scale, mask, points], dim=1))
        evidence = self.evidence(seen)
        with torch.autocast(x.device.type, enabled=False):  # angles of 1e-4 need float32
            cells = anchor.pool(points, flow, mask, 4)
            log_weight, parallax = evidence.to(x.dtype).split(2, dim=1)
            if self.with_anchor:
                weight = torch.exp(8.0 * torch.tanh(log_weight / 8.0))
                found = anchor.solve(cells, weight, self.flow_scale * parallax)
                left_over, statistics = found.residual, self._statistics(found, cells)
            else:
                found, left_over = None, cells.flow
                statistics = x.new_zeros(len(x), self.STATISTICS)
        z = self.review(torch.cat([seen, left_over / self.flow_scale], dim=1))
        features = torch.cat([functional.relu(self.linear(z)), statistics], dim=1)
        return Body(features, None if found is None else found.quaternion)

    def _statistics(self, found: anchor.Anchor, cells: anchor.Cells) -> Tensor:
        """(batch, 12): what the covariance should know of the solution."""
        upper = found.normal[:, _UPPER[0], _UPPER[1]]
        return torch.cat(
            [
                2.0 * found.quaternion[:, 1:] / self.flow_scale,
                upper,
                torch.log(found.rms / self.flow_scale + 1e-3),
                cells.valid.mean(dim=(2, 3)),
            ],
            dim=1,
        )


def _sixteenth(grid: CanonicalGrid) -> int:
    """Positions that are left after four strides of 2."""
    return -(-grid.rows // 16) * -(-grid.columns // 16)
