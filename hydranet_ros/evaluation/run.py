"""What a run has found so far, its figures and its files."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.source import Source
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.record import Consistency, RotationErrors, RunRecord
from hydranet_ros.evaluation.report import write_report
from hydranet_ros.fusion.sliding_window import FusedState
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.metrics import TrajectoryErrors
from hydranet_ros.pipeline import Odometer, Step

_AXES = ("xx", "xy", "xz", "yy", "yz", "zz")
_UPPER = np.triu_indices(3)


class Results:
    """Collects the steps of a pipeline over a source."""

    def __init__(self, source: Source, only: str | None) -> None:
        self.name, self.only = source.name, only
        self._T_w_c_gt = source.T_w_c
        self.stamps_ns: list[int] = []
        self.odometer = Odometer()
        self.rotations: list[RelativeRotation] = []
        self.fused: list[FusedState | None] = []
        self._milliseconds: list[float] = []

    def add(self, step: Step, milliseconds: float) -> None:
        """Take in what a frame has given."""
        self.stamps_ns.append(step.stamp_ns)
        if step.vo is not None:
            self.odometer.add(step.vo)
        if step.rotation is not None:
            self.rotations.append(step.rotation)
        self.fused.append(step.fused)
        if len(self.stamps_ns) > 1:  # the first frame has nothing to compare with
            self._milliseconds.append(milliseconds)

    @property
    def ms_median(self) -> float | None:
        """Of a frame after the first."""
        return float(np.median(self._milliseconds)) if self._milliseconds else None

    @property
    def truth(self) -> Array | None:
        """The true poses of the frames so far."""
        return None if self._T_w_c_gt is None else self._T_w_c_gt[: len(self.stamps_ns)]

    def stamps(self) -> NDArray[np.int64]:
        """Of all frames."""
        return np.array(self.stamps_ns, dtype=np.int64)

    # --- trajectories ----------------------------------------------------------------------------

    def trajectories(self) -> dict[str, Array]:
        """T_w_c of every frame, by source; a rotation alone stays where it is."""
        found = {}
        if self.only != "rotation":
            found["vo"] = np.array(self.odometer.T_w_c)
        if self.only != "vo":
            found["rotation"] = self._chained_rotations()
        if self.only is None:
            found["fused"] = self._fused_poses()
        return found

    def _chained_rotations(self) -> Array:
        T_w_c = np.tile(np.eye(4), (len(self.stamps_ns), 1, 1))
        for i, rotation in enumerate(self.rotations, start=1):
            T_w_c[i, :3, :3] = T_w_c[i - 1, :3, :3] @ lie.so3_inverse(rotation.C_2_1)
        return T_w_c

    def _fused_poses(self) -> Array:
        """The newest pose after each frame; before the first measurement, the origin."""
        T_w_c, last = [], np.eye(4)
        for state in self.fused:
            last = last if state is None else state.T_w_c
            T_w_c.append(last)
        return np.array(T_w_c)

    # --- figures ---------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """The figures that do not depend on the machine."""
        figures: dict[str, Any] = {"frames": len(self.stamps_ns)}
        if self.only != "rotation":
            figures["lost"] = self.odometer.lost
        if self.truth is None:
            return figures
        if self.only != "rotation":
            figures["vo"] = self._vo_errors(self.truth).as_dict()
        if self.rotations:
            figures["rotation"] = asdict(self._rotation_figures(self.truth))
        if self.only is None:
            figures["fused"] = self._fused_errors(self.truth).as_dict()
        return figures

    def _rotation_figures(self, truth: Array) -> metrics.RotationFigures:
        return metrics.evaluate_rotations(*self._stacked(), truth)

    def _stacked(self) -> tuple[Array, Array, Array]:
        """C_2_1, Sigma_2_1 and its epistemic part of all rotations."""
        C = np.array([each.C_2_1 for each in self.rotations])
        Sigma = np.array([each.Sigma_2_1 for each in self.rotations])
        none = np.zeros((3, 3))
        doubt = [none if r.epistemic is None else r.epistemic for r in self.rotations]
        return C, Sigma, np.array(doubt)

    def _vo_errors(self, truth: Array) -> TrajectoryErrors:
        """From the first true pose on; NLL and NEES over the motions that were measured."""
        found = metrics.evaluate(np.array(self.odometer.T_w_c), truth, alignment="first")
        steps = self.odometer.steps
        if not steps:
            return found
        index = {stamp: i for i, stamp in enumerate(self.stamps_ns)}
        first = [index[step.stamp_1_ns] for step in steps]
        last = [index[step.stamp_2_ns] for step in steps]
        T_gt = lie.se3_inverse(truth[last]) @ truth[first]
        T_est = np.array([step.T_2_1 for step in steps])
        Sigma = np.array([step.Sigma_2_1 for step in steps])
        nll, nees = metrics.mean_nll_and_nees(lie.se3_log(T_est @ lie.se3_inverse(T_gt)), Sigma)
        return replace(found, nll=nll, nees=nees)

    def _fused_errors(self, truth: Array) -> TrajectoryErrors:
        Sigma = [state.Sigma_2_1 for state in self.fused[1:] if state is not None]
        complete = len(Sigma) == len(truth) - 1 and all(each is not None for each in Sigma)
        covariances = np.array(Sigma) if complete else None
        return metrics.evaluate(self._fused_poses(), truth, covariances, alignment="first")

    # --- files -----------------------------------------------------------------------------------

    def write_rotations(self, path: Path) -> None:
        """A line per rotation: its stamps, quaternion w x y z, covariances in rad^2."""
        parts = [f"{name}_{axes}" for name in ("sigma", "epistemic") for axes in _AXES]
        C, Sigma, doubt = self._stacked()
        values = np.hstack(
            [
                lie.quaternion_from_matrix(C),
                Sigma[:, _UPPER[0], _UPPER[1]],
                doubt[:, _UPPER[0], _UPPER[1]],
            ]
        )
        try:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["stamp_1_ns", "stamp_2_ns", *"wxyz", *parts])
                for rotation, row in zip(self.rotations, values.tolist(), strict=True):
                    stamps = rotation.stamp_1_ns, rotation.stamp_2_ns
                    writer.writerow([*stamps, *(f"{value:.9g}" for value in row)])
        except OSError as error:
            raise HydraNetError(f"{path}: cannot be written: {error.strerror}") from None

    def write_report(self, folder: Path) -> None:
        """The plots and report.html."""
        figures = self.figures()
        rows = {k: v for k, v in figures.items() if k in ("vo", "fused") and isinstance(v, dict)}
        write_report(
            folder,
            RunRecord(
                self.name,
                self.stamps(),
                {k: v for k, v in self.trajectories().items() if k != "rotation"},
                self.truth,
                self._rotation_errors(),
                self._consistency(),
                {"frame": np.array(self._milliseconds)},
                rows,
            ),
        )

    def _rotation_errors(self) -> dict[str, RotationErrors]:
        if self.truth is None or not self.rotations:
            return {}
        C, Sigma, doubt = self._stacked()
        phi = metrics.rotation_errors(C, self.truth)
        return {"rotation": RotationErrors(self.stamps()[1:], phi, Sigma, doubt)}

    def _consistency(self) -> dict[str, Consistency]:
        found: dict[str, Consistency] = {}
        for source, degrees in (("vo", 6), ("rotation", 3)):
            known = [s for s in self.fused if s is not None and source in s.nis]
            if known:
                stamps = np.array([state.stamp_ns for state in known], dtype=np.int64)
                nis = np.array([state.nis[source] for state in known])
                found[source] = Consistency(stamps, nis, degrees)
        return found
