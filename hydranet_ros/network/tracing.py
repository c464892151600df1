"""Record what a network does once, and repeat it without the Python around it.

For a frame at a time, the network on flow is some nine hundred small operations, and Python takes
as long between them as they take themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

_LARGEST_BATCH = 2  # one frame, or one of each camera; larger batches have larger operations


class Traced:
    """A network in evaluation mode, the same function, traced for each shape of small batches."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._traces: dict[tuple[torch.Size, ...], Callable[..., Any]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """As the model does."""
        if not 1 <= len(inputs[0]) <= _LARGEST_BATCH:
            return self._model(*inputs)
        shapes = tuple(each.shape for each in inputs)
        if shapes not in self._traces:
            self._traces[shapes] = self._trace(inputs)
        return self._traces[shapes](*inputs)

    def _trace(self, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        with warnings.catch_warnings():
            # Sizes become constants, which is why there is a trace for each of them.
            warnings.simplefilter("ignore", TracerWarning)
            # What torch advises in its place needs a compiler, or is slower than no trace at all.
            warnings.simplefilter("ignore", DeprecationWarning)
            traced: Callable[..., Any] = torch.jit.trace(  # type: ignore[no-untyped-call]
                self._model, inputs, check_trace=False
            )
        return traced
