"""The figures of the one-dimensional experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hydranet_ros.experiments.one_d_data import TEST_RANGE, Samples, function
from hydranet_ros.experiments.one_d_methods import METHODS
from hydranet_ros.experiments.plots import boxes, grid, sigma_shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hydranet_ros.experiments.one_d import Trained

SAMPLES = 4
_HEIGHT = 12.0


def plots(
    data: Samples, main: dict[str, Trained], noisy: dict[str, dict[float, Tensor]]
) -> dict[str, Callable[[], Figure]]:
    """Every figure of the paper, by the name of its file."""
    titles = {METHODS[name].title: trained for name, trained in main.items()}
    return {
        "data": lambda: _data(data, main["hydranet"].test),
        "uncertainty": lambda: _uncertainty(data, titles),
        "nll": lambda: boxes({t: each.nll.numpy() for t, each in titles.items()}, "NLL", log=True),
        "mse": lambda: boxes({t: each.mse.numpy() for t, each in titles.items()}, "MSE", log=True),
        "samples": lambda: _samples(data, titles),
        "target_noise": lambda: _target_noise(noisy),
    }


def _data(data: Samples, test: Samples) -> Figure:
    figure, ((axes,),) = grid(1, 1, 6.0, 4.0)
    _truth(axes)
    axes.plot(data.x[0], data.y[0], ".", markersize=2, label="training set")
    axes.plot(test.x[0], test.y[0], "x", markersize=3, label="test set")
    axes.legend()
    return figure


def _uncertainty(data: Samples, trained: dict[str, Trained]) -> Figure:
    """Of each method, the repetition whose NLL is the median one."""
    figure, axes = grid(1, len(trained))
    for each, (title, result) in zip(axes[0], trained.items(), strict=True):
        _prediction(each, data, result, int(result.nll.argsort()[len(result.nll) // 2]))
        each.set_title(title)
    return figure


def _samples(data: Samples, trained: dict[str, Trained]) -> Figure:
    count = min(SAMPLES, len(data.x))
    figure, axes = grid(len(trained), count)
    for row, (title, result) in zip(axes, trained.items(), strict=True):
        for repetition, each in enumerate(row):
            _prediction(each, data, result, repetition)
        row[0].set_ylabel(title)
    return figure


def _prediction(axes: Axes, data: Samples, trained: Trained, repetition: int) -> None:
    _truth(axes)
    axes.plot(data.x[repetition], data.y[repetition], ".", color="black", markersize=1)
    found = trained.predicted
    sigma = found.variance[repetition].sqrt()
    x = trained.test.x[repetition]
    sigma_shades(axes, x.numpy(), found.mean[repetition].numpy(), sigma.numpy())
    axes.set_ylim(-_HEIGHT, _HEIGHT)


def _truth(axes: Axes) -> None:
    x = torch.linspace(*TEST_RANGE, 500)
    axes.plot(x, function(x), color="tab:red", linewidth=0.8)


def _target_noise(noisy: dict[str, dict[float, Tensor]]) -> Figure:
    figure, axes = grid(1, len(noisy), 4.0, 3.5)
    for each, (name, levels) in zip(axes[0], noisy.items(), strict=True):
        each.boxplot([nll.numpy() for nll in levels.values()], showfliers=False)
        each.set_xticks(range(1, len(levels) + 1), [f"{level:g}" for level in levels])
        each.set_title(METHODS[name].title)
        each.set_xlabel("noise on the targets")
        each.set_ylabel("NLL")
        each.set_yscale(
            "log" if min(float(nll.min()) for nll in levels.values()) > 0 else "linear"
        )
    return figure
