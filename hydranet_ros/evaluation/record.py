"""The record of a run, and its errors against the truth.

Here is the one evaluation of trajectories and of rotations: commands, runs of the pipeline and
recordings of the nodes all come here. Estimates and truth are paired by stamp. What has no truth
at both of its stamps is left out. A record is plain arrays, checked where they are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.metrics import (
    Alignment,
    BlockFigures,
    RotationFigures,
    TrajectoryErrors,
)
from hydranet_ros.geometry.odometer import chain
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.geometry.trajectory import Trajectory, associate

# Over so many frames the rotations of a run are chained for its figures.
BLOCK_FRAMES = (1, 10, 50, 100)

Interval = tuple[int, int]
"""The stamps that a motion begins and ends at, in ns."""


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
class OffsetField:
    """By how much a calibration is off: (n, 2) `pixels`, (n, 4) `offsets` of left and right."""

    pixels: Array
    offsets: Array

    def __post_init__(self) -> None:
        _check("pixels", self.pixels, (len(self.pixels), 2))
        _check("offsets", self.offsets, (len(self.pixels), 4))


@dataclass(frozen=True, eq=False)
class Series:
    """A number over time with its standard deviation, (n,) each."""

    stamps_ns: Stamps
    values: Array
    sigmas: Array

    def __post_init__(self) -> None:
        for name in ("values", "sigmas"):
            _check(name, getattr(self, name), (len(self.stamps_ns),))


class Event(NamedTuple):
    """A source was lost at a stamp, or what it said was rejected."""

    stamp_ns: int
    source: str
    reason: str


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run: trajectories (N, 4, 4) at `stamps_ns`, and what is known beside them.

    Everything but the first three fields may be missing; so are then the plots of it. `figures`
    is a table: a row of numbers by name for each trajectory. `latencies_ms` is by name as well.
    `errors` are those of the fused pose, `found` biases and scales, both with sigmas over time.
    `blocks` has the NEES of rotations by source and number of frames; 3 is ideal.
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
    offsets: OffsetField | None = None
    errors: Mapping[str, Series] = field(default_factory=dict)
    found: Mapping[str, Series] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    blocks: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    configuration: str = ""

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


# --- against the truth ---------------------------------------------------------------------------


def evaluate(
    estimate: Trajectory,
    truth: Trajectory,
    align: Alignment = "none",
    Sigma_2_1: Array | Mapping[Interval, Array] | None = None,
    tolerance_s: float = 0.01,
) -> TrajectoryErrors:
    """Compare a trajectory with the true one.

    Poses are paired by stamp within `tolerance_s` where both have stamps, else by row. NLL and
    NEES need `Sigma_2_1`: covariances of the motion from each pose to the next, (N - 1, 6, 6) or
    (N - 1, 3, 3) of its rotation, or (6, 6) by interval where not every motion was measured.

        errors = evaluate(read_trajectory("fused.tum"), read_trajectory("gt.tum"), align="SE3")
        errors.ate_m, errors.devkit_pct
    """
    paired, true = associate(estimate, truth, tolerance_s)
    paired = replace(paired, T_w_c=metrics.align(paired.T_w_c, true.T_w_c, align))
    if not isinstance(Sigma_2_1, Mapping):
        if Sigma_2_1 is not None and len(paired) != len(estimate):
            raise HydraNetError(
                f"covariances need every pose of {estimate.name} to have a true one in "
                f"{truth.name}; {len(estimate) - len(paired)} have none"
            )
        return metrics.evaluate(paired.T_w_c, true.T_w_c, Sigma_2_1)
    errors = metrics.evaluate(paired.T_w_c, true.T_w_c)
    rows = _rows(paired)
    known = [each for each in Sigma_2_1 if each[0] in rows and each[1] in rows]
    if not known:
        return errors
    first, last = ([rows[each[end]] for each in known] for end in (0, 1))
    T_est, T_gt = (
        lie.se3_inverse(each.T_w_c[last]) @ each.T_w_c[first] for each in (paired, true)
    )
    nll, nees = metrics.mean_nll_and_nees(
        lie.se3_log(T_est @ lie.se3_inverse(T_gt)), np.array([Sigma_2_1[each] for each in known])
    )
    return replace(errors, nll=nll, nees=nees)


def rotation_errors(
    rotations: Iterable[RelativeRotation], truth: Trajectory
) -> RotationErrors | None:
    """Errors of rotations, with their covariances; None where the truth is known of none."""
    known, path = _with_truth(rotations, truth)
    if not known:
        return None
    _, Sigma, epistemic = stacked(known)
    return RotationErrors(
        np.array([each.stamp_2_ns for each in known], dtype=np.int64),
        metrics.rotation_errors(np.array([each.C_2_1 for each in known]), path),
        Sigma,
        None if any(each.epistemic is None for each in known) else epistemic,
    )


def rotation_figures(
    rotations: Iterable[RelativeRotation], truth: Trajectory
) -> RotationFigures | None:
    """The figures of rotations; a part of the path without rotations is cut out of it."""
    known, path = _with_truth(rotations, truth)
    return metrics.evaluate_rotations(*stacked(known), path) if known else None


def rotation_blocks(
    rotations: Iterable[RelativeRotation],
    truth: Trajectory,
    stamps_ns: Stamps,
    lengths: Sequence[int] = BLOCK_FRAMES,
) -> dict[int, BlockFigures]:
    """The figures of rotations chained over blocks of the frames at `stamps_ns`, by length.

    A block with a frame that has no rotation from the one before, or no truth, is left out.
    """
    arrays = on_frames(rotations, truth, stamps_ns)
    found = {length: metrics.block_figures(*arrays, length) for length in lengths}
    return {length: figures for length, figures in found.items() if figures is not None}


def on_frames(
    rotations: Iterable[RelativeRotation], truth: Trajectory, stamps_ns: Stamps
) -> tuple[Array, Array, Array]:
    """C_2_1, Sigma_2_1 and the true C_2_1 from each frame to the next, (N - 1, 3, 3).

    NaN where one is not known.
    """
    count = max(len(stamps_ns) - 1, 0)
    C, Sigma, C_gt = (np.full((count, 3, 3), np.nan) for _ in range(3))
    frames = {int(stamp): row for row, stamp in enumerate(stamps_ns)}
    for each in rotations:
        row = frames.get(each.stamp_1_ns)
        if row is not None and frames.get(each.stamp_2_ns) == row + 1:
            C[row], Sigma[row] = each.C_2_1, each.Sigma_2_1
    rows = _rows(truth)
    for i in range(count):
        first, last = (rows.get(int(stamp)) for stamp in stamps_ns[i : i + 2])
        if first is not None and last is not None:
            C_gt[i] = truth.T_w_c[last, :3, :3].T @ truth.T_w_c[first, :3, :3]
    return C, Sigma, C_gt


def stacked(rotations: Sequence[RelativeRotation]) -> tuple[Array, Array, Array]:
    """C_2_1, Sigma_2_1 and its epistemic part, each (M, 3, 3); 0 where it is not known."""
    none = np.zeros((3, 3))
    return (
        np.array([each.C_2_1 for each in rotations]),
        np.array([each.Sigma_2_1 for each in rotations]),
        np.array([none if each.epistemic is None else each.epistemic for each in rotations]),
    )


def _with_truth(
    rotations: Iterable[RelativeRotation], truth: Trajectory
) -> tuple[list[RelativeRotation], Array]:
    """The rotations whose true motion is known, and the path (M + 1, 4, 4) of these motions."""
    rows = _rows(truth)
    known = [r for r in rotations if r.stamp_1_ns in rows and r.stamp_2_ns in rows]
    if not known:
        return [], truth.T_w_c[:1]
    first = [rows[each.stamp_1_ns] for each in known]
    last = [rows[each.stamp_2_ns] for each in known]
    if last[:-1] == first[1:]:  # no gap
        return known, truth.T_w_c[[first[0], *last]]
    T_gt = lie.se3_inverse(truth.T_w_c[last]) @ truth.T_w_c[first]
    return known, chain(T_gt, truth.T_w_c[first[0]])


def _rows(trajectory: Trajectory) -> dict[int, int]:
    """The row of each stamp; of the row itself where there are no stamps."""
    stamps = range(len(trajectory)) if trajectory.stamps_ns is None else trajectory.stamps_ns
    return {int(stamp): row for row, stamp in enumerate(stamps)}
