"""A run of the nodes, read from the bag of the recorder, and compared with the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from hydranet_ros.datasets.bag_files import header_stamp, read_messages
from hydranet_ros.datasets.bag_messages import pose_of, rotation_of, turn_of, unpack
from hydranet_ros.datasets.source import Source, true_trajectory
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.record import (
    Consistency,
    RotationErrors,
    RunRecord,
    evaluate,
    rotation_errors,
)
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.camera import T_BASE_OPTICAL
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.geometry.trajectory import Trajectory

ROTATION = "/hydranet_node/relative_rotation"
VO, FUSED, CAMERA = "/vo/odometry", "/fused/odometry", "/left/camera_info"
TIMED = {"vo": VO, "hydranet": ROTATION, "fused": FUSED}


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The messages of a run by topic and header stamp, and when each arrived."""

    messages: dict[str, dict[int, Any]]
    arrivals_ns: dict[str, dict[int, int]]

    def topic(self, name: str) -> dict[int, Any]:
        """By stamp; empty where nothing was recorded."""
        return self.messages.get(name, {})

    def latencies_ms(self, topic: str) -> Array:
        """From the arrival of a frame's camera_info, sent before its images, to the result's."""
        begin, end = (self.arrivals_ns.get(name, {}) for name in (CAMERA, topic))
        return np.array([(end[s] - begin[s]) * 1e-6 for s in sorted(begin.keys() & end)])

    def rate_hz(self, topic: str) -> float | None:
        """Of arrivals."""
        times = sorted(self.arrivals_ns.get(topic, {}).values())
        return (len(times) - 1) / ((times[-1] - times[0]) * 1e-9) if len(times) > 1 else None


def read_recorded_run(path: str | PathLike[str]) -> RecordedRun:
    """Read a bag of the recorder."""
    run = RecordedRun({}, {})
    for message in read_messages(path):
        stamp = header_stamp(message.data)
        run.messages.setdefault(message.topic, {})[stamp] = unpack(message)
        run.arrivals_ns.setdefault(message.topic, {})[stamp] = message.stamp_ns
    return run


def camera_poses(odometry: Mapping[int, Any]) -> dict[int, Array]:
    """T_w_c by stamp from the poses of a base that the camera looks forward from."""
    T_c_b = lie.se3_inverse(T_BASE_OPTICAL)
    return {s: T_c_b @ pose_of(m.pose.pose) @ T_BASE_OPTICAL for s, m in odometry.items()}


def odometry_rotations(odometry: Mapping[int, Any]) -> dict[int, RelativeRotation]:
    """The camera's rotations by their later stamp, from the twists: each since the one before."""
    found = {
        stamp: turn_of(odometry[stamp], before, T_BASE_OPTICAL)
        for before, stamp in pairwise(sorted(odometry))
    }
    return {stamp: each for stamp, each in found.items() if each is not None}


def network_rotations(run: RecordedRun) -> dict[int, RelativeRotation]:
    """The rotations of hydranet_node by their later stamp, over the intervals that it says."""
    intervals, epistemic = (run.topic(f"{ROTATION}/{part}") for part in ("interval", "epistemic"))
    return {
        stamp: rotation_of(message, intervals[stamp], epistemic.get(stamp))
        for stamp, message in sorted(run.topic(ROTATION).items())
        if stamp in intervals
    }


def agreement(
    vo: Mapping[int, RelativeRotation], network: Mapping[int, RelativeRotation]
) -> Consistency:
    """NIS of VO against HydraNet over the same interval: three degrees of freedom."""
    both = [s for s in sorted(vo.keys() & network) if vo[s].stamp_1_ns == network[s].stamp_1_ns]
    pairs = [(vo[s], network[s]) for s in both]
    innovations = np.array([lie.so3_log(a.C_2_1 @ b.C_2_1.T) for a, b in pairs]).reshape(-1, 3)
    Sigma = np.array([a.Sigma_2_1 + b.Sigma_2_1 for a, b in pairs]).reshape(-1, 3, 3)
    return Consistency(np.array(both, dtype=np.int64), metrics.nees(innovations, Sigma), 3)


# --- against the truth ---------------------------------------------------------------------------


def summary(run: RecordedRun, source: Source) -> tuple[dict[str, Any], RunRecord]:
    """The figures of a run, and the record that its report is made from."""
    paths = {"vo": camera_poses(run.topic(VO)), "fused": camera_poses(run.topic(FUSED))}
    truth = true_trajectory(source)
    frames = source.stamps_ns if truth is None else _stamps(truth)
    stamps = [s for s in frames.tolist() if all(s in path for path in paths.values())]
    if len(stamps) < 2:
        counts = ", ".join(f"{len(path)} of {name}" for name, path in paths.items())
        raise HydraNetError(f"too few results to show: {counts}: see the logs of the nodes")
    trajectories = {name: np.array([path[s] for s in stamps]) for name, path in paths.items()}
    rotations = {
        "vo": odometry_rotations(run.topic(VO)),
        "hydranet": network_rotations(run),
        "fused": odometry_rotations(run.topic(FUSED)),
    }
    errors = {} if truth is None else _rotation_errors(rotations, truth)
    figures = _figures(run, source)
    if truth is not None:
        for name, T_w_c in trajectories.items():
            estimate = Trajectory(T_w_c, np.array(stamps, dtype=np.int64), name)
            figures[name] = evaluate(estimate, truth, "first", tolerance_s=0.0).as_dict()
            # Of the rotations: three degrees of freedom.
            figures[name]["nees"] = float(errors[name].nees.mean()) if name in errors else None
    rows = np.searchsorted(frames, stamps)
    record = RunRecord(
        title=f"HydraNet demonstration: {source.name}",
        stamps_ns=np.array(stamps, dtype=np.int64),
        trajectories=trajectories,
        T_w_c_gt=None if truth is None else truth.T_w_c[rows],
        rotations=errors,
        consistency={"vo against hydranet": agreement(rotations["vo"], rotations["hydranet"])},
        latencies_ms={name: run.latencies_ms(topic) for name, topic in TIMED.items()},
        figures={name: figures[name] for name in trajectories if name in figures},
        notes=(sentence(figures),),
    )
    return figures, record


def _stamps(truth: Trajectory) -> Stamps:
    assert truth.stamps_ns is not None
    return truth.stamps_ns


def _rotation_errors(
    rotations: Mapping[str, Mapping[int, RelativeRotation]], truth: Trajectory
) -> dict[str, RotationErrors]:
    found = {name: rotation_errors(each.values(), truth) for name, each in rotations.items()}
    return {name: errors for name, errors in found.items() if errors is not None}


def _figures(run: RecordedRun, source: Source) -> dict[str, Any]:
    """How the run went."""
    latencies, fused = run.latencies_ms(FUSED), len(run.topic(FUSED))
    return {
        "frames": len(source),
        "fused_frames": fused,
        # The first frame has no motion before it.
        "dropped": len(source) - 1 - fused,
        "played_hz": run.rate_hz(CAMERA),
        "fused_hz": run.rate_hz(FUSED),
        "latency_p50_ms": _percentile(latencies, 50),
        "latency_p95_ms": _percentile(latencies, 95),
    }


def _percentile(values: Array, percent: int) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def sentence(figures: Mapping[str, Any]) -> str:
    """How the run went, in one line."""
    played, fused = (_hertz(figures[key]) for key in ("played_hz", "fused_hz"))
    p50, p95 = (figures[f"latency_{part}_ms"] for part in ("p50", "p95"))
    latency = "unknown" if p50 is None else f"p50 {p50:.0f} ms, p95 {p95:.0f} ms"
    return (
        f"{figures['frames']} frames played at {played}, "
        f"{figures['fused_frames']} fused at {fused}, "
        f"{figures['dropped']} dropped; image to fused odometry {latency}"
    )


def _hertz(rate: float | None) -> str:
    return "an unknown rate" if rate is None else f"{rate:.1f} Hz"
