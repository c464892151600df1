"""A run of the nodes, read from the bag of the recorder, and compared with the truth."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from hydranet_ros.datasets.bag_files import header_stamp, read_messages
from hydranet_ros.datasets.bag_messages import pose_of, unpack
from hydranet_ros.datasets.source import Source
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.record import Consistency, RotationErrors, RunRecord
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.camera import T_BASE_OPTICAL
from hydranet_ros.geometry.lie import Array

# How nodes say that a motion was not measured.
LOST_VARIANCE = 9999.0
ROTATION = "/hydranet_node/relative_rotation"
VO, FUSED, CAMERA = "/vo/odometry", "/fused/odometry", "/left/camera_info"


@dataclass(frozen=True, eq=False)
class Step:
    """A rotation between two stamps with its covariance, in the camera's frame."""

    stamp_1_ns: int
    C_2_1: Array
    Sigma: Array
    epistemic: Array | None = None


Steps = dict[int, Step]


@dataclass(frozen=True, eq=False)
class Heard:
    """The messages of a run by topic and header stamp, and when each arrived."""

    messages: dict[str, dict[int, Any]]
    arrivals_ns: dict[str, dict[int, int]]

    def topic(self, name: str) -> dict[int, Any]:
        """By stamp; empty where nothing was heard."""
        return self.messages.get(name, {})


def read_heard(path: str | PathLike[str]) -> Heard:
    """Read a bag of the recorder."""
    heard = Heard({}, {})
    for message in read_messages(path):
        stamp = header_stamp(message.data)
        heard.messages.setdefault(message.topic, {})[stamp] = unpack(message)
        heard.arrivals_ns.setdefault(message.topic, {})[stamp] = message.stamp_ns
    return heard


def camera_poses(odometry: dict[int, Any]) -> dict[int, Array]:
    """T_w_c by stamp from the poses of a base that the camera looks forward from."""
    T_c_b = lie.se3_inverse(T_BASE_OPTICAL)
    return {s: T_c_b @ pose_of(m.pose.pose) @ T_BASE_OPTICAL for s, m in odometry.items()}


def odometry_steps(odometry: dict[int, Any]) -> Steps:
    """The rotations that the twists say: the velocity since the message before, times dt."""
    C_c_b = T_BASE_OPTICAL[:3, :3].T
    steps: Steps = {}
    for before, stamp in pairwise(sorted(odometry)):
        twist, dt = odometry[stamp].twist, (stamp - before) * 1e-9
        Sigma = np.array(twist.covariance).reshape(6, 6)[3:, 3:] * dt**2
        if twist.covariance[0] < LOST_VARIANCE:
            rate = np.array([getattr(twist.twist.angular, axis) for axis in "xyz"])
            C_2_1 = lie.so3_exp(-(C_c_b @ rate) * dt)
            steps[stamp] = Step(before, C_2_1, C_c_b @ Sigma @ C_c_b.T)
    return steps


def rotation_steps(heard: Heard) -> Steps:
    """The rotations of hydranet_node over the intervals that it says."""
    intervals, doubts = heard.topic(f"{ROTATION}/interval"), heard.topic(f"{ROTATION}/epistemic")
    steps: Steps = {}
    for stamp, message in heard.topic(ROTATION).items():
        if stamp in intervals:
            reference = intervals[stamp].time_ref
            R_1_2 = pose_of(message.pose.pose)[:3, :3]
            begin = reference.sec * 10**9 + reference.nanosec
            doubt = _covariance(doubts[stamp], R_1_2) if stamp in doubts else None
            steps[stamp] = Step(begin, R_1_2.T, _covariance(message, R_1_2), doubt)
    return steps


def _covariance(message: Any, R_1_2: Array) -> Array:
    """Sigma_2_1 from the fixed-axis covariance of the message."""
    full = np.array(message.pose.covariance).reshape(6, 6)
    return np.asarray(R_1_2.T @ full[3:, 3:] @ R_1_2)


def latencies_ms(heard: Heard, topic: str) -> Array:
    """From the arrival of a frame's camera_info, sent before its images, to that of a result."""
    begin, end = (heard.arrivals_ns.get(name, {}) for name in (CAMERA, topic))
    return np.array([(end[s] - begin[s]) * 1e-6 for s in sorted(begin.keys() & end)])


def rate_hz(heard: Heard, topic: str) -> float | None:
    """Of arrivals."""
    times = sorted(heard.arrivals_ns.get(topic, {}).values())
    return (len(times) - 1) / ((times[-1] - times[0]) * 1e-9) if len(times) > 1 else None


# --- against the truth ---------------------------------------------------------------------------

TIMED = {"vo": VO, "hydranet": ROTATION, "fused": FUSED}


def errors_of(steps: Steps, truth: dict[int, Array]) -> RotationErrors | None:
    """Errors of the steps whose true rotation is known."""
    known = [(s, step) for s, step in sorted(steps.items()) if {s, step.stamp_1_ns} <= set(truth)]
    if not known:
        return None
    true = [truth[s][:3, :3].T @ truth[step.stamp_1_ns][:3, :3] for s, step in known]
    C = np.array([step.C_2_1 for _, step in known])
    parts = [step.epistemic for _, step in known]
    return RotationErrors(
        np.array([s for s, _ in known], dtype=np.int64),
        lie.so3_log(C @ np.swapaxes(np.array(true), -1, -2)),
        np.array([step.Sigma for _, step in known]),
        np.array(parts) if all(part is not None for part in parts) else None,
    )


def agreement(vo: Steps, rotations: Steps) -> Consistency:
    """NIS of VO against HydraNet over the same interval: three degrees of freedom."""
    both = [
        s for s in sorted(vo.keys() & rotations) if vo[s].stamp_1_ns == rotations[s].stamp_1_ns
    ]
    innovation = [lie.so3_log(vo[s].C_2_1 @ rotations[s].C_2_1.T) for s in both]
    nis = [
        float(e @ np.linalg.solve(vo[s].Sigma + rotations[s].Sigma, e))
        for s, e in zip(both, innovation, strict=True)
    ]
    return Consistency(np.array(both, dtype=np.int64), np.array(nis), 3)


def summary(heard: Heard, source: Source) -> tuple[dict[str, Any], RunRecord]:
    """The figures of a run, and the record that its report is made from."""
    paths = {"vo": camera_poses(heard.topic(VO)), "fused": camera_poses(heard.topic(FUSED))}
    stamps = [s for s in source.stamps_ns.tolist() if all(s in path for path in paths.values())]
    if len(stamps) < 2:
        heard_of = ", ".join(f"{len(path)} of {name}" for name, path in paths.items())
        raise HydraNetError(f"too few results to show: {heard_of}: see the logs of the nodes")
    trajectories = {name: np.array([path[s] for s in stamps]) for name, path in paths.items()}
    truth = _truth(source)
    T_w_c_gt = np.array([truth[s] for s in stamps]) if truth else None
    steps = {
        "vo": odometry_steps(heard.topic(VO)),
        "hydranet": rotation_steps(heard),
        "fused": odometry_steps(heard.topic(FUSED)),
    }
    rotations = _known({name: errors_of(each, truth) for name, each in steps.items()})
    figures = _figures(heard, source, trajectories, T_w_c_gt, rotations)
    record = RunRecord(
        title=f"HydraNet demonstration: {source.name}",
        stamps_ns=np.array(stamps, dtype=np.int64),
        trajectories=trajectories,
        T_w_c_gt=T_w_c_gt,
        rotations=rotations,
        consistency={"vo against hydranet": agreement(steps["vo"], steps["hydranet"])},
        latencies_ms={name: latencies_ms(heard, topic) for name, topic in TIMED.items()},
        figures={name: figures[name] for name in trajectories if name in figures},
        notes=(sentence(figures),),
    )
    return figures, record


def _truth(source: Source) -> dict[int, Array]:
    if source.T_w_c is None:
        return {}
    return dict(zip(source.stamps_ns.tolist(), source.T_w_c, strict=True))


def _known(found: dict[str, RotationErrors | None]) -> dict[str, RotationErrors]:
    return {name: errors for name, errors in found.items() if errors is not None}


def _figures(
    heard: Heard,
    source: Source,
    trajectories: dict[str, Array],
    T_w_c_gt: Array | None,
    rotations: dict[str, RotationErrors],
) -> dict[str, Any]:
    fused = latencies_ms(heard, FUSED)
    figures: dict[str, Any] = {
        "frames": len(source),
        "fused_frames": len(heard.topic(FUSED)),
        # The first frame has no motion before it.
        "dropped": len(source) - 1 - len(heard.topic(FUSED)),
        "played_hz": rate_hz(heard, CAMERA),
        "fused_hz": rate_hz(heard, FUSED),
        "latency_p50_ms": float(np.percentile(fused, 50)),
        "latency_p95_ms": float(np.percentile(fused, 95)),
    }
    if T_w_c_gt is not None:
        for name, T_w_c in trajectories.items():
            found = metrics.evaluate(T_w_c, T_w_c_gt, alignment="first").as_dict()
            figures[name] = {**found, "nees": _mean_nees(rotations.get(name))}
    return figures


def _mean_nees(errors: RotationErrors | None) -> float | None:
    return None if errors is None else float(errors.nees.mean())


def sentence(figures: dict[str, Any]) -> str:
    """How the run went, in one line."""
    played, fused = (_hertz(figures[key]) for key in ("played_hz", "fused_hz"))
    return (
        f"{figures['frames']} frames played at {played}, "
        f"{figures['fused_frames']} fused at {fused}, "
        f"{figures['dropped']} dropped; image to fused odometry p50 "
        f"{figures['latency_p50_ms']:.0f} ms, p95 {figures['latency_p95_ms']:.0f} ms"
    )


def _hertz(rate: float | None) -> str:
    return "an unknown rate" if rate is None else f"{rate:.1f} Hz"
