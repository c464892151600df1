"""The results of a demonstration against the truth: figures, and the record for the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from hydranet_ros.datasets.source import Source
from hydranet_ros.demo.heard import (
    CAMERA,
    FUSED,
    ROTATION,
    VO,
    Heard,
    Steps,
    camera_poses,
    latencies_ms,
    odometry_steps,
    rate_hz,
    rotation_steps,
)
from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.lie import Array
from hydranet_ros.report.record import Consistency, RotationErrors, RunRecord

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
