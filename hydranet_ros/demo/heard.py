"""What the nodes said, read from the bag of the recorder."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from hydranet_ros.datasets.bag_files import header_stamp, read_messages
from hydranet_ros.datasets.bag_messages import pose_of, unpack
from hydranet_ros.geometry import lie
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
