"""HydraNet: one body, H rotation heads, one covariance head. The whole network on one screen."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydranet_ros.gyro import quaternion
from hydranet_ros.gyro.body import Body, FlowBody
from hydranet_ros.gyro.config import NetworkConfig
from hydranet_ros.gyro.heads import CovarianceHead, RandomPriors, RotationHeads, at_least_single
from hydranet_ros.gyro.paper_bodies import MLPBody, PaperBody, ResNetBody

_BODIES: dict[str, type[PaperBody | FlowBody | ResNetBody | MLPBody]] = {
    "flow": FlowBody,
    "paper": PaperBody,
    "resnet34": ResNetBody,
    "mlp": MLPBody,
}


class HydraOutput(NamedTuple):
    """What the heads say: C_2_1 each, and L with Sigma_a = L L^T in rad^2."""

    quaternions: Tensor  # (batch, H, 4), of unit length and any sign
    root: Tensor  # (batch, 3, 3), lower triangular

    def on_cpu(self) -> HydraOutput:
        """The same where NumPy can read it."""
        return HydraOutput(*(each.detach().cpu() for each in self))


class HydraNet(nn.Module):
    """q_h = Exp(prior_h(x)) (x) head_h(body(x)) (x) anchor(x), and Sigma_a from one more head."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.body = _BODIES[config.body](config)
        self.heads = RotationHeads(config, self.body.width)
        judged = self.body.quality_width if isinstance(self.body, FlowBody) else self.body.width
        self.covariance = CovarianceHead(config, judged)
        self.priors = RandomPriors(config) if config.prior_scale_rad > 0.0 else None

    def forward(self, x: Tensor, trusted: Tensor | None = None) -> HydraOutput:
        """(batch, *input_shape) -> (batch, H, 4), (batch, 3, 3).

        `trusted` (batch, 1, rows, columns) is for the body on flow, see there.
        """
        if not self.config.takes(x.shape[1:]):
            wanted = ", ".join(map(str, self.config.input_shape))
            shape = tuple(map(int, x.shape))  # tensors, while a trace is made
            raise ValueError(f"input must have shape (batch, {wanted}), got {shape}")
        body: Body = self.body(x) if trusted is None else self.body(x, trusted)
        raw = self.heads(body.features)
        if body.root is None or body.quality is None:
            root = self.covariance(body.features)
        else:
            root = self.covariance.scale(body.quality, at_least_single(body.root))
        with torch.autocast(x.device.type, enabled=False):
            return HydraOutput(self._rotations(x, raw, body.anchor), root)

    def _rotations(self, x: Tensor, raw: Tensor, anchor: Tensor | None) -> Tensor:
        """(batch, H, 4 or 3) -> (batch, H, 4)."""
        prior = None if self.priors is None else self.priors(x)
        if self.config.output == "tangent":
            phi = self.config.output_scale_rad * raw
            q = quaternion.exp(phi if prior is None else phi + prior)
        else:
            q = quaternion.normalise(raw)
            q = q if prior is None else quaternion.multiply(quaternion.exp(prior), q)
        return q if anchor is None else quaternion.multiply(q, anchor[:, None])

    def parameter_count(self) -> int:
        """Numbers that training changes; priors and other buffers are not among them."""
        return sum(parameter.numel() for parameter in self.parameters())
