"""What a training is made from: one frozen dataclass, read from YAML, stored with its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from hydranet_ros.errors import FileError
from hydranet_ros.files import read_text
from hydranet_ros.gyro.config import NetworkConfig, preset
from hydranet_ros.gyro.flow import METHODS


def _whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")


_COUNTS = ("streets", "validation_streets", "exact_streets", "calibration_streets", "unusual")


@dataclass(frozen=True)
class DataConfig:
    """Simulated streets, or KITTI folders where any are named."""

    # Streets to learn from, and others to validate on.
    streets: int = 360
    validation_streets: int = 40
    # More streets to learn from, with exact flow instead of rendered images.
    exact_streets: int = 0
    # Streets of another style, to calibrate on as well.
    calibration_streets: int = 30
    frames_per_street: int = 14
    # Frames between the two images of a pair.
    gaps: tuple[int, ...] = (1, 2, 3)
    # Unusual pairs of each kind per street (see unusual.py).
    unusual: int = 2
    # The flow to learn from: that of the Predictor's camera later on.
    flow: str = "dis"
    # Folders of KITTI sequences with ground truth.
    kitti: tuple[str, ...] = ()
    kitti_validation: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _whole(name, getattr(self, name), 0)
        _whole("frames_per_street", self.frames_per_street, 2)
        for gap in self.gaps:
            _whole("gaps", gap, 1)
        if not self.gaps:
            raise ValueError("gaps must name at least one number of frames")
        if self.flow not in METHODS[1:]:
            raise ValueError(f"flow must be one of {', '.join(METHODS[1:])}, got {self.flow!r}")
        if bool(self.kitti) != bool(self.kitti_validation):
            raise ValueError("kitti and kitti_validation must both name folders, or neither")
        if set(self.kitti) & set(self.kitti_validation):
            raise ValueError("kitti_validation must name other folders than kitti")


@dataclass(frozen=True)
class AugmentConfig:
    """How much is changed; all zero changes nothing."""

    # Chance that a pair is seen in a mirror.
    mirror: float = 0.5
    # Chance that a pair is turned further, and the standard deviations of it about x, y, z.
    turn: float = 0.5
    turn_deg: tuple[float, float, float] = (0.4, 1.2, 0.4)
    # Chance that a part of the view is cut off.
    crop: float = 0.15
    # Chance of each of a few things that move by themselves, and how far in normalised units.
    movers: float = 0.15
    mover_step: float = 0.03
    # Standard deviation of smooth errors, as a share of the flow and in normalised units, at most.
    error_share: float = 0.04
    error_floor: float = 0.0006

    def __post_init__(self) -> None:
        for name in ("mirror", "turn", "crop", "movers"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be a chance from 0 to 1, got {getattr(self, name)}")
        for name in ("mover_step", "error_share", "error_floor"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


NO_AUGMENTATION = AugmentConfig(mirror=0, turn=0, crop=0, movers=0, error_share=0, error_floor=0)


LOSS_KINDS = ("nll", "split")


@dataclass(frozen=True)
class LossConfig:
    """Which form of the loss.

    The likelihood weighs each sample's error by its own precision: what is badly predicted gets a
    large covariance, then little gradient, and may stay badly predicted. Two remedies:

    - `beta` > 0 multiplies each sample's loss by det(Sigma_a)^(beta/3), held constant and scaled
      to mean 1 over the batch (beta-NLL, Seitzer et al. 2022, for a full covariance). 1 gives
      every sample's error the same weight; 0.5 is a good start.
    - kind `split` trains rotations on |phi|^2 / (2 mean_sigma_rad^2), whatever the covariance,
      and the covariance on errors held constant.
    """

    kind: str = "nll"
    beta: float = 0.0
    mean_sigma_rad: float = 0.01

    def __post_init__(self) -> None:
        if self.kind not in LOSS_KINDS:
            raise ValueError(f"kind must be one of {', '.join(LOSS_KINDS)}, got {self.kind!r}")
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta must be from 0 to 1, got {self.beta}")
        if not self.mean_sigma_rad > 0.0:
            raise ValueError(f"mean_sigma_rad must be positive, got {self.mean_sigma_rad}")


@dataclass(frozen=True)
class TrainingConfig:
    """A training; equal configurations give equal weights on one machine."""

    seed: int = 7
    # The network: a preset, with some of its fields replaced.
    preset: str = "default"
    network: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=lambda: LossConfig(beta=0.5))

    epochs: int = 20
    # Batches in an epoch; 0 is once through all pairs.
    steps_per_epoch: int = 120
    batch_size: int = 48
    # Unusual pairs added to each batch, as a share of it, how far apart heads then should be, and
    # how much that counts.
    unusual_share: float = 0.2
    unusual_deg: float = 1.0
    unusual_weight: float = 5.0
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    warmup_steps: int = 100
    # Largest norm of a gradient.
    clip_norm: float = 1.0
    # Weights are averaged over about 1 / (1 - decay) steps; 0 takes the last ones.
    average_decay: float = 0.995
    # Standard deviation of a rotation about each axis that is there in any case: vibration while
    # the shutter is open, residues of rectification, and whatever else simulation does not have.
    # The two ground truths of KITTI differ by 0.005 to 0.03 deg per frame; this is between them.
    floor_deg: float = 0.012
    # Epochs without a better validation NLL after which the training ends.
    patience: int = 10

    def __post_init__(self) -> None:
        for name, low in (
            ("seed", 0),
            ("epochs", 1),
            ("steps_per_epoch", 0),
            ("batch_size", 2),
            ("warmup_steps", 0),
            ("patience", 1),
        ):
            _whole(name, getattr(self, name), low)
        for name in ("learning_rate", "clip_norm", "unusual_deg", "unusual_weight"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name, high in (
            ("unusual_share", 1.0),
            ("average_decay", 1.0),
            ("weight_decay", 10.0),
            ("floor_deg", 10.0),
        ):
            if not 0.0 <= getattr(self, name) < high:
                raise ValueError(f"{name} must be from 0 to {high:g}, got {getattr(self, name)}")
        self.network_config()

    def network_config(self) -> NetworkConfig:
        """The network to train."""
        try:
            return preset(self.preset, **self.network)
        except TypeError as error:
            raise ValueError(f"network: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in YAML."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


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
    try:
        values = yaml.safe_load(read_text(path)) or {}
        if not isinstance(values, dict):
            raise ValueError("must be a mapping of names to values")
        base = values.pop("base", "default")
        if base not in CONFIGS:
            raise ValueError(f"base must be one of {', '.join(CONFIGS)}, got {base!r}")
        changed: TrainingConfig = _changed(CONFIGS[base], values)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise FileError(path, " ".join(str(error).split())) from None
    return changed


def _changed(config: Any, values: dict[str, Any]) -> Any:
    """Replace some fields of a dataclass, and of those inside it."""
    known = {each.name for each in fields(config)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{name!r} is not known: use {', '.join(sorted(known))}")
        old = getattr(config, name)
        if hasattr(old, "__dataclass_fields__"):
            changes[name] = _changed(old, value)
        else:
            changes[name] = tuple(value) if isinstance(old, tuple) else value
    return replace(config, **changes)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value
