"""Many small networks trained as one: every repetition of an experiment in the same tensors.

A stack holds R networks 1 - n - n - (n - o) x H: two layers that H heads of two layers share, with
SELU between layers. A plain network of four layers is a stack with one head; R networks by k
bagged members are a stack of R k. Parameters of network r touch the loss of network r alone, so
one gradient of the sum is the gradient of each.

Autograd would spend three quarters of the time on memory: at these sizes a step is bound by
elementwise passes, not by products. So the gradient is written out, into buffers that are kept.
Activations are (R, units + 1, samples) and biases are columns of the weights: the last row makes
them count. The factor that all activations share, of SELU and of dropout, is left to the products,
which apply it at no cost; so that last row holds one over that factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2, sqrt

import torch
from torch import Tensor

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
LOG2_E = log2(e)


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
        self.gradient = torch.zeros_like(self.parameters)
        self._W, self._dW = self.layers(self.parameters), self.layers(self.gradient)
        for weights, (_, columns) in zip(self._W, shape.layers, strict=True):
            bound = 1.0 / sqrt(columns - 1)  # as nn.Linear draws them
            weights.uniform_(-bound, bound, generator=generator)
        self._gain = SELU_SCALE / (1.0 - dropout)
        self._offset = torch.tensor(-SELU_ALPHA)
        self._buffers: dict[int, _Buffers] = {}

    def layers(self, flat: Tensor) -> list[Tensor]:
        """Views of `parameters` or `gradient`: (R, rows, columns) of each layer, the bias last."""
        views, start = [], 0
        for rows, columns in self.shape.layers:
            size = self.shape.networks * rows * columns
            view = flat[start : start + size].reshape(self.shape.networks, rows, columns)
            views.append(view)
            start += size
        return views

    def forward(self, x: Tensor) -> Tensor:
        """(R, samples) -> (R, heads, outputs, samples), a buffer that the next call overwrites.

        With dropout, units of each hidden layer are drawn again at every call.
        """
        R, n, h, o = self._sizes()
        if x.shape[1] not in self._buffers:
            self._buffers[x.shape[1]] = _Buffers(self.shape, x.shape[1], 1.0 / self._gain)
        b = self._buffers[x.shape[1]]
        b.x[:, 0] = x
        torch.bmm(self._W[0], b.x, out=b.z)
        self._activate(b.z, b.a1)
        self._product(self._W[1], b.a1, b.z)
        self._activate(b.z, b.a2)
        self._product(self._W[2], b.a2, b.z3)
        self._activate(b.z3.view(R * h, n, -1), b.a3)
        self._product(self._W[3].view(R * h, o, n + 1), b.a3, b.y)
        return b.y.view(R, h, o, -1)

    def backward(self, slope: Tensor, keep: float = 0.0) -> None:
        """Turn d loss / d output of the last `forward` into `self.gradient`.

        `keep` times what is there stays in it: the momentum of gradient descent.
        """
        R, n, h, o = self._sizes()
        b = self._buffers[slope.shape[-1]]
        g, g3 = slope.reshape(R * h, o, -1), b.z3.view(R * h, n, -1)
        self._product(g, b.a3.mT, self._dW[3].view(R * h, o, n + 1), keep)
        weights = self._W[3].view(R * h, o, n + 1)[..., :n].mT  # (R h, n, o)
        if o == 1:
            torch.mul(weights * self._gain, g, out=g3)
        else:
            self._product(weights, g, g3)
        self._deactivate(g3, b.a3)
        self._product(b.z3, b.a2.mT, self._dW[2], keep)
        self._product(self._W[2][..., :n].mT, b.z3, b.g)
        self._deactivate(b.g, b.a2)
        self._product(b.g, b.a1.mT, self._dW[1], keep)
        self._product(self._W[1][..., :n].mT, b.g, b.z)
        self._deactivate(b.z, b.a1)
        # As (x g^T)^T, a third of the time of g x^T.
        self._dW[0].mul_(keep).add_(torch.bmm(b.x, b.z.mT).mT)

    def _product(self, left: Tensor, right: Tensor, out: Tensor, keep: float = 0.0) -> None:
        """Turn out into keep out + gain left right."""
        out.baddbmm_(left, right, beta=keep, alpha=self._gain)

    def _sizes(self) -> tuple[int, int, int, int]:
        return self.shape.networks, self.shape.units, self.shape.heads, self.shape.outputs

    def _activate(self, z: Tensor, a: Tensor) -> None:
        """SELU(z) without its factor into all rows of `a` but the last; z is used up.

        min(alpha exp(z) - alpha, max(z, 0)): less than half the time of torch's own kernel, which
        takes more care of tiny arguments than float32 activations need. As 2^(z log2 e), which
        takes a fifth to a quarter of the time of exp(z) where that is MKL's on other processors.
        """
        values = a[:, :-1]
        torch.mul(z, LOG2_E, out=values)
        torch.exp2(values, out=values)
        torch.add(self._offset, values, alpha=SELU_ALPHA, out=values)
        torch.minimum(z.relu_(), values, out=values)
        if self.dropout > 0.0:
            values.mul_(self._kept(z.shape))

    def _kept(self, shape: torch.Size) -> Tensor:
        """Which units are not dropped; four 16-bit random numbers are drawn at once."""
        count = shape.numel()
        drawn = torch.empty(-(-count // 4), dtype=torch.int64)
        drawn.random_(-(2**63), None, generator=self._generator)
        return drawn.view(torch.int16)[:count].view(shape) >= round(self.dropout * 2**16) - 2**15

    def _deactivate(self, g: Tensor, a: Tensor) -> None:
        """Multiply g by d activation / dz, from the value that the activation had."""
        values = a[:, :-1]
        if self.dropout > 0.0:
            g.mul_(values != 0.0)  # a dropped unit is the one that is exactly 0
        torch.ops.aten.elu_backward.grad_input(g, SELU_ALPHA, 1.0, 1.0, True, values, grad_input=g)


class _Buffers:
    """What a pass over a number of samples needs to remember."""

    def __init__(self, shape: Shape, samples: int, last_row: float) -> None:
        R, n, h = shape.networks, shape.units, shape.heads
        self.x = torch.ones(R, 2, samples)
        self.a1 = torch.full((R, n + 1, samples), last_row)
        self.a2 = torch.full((R, n + 1, samples), last_row)
        self.a3 = torch.full((R * h, n + 1, samples), last_row)
        # Values before an activation, and on the way back the gradient by them.
        self.z, self.g = torch.zeros(R, n, samples), torch.zeros(R, n, samples)
        self.z3 = torch.zeros(R, h * n, samples)
        self.y = torch.zeros(R * h, shape.outputs, samples)
