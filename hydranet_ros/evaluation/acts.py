"""What the acts of the demonstration show: figures against the truth, and a picture of each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hydranet_ros.datasets.bag_messages import covariance_of
from hydranet_ros.datasets.source import Source, true_trajectory
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.recorded import (
    FUSED,
    VO,
    RecordedRun,
    camera_poses,
    odometry_rotations,
)
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.wheels import vehicle_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHEELS, PRIOR, BIAS = "/odom", "/motion_prior/odometry", "/imu/bias"
AXES = ("x", "y", "z")
UP_C = np.array([0.0, -1.0, 0.0])  # of a camera that looks ahead


@dataclass(frozen=True, eq=False)
class Outcome:
    """One figure of an act, alone and fused; `bound` is held against times or the fused figure."""

    what: str
    unit: str
    alone_name: str
    alone: float
    fused: float
    bound: float
    bound_text: str
    passed: bool
    picture: Figure

    @property
    def times(self) -> float:
        """How many times better."""
        return self.alone / self.fused if self.fused > 0.0 else float("inf")

    def line(self) -> str:
        """Alone | fused | times better."""
        return (
            f"{self.what}: {self.alone_name} {self.alone:.3g} {self.unit} | fused "
            f"{self.fused:.3g} {self.unit} | {self.times:.3g} times better"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {"alone": self.alone, "fused": self.fused, "times": self.times}
        said = {"what": self.what, "unit": self.unit, "bound": self.bound_text}
        return said | numbers | {"passed": self.passed}


def _path(run: RecordedRun, topic: str) -> tuple[Array, Array]:
    """Seconds (n,) and camera poses (n, 4, 4) of an odometry."""
    poses = camera_poses(run.topic(topic))
    if len(poses) < 2:
        raise HydraNetError(f"{topic}: {len(poses)} messages, too few to show: see the logs")
    stamps = sorted(poses)
    return np.array(stamps) * 1e-9, np.array([poses[stamp] for stamp in stamps])


def _truth(source: Source) -> tuple[Array, Array]:
    truth = true_trajectory(source)
    assert truth is not None
    assert truth.stamps_ns is not None
    return truth.stamps_ns * 1e-9, truth.T_w_c


def _heading(T_w_c: Array, up_c: Array) -> Array:
    """(n,) deg turned about the vehicle's up since the first pose, to the right, without jumps."""
    ahead = np.array([0.0, 0.0, 1.0])
    ahead = ahead - (ahead @ up_c) * up_c
    ahead = ahead / np.linalg.norm(ahead)
    seen = T_w_c[0, :3, :3].T @ T_w_c[:, :3, :3] @ ahead
    return np.rad2deg(np.unwrap(np.arctan2(seen @ np.cross(ahead, up_c), seen @ ahead)))


def heading(run: RecordedRun, source: Source, bound: float) -> Outcome:
    """Mean error of the heading of wheels, alone and fused, from the first common frame."""
    from hydranet_ros.evaluation.plots import TRUTH, colour, figure

    paths = {"wheels": _path(run, WHEELS), "fused": _path(run, FUSED)}
    times, T = _truth(source)
    begin, end = (
        extreme(each[0][row] for each in paths.values()) for extreme, row in ((max, 0), (min, -1))
    )
    within = (times >= begin) & (times <= end)
    times, T = times[within], T[within]
    up_c = vehicle_up(T, UP_C)
    true = _heading(T, up_c)
    errors = {}
    for name, (seconds, poses) in paths.items():
        found = np.interp(times, seconds, _heading(poses, up_c))
        errors[name] = (found - found[0]) - (true - true[0])
    plot, (above, over) = figure(6.4, rows=2)
    for name, (seconds, poses) in {"truth": (times, T), **paths}.items():
        start = int(np.searchsorted(seconds, begin))
        local = lie.se3_inverse(poses[start]) @ poses[start:]
        shade = TRUTH if name == "truth" else colour(name)
        above.plot(local[:, 0, 3], local[:, 2, 3], color=shade, label=name)
    above.set_aspect("equal", "datalim")
    above.set_xlabel("right (m)")
    above.set_ylabel("ahead (m)")
    above.legend(frameon=False)
    for name, each in errors.items():
        over.plot(times - times[0], each, color=colour(name), label=name)
    over.set_xlabel("time (s)")
    over.set_ylabel("error of the heading (deg)")
    alone, fused = (float(np.abs(errors[name]).mean()) for name in ("wheels", "fused"))
    passed = alone >= bound * fused
    text = f"at least {bound:g} times better"
    return Outcome(
        "heading, mean error", "deg", "wheels alone", alone, fused, bound, text, passed, plot
    )


def rotation_over_gap(run: RecordedRun, source: Source, bound: float) -> Outcome:
    """Error of the rotation over the longest time without visual odometry."""
    from hydranet_ros.evaluation.plots import colour, figure

    begin, end = longest_gap(run)
    times, T = _truth(source)
    names = {"motion prior": PRIOR, "fused": FUSED}
    errors, over_time = {}, {}
    for name, topic in names.items():
        seconds, poses = _path(run, topic)
        rows = np.searchsorted(seconds, (begin - 1e-4, end - 1e-4))
        if rows[1] >= len(seconds):
            raise HydraNetError(f"{topic}: nothing came after odometry was lost: see the logs")
        at = np.searchsorted(times, seconds - 1e-4).clip(0, len(times) - 1)
        first, truth_first = poses[rows[0]], T[at[rows[0]]]
        turned = np.swapaxes(poses[:, :3, :3], 1, 2) @ first[:3, :3]
        true = np.swapaxes(T[at, :3, :3], 1, 2) @ truth_first[:3, :3]
        angle = np.rad2deg(np.linalg.norm(lie.so3_log(turned @ np.swapaxes(true, 1, 2)), axis=-1))
        errors[name] = float(angle[rows[1]])
        over_time[name] = seconds[rows[0] :] - times[0], angle[rows[0] :]
    plot, (axes,) = figure(3.6)
    axes.axvspan(begin - times[0], end - times[0], color="#eeeeee", label="no stereo odometry")
    for name, (seconds, angle) in over_time.items():
        shade = colour("fused" if name == "fused" else "vo")
        axes.plot(seconds, angle, ".-", markersize=3, color=shade, label=name)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("error of the rotation since it was lost (deg)")
    axes.legend(frameon=False)
    alone, fused = errors["motion prior"], errors["fused"]
    text, what = (
        f"at least {bound:g} times better",
        f"rotation over {end - begin:.1f} s without VO",
    )
    passed = alone >= bound * fused
    return Outcome(what, "deg", "motion prior", alone, fused, bound, text, passed, plot)


def longest_gap(run: RecordedRun) -> tuple[float, float]:
    """When visual odometry was lost, and when it was back, in seconds."""
    known = sorted(odometry_rotations(run.topic(VO)))
    gaps = [(after - before, before, after) for before, after in pairwise(known)]
    if not gaps:
        raise HydraNetError(f"{VO}: no motions were recorded: see the logs")
    _, before, after = max(gaps)
    return before * 1e-9, after * 1e-9


def bias_found(run: RecordedRun, source: Source, bound: float, true_deg_s: Array) -> Outcome:
    """The largest error of the bias of an IMU about an axis, before and after vision."""
    from hydranet_ros.evaluation.plots import SPARE, TRUTH, colour, figure

    messages = run.topic(BIAS)
    if len(messages) < 2:
        raise HydraNetError(f"{BIAS}: {len(messages)} messages, too few to show: see the logs")
    stamps = sorted(messages)
    rates = [messages[stamp].twist.twist.angular for stamp in stamps]
    found = np.rad2deg(np.array([[each.x, each.y, each.z] for each in rates]))
    Sigma = np.array([covariance_of(messages[stamp].twist.covariance) for stamp in stamps])
    sigmas = np.rad2deg(np.sqrt(np.diagonal(Sigma[:, 3:, 3:], axis1=1, axis2=2)))
    seconds = np.array(stamps) * 1e-9 - float(source.stamps_ns[0]) * 1e-9
    plot, each_axis = figure(5.6, rows=3)
    for k, axes in enumerate(each_axis):
        low, high = found[:, k] - 3.0 * sigmas[:, k], found[:, k] + 3.0 * sigmas[:, k]
        axes.fill_between(seconds, low, high, color="#c9d8ec", label="3 sigma", linewidth=0)
        axes.plot(seconds, found[:, k], color=colour("fused"), label="found")
        axes.axhline(float(true_deg_s[k]), color=TRUTH, label="true")
        axes.axhline(0.0, color=SPARE[0], linewidth=0.8, linestyle=":", label="assumed before")
        axes.set_ylim(-0.3, 2.0 * max(float(true_deg_s[k]), 0.2))
        axes.set_ylabel(f"bias {AXES[k]} (deg/s)")
    each_axis[0].legend(frameon=False, ncols=4)
    each_axis[-1].set_xlabel("time (s)")
    alone = float(np.abs(true_deg_s).max())
    fused = float(np.abs(found[-1] - true_deg_s).max())
    text = f"at most {bound:g} deg/s"
    return Outcome(
        "bias of the IMU", "deg/s", "IMU alone", alone, fused, bound, text, fused <= bound, plot
    )
