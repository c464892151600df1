"""More pairs from those that were rendered: mirrored, turned further, seen by other cameras.

Each change of the flow changes the rotation in a way that is known exactly. Random numbers are
drawn for the whole batch of all processes, so that a training does not depend on their number.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hydranet_ros.gyro import quaternion
from hydranet_ros.training.config import AugmentConfig
from hydranet_ros.training.data import Batch

_MOVERS = 3
_ERROR_SIZES = ((112, 168), (28, 42), (8, 12), (3, 4))  # of smooth random fields, fine to coarse


class Augmentation:
    """Change batches of flow on a grid whose points are (2, rows, columns)."""

    def __init__(self, points: Tensor, config: AugmentConfig | None = None) -> None:
        self.points, self.config = points[None], config or AugmentConfig()

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """A changed copy."""
        config = self.config
        if config.movers > 0.0:
            batch = self._movers(batch, generator)
        if config.error_share > 0.0 or config.error_floor > 0.0:
            batch = self._errors(batch, generator)
        if config.turn > 0.0:
            batch = self._turn(batch, generator)
        if config.mirror > 0.0:
            batch = self._mirror(batch, generator)
        if config.crop > 0.0:
            batch = self._crop(batch, generator)
        return batch._replace(flow=batch.flow * batch.mask)

    def _mirror(self, batch: Batch, generator: torch.Generator) -> Batch:
        """X -> -x: u changes its sign, and so do rotations about y and z; or y -> -y."""
        for axis, signs in ((-1, (-1.0, 1.0)), (-2, (1.0, -1.0))):
            on = _chance(len(batch.flow), self.config.mirror, generator)
            turned = (1.0, signs[1], signs[0], -1.0)  # of the quaternion
            sides = (signs, (1.0,), (1.0,), (1.0, -1.0, 1.0))
            maps = (batch.flow, batch.mask, batch.trusted, batch.texture)
            flow, mask, trusted, texture = (
                torch.where(_wide(on), each.flip(axis) * _channels(sign, each), each)
                for each, sign in zip(maps, sides, strict=True)
            )
            target = torch.where(
                on[:, None], batch.target * batch.target.new_tensor(turned), batch.target
            )
            batch = Batch(flow, mask, target, trusted, texture)
        return batch

    def _turn(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The second camera turned by C: x + flow -> pi(C (x + flow, 1)), C_2_1 -> C C_2_1."""
        size = len(batch.flow)
        phi = torch.randn(size, 3, generator=generator) * torch.tensor(self.config.turn_deg)
        phi = torch.deg2rad(phi) * _chance(size, self.config.turn, generator)[:, None]
        q = quaternion.exp(phi)
        seen = self.points + batch.flow
        ray = torch.cat([seen, torch.ones_like(seen[:, :1])], dim=1).flatten(2)
        turned = quaternion.to_matrix(q) @ ray
        seen = (turned[:, :2] / turned[:, 2:].clamp_min(0.1)).view_as(batch.flow)
        return batch._replace(flow=seen - self.points, target=quaternion.multiply(q, batch.target))

    def _movers(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Rectangles that move on their own."""
        size, (rows, columns) = len(batch.flow), batch.flow.shape[2:]
        flow = batch.flow
        x = torch.arange(columns).view(1, 1, 1, -1)
        y = torch.arange(rows).view(1, 1, -1, 1)
        for _ in range(_MOVERS):
            on = _chance(size, self.config.movers, generator)
            u = torch.rand(size, 4, generator=generator)
            step = torch.randn(size, 2, 1, 1, generator=generator) * self.config.mover_step
            step = step * step.new_tensor([1.0, 0.25]).view(1, 2, 1, 1)
            near_x = (x - columns * _wide(u[:, 0])).abs() < columns * (
                0.02 + 0.13 * _wide(u[:, 1])
            )
            near_y = (y - rows * _wide(u[:, 2])).abs() < rows * (0.04 + 0.2 * _wide(u[:, 3]))
            flow = torch.where(near_x & near_y & _wide(on), flow + step, flow)
        return batch._replace(flow=flow)

    def _errors(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Smooth errors of several sizes, larger where the flow is."""
        size, grid = len(batch.flow), batch.flow.shape[2:]
        length = batch.flow.norm(dim=1, keepdim=True)
        scale = self.config.error_floor + self.config.error_share * length
        level = torch.rand(size, 1, 1, 1, generator=generator) ** 2
        flow = batch.flow
        for number, shape in enumerate(_ERROR_SIZES):
            field = torch.randn(size, 2, *shape, generator=generator)
            if shape != tuple(grid):
                field = functional.interpolate(field, grid, mode="bilinear", align_corners=False)
            flow = flow + level * scale * field * 0.5**number
        return batch._replace(flow=flow)

    def _crop(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Mask what is beyond a random frame."""
        size, (rows, columns) = len(batch.flow), batch.flow.shape[2:]
        share = 0.3 * torch.rand(size, 4, generator=generator)
        share = share * _chance(size, self.config.crop, generator)[:, None]
        left, right, top, bottom = (_wide(each) for each in share.unbind(dim=1))
        x = (torch.arange(columns).view(1, 1, 1, -1) + 0.5) / columns
        y = (torch.arange(rows).view(1, 1, -1, 1) + 0.5) / rows
        inside = (x > left) & (x < 1.0 - right) & (y > top) & (y < 1.0 - bottom)
        return batch._replace(mask=batch.mask * inside)


def _chance(size: int, chance: float, generator: torch.Generator) -> Tensor:
    return torch.rand(size, generator=generator) < chance


def _channels(values: tuple[float, ...], like: Tensor) -> Tensor:
    return like.new_tensor(values).view(1, -1, 1, 1)


def _wide(x: Tensor) -> Tensor:
    return x.view(-1, 1, 1, 1)
