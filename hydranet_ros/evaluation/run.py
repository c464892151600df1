"""The record of a run of the pipeline: trajectories, figures, rotations, and their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from hydranet_ros.datasets.source import Source, true_trajectory
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.output import ResultsFolder
from hydranet_ros.evaluation.record import (
    Consistency,
    Event,
    Interval,
    OffsetField,
    RunRecord,
    Series,
    evaluate,
    rotation_blocks,
    rotation_errors,
    rotation_figures,
    stacked,
)
from hydranet_ros.evaluation.record_file import RECORD_FILE, record_bytes
from hydranet_ros.evaluation.report import write_report
from hydranet_ros.evaluation.tables import robot_calibration
from hydranet_ros.fusion.arrival import DEGREES_OF_FREEDOM
from hydranet_ros.fusion.edges import FusedState, scales
from hydranet_ros.fusion.error_models import hold_to_ground
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import OdometryPath
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.geometry.trajectory import Trajectory
from hydranet_ros.pipeline import Pipeline, PipelineConfig, Step
from hydranet_ros.simulation.wheels import simulate_wheels, vehicle_up
from hydranet_ros.stereo_vo.calibration import calibration_text

# Columns and rows at which the self-calibration is drawn.
FIELD_SIZE = 19, 9
_AXES = ("xx", "xy", "xz", "yy", "yz", "zz")
_UPPER = np.triu_indices(3)


def wheels_of_truth(source: Source, config: PipelineConfig) -> list[RelativePose]:
    """The motions that simulated wheels below the camera of a source would have told."""
    up_c = config.wheels.up_c
    if source.T_w_c is None or len(source.T_w_c) < 2:
        raise HydraNetError(
            f"{source.name}: has no true poses to simulate wheels from: use --odometry FILE"
        )
    stamps = source.stamps_ns[: len(source.T_w_c)]
    up_c = vehicle_up(source.T_w_c, up_c)
    motions = list(simulate_wheels(source.T_w_c, stamps, config.simulated_wheels, up_c))
    return on_ground(motions, config, up_c)


def on_ground(
    motions: list[RelativePose], config: PipelineConfig, up_c: Array
) -> list[RelativePose]:
    """The motions of wheels, held to the ground where `fusion.planar` says so."""
    if not config.fusion.planar or config.fusion.odometry != "wheels":
        return motions
    return [hold_to_ground(motion, up_c) for motion in motions]


class FusedPath:
    """A pose for every frame from the states of a fusion, and what the states say beside it.

    A frame without a state has the predicted pose, and before the first state the start.
    """

    def __init__(self, fusion: Fusion, start: Array | None = None) -> None:
        self._fusion, self._start = fusion, np.eye(4) if start is None else start
        self.stamps_ns: list[int] = []
        self.T_w_c: list[Array] = []
        self.states: list[FusedState] = []

    def add(self, stamp_ns: int, states: Iterable[FusedState]) -> None:
        """Take in what a frame has given; a state of an earlier frame puts its pose right."""
        self.stamps_ns.append(stamp_ns)
        pose = self._fusion.predict(stamp_ns)
        self.T_w_c.append(self._start if pose is None else pose)
        for state in states:
            self.states.append(state)
            for i in range(len(self.stamps_ns) - 1, -1, -1):
                if self.stamps_ns[i] == state.stamp_ns:
                    self.T_w_c[i] = state.T_w_c
                if self.stamps_ns[i] <= state.stamp_ns:
                    break

    @property
    def covariances(self) -> dict[Interval, Array]:
        """Sigma_2_1 of the motion from state to state; the first is from the start."""
        known = {state.stamp_ns for state in self.states} | set(self.stamps_ns[:1])
        found = {}
        for state in self.states:
            if state.step_s is not None and state.Sigma_2_1 is not None:
                begin = state.stamp_ns - round(state.step_s * 1e9)
                if begin in known:
                    found[begin, state.stamp_ns] = state.Sigma_2_1
        return found

    @property
    def calibration(self) -> dict[str, dict[str, float]] | None:
        """The errors of scale and biases that were found, with sigmas; None where they are off.

        The bias of an IMU is in the axes of the camera.
        """
        found = scales(self.states[-1]) if self.states else {}
        named = {k: {"scale_error": error, "sigma": sigma} for k, (error, sigma) in found.items()}
        if self.states and self.states[-1].Sigma_imu_bias is not None:
            sigmas = np.rad2deg(np.sqrt(np.diagonal(self.states[-1].Sigma_imu_bias)))
            bias = np.rad2deg(self.states[-1].imu_bias)
            for axis, value, sigma in zip("xyz", bias.tolist(), sigmas.tolist(), strict=True):
                named[f"imu bias {axis}"] = {"deg_s": value, "sigma": sigma}
        return named or None

    def errors(self, truth: Trajectory) -> dict[str, Series]:
        """How far states are from the truth, with the largest sigma that each has of itself."""
        if truth.stamps_ns is None or not self.stamps_ns or not len(truth):
            return {}
        rows = {int(stamp): row for row, stamp in enumerate(truth.stamps_ns)}
        first = next((i for i, stamp in enumerate(self.stamps_ns) if stamp in rows), None)
        known = [state for state in self.states if state.stamp_ns in rows]
        if first is None or len(known) < 2:
            return {}
        T = np.array([state.T_w_c for state in known])
        true = truth.T_w_c[[rows[state.stamp_ns] for state in known]]
        T_gt = lie.se3_inverse(truth.T_w_c[rows[self.stamps_ns[first]]]) @ true
        error = lie.se3_inverse(lie.se3_inverse(self.T_w_c[first]) @ T) @ T_gt
        Sigma = np.array([state.Sigma_c_w for state in known])
        sure = [np.sqrt(np.linalg.eigvalsh(each)[:, -1]) for each in _parts(Sigma)]
        metres = np.linalg.norm(error[:, :3, 3], axis=1)
        degrees = np.rad2deg(np.linalg.norm(lie.so3_log(error[:, :3, :3]), axis=1))
        stamps = np.array([state.stamp_ns for state in known], dtype=np.int64)
        return {
            "position (m)": Series(stamps, metres, sure[0]),
            "orientation (deg)": Series(stamps, degrees, np.rad2deg(sure[1])),
        }

    def found(self) -> dict[str, Series]:
        """Scales, biases of the gyro and of an IMU over time, with sigmas."""
        rows: dict[str, list[tuple[int, float, float]]] = {}
        for state in self.states:
            told = {
                f"scale of {name} (%)": (100.0 * error, 100.0 * sigma)
                for name, (error, sigma) in scales(state).items()
            }
            for name, bias, Sigma in (
                ("gyro", state.bias, state.Sigma_bias),
                ("IMU", state.imu_bias, state.Sigma_imu_bias),
            ):
                if Sigma is not None and (name == "IMU" or np.any(bias)):
                    sigmas = np.rad2deg(np.sqrt(np.diagonal(Sigma)))
                    told |= {
                        f"bias of the {name}, {axis} (deg/s)": (float(np.rad2deg(b)), float(s))
                        for axis, b, s in zip("xyz", bias, sigmas, strict=True)
                    }
            for name, pair in told.items():
                rows.setdefault(name, []).append((state.stamp_ns, *pair))
        found = {}
        for name, each in rows.items():
            stamps, values, sigmas = zip(*each, strict=True)
            found[name] = Series(
                np.array(stamps, dtype=np.int64), np.array(values), np.array(sigmas)
            )
        return {name: each for name, each in found.items() if len(each.values) > 1}

    @property
    def rejected(self) -> int:
        """How many measurements were not used."""
        return sum(len(state.rejected) for state in self.states)

    def consistency(self) -> dict[str, Consistency]:
        """The NIS of each source, where it was tested."""
        found = {}
        for source, degrees in DEGREES_OF_FREEDOM.items():
            tested = [state for state in self.states if source in state.nis]
            if tested:
                stamps = np.array([state.stamp_ns for state in tested], dtype=np.int64)
                nis = np.array([state.nis[source] for state in tested])
                found[source] = Consistency(stamps, nis, degrees)
        return found


def _parts(Sigma: Array) -> tuple[Array, Array]:
    """Of position and of orientation."""
    return Sigma[:, :3, :3], Sigma[:, 3:, 3:]


class RunResults:
    """Collects the steps of a pipeline over a source."""

    def __init__(self, source: Source, pipeline: Pipeline) -> None:
        self.name, self.unmatched = source.name, source.unmatched
        self._source = source
        self.stamps_ns: list[int] = []
        self.odometry_name: str = (
            "vo" if pipeline.vo is not None else pipeline.config.fusion.odometry
        )
        recorded = pipeline.vo is None and pipeline.fusion is not None
        self.odometry = OdometryPath() if pipeline.vo is not None or recorded else None
        self.fused = None if pipeline.fusion is None else FusedPath(pipeline.fusion)
        self._vo = pipeline.vo
        self.with_rotations = pipeline.gyro is not None
        self._not_used = pipeline.warnings
        self.rotations: list[RelativeRotation] = []
        self.events: list[Event] = []
        self._gyro = pipeline.gyro
        self._milliseconds: list[float] = []

    def add(self, step: Step, milliseconds: float) -> None:
        """Take in what a frame has given."""
        self.stamps_ns.append(step.stamp_ns)
        if self.odometry is not None and step.vo is not None:
            self.odometry.add(step.stamp_ns, step.vo.pose, step.vo.bridged)
        elif self.odometry is not None:
            self.odometry.add(step.stamp_ns, step.odometry)
        if step.rotation is not None:
            self.rotations.append(step.rotation)
        if self.fused is not None:
            self.fused.add(step.stamp_ns, step.states)
        self._note(step)
        if len(self.stamps_ns) > 1:  # the first frame has nothing to compare with
            self._milliseconds.append(milliseconds)

    def _note(self, step: Step) -> None:
        """What was lost or rejected, and why; the first frame has nothing to compare with."""
        if len(self.stamps_ns) > 1:
            if step.vo is not None and step.vo.lost is not None:
                self.events.append(Event(step.stamp_ns, self.odometry_name, step.vo.lost.value))
            if self._gyro is not None and self._gyro.lost is not None:
                self.events.append(Event(step.stamp_ns, "gyro", self._gyro.lost.value))
        for state in step.states:
            for each in state.rejected:
                reason = f"{each.source} rejected, {each.reason}"
                self.events.append(Event(state.stamp_ns, "fused", reason))

    @property
    def timing(self) -> dict[str, Any]:
        """Of frames after the first: these depend on the machine."""
        known = self._milliseconds
        return {
            "ms_median": float(np.median(known)) if known else None,
            "ms_p95": float(np.percentile(known, 95)) if known else None,
            "ms": [round(each, 3) for each in known],
        }

    @property
    def truth(self) -> Trajectory | None:
        """The true poses that are known of the frames so far."""
        return true_trajectory(self._source, len(self.stamps_ns))

    def stamps(self) -> Stamps:
        """Of all frames."""
        return np.array(self.stamps_ns, dtype=np.int64)

    @property
    def doubt(self) -> str | None:
        """What the odometry has to say of its cameras."""
        return None if self._vo is None else self._vo.doubt

    # --- trajectories and figures ----------------------------------------------------------------

    def trajectories(self) -> dict[str, Array]:
        """T_w_c of every frame, by source; a rotation alone stays where it is."""
        found = {}
        if self.odometry is not None:
            found[self.odometry_name] = np.array(self.odometry.T_w_c)
        if self.with_rotations:
            found["rotation"] = self._chained_rotations()
        if self.fused is not None:
            found["fused"] = np.array(self.fused.T_w_c)
        return found

    def _chained_rotations(self) -> Array:
        """The orientation stays where no rotation was found."""
        steps = {each.stamp_2_ns: lie.so3_inverse(each.C_2_1) for each in self.rotations}
        T_w_c = np.tile(np.eye(4), (len(self.stamps_ns), 1, 1))
        for i, stamp in enumerate(self.stamps_ns[1:], start=1):
            T_w_c[i, :3, :3] = T_w_c[i - 1, :3, :3] @ steps.get(stamp, np.eye(3))
        return T_w_c

    def figures(self) -> dict[str, Any]:
        """The figures that do not depend on the machine."""
        figures: dict[str, Any] = {"frames": len(self.stamps_ns), "unmatched": self.unmatched}
        if self.odometry is not None:
            figures["lost"] = self.odometry.lost
        if self.fused is not None and self.fused.calibration is not None:
            figures["calibration"] = self.fused.calibration
        if self._vo is not None and self._vo.calibration_px is not None:
            left, right = self._vo.calibration_px
            figures["calibration_px"] = {"left": left, "right": right}
        if self._not_used:
            figures["not_used"] = dict(sorted(self._not_used.items()))
        return figures if self.truth is None else figures | dict(self._errors(self.truth))

    def _errors(self, truth: Trajectory) -> Iterator[tuple[str, dict[str, Any]]]:
        """Of each source, from the first true pose on; NLL and NEES of what was measured."""
        found = self.trajectories()
        if self.odometry is not None:
            motions = self.odometry.motions
            Sigma = {(each.stamp_1_ns, each.stamp_2_ns): each.Sigma_2_1 for each in motions}
            name = self.odometry_name
            estimate = Trajectory(found[name], self.stamps(), name)
            yield name, evaluate(estimate, truth, "first", Sigma).as_dict()
        rotations = rotation_figures(self.rotations, truth)
        if rotations is not None:
            yield "rotation", asdict(rotations)
            blocks = rotation_blocks(self.rotations, truth, self.stamps())
            yield "rotation_over", {str(length): asdict(each) for length, each in blocks.items()}
        if self.fused is not None:
            estimate = Trajectory(found["fused"], self.stamps(), "fused")
            yield "fused", evaluate(estimate, truth, "first", self.fused.covariances).as_dict()

    def _notes(self) -> tuple[str, ...]:
        """What a reader should know beside the figures."""
        return () if self.doubt is None else (f"Warning: {self.doubt}.",)

    def _offsets(self) -> OffsetField | None:
        """The self-calibration of a pair, over its images."""
        if self._vo is None or self._vo.has_depth:
            return None
        field = self._vo.calibration_field(*FIELD_SIZE)
        return None if field is None else OffsetField(*field)

    # --- files -----------------------------------------------------------------------------------

    def write(self, folder: ResultsFolder, figures: dict[str, Any], config: str) -> None:
        """Write trajectories, rotations, figures, settings and timing: all but the report.

        All but timing.json is the same, byte for byte, for the same input.
        """
        for name, T_w_c in self.trajectories().items():
            folder.trajectory(name, T_w_c, self.stamps_ns)
        if self.rotations:
            self._write_rotations(folder)
        if self._vo is not None:
            text = calibration_text(self._vo.calibration, self._vo.camera)
            folder.text("calibration.yaml", text)
        if "calibration" in figures:
            folder.text("robot_calibration.yaml", robot_calibration(figures["calibration"]))
        folder.json("metrics.json", figures)
        folder.text("config.yaml", config)
        folder.json("timing.json", self.timing)

    def _write_rotations(self, folder: ResultsFolder) -> None:
        """A line per rotation: its stamps, quaternion w x y z, covariances in rad^2."""
        parts = [f"{name}_{axes}" for name in ("sigma", "epistemic") for axes in _AXES]
        C, *covariances = stacked(self.rotations)
        upper = [each[:, _UPPER[0], _UPPER[1]] for each in covariances]
        values = np.hstack([lie.quaternion_from_matrix(C), *upper])
        rows = [
            [each.stamp_1_ns, each.stamp_2_ns, *(f"{value:.9g}" for value in row)]
            for each, row in zip(self.rotations, values.tolist(), strict=True)
        ]
        folder.table("rotation.csv", ["stamp_1_ns", "stamp_2_ns", *"wxyz", *parts], rows)

    def write_report(self, folder: ResultsFolder, figures: dict[str, Any], config: str) -> None:
        """Write the record, the plots and report.html.

        They are of the frames whose truth is known, if it is of any.
        """
        record = self.record(figures, config)
        folder.data(RECORD_FILE, record_bytes(record))
        write_report(folder, record)

    def record(self, figures: dict[str, Any], config: str) -> RunRecord:
        """All that the report is made from."""
        truth, stamps = self.truth, self.stamps()
        known = np.ones(len(stamps), dtype=bool)
        if truth is not None and truth.stamps_ns is not None:
            known = np.isin(stamps, truth.stamps_ns)
        errors = None if truth is None else rotation_errors(self.rotations, truth)
        fused = self.fused
        return RunRecord(
            self.name,
            stamps[known],
            {k: v[known] for k, v in self.trajectories().items() if k != "rotation"},
            None if truth is None else truth.T_w_c,
            {} if errors is None else {"rotation": errors},
            {} if fused is None else fused.consistency(),
            {"frame": np.array(self._milliseconds)} if self._milliseconds else {},
            {name: figures[name] for name in (self.odometry_name, "fused") if name in figures},
            self._notes(),
            self._offsets(),
            {} if fused is None or truth is None else fused.errors(truth),
            {} if fused is None else fused.found(),
            tuple(self.events),
            {} if truth is None else self._blocks(truth),
            config,
        )

    def _blocks(self, truth: Trajectory) -> dict[str, dict[int, float]]:
        """The NEES of rotations over blocks of frames: the gyro's, and those of the odometry."""
        sources: dict[str, list[RelativeRotation]] = {"rotation": self.rotations}
        if self.odometry is not None:
            sources[self.odometry_name] = [
                RelativeRotation(m.T_2_1[:3, :3], m.Sigma_2_1[3:, 3:], m.stamp_1_ns, m.stamp_2_ns)
                for m in self.odometry.motions
            ]
        found = {}
        for name, rotations in sources.items():
            blocks = rotation_blocks(rotations, truth, self.stamps())
            if blocks:
                found[name] = {length: each.nees for length, each in blocks.items()}
        return found
