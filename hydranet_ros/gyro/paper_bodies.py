"""The paper's bodies: its convolutional network, the residual blocks on a vector, ResNet-34.

ResNet-34 (He et al., 2015) has torchvision's names for its parameters, so that weights trained on
ImageNet by others can be loaded: `load_imagenet(body, FILE)`.
"""

from __future__ import annotations

import pickle
from math import prod
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hydranet_ros.errors import FileError
from hydranet_ros.gyro.body import Body, conv_unit
from hydranet_ros.gyro.config import NetworkConfig


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


class BasicBlock(nn.Module):
    """ReLU(bn(conv(ReLU(bn(conv(x))))) + x), x projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, r, c) -> (batch, outputs, r / stride, c / stride)."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNetBody(nn.Module):
    """ResNet-34 without its classifier: 512 features."""

    BLOCKS = (3, 4, 6, 3)

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(config.input_shape[0], 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = 64
        for index, count in enumerate(self.BLOCKS):
            outputs, stride = 64 * 2**index, 1 if index == 0 else 2
            blocks = [BasicBlock(inputs, outputs, stride)]
            blocks += [BasicBlock(outputs, outputs, 1) for _ in range(count - 1)]
            self.add_module(f"layer{index + 1}", nn.Sequential(*blocks))
            inputs = outputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.width = inputs

    def forward(self, x: Tensor) -> Body:
        """(batch, 3, rows, columns) -> (batch, 512)."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for index in range(len(self.BLOCKS)):
            x = self.get_submodule(f"layer{index + 1}")(x)
        return Body(x.mean(dim=(2, 3)))


def load_imagenet(body: nn.Module, path: str | PathLike[str]) -> None:
    """Load a state dict of torchvision's resnet34, .safetensors or .pth, without its classifier.

    A .pth file is read by torch's restricted loader, which makes tensors and runs no code.
    """
    path = Path(path)
    tensors = {name: value for name, value in _read(path).items() if not name.startswith("fc.")}
    expected = body.state_dict()
    # Files from before 2018 have no counters of batches; they do not matter to inference.
    missing = [name for name in expected if name not in tensors and "num_batches" not in name]
    unexpected = [name for name in tensors if name not in expected]
    if missing or unexpected:
        what = f"lacks {missing[0]!r}" if missing else f"has {unexpected[0]!r}"
        raise FileError(path, f"{what}: not a state dict of torchvision's resnet34")
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            shapes = f"{tuple(value.shape)} instead of {tuple(expected[name].shape)}"
            raise FileError(path, f"{name!r} has shape {shapes}")
    body.load_state_dict(tensors, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        raise FileError(
            path, "is not a state dict: save torchvision's resnet34 as .safetensors or .pth"
        ) from None
    if not isinstance(tensors, dict) or not all(isinstance(v, Tensor) for v in tensors.values()):
        raise FileError(path, "holds something else than a state dict of tensors")
    return tensors
