"""Estimates against the truth: the one evaluation of trajectories and of rotations.

Commands, runs of the pipeline and recordings of the nodes all come here. Trajectories and truth
are paired by stamp. What has no truth at both of its stamps is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.record import RotationErrors
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.metrics import Alignment, RotationFigures, TrajectoryErrors
from hydranet_ros.geometry.odometer import chain
from hydranet_ros.geometry.trajectory import Trajectory, associate

Interval = tuple[int, int]
"""The stamps that a motion begins and ends at, in ns."""


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
                f"covariances need every pose of {estimate.name} to have a partner in "
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


def stacked(rotations: Sequence[RelativeRotation]) -> tuple[Array, Array, Array]:
    """C_2_1, Sigma_2_1 and its epistemic part, each (M, 3, 3); 0 where it is not told apart."""
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
