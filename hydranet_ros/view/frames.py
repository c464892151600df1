"""Scenes from what is known of each frame: by a running pipeline, by topics or by a bag."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hydranet_ros.fusion.arrival import DEGREES_OF_FREEDOM
from hydranet_ros.fusion.edges import FusedState, scales
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.pipeline import Pipeline, Step
from hydranet_ros.view.parts import BOUND
from hydranet_ros.view.scene import Scene

ERROR, RATE = "rotation error of the gyro (deg)", "rates by the gyro (deg/s)"
NIS, LATENCY = "NIS over its dimension (ideal 1)", "latency (ms)"
BIAS, SCALE = "bias (deg/s)", "error of scale (%)"
MOST_TRUTHS = 1000


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a frame; poses are T_w_c, w with z up. `Sigma` is of the position in w.

    `rotations` are those since the frame before, one after the other.
    """

    stamp_ns: int
    truth: Array | None = None
    odometry: Array | None = None
    fused: Array | None = None
    Sigma: Array | None = None
    rotations: tuple[RelativeRotation, ...] = ()
    nis: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)


class SceneMaker:
    """Make scenes in the order of frames; the path of the gyro and its errors come here.

    The gyro alone knows no distance: its path has the way of the odometry, turned by the gyro.
    """

    def __init__(self) -> None:
        self._truths: OrderedDict[int, Array] = OrderedDict()
        self._gyro: Array | None = None
        self._before: Array | None = None  # the last odometry

    def know(self, stamp_ns: int, truth: Array) -> None:
        """Keep a true pose, T_w_c, by which rotations are judged."""
        self._truths[stamp_ns] = truth
        if len(self._truths) > MOST_TRUTHS:
            self._truths.popitem(last=False)

    def make(self, known: Known) -> Scene:
        """The scene of the next frame."""
        gyro = self._turned(known)
        poses = {
            "truth": known.truth,
            "odometry": known.odometry,
            "gyro": gyro,
            "fused": known.fused,
        }
        numbers: dict[str, Mapping[str, float]] = {}
        if known.rotations:
            numbers |= self._rotation(known.rotations[-1])
        if known.nis:
            numbers[NIS] = {
                name: value / DEGREES_OF_FREEDOM[name]
                for name, value in known.nis.items()
                if name in DEGREES_OF_FREEDOM
            }
        return Scene(
            known.stamp_ns,
            {name: T for name, T in poses.items() if T is not None},
            known.Sigma,
            numbers | dict(known.numbers),
            known.states,
            known.found,
        )

    def _turned(self, known: Known) -> Array | None:
        before, self._before = self._before, known.odometry
        if known.odometry is None:
            return self._gyro
        if self._gyro is None or before is None:
            self._gyro = known.odometry if self._gyro is None else self._gyro
            return self._gyro
        way = (lie.se3_inverse(before) @ known.odometry)[:3, 3]
        self._gyro = self._gyro @ lie.se3_from(np.eye(3), way)
        for each in known.rotations:
            self._gyro = self._gyro @ lie.se3_from(each.C_2_1.T, np.zeros(3))
        return self._gyro

    def _rotation(self, rotation: RelativeRotation) -> dict[str, Mapping[str, float]]:
        """Its errors where the truth is known, else rates; with three times the largest sigma."""
        sigma = float(np.rad2deg(np.sqrt(np.linalg.eigvalsh(rotation.Sigma_2_1)[-1])))
        first, last = (self._truths.get(s) for s in (rotation.stamp_1_ns, rotation.stamp_2_ns))
        if first is not None and last is not None:
            C_gt = last[:3, :3].T @ first[:3, :3]
            error = np.rad2deg(lie.so3_log(rotation.C_2_1 @ C_gt.T))
            return {ERROR: _axes(error) | {BOUND: 3.0 * sigma}}
        if self._truths:  # a gap in the truth: errors come again
            return {}
        rate = np.rad2deg(lie.so3_log(rotation.C_2_1.T)) / rotation.seconds
        return {RATE: _axes(rate) | {BOUND: 3.0 * sigma / rotation.seconds}}


def _axes(values: Array) -> dict[str, float]:
    return dict(zip("xyz", np.round(values, 6).tolist(), strict=True))


# --- a running pipeline --------------------------------------------------------------------------


def known_of_step(
    step: Step,
    pipeline: Pipeline,
    truth: Array | None,
    odometry: Array | None,
    fused: Array | None,
    state: FusedState | None,
    milliseconds: float | None = None,
) -> Known:
    """What a step of a pipeline tells; poses in the world of the first camera."""
    numbers: dict[str, Mapping[str, float]] = {}
    found: dict[str, str] = {}
    if state is not None:
        numbers, found = _found(state)
    if milliseconds is not None:
        numbers[LATENCY] = {"frame": round(milliseconds, 3)}
    return Known(
        step.stamp_ns,
        None if truth is None else T_BASE_OPTICAL @ truth,
        None if odometry is None else T_BASE_OPTICAL @ odometry,
        None if fused is None else T_BASE_OPTICAL @ fused,
        None if state is None else _position_covariance(state),
        () if step.rotation is None else (step.rotation,),
        {} if state is None else state.nis,
        numbers,
        _states(step, pipeline),
        found,
    )


def _position_covariance(state: FusedState) -> Array:
    """Of the position in the world with z up, from the covariance in the axes of the camera."""
    R = T_BASE_OPTICAL[:3, :3] @ state.T_w_c[:3, :3]
    return np.asarray(R @ state.Sigma_c_w[:3, :3] @ R.T)


def _found(state: FusedState) -> tuple[dict[str, Mapping[str, float]], dict[str, str]]:
    """Biases and scales: as lines, and in words."""
    lines = {f"gyro {axis}": value for axis, value in _axes(np.rad2deg(state.bias)).items()}
    words = {"bias of the gyro (deg/s)": _three(np.rad2deg(state.bias))}
    if state.Sigma_imu_bias is not None:
        bias = np.rad2deg(state.imu_bias)
        sigma = float(np.rad2deg(np.sqrt(np.diagonal(state.Sigma_imu_bias)).max()))
        lines |= {f"IMU {axis}": value for axis, value in _axes(bias).items()}
        words["bias of the IMU (deg/s)"] = f"{_three(bias)} +- {sigma:.3f}"
    numbers: dict[str, Mapping[str, float]] = {BIAS: lines}
    known = scales(state)
    if known:
        numbers[SCALE] = {name: round(100.0 * error, 6) for name, (error, _) in known.items()}
    for name, (error, sigma) in known.items():
        words[f"scale of {name} (%)"] = f"{100 * error:+.2f} +- {100 * sigma:.2f}"
    return numbers, words


def _three(values: Array) -> str:
    return " ".join(f"{value:+.3f}" for value in values)


def _states(step: Step, pipeline: Pipeline) -> dict[str, str]:
    """Of each source in words: ok, or lost and why; what the fusion rejected."""
    states = {}
    if pipeline.vo is not None and step.vo is not None:
        lost = step.vo.lost
        states["odometry"] = "ok" if lost is None else f"lost: {lost.value}"
    elif pipeline.fusion is not None and pipeline.vo is None:
        states["odometry"] = "ok" if step.odometry is not None else "lost: a gap in its motions"
    if pipeline.gyro is not None:
        why = pipeline.gyro.lost
        states["gyro"] = "ok" if why is None else f"lost: {why.value}"
    if pipeline.fusion is not None:
        rejected = {f"{r.source}: {r.reason}" for each in step.states for r in each.rejected}
        states["fusion"] = "ok" if not rejected else f"rejected {'; '.join(sorted(rejected))}"
    return states
