"""Frames in, odometry out: the whole method on one screen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.sliding_window import FusedState
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro
from hydranet_ros.settings import Configuration, section, setting
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import VOResult

if TYPE_CHECKING:
    from hydranet_ros.gyro.predictor import Predictor


@dataclass(frozen=True)
class PipelineConfig(Configuration):
    """What runs, and how."""

    parts: Literal["all", "vo", "rotation"] = setting(
        "all", "stereo odometry, the visual gyro and their fusion, or one of the first two alone"
    )
    vo: StereoVOConfig = section(StereoVOConfig)
    gyro: GyroConfig = section(GyroConfig)
    fusion: FusionConfig = section(FusionConfig, odometry="own")


@dataclass(frozen=True, eq=False)
class Step:
    """What a frame has given: None where a part is not run, or has nothing to say yet.

    `states` are those that the fusion has made since the frame before: one, none, or several
    where a frame had to wait for the next.
    """

    stamp_ns: int
    vo: VOResult | None = None
    rotation: RelativeRotation | None = None
    states: tuple[FusedState, ...] = ()

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
        predictor: Predictor | None = None,
    ) -> None:
        self.config = config = config or PipelineConfig()
        self.warnings: Counter[str] = Counter()
        """What could not be used, by kind, as a node would warn of it."""
        self.vo: StereoVO | None = None
        self.gyro: VisualGyro | None = None
        self.fusion: Fusion | None = None
        if config.parts != "rotation":
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
        states: list[FusedState] = []
        if self.fusion is not None:
            motion = None if vo is None else vo.pose
            measured = [each for each in (motion, rotation) if each is not None]
            states = self.fusion.add(*measured) + self.fusion.passed(frame.stamp_ns)
        return Step(frame.stamp_ns, vo, rotation, tuple(states))
