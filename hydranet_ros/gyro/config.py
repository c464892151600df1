"""What a network is made of, and how its covariances are corrected; stored with the weights.

Files of strangers are read through these classes, so every number has bounds: a damaged or hostile
file must neither take all the memory of a robot nor turn its estimates into nonsense.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from hydranet_ros.gyro.grid import GRID_STEP, CanonicalGrid
from hydranet_ros.settings import Configuration, section, setting

FLOW_CHANNELS = 6  # u v, mask, structure tensor xx xy yy
_WIDEST = 65536  # units of a layer
_LARGEST_INPUT = 4_000_000
_LARGEST_LAYER = 1 << 26  # weights
_TINY = 1e-6  # the least of what must be positive
LEAST_SCALE, LARGEST_SCALE = 1e-3, 1e3  # of a calibration


@dataclass(frozen=True)
class NetworkConfig(Configuration):
    """A HydraNet; `preset` makes the ones that are known to work."""

    preset: str = setting("default", "name of the preset it started from")
    body: Literal["flow", "paper", "resnet34", "mlp"] = setting(
        "flow",
        "what turns an input into features",
    )
    input_shape: tuple[int, ...] = setting(
        (6, 112, 168),
        "of one sample: channels, rows, columns; one number for body mlp. Body flow takes other "
        "sizes of grid too, in eights",
        1,
        _LARGEST_INPUT,
    )
    grid: CanonicalGrid | None = section(CanonicalGrid)
    """Where the cells of the input look; None where the input is not calibrated flow."""
    heads: int = setting(25, "rotation heads; two at least, for a sample covariance", 2, 1024)
    features: int = setting(64, "numbers that the body hands to the heads", 1, _WIDEST)
    head_hidden: int = setting(48, "hidden units of a rotation head", 1, _WIDEST)
    head_dropout: float = setting(0.0, "share of a head's hidden units dropped in training", 0, 1)
    covariance_hidden: int = setting(64, "hidden units of the covariance head", 1, _WIDEST)

    output: Literal["quaternion", "tangent"] = setting(
        "tangent",
        "what a head gives. quaternion: 4 numbers, normalised (the paper). tangent: a rotation "
        "vector in units of output_scale_rad, which starts at small rotations",
    )
    output_scale_rad: float = setting(0.003, "rotation that an output of 1 stands for", _TINY, 10)

    covariance: Literal["diagonal", "cholesky", "scaled"] = setting(
        "scaled",
        "diagonal: softplus precisions, what produced the paper's numbers. cholesky: a full "
        "covariance from its factor, what the paper's text describes. scaled: that of the "
        "geometry, times a number, plus another about each axis; for body flow",
    )
    sigma_unit_rad: float = setting(
        2e-4,
        "standard deviation that an output of 1 stands for: keeps outputs near 1",
        _TINY,
        10,
    )
    covariance_floor: float = setting(
        1e-3, "added to each softplus: to precisions (diagonal) or deviations (cholesky)", 0, 1
    )

    prior_scale_rad: float = setting(
        0.0001,
        "size of each head's random prior function (see heads.py); 0 is none. What a head does "
        "not cancel is an error of its own: keep it below the errors that are hoped for",
        0,
        10,
    )
    prior_hidden: int = setting(16, "waves in a prior function", 1, _WIDEST)
    prior_input_scale: float = setting(0.03, "typical magnitude of the inputs", _TINY, 1e6)
    prior_gain: float = setting(
        1.0,
        "how fast the prior functions vary: with more, heads disagree closer to the training "
        "set, and priors are harder to cancel in it",
        _TINY,
        1e3,
    )
    prior_seed: int = setting(0, "seed of the prior functions", 0, 2**63 - 1)
    bootstrap: Literal["none", "poisson", "bernoulli"] = setting(
        "poisson", "how training weighs samples per head (see training/loss.py)"
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if not self.head_dropout < 1.0:
            raise ValueError(f"head_dropout must be below 1, got {self.head_dropout}")
        shape, axes = self.input_shape, 1 if self.body == "mlp" else 3
        if len(shape) != axes or prod(shape) > _LARGEST_INPUT:
            raise ValueError(
                f"input_shape of body {self.body} must have {axes} axes and at most "
                f"{_LARGEST_INPUT} numbers, got {shape}"
            )
        layers = {
            "heads": self.heads * self.head_hidden * self.features,
            "covariance_hidden": self.covariance_hidden * self.features,
            "prior_hidden": self.heads * self.prior_hidden * 512,
            "features": self.features * (prod(shape) if axes == 1 else prod(shape[1:]) // 8),
        }
        for name, weights in layers.items():
            if weights > _LARGEST_LAYER:
                raise ValueError(f"{name}: a layer would have {weights} weights, too many")
        if self.body == "resnet34" and self.features != 512:
            raise ValueError(f"features of body resnet34 must be 512, got {self.features}")
        if self.body == "flow":
            grid = self.grid
            if grid is None or shape != (FLOW_CHANNELS, grid.rows, grid.columns):
                raise ValueError(
                    f"input_shape must be {FLOW_CHANNELS}, rows and columns of the grid, "
                    f"got {shape}"
                )
            if grid.rows % GRID_STEP or grid.columns % GRID_STEP:
                raise ValueError(
                    f"grid must have rows and columns in eights for body flow, got {grid}"
                )
        if (self.covariance == "scaled") != (self.body == "flow"):
            raise ValueError(
                f"covariance 'scaled' and body 'flow' go together, got {self.covariance!r} and "
                f"{self.body!r}"
            )

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a sample may have this shape."""
        if self.body != "flow":
            return tuple(shape) == self.input_shape
        channels, rows, columns = shape
        return channels == FLOW_CHANNELS and rows % GRID_STEP == 0 and columns % GRID_STEP == 0


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
class Calibration(Configuration):
    """What was found wrong with a trained network on held-out data, per axis x y z.

    Standard deviations are multiplied by the scales, and the mean error Log(q (x) q_true^-1) =
    `bias_rad` is taken out: q <- Exp(-bias) (x) q.
    """

    aleatoric_scale: tuple[float, float, float] = setting(
        (1.0, 1.0, 1.0), "factors of the aleatoric deviations", LEAST_SCALE, LARGEST_SCALE
    )
    epistemic_scale: float = setting(
        1.0, "factor of the epistemic deviations", LEAST_SCALE, LARGEST_SCALE
    )
    bias_rad: tuple[float, float, float] = setting(
        (0.0, 0.0, 0.0), "mean error, subtracted from every rotation", -0.01, 0.01
    )
    floor_rad: float = setting(
        0.0,
        "standard deviation about each axis that is always added: errors that training data lack",
        0.0,
        0.2,
    )
    stereo_correlation: float = setting(
        0.5,
        "correlation of the aleatoric errors of the two cameras of a pair, which see the same "
        "street",
        0.0,
        1.0,
    )
