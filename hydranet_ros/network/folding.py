"""Fold batch norms into the convolutions before them: the same function with less to do."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


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
