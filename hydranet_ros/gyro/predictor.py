"""Flow in, rotations with covariances out: a trained network, ready to run.

For speed, batch norms are folded into convolutions, and small batches run as traces.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.config import FLOW_CHANNELS, NetworkConfig
from hydranet_ros.gyro.device import choose_device, set_threads
from hydranet_ros.gyro.grid import WELL_TEXTURED, FlowInputs
from hydranet_ros.gyro.network import HydraNet, HydraOutput
from hydranet_ros.gyro.prediction import Prediction, combine, combine_pair
from hydranet_ros.gyro.weights import Weights, load_weights
from hydranet_ros.gyro.weights_file import Provenance

ArrayOrTensor = NDArray[Any] | Tensor


def network_input(
    flow: Tensor, mask: Tensor | None, channels: int, texture: Tensor | None = None
) -> Tensor:
    """u, v and, where the network has channels for them, mask and texture.

    flow (batch, 2, rows, columns), mask (batch, rows, columns), non-zero where flow is known.
    Flow is 0 where it is not known, whatever stood there, NaN included.
    """
    if flow.ndim != 4 or flow.shape[1] != 2:
        raise ValueError(f"flow must be (batch, 2, rows, columns), got {tuple(flow.shape)}")
    if mask is not None and mask.shape != (flow.shape[0], *flow.shape[2:]):
        raise ValueError(
            f"mask must be (batch, rows, columns) of flow {tuple(flow.shape)}, "
            f"got {tuple(mask.shape)}"
        )
    known = torch.ones_like(flow[:, 0], dtype=torch.bool) if mask is None else mask != 0
    known = known[:, None]
    flow = torch.where(known, flow, 0.0)
    if channels == 2:
        return flow
    parts = [flow, known.to(flow.dtype)]
    if channels == FLOW_CHANNELS:
        if texture is None:
            well = flow.new_tensor([WELL_TEXTURED, 0.0, WELL_TEXTURED]).view(1, 3, 1, 1)
            texture = well.expand(len(flow), -1, *flow.shape[2:])
        if texture.shape != (flow.shape[0], 3, *flow.shape[2:]):
            raise ValueError(
                f"texture must be (batch, 3, rows, columns) of flow {tuple(flow.shape)}, "
                f"got {tuple(texture.shape)}"
            )
        parts.append(torch.where(known, texture, 0.0))
    return torch.cat(parts, dim=1)


class Predictor:
    """A trained HydraNet on a device.

    `half` computes convolutions and products in float16, which pays on CUDA and hardly ever on
    the CPU; angles stay in float32. `compile` takes tens of seconds at the first batch of each
    size, and needs a C++ compiler on the CPU. `threads` are those of `set_threads`, for the
    whole process. Given a model, its copy is used.
    """

    def __init__(
        self,
        weights: str | PathLike[str] | Weights | HydraNet,
        device: str = "auto",
        half: bool = False,
        compile: bool = False,
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            set_threads(threads)
        self.device, self.half = choose_device(device), half
        if isinstance(weights, HydraNet):
            weights = Weights(weights)
        self.weights = weights if isinstance(weights, Weights) else load_weights(weights)
        self.model = deepcopy(self.weights.model).to(self.device).eval().requires_grad_(False)
        fold_batch_norms(self.model)
        # On the CPU, small images in any other layout get torch's slow convolutions.
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward = self._runner(compile)
        self._compiled = compile

    def _runner(self, compile: bool) -> Callable[..., Any]:
        if compile:
            return torch.compile(self.model)
        return self.model if self.half else Traced(self.model)  # a trace has no autocast

    def __repr__(self) -> str:
        options = ", half" * self.half + ", compiled" * self._compiled
        return f"Predictor({self.model.config.preset!r} on {self.device_name}{options})"

    @property
    def config(self) -> NetworkConfig:
        """What the network is made of."""
        return self.model.config

    @property
    def provenance(self) -> Provenance:
        """Where the weights come from."""
        return self.weights.provenance

    @property
    def flow_device(self) -> str:
        """Where flow that torch computes should be computed."""
        return str(self.device)

    @property
    def device_name(self) -> str:
        """For logs and diagnostics: `cpu (torch, 2 threads)`, `cuda:0 (name of the GPU)`."""
        if self.device.type == "cpu":
            return f"cpu (torch, {torch.get_num_threads()} threads)"
        return f"{self.device} ({torch.cuda.get_device_name(self.device)})"

    def predict(
        self,
        flow: ArrayOrTensor,
        mask: ArrayOrTensor | None = None,
        trusted: ArrayOrTensor | None = None,
        texture: ArrayOrTensor | None = None,
    ) -> Prediction:
        """Flow (batch, 2, rows, columns) and what is known of it (`FlowInputs`) -> C_2_1.

        Flow takes image 1 to image 2, on the grid and in the units the network was trained on:
        normalised coordinates for `default`, pixels for `paper`. NumPy, or torch on any device.
        Networks with geometry inside use that of the `trusted` cells, as the mask; all if None.
        """
        heads = self.heads(FlowInputs(flow, mask, trusted, texture))
        return self.combined(heads.on_cpu(), stereo=False)

    def predict_inputs(self, inputs: ArrayOrTensor) -> Prediction:
        """(batch, *input_shape) -> rotations: for networks that take other things than flow."""
        return self.combined(self._heads((self._tensor(inputs),)).on_cpu(), stereo=False)

    def predict_stereo(
        self,
        left: FlowInputs,
        right: FlowInputs,
    ) -> Prediction:
        """What `predict` takes, of both cameras of a rectified pair -> one estimate of both.

        The left flow goes from image 1 to image 2, the right one from image 2 to image 1: the
        errors of forward and backward flow have less in common than those of two cameras.
        """
        sides = zip(self._inputs(left), self._inputs(right), strict=True)
        inputs = tuple(torch.cat(side) for side in sides)  # one pass for both
        return self.combined(self._heads(inputs).on_cpu(), stereo=True)

    def heads(self, given: FlowInputs) -> HydraOutput:
        """What the heads say of flow, left on the device."""
        return self._heads(self._inputs(given))

    def combined(self, output: HydraOutput, stereo: bool) -> Prediction:
        """One estimate of each sample, or of both halves of a stereo batch; output on the CPU."""
        calibration = self.weights.calibration
        if not stereo:
            return combine(output, calibration)
        return combine_pair(combine(output, replace(calibration, floor_rad=0.0)), calibration)

    def rotations(
        self,
        flow: ArrayOrTensor,
        mask: ArrayOrTensor | None,
        stamps_ns: Sequence[tuple[int, int]],
    ) -> list[RelativeRotation]:
        """`predict`, with the stamps of images 1 and 2 of each flow field."""
        return self.predict(flow, mask).rotations(stamps_ns)

    def _inputs(self, given: FlowInputs) -> tuple[Tensor, ...]:
        flow, mask, trusted, texture = (
            None if each is None else self._tensor(each) for each in given
        )
        assert flow is not None
        x = network_input(flow, mask, self.model.config.input_shape[0], texture)
        if self.model.config.body != "flow":
            return (x,)
        sure = x[:, 2:3] if trusted is None else (trusted != 0)[:, None].to(x.dtype)
        if sure.shape != x[:, 2:3].shape:
            raise ValueError(
                f"trusted must be (batch, rows, columns) of flow {tuple(flow.shape)}, "
                f"got {tuple(sure[:, 0].shape)}"
            )
        return x, sure

    def _heads(self, inputs: tuple[Tensor, ...]) -> HydraOutput:
        with torch.inference_mode(), self._precision():
            try:
                return HydraOutput(*self._forward(*inputs))
            except torch._dynamo.exc.BackendCompilerFailed as error:
                reason = str(error.inner_exception).partition("\n")[0]
                raise HydraNetError(
                    f"compile is asked for but fails here ({reason}): leave it off"
                ) from None

    def _precision(self) -> AbstractContextManager[object]:
        if not self.half:
            return nullcontext()
        # Not bfloat16: 8 bits are few for flow, and on a virtual CPU that announces AMX a product
        # in bfloat16 was seen to end the process with an illegal instruction.
        return torch.autocast(self.device.type, dtype=torch.float16)

    def _tensor(self, array: ArrayOrTensor) -> Tensor:
        if not isinstance(array, Tensor):
            array = torch.from_numpy(np.array(array, dtype=np.float32))
        return array.to(self.device, torch.float32, non_blocking=True)


# --- traces --------------------------------------------------------------------------------------


_MOST_TRACES = 4  # of grids of different sizes
_LARGEST_BATCH = 2  # one frame, or one of each camera; larger batches have larger operations


class Traced:
    """A network in evaluation mode, traced once for each shape of small batches.

    For one frame the network on flow is some nine hundred small operations, and Python takes as
    long between them as they take themselves. A trace repeats them without Python.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._traces: dict[tuple[torch.Size, ...], Callable[..., Any]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """As the model does."""
        if not 1 <= len(inputs[0]) <= _LARGEST_BATCH:
            return self._model(*inputs)
        shapes = tuple(each.shape for each in inputs)
        if shapes not in self._traces:
            while len(self._traces) >= _MOST_TRACES:  # cameras come and go, memory does not
                self._traces.pop(next(iter(self._traces)))
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


# --- batch norms ---------------------------------------------------------------------------------


def fold_batch_norms(model: nn.Module) -> None:
    """Replace (convolution, batch norm) in every Sequential, in place; for evaluation only."""
    for module in list(model.modules()):
        if not isinstance(module, nn.Sequential):
            continue
        for index in range(len(module) - 1):
            conv, norm = module[index], module[index + 1]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module[index] = fuse_conv_bn_eval(conv, norm)
                module[index + 1] = nn.Identity()
