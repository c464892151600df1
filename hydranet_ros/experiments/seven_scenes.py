"""A camera's orientation from one colour image: the paper's section 4.2, on 7-Scenes.

    hydranet experiment seven-scenes --dataset DIR --imagenet resnet34.pth     all scenes there
    hydranet experiment seven-scenes --dataset DIR --scenes chess fire
    hydranet experiment seven-scenes --dataset DIR --quick                     small images

Expected of the paper, mean error deg / NLL: chess 6.3 / -6.0, fire 14.9 / -3.6, heads 14.3 / -3.9,
office 8.6 / -5.4, pumpkin 9.0 / -5.0, kitchen 8.8 / -5.0, stairs 11.8 / -4.7. The paper chose the
epoch by the lowest NLL; here it is the NLL of a tenth of the training frames, never of the test.
A GPU is used where there is one; without, a scene takes a day.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hydranet_ros.datasets.seven_scenes import Frames, Scene, find_scenes, read_scene
from hydranet_ros.experiments.fit import FitConfig, PredictionErrors, evaluate, fit, untrained
from hydranet_ros.experiments.outcome import Outcome, Row, error_bands
from hydranet_ros.gyro.config import preset
from hydranet_ros.gyro.paper_bodies import load_imagenet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Scene: mean error in deg and NLL of the paper, mean error in deg of PoseNet.
PUBLISHED = {
    "chess": (6.3, -6.0, 4.5),
    "fire": (14.9, -3.6, 11.3),
    "heads": (14.3, -3.9, 13.0),
    "office": (8.6, -5.4, 5.6),
    "pumpkin": (9.0, -5.0, 4.8),
    "redkitchen": (8.8, -5.0, 5.4),
    "stairs": (11.8, -4.7, 12.4),
}

# Of ImageNet, per channel: what pre-trained networks expect.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class FrameSamples:
    """The frames of a scene as a network takes them."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.targets = torch.tensor(frames.quaternions, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.frames)

    def inputs(self, numbers: Sequence[int]) -> Tensor:
        """(batch, 3, size, size), normalised as for ImageNet."""
        x = torch.from_numpy(self.frames.images(numbers)).permute(0, 3, 1, 2).float() / 255.0
        return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


@dataclass(frozen=True)
class SevenScenesSettings:
    """What is run; the defaults are the paper's."""

    dataset: Path
    scenes: tuple[str, ...] = ()
    imagenet: Path | None = None
    """A state dict of torchvision's resnet34; without, weights start at random."""
    seed: int = 0
    epochs: int = 15
    batch_size: int = 16
    learning_rate: float = 5e-5
    image_px: int = 224
    most_frames: int | None = None

    def quick(self) -> SevenScenesSettings:
        """Small images, few of them, and a rate that gets somewhere in few steps."""
        return replace(
            self, epochs=3, image_px=64, most_frames=64, learning_rate=1e-3, batch_size=8
        )


def run(settings: SevenScenesSettings, quick: bool = False) -> Outcome:
    """Train and test a network for each scene."""
    settings = settings.quick() if quick else settings
    folders = find_scenes(settings.dataset, settings.scenes)
    scenes = [read_scene(path, settings.image_px, settings.most_frames) for path in folders]
    found = {scene.name: train_scene(scene, settings) for scene in scenes}
    figures: dict[str, float] = {}
    plots: dict[str, Callable[[], Figure]] = {}
    for scene in scenes:
        result = found[scene.name]
        figures |= {f"{scene.name}.{key}": value for key, value in _figures(scene, result).items()}
        plots[f"regression_{scene.name}"] = partial(_plot, result)
    return Outcome(
        figures,
        _report(found, figures),
        {"quick": quick, **_plain(asdict(settings))},
        {},
        {"scenes": [_row(name, figures) for name in found]},
        plots,
    )


def train_scene(scene: Scene, settings: SevenScenesSettings) -> PredictionErrors:
    """Train on a scene's training frames, and evaluate on its test frames."""
    size = settings.image_px
    model = untrained(preset("resnet34", input_shape=(3, size, size)), settings.seed)
    if settings.imagenet is not None:
        load_imagenet(model.body, settings.imagenet)
    config = FitConfig(settings.epochs, settings.batch_size, settings.learning_rate, settings.seed)
    training, validation, test = (
        FrameSamples(frames) for frames in (scene.training, scene.validation, scene.test)
    )
    return evaluate(fit(model, config, training, validation), test)


def _figures(scene: Scene, found: PredictionErrors) -> dict[str, float]:
    return {
        "mean_deg": float(found.angles_deg.mean()),
        "median_deg": float(np.median(found.angles_deg)),
        "nll": found.nll,
        "nees": found.nees,
        "coverage": float(found.covered.mean()),
        "training_frames": float(len(scene.training)),
        "test_frames": float(len(scene.test)),
    }


def _row(name: str, figures: dict[str, float]) -> Row:
    published = PUBLISHED.get(name, (float("nan"),) * 3)
    keys = ("paper_mean_deg", "paper_nll", "posenet_mean_deg")
    own = {key: figures[f"{name}.{key}"] for key in ("mean_deg", "nll", "nees", "coverage")}
    return {"scene": name, **own, **dict(zip(keys, published, strict=True))}


def _report(found: dict[str, PredictionErrors], figures: dict[str, float]) -> str:
    lines = [f"{'scene':<14}{'error deg':>10}{'paper':>8}{'NLL':>9}{'paper':>8}{'3 sigma':>9}"]
    for name in found:
        published = PUBLISHED.get(name)
        degrees, nll = ("-", "-") if published is None else (f"{x:.1f}" for x in published[:2])
        own = [figures[f"{name}.{key}"] for key in ("mean_deg", "nll", "coverage")]
        lines.append(f"{name:<14}{own[0]:>10.1f}{degrees:>8}{own[1]:>9.1f}{nll:>8}{own[2]:>9.3f}")
    return "\n".join(lines)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Paths as their names, tuples as lists: what YAML should hold."""
    names = {key: value.name for key, value in values.items() if isinstance(value, Path)}
    lists = {
        key: list(value)
        for key, value in values.items()
        if isinstance(value, Sequence) and not isinstance(value, str)
    }
    return {**values, **names, **lists}


def _plot(found: PredictionErrors) -> Figure:
    bands = {"3 sigma of Sigma_t": found.sigmas_deg(found.prediction.covariance)}
    errors = np.degrees(found.errors)
    frames = np.arange(len(errors), dtype=np.float64)
    return error_bands(frames, errors, bands, "test frame")
