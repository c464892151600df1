"""Frames in, odometry out: the method as the command line and the nodes run it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.sliding_window import FusedState, SlidingWindowFusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.visual_gyro import VisualGyro
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import VOResult


@dataclass(frozen=True, eq=False)
class Step:
    """What a frame has given: None where a part is not run, or has nothing to say yet."""

    stamp_ns: int
    vo: VOResult | None
    rotation: RelativeRotation | None
    fused: FusedState | None


class Pipeline:
    """The whole method: visual odometry and the visual gyro, fused in a sliding window."""

    def __init__(
        self,
        vo: StereoVO | None = None,
        gyro: VisualGyro | None = None,
        fusion: SlidingWindowFusion | None = None,
    ) -> None:
        self.vo, self.gyro, self.fusion = vo, gyro, fusion

    def update(self, frame: Frame) -> Step:
        """Take the next frame in. Both measurements of an interval go into the window at once."""
        vo = rotation = fused = None
        if self.vo is not None:
            vo = self.vo.update(frame.left, frame.right, frame.stamp_ns)
        if self.gyro is not None:
            rotation = self.gyro.update(frame.stamp_ns, frame.left, frame.right)
        if self.fusion is not None:
            pose = None if vo is None else vo.pose
            measured = [each for each in (pose, rotation) if each is not None]
            if measured:
                fused = self.fusion.update(*measured)
            elif self.fusion.started:
                fused = self.fusion.coast(frame.stamp_ns)
        return Step(frame.stamp_ns, vo, rotation, fused)


# Of our own visual odometry and our own network, whose covariances are calibrated.
OWN_SOURCES = FusionConfig(vo_scale=1.0, vo_floor_m=0.0, vo_floor_deg=0.0)


class Odometer:
    """Chain the results of visual odometry into a trajectory with a pose for every frame.

    A frame without a motion goes on at the last velocity. When a motion over several frames comes
    later (bad frames were bridged), the poses of the frames in between are put on its way.
    """

    def __init__(self, T_w_c: Array | None = None) -> None:
        self._start = np.eye(4) if T_w_c is None else T_w_c
        self.stamps_ns: list[int] = []
        self.T_w_c: list[Array] = []
        self.steps: list[RelativePose] = []
        self.lost = 0
        self._velocity = np.zeros(6)  # Log(T_2_1) per second

    def add(self, result: VOResult) -> Array:
        """Take the result of the next frame in; return T_w_c there."""
        if not self.stamps_ns:
            self._append(result.stamp_2_ns, self._start)
        elif result.pose is not None:
            self._move(result.pose)
        else:
            self.lost += 1
            dt = (result.stamp_2_ns - self.stamps_ns[-1]) * 1e-9
            step = lie.se3_exp(self._velocity * dt)
            self._append(result.stamp_2_ns, self.T_w_c[-1] @ lie.se3_inverse(step))
        return self.T_w_c[-1]

    def _move(self, motion: RelativePose) -> None:
        first = self.stamps_ns.index(motion.stamp_1_ns)
        begin, duration = self.T_w_c[first], motion.stamp_2_ns - motion.stamp_1_ns
        xi = lie.se3_log(motion.T_2_1)
        for i in range(first + 1, len(self.stamps_ns)):
            part = (self.stamps_ns[i] - motion.stamp_1_ns) / duration
            self.T_w_c[i] = begin @ lie.se3_exp(-part * xi)
        self._append(motion.stamp_2_ns, begin @ lie.se3_inverse(motion.T_2_1))
        self._velocity = xi / (duration * 1e-9)
        self.steps.append(motion)

    def _append(self, stamp_ns: int, T_w_c: Array) -> None:
        self.stamps_ns.append(stamp_ns)
        self.T_w_c.append(T_w_c)
