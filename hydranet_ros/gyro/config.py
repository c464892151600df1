"""What a network is made of: frozen, checked where it is made, and stored with the weights."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import isfinite, prod
from typing import Any

from hydranet_ros.gyro.grid import CanonicalGrid

BODIES = ("flow", "paper", "resnet34", "mlp")
OUTPUTS = ("quaternion", "tangent")
COVARIANCES = ("diagonal", "cholesky")
BOOTSTRAPS = ("none", "poisson", "bernoulli")

# What a file may ask for: a damaged or hostile one must not take all the memory of a robot.
_LARGEST = {"heads": 1024, "features": 65536, "head_hidden": 65536, "covariance_hidden": 65536}
_LARGEST_INPUT = 16_000_000


@dataclass(frozen=True)
class NetworkConfig:
    """A HydraNet; `preset` makes the ones that are known to work."""

    preset: str = "default"
    body: str = "flow"
    input_shape: tuple[int, ...] = (3, 48, 160)
    """Of one sample: (channels, rows, columns), or (n,) for `mlp`."""
    grid: CanonicalGrid | None = field(default_factory=CanonicalGrid)
    """Where the cells of the input look; None where the input is not calibrated flow."""
    heads: int = 25
    features: int = 64
    """Width of what the body hands to the heads."""
    head_hidden: int = 48
    head_dropout: float = 0.0
    covariance_hidden: int = 64

    output: str = "tangent"
    """`quaternion`: a head gives 4 numbers, normalised (the paper). `tangent`: a head gives a
    rotation vector in units of `output_scale_rad`, which starts at small rotations."""
    output_scale_rad: float = 0.01

    covariance: str = "cholesky"
    """`diagonal`: softplus precisions, what produced the paper's numbers. `cholesky`: a full
    covariance from its factor, what the paper's text describes."""
    sigma_unit_rad: float = 1.0
    """Standard deviation that an output of 1 stands for: keeps outputs near 1. For body `flow` it
    is relative: the covariance head scales what the geometry says."""
    covariance_floor: float = 1e-3
    """Added to each softplus: to precisions for `diagonal`, to deviations for `cholesky`."""

    prior_scale_rad: float = 0.0003
    """Size of each head's fixed random function (see priors.py); 0 is none. What a head does not
    manage to cancel is an error of its own: keep it below the errors that are hoped for."""
    prior_hidden: int = 16
    prior_input_scale: float = 0.03
    """Typical magnitude of the inputs."""
    prior_gain: float = 1.0
    """How fast the random functions vary: more disagrees closer to the training set, and is
    harder to cancel in it."""
    prior_seed: int = 0
    bootstrap: str = "poisson"
    """How training weighs samples per head (see bootstrap.py)."""

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_sizes()
        for name in ("output_scale_rad", "sigma_unit_rad", "prior_input_scale", "prior_gain"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("covariance_floor", "prior_scale_rad"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0.0 <= self.head_dropout < 1.0:
            raise ValueError(f"head_dropout must be in [0, 1), got {self.head_dropout}")

    def _check_choices(self) -> None:
        choices = {
            "body": BODIES,
            "output": OUTPUTS,
            "covariance": COVARIANCES,
            "bootstrap": BOOTSTRAPS,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )

    def _check_sizes(self) -> None:
        for name in ("features", "head_hidden", "covariance_hidden", "prior_hidden"):
            if not 1 <= getattr(self, name) <= _LARGEST.get(name, 65536):
                raise ValueError(f"{name} must be from 1 to 65536, got {getattr(self, name)}")
        if not 2 <= self.heads <= _LARGEST["heads"]:
            raise ValueError(
                f"heads must be from 2, for a sample covariance, to {_LARGEST['heads']}, "
                f"got {self.heads}"
            )
        shape, axes = self.input_shape, 1 if self.body == "mlp" else 3
        if len(shape) != axes or min(shape) < 1 or prod(shape) > _LARGEST_INPUT:
            raise ValueError(f"body {self.body!r} cannot have input_shape {shape}")
        if self.body == "flow":
            if self.grid is None or shape != (3, self.grid.rows, self.grid.columns):
                raise ValueError(
                    f"input_shape must be (3, rows, columns) of the grid, got {shape}"
                )
            if self.grid.rows % 4 or self.grid.columns % 4:
                raise ValueError(f"body 'flow' needs rows and columns in fours, got {self.grid}")


_PAPER = NetworkConfig(
    preset="paper",
    body="paper",
    input_shape=(2, 224, 224),
    grid=None,
    features=512,
    head_hidden=512,
    head_dropout=0.5,
    covariance_hidden=256,
    output="quaternion",
    covariance="diagonal",
    sigma_unit_rad=1.0,
    covariance_floor=1e-8,
    prior_scale_rad=0.0,
    prior_input_scale=1.0,
    bootstrap="none",
)
PRESETS = {
    "default": NetworkConfig(),
    "paper": _PAPER,
    "resnet34": replace(_PAPER, preset="resnet34", body="resnet34", input_shape=(3, 224, 224)),
    "mlp": replace(_PAPER, preset="mlp", body="mlp", input_shape=(72,), features=72),
}


def preset(name: str, **overrides: Any) -> NetworkConfig:
    """The configuration of a name in PRESETS, with some fields replaced."""
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return replace(PRESETS[name], **overrides)


@dataclass(frozen=True)
class Calibration:
    """What was found wrong with a trained network on held-out data, per axis x y z.

    Standard deviations are multiplied by the scales, and the mean error Log(q (x) q_true^-1) =
    `bias_rad` is taken out: q <- Exp(-bias) (x) q.
    """

    aleatoric_scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    epistemic_scale: float = 1.0
    bias_rad: tuple[float, float, float] = (0.0, 0.0, 0.0)
    floor_rad: float = 0.0
    """Standard deviation about each axis that is there in any case: what training data lack."""
    stereo_correlation: float = 0.5
    """Of the aleatoric errors of two cameras of a pair, which see the same street."""

    def __post_init__(self) -> None:
        if len(self.aleatoric_scale) != 3 or len(self.bias_rad) != 3:
            raise ValueError(f"aleatoric_scale and bias_rad have 3 elements each, got {self}")
        if not all(isfinite(value) for value in (*self.aleatoric_scale, *self.bias_rad)):
            raise ValueError(f"a calibration must be finite, got {self}")
        if min(self.aleatoric_scale) <= 0.0 or not 0.0 <= self.epistemic_scale < float("inf"):
            raise ValueError(f"the scales of a calibration must be positive, got {self}")
        if not 0.0 <= self.floor_rad < float("inf"):
            raise ValueError(f"floor_rad must not be negative, got {self}")
        if not 0.0 <= self.stereo_correlation <= 1.0:
            raise ValueError(f"stereo_correlation must be from 0 to 1, got {self}")


def from_dict(kind: type[Any], values: Any) -> Any:
    """Make a configuration from what JSON kept of it; unknown and missing keys are errors."""
    if not isinstance(values, dict):
        raise ValueError(f"{kind.__name__} must be an object, got {values!r}")
    known = {each.name for each in fields(kind)}
    wrong = sorted(set(values) ^ known)
    if wrong:
        state = "unknown" if wrong[0] not in known else "missing"
        raise ValueError(f"{kind.__name__} has {state} field {wrong[0]!r}")
    return kind(**{name: _from_json(name, value) for name, value in values.items()})


def _from_json(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return from_dict(CanonicalGrid, value) if name == "grid" and value is not None else value
