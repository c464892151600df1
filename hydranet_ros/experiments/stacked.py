"""Many small networks trained as one: every repetition of an experiment in the same tensors.

A stack holds R networks 1 - n - n - (n - o) x H: two layers that H heads of two layers share, with
SELU between layers. A plain network of four layers is a stack with one head; R networks by k
bagged members are a stack of R k. Parameters of network r touch the loss of network r alone, so
one gradient of the sum is the gradient of each.

Autograd would spend three quarters of the time on memory: at these sizes a step is bound by
elementwise passes, not by products. So the gradient is written out, into buffers that are kept.
Activations are (R, units + 1, samples) with a last row of ones: biases are columns of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@dataclass(frozen=True)
class Shape:
    """R networks with H heads of o outputs, n units wide."""

    networks: int
    heads: int = 1
    outputs: int = 1
    units: int = 20

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(rows, columns) of each layer's weights, all heads' rows together; columns with bias."""
        n, h = self.units, self.heads
        return [(n, 2), (n, n + 1), (h * n, n + 1), (h * self.outputs, n + 1)]


class Stack:
    """R networks: `forward`, `backward` into `gradient`, all parameters in one flat tensor."""

    def __init__(self, shape: Shape, generator: torch.Generator, dropout: float = 0.0) -> None:
        self.shape, self.dropout, self._generator = shape, dropout, generator
        count = sum(rows * columns for rows, columns in shape.layers)
        self.parameters = torch.empty(shape.networks * count)
        self.gradient = torch.empty_like(self.parameters)
        self._W, self._dW = self._views(self.parameters), self._views(self.gradient)
        for weights, (_, columns) in zip(self._W, shape.layers, strict=True):
            bound = 1.0 / sqrt(columns - 1)  # as nn.Linear draws them
            weights.uniform_(-bound, bound, generator=generator)
        self._offset = torch.tensor(-SELU_ALPHA * SELU_SCALE)
        self._buffers: dict[int, _Buffers] = {}

    def _views(self, flat: Tensor) -> list[Tensor]:
        """(R, rows, columns) of each layer; one after the other, so that each is contiguous."""
        views, start = [], 0
        for rows, columns in self.shape.layers:
            size = self.shape.networks * rows * columns
            view = flat[start : start + size].reshape(self.shape.networks, rows, columns)
            views.append(view)
            start += size
        return views

    def forward(self, x: Tensor) -> Tensor:
        """(R, samples) -> (R, heads, outputs, samples), a buffer that the next call overwrites.

        With dropout, units of each hidden layer are dropped anew at every call.
        """
        R, n, h, o = self._sizes()
        if x.shape[1] not in self._buffers:
            self._buffers[x.shape[1]] = _Buffers(self.shape, x.shape[1])
        b = self._buffers[x.shape[1]]
        b.x[:, 0] = x
        torch.bmm(self._W[0], b.x, out=b.z)
        self._activate(b.z, b.a1)
        torch.bmm(self._W[1], b.a1, out=b.z)
        self._activate(b.z, b.a2)
        torch.bmm(self._W[2], b.a2, out=b.z3)
        self._activate(b.z3.view(R * h, n, -1), b.a3)
        torch.bmm(self._W[3].view(R * h, o, n + 1), b.a3, out=b.y)
        return b.y.view(R, h, o, -1)

    def backward(self, gradient: Tensor) -> None:
        """Turn d loss / d output of the last `forward` into `self.gradient`."""
        R, n, h, o = self._sizes()
        b = self._buffers[gradient.shape[-1]]
        g = gradient.reshape(R * h, o, -1)
        torch.bmm(g, b.a3.mT, out=self._dW[3].view(R * h, o, n + 1))
        weights = self._W[3].view(R * h, o, n + 1)[..., :n].mT  # (R h, n, o)
        if o == 1:
            torch.mul(weights, g, out=b.g3)
        else:
            torch.bmm(weights, g, out=b.g3)
        self._deactivate(b.g3, b.a3)
        g3 = b.g3.view(R, h * n, -1)
        torch.bmm(g3, b.a2.mT, out=self._dW[2])
        torch.bmm(self._W[2][..., :n].mT, g3, out=b.g)
        self._deactivate(b.g, b.a2)
        torch.bmm(b.g, b.a1.mT, out=self._dW[1])
        torch.bmm(self._W[1][..., :n].mT, b.g, out=b.z)
        self._deactivate(b.z, b.a1)
        torch.bmm(b.z, b.x.mT, out=self._dW[0])

    def _sizes(self) -> tuple[int, int, int, int]:
        return self.shape.networks, self.shape.units, self.shape.heads, self.shape.outputs

    def _activate(self, z: Tensor, a: Tensor) -> None:
        """SELU(z) into all rows of `a` but the last; z is used up.

        scale (max(z, 0) + alpha exp(min(z, 0)) - alpha): half the time of torch's own kernel,
        which takes more care of tiny arguments than float32 activations need.
        """
        values = a[:, :-1]
        torch.clamp_max(z, 0.0, out=values).exp_()
        torch.add(z.clamp_min_(0.0), values, alpha=SELU_ALPHA, out=values)
        torch.add(self._offset, values, alpha=SELU_SCALE, out=values)
        if self.dropout > 0.0:
            values.mul_(self._kept(z.shape)).mul_(1.0 / (1.0 - self.dropout))

    def _kept(self, shape: torch.Size) -> Tensor:
        """Which units are not dropped; four 16-bit random numbers are drawn at once."""
        count = shape.numel()
        drawn = torch.empty(-(-count // 4), dtype=torch.int64)
        drawn.random_(-(2**63), None, generator=self._generator)
        return drawn.view(torch.int16)[:count].view(shape) >= round(self.dropout * 2**16) - 2**15

    def _deactivate(self, g: Tensor, a: Tensor) -> None:
        """Multiply g by dSELU / dz, from the value that the activation had."""
        values = a[:, :-1]
        if self.dropout > 0.0:  # undo the scaling; a dropped unit is the one that is exactly 0
            scale = 1.0 / (1.0 - self.dropout)
            g.mul_(values != 0.0).mul_(scale)
            values = values / scale
        torch.ops.aten.elu_backward.grad_input(
            g, SELU_ALPHA, SELU_SCALE, 1.0, True, values, grad_input=g
        )


class _Buffers:
    """What a pass over a number of samples needs to remember."""

    def __init__(self, shape: Shape, samples: int) -> None:
        R, n, h = shape.networks, shape.units, shape.heads
        self.x = torch.ones(R, 2, samples)
        self.a1 = torch.ones(R, n + 1, samples)
        self.a2 = torch.ones(R, n + 1, samples)
        self.a3 = torch.ones(R * h, n + 1, samples)
        self.z, self.g = torch.empty(R, n, samples), torch.empty(R, n, samples)
        self.z3 = torch.empty(R, h * n, samples)
        self.g3 = torch.empty(R * h, n, samples)
        self.y = torch.empty(R * h, shape.outputs, samples)
