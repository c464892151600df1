"""What a report is made of: plain arrays, checked where they are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps


@dataclass(frozen=True, eq=False)
class RotationErrors:
    """Errors of frame-to-frame rotations, phi = Log(C_est C_gt^T) in rad, at their later stamps.

    `Sigma` (M, 3, 3) is their covariance by their source, `epistemic` its epistemic part.
    """

    stamps_ns: Stamps
    phi: Array
    Sigma: Array
    epistemic: Array | None = None

    def __post_init__(self) -> None:
        count = len(self.stamps_ns)
        _check("phi", self.phi, (count, 3))
        _check("Sigma", self.Sigma, (count, 3, 3))
        if self.epistemic is not None:
            _check("epistemic", self.epistemic, (count, 3, 3))

    @property
    def nees(self) -> Array:
        """(M,) phi' Sigma^-1 phi: chi-square with three degrees of freedom, if Sigma is right."""
        return metrics.nees(self.phi, self.Sigma)

    @property
    def sigmas(self) -> Array:
        """(M, 3) standard deviations about each axis."""
        return np.sqrt(np.diagonal(self.Sigma, axis1=1, axis2=2))


@dataclass(frozen=True, eq=False)
class Consistency:
    """Normalised innovations squared of a source, each with its degrees of freedom."""

    stamps_ns: Stamps
    nis: Array
    degrees_of_freedom: int

    def __post_init__(self) -> None:
        _check("nis", self.nis, (len(self.stamps_ns),))


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run: trajectories (N, 4, 4) at `stamps_ns`, and what is known beside them.

    Everything but the first three fields may be missing; so are then the plots of it. `figures`
    is a table: a row of numbers by name for each trajectory. `latencies_ms` is by name as well.
    """

    title: str
    stamps_ns: Stamps
    trajectories: Mapping[str, Array]
    T_w_c_gt: Array | None = None
    rotations: Mapping[str, RotationErrors] = field(default_factory=dict)
    consistency: Mapping[str, Consistency] = field(default_factory=dict)
    latencies_ms: Mapping[str, Array] = field(default_factory=dict)
    figures: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = (len(self.stamps_ns), 4, 4)
        for name, T_w_c in self.trajectories.items():
            _check(f"trajectory {name!r}", T_w_c, shape)
        if self.T_w_c_gt is not None:
            _check("T_w_c_gt", self.T_w_c_gt, shape)
        for name, values in self.latencies_ms.items():
            _check(f"latencies {name!r}", values, (len(values),))

    def from_start(self) -> dict[str, Array]:
        """Every trajectory, the true one too, as seen from its own first camera.

        So it does not matter which world each is in.
        """
        known = dict(self.trajectories)
        if self.T_w_c_gt is not None:
            known["ground truth"] = self.T_w_c_gt
        return {name: lie.se3_inverse(T[0]) @ T for name, T in known.items() if len(T)}

    def seconds(self, stamps_ns: Stamps) -> Array:
        """Time since the first frame."""
        return np.asarray((stamps_ns - self.stamps_ns[0]) * 1e-9)


def _check(name: str, value: Array, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {value.shape}")
    if not np.isfinite(value).all():
        raise ValueError(f"{name} has elements that are not finite")
