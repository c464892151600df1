"""What a training is made from: read from YAML, compared with checkpoints, stored with results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydranet_ros.errors import FileError
from hydranet_ros.gyro.config import PRESETS, NetworkConfig
from hydranet_ros.settings import Configuration, read_yaml, section, setting, update

_TINY = 1e-9  # the least of what must be positive
_MOST_STREETS = 100_000  # of a kind: beyond it are the numbers of the next kind


@dataclass(frozen=True)
class DataConfig(Configuration):
    """Simulated streets, or KITTI folders where any are named."""

    streets: int = setting(
        300, "simulated worlds to learn from, streets among them", 0, _MOST_STREETS
    )
    validation_streets: int = setting(30, "other worlds, to validate on", 0, _MOST_STREETS)
    exact_streets: int = setting(
        0,
        "more streets to learn from, with exact flow instead of rendered images",
        0,
        _MOST_STREETS,
    )
    calibration_streets: int = setting(
        30, "worlds of another style, to calibrate on as well", 0, _MOST_STREETS
    )
    frames_per_street: int = setting(10, "images of a world", 2, 1000)
    gaps: tuple[int, ...] = setting((1, 2, 3), "frames between the two images of a pair", 1, 1000)
    unusual: int = setting(
        1, "unreadable pairs of each kind per world (see unreadable.py)", 0, 1000
    )
    flow: Literal["dis", "farneback", "farneback_torch"] = setting(
        "dis", "flow method to learn from: the one that the Predictor will be fed with"
    )
    kitti: tuple[str, ...] = setting((), "folders of KITTI sequences with ground truth")
    kitti_validation: tuple[str, ...] = setting((), "other such folders, to validate on")

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if not self.gaps:
            raise ValueError("gaps must have at least one number of frames")
        if not self.kitti and min(self.gaps) >= self.frames_per_street:
            raise ValueError(
                f"gaps must be less than the {self.frames_per_street} images of a street, got "
                f"{min(self.gaps)} at least"
            )
        if bool(self.kitti) != bool(self.kitti_validation):
            raise ValueError("kitti and kitti_validation must both name folders, or neither")
        if set(self.kitti) & set(self.kitti_validation):
            raise ValueError("kitti_validation must name other folders than kitti")


@dataclass(frozen=True)
class AugmentConfig(Configuration):
    """How much is changed; all zero changes nothing."""

    mirror: float = setting(0.5, "chance that a pair is mirrored", 0, 1)
    turn: float = setting(0.5, "chance that a pair is turned further", 0, 1)
    turn_deg: tuple[float, float, float] = setting(
        (0.4, 1.2, 0.4), "standard deviations of such a turn about x, y, z", 0, 90
    )
    crop: float = setting(0.15, "chance that a part of the view is cut off", 0, 1)
    movers: float = setting(0.15, "chance of each of three objects that move by themselves", 0, 1)
    mover_step: float = setting(0.03, "how far they move, in normalised units", 0, 10)
    error_share: float = setting(
        0.04, "largest standard deviation of smooth flow errors, as a share of the flow", 0, 10
    )
    error_floor: float = setting(0.0006, "the same, in normalised units", 0, 10)


NO_AUGMENTATION = AugmentConfig(mirror=0, turn=0, crop=0, movers=0, error_share=0, error_floor=0)


@dataclass(frozen=True)
class LossConfig(Configuration):
    """Which form of the loss.

    The likelihood weighs each sample's error by its own precision: what is badly predicted gets a
    large covariance, then little gradient, and may stay badly predicted. Two remedies:

    - `beta` > 0 multiplies each sample's loss by det(Sigma_a)^(beta/3), held constant and scaled
      to mean 1 over the batch (beta-NLL, Seitzer et al. 2022, for a full covariance). 1 gives
      every sample's error the same weight; 0.5 is a good start.
    - kind `split` trains rotations on |phi|^2 / (2 mean_sigma_rad^2), whatever the covariance,
      and the covariance on errors held constant.
    """

    kind: Literal["nll", "split"] = setting(
        "nll", "nll: likelihood of rotation and covariance together; split: one after the other"
    )
    beta: float = setting(0.0, "how evenly samples are weighed: 0 by precision, 1 all alike", 0, 1)
    mean_sigma_rad: float = setting(
        0.01, "deviation that kind split weighs rotations by", _TINY, 10
    )


@dataclass(frozen=True)
class TrainingConfig(Configuration):
    """A training; equal configurations give equal weights on one machine."""

    seed: int = setting(7, "seed of everything random", 0, 2**31 - 1)
    preset: Literal["default", "paper", "resnet34", "mlp"] = setting(
        "default", "the network that is changed by `network`"
    )
    network: Mapping[str, Any] = setting({}, "settings of the network that differ from its preset")
    data: DataConfig = section(DataConfig)
    augment: AugmentConfig = section(AugmentConfig)
    loss: LossConfig = section(LossConfig)

    epochs: int = setting(14, "most epochs", 1, 1_000_000)
    steps_per_epoch: int = setting(
        120, "batches in an epoch; 0 is once through all pairs", 0, 1_000_000
    )
    batch_size: int = setting(32, "pairs in a batch", 2, 65536)
    unusual_share: float = setting(
        0.2, "unreadable pairs added to each batch, as a share of it", 0, 0.999
    )
    unusual_deg: float = setting(1.0, "how far apart the heads should be on them", _TINY, 180)
    unusual_weight: float = setting(5.0, "weight of that in the loss", _TINY, 1e9)
    learning_rate: float = setting(2e-3, "learning rate after the warm-up", _TINY, 10)
    weight_decay: float = setting(1e-4, "weight decay of AdamW", 0, 10)
    warmup_steps: int = setting(
        100, "steps over which the learning rate grows from 0", 0, 1_000_000_000
    )
    clip_norm: float = setting(1.0, "largest norm of a gradient", _TINY)
    average_decay: float = setting(
        0.995,
        "weights are averaged over about 1 / (1 - decay) steps; 0 takes the last ones",
        0,
        0.999999,
    )
    floor_deg: float = setting(
        0.012,
        "standard deviation of a rotation about each axis that is always added: vibration while "
        "the shutter is open, residues of rectification, and whatever else simulation lacks. The "
        "two ground truths of KITTI differ by 0.005 to 0.03 deg per frame; this is between them",
        0,
        10,
    )
    patience: int = setting(10, "epochs without a better validation NLL before it stops", 1)

    def validate(self) -> None:
        """Check that there is such a network."""
        self.network_config()

    def network_config(self) -> NetworkConfig:
        """The network to train."""
        return update(PRESETS[self.preset], self.network, "network.")


PAPER = TrainingConfig(
    preset="paper",
    augment=NO_AUGMENTATION,
    loss=LossConfig(),
    data=DataConfig(gaps=(1,), unusual=0, flow="farneback"),
    epochs=40,
    steps_per_epoch=0,
    batch_size=32,
    unusual_share=0.0,
    learning_rate=5e-5,
    weight_decay=0.0,
    warmup_steps=0,
    clip_norm=1e9,
    floor_deg=0.0,
    average_decay=0.0,
    patience=40,
)
CONFIGS = {"default": TrainingConfig(), "paper": PAPER}


def read_config(name: str) -> TrainingConfig:
    """Read one of CONFIGS by its name, or a YAML file of what differs from its `base`."""
    if name in CONFIGS:
        return CONFIGS[name]
    path = Path(name)
    values = read_yaml(path)
    base = values.pop("base", "default")
    try:
        if not isinstance(base, str) or base not in CONFIGS:
            raise ValueError(f"base must be one of {', '.join(CONFIGS)}, got {base!r}")
        return update(CONFIGS[base], values)
    except ValueError as error:
        raise FileError(path, str(error)) from None
