"""Frames in, odometry out: the whole method on one screen.

With odometry of wheels or of others, its motions come in as they are recorded, and our own stereo
odometry does not run: one camera is enough. So do the samples of an IMU.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hydranet_ros.datasets.wheels import WheelsConfig
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.imu import ImuSample
from hydranet_ros.fusion.preintegration import Motion, OdometryBuffer
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro
from hydranet_ros.settings import Configuration, section, setting
from hydranet_ros.simulation.imu import SimulatedImuConfig
from hydranet_ros.simulation.wheels import SimulatedWheelsConfig
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import VOResult

if TYPE_CHECKING:
    from hydranet_ros.gyro.comparison import AnyPredictor

LONGEST_FRAME_S = 10.0  # between frames
# Samples of an IMU come before a measurement that ends up to so much earlier: they are faster.
AHEAD_NS = 20_000_000


@dataclass(frozen=True)
class PipelineConfig(Configuration):
    """What runs, and how."""

    parts: Literal["all", "vo", "rotation"] = setting(
        "all", "stereo odometry, the visual gyro and their fusion, or one of the first two alone"
    )
    vo: StereoVOConfig = section(StereoVOConfig)
    gyro: GyroConfig = section(GyroConfig)
    fusion: FusionConfig = section(FusionConfig, odometry="own")
    wheels: WheelsConfig = section(WheelsConfig)
    simulated_wheels: SimulatedWheelsConfig = section(SimulatedWheelsConfig)
    simulated_imu: SimulatedImuConfig = section(SimulatedImuConfig)


@dataclass(frozen=True, eq=False)
class Step:
    """What a frame has given: None where a part is not run, or has nothing to say yet.

    `states` are those that the fusion has made since the frame before: one, none, or several
    where a frame had to wait for the next. `odometry` is the motion since the frame before by
    odometry that is not ours.
    """

    stamp_ns: int
    vo: VOResult | None = None
    rotation: RelativeRotation | None = None
    states: tuple[FusedState, ...] = ()
    odometry: RelativePose | None = None

    @property
    def fused(self) -> FusedState | None:
        """The newest state."""
        return self.states[-1] if self.states else None


class Pipeline:
    """Stereo odometry and the visual gyro, fused in a sliding window.

    The nodes are the same parts with topics between them: fed with the same frames, they give the
    same numbers. With one camera there is no odometry of ours: only the gyro runs.
    """

    def __init__(
        self,
        camera: Camera | StereoCamera,
        config: PipelineConfig | None = None,
        predictor: AnyPredictor | None = None,
        odometry: Iterable[RelativePose] | None = None,
        imu: Iterable[ImuSample] = (),
    ) -> None:
        self.config = config = config or PipelineConfig()
        self._imu = deque(imu)  # in the axes of the camera
        self.warnings: Counter[str] = Counter()
        """What could not be used, by kind, as a node would warn of it."""
        self.vo: StereoVO | None = None
        self.gyro: VisualGyro | None = None
        self.fusion: Fusion | None = None
        self._odometry = None if odometry is None else RecordedOdometry(odometry)
        if config.parts != "rotation" and odometry is None:
            if not isinstance(camera, StereoCamera):
                raise ValueError("stereo odometry needs a pair of cameras: use parts 'rotation'")
            self.vo = StereoVO(camera, config.vo)
        if config.parts != "vo":
            self.gyro = VisualGyro(camera, config.gyro, predictor)
        if config.parts == "all":
            self.fusion = Fusion(config.fusion, warn=self._warn)

    def _warn(self, kind: str, _: str) -> None:
        self.warnings[kind] += 1

    def update(self, frame: Frame) -> Step:
        """Take the next frame in, and tell what it has given."""
        vo = None if self.vo is None else self.vo.update(frame)
        rotation = None if self.gyro is None else self.gyro.update(frame)
        if self.fusion is not None and self._odometry is not None:
            return self._with_recorded(self.fusion, self._odometry, frame.stamp_ns, rotation)
        states: list[FusedState] = []
        if self.fusion is not None:
            motion = None if vo is None else vo.pose
            measured = [each for each in (motion, rotation) if each is not None]
            feed_imu(self.fusion, self._imu, frame.stamp_ns)
            states = self.fusion.add(*measured) + self.fusion.passed(frame.stamp_ns)
        return Step(frame.stamp_ns, vo, rotation, tuple(states))

    def _with_recorded(
        self,
        fusion: Fusion,
        odometry: RecordedOdometry,
        stamp_ns: int,
        rotation: RelativeRotation | None,
    ) -> Step:
        """Odometry up to the frame as it was sent, then the rotation."""
        states: list[FusedState] = []
        for motion in odometry.until(stamp_ns):
            feed_imu(fusion, self._imu, motion.stamp_2_ns)
            states += fusion.add(motion)
        feed_imu(fusion, self._imu, stamp_ns)  # also where the wheels have ended
        if rotation is not None:
            states += fusion.add(rotation)
        # All up to here is in: nothing depends on how long the rest takes to compute.
        states += fusion.passed(stamp_ns)
        alone = odometry.since_frame(stamp_ns)
        return Step(stamp_ns, None, rotation, tuple(states), alone)


def feed_imu(fusion: Fusion, samples: deque[ImuSample], stamp_ns: int) -> None:
    """Give a fusion the samples up to a stamp, and somewhat beyond."""
    while samples and samples[0].stamp_ns <= stamp_ns + AHEAD_NS:
        fusion.add_imu(samples.popleft(), np.eye(3))


class RecordedOdometry:
    """Motions in the order of their stamps, given out as frames pass."""

    def __init__(self, motions: Iterable[RelativePose]) -> None:
        self._waiting = deque(motions)
        self._recent = OdometryBuffer(LONGEST_FRAME_S)
        self._frame_ns: int | None = None

    def until(self, stamp_ns: int) -> Iterator[RelativePose]:
        """Those that a frame at this stamp needs: the last of them ends at or after it.

        What was before the first frame is before the start.
        """
        if self._frame_ns is None:
            self._begin(stamp_ns)
        while self._waiting and self._waiting[0].stamp_1_ns < stamp_ns:
            motion = self._waiting.popleft()
            self._recent.add(motion)
            yield motion

    def _begin(self, stamp_ns: int) -> None:
        while self._waiting and self._waiting[0].stamp_2_ns <= stamp_ns:
            self._waiting.popleft()
        if self._waiting and self._waiting[0].stamp_1_ns < stamp_ns:
            first = Motion.of(self._waiting.popleft())
            self._waiting.appendleft(first.part(stamp_ns, first.end).checked)

    def since_frame(self, stamp_ns: int) -> RelativePose | None:
        """The motion since the frame before; None where there is a gap."""
        begin, self._frame_ns = self._frame_ns, stamp_ns
        if begin is None:
            return None
        found = self._recent.between(begin, stamp_ns)
        whole = len(found) == 1 and (found[0].begin, found[0].end) == (begin, stamp_ns)
        return found[0].checked if whole else None
