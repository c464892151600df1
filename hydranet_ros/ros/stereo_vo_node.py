"""stereo_vo_node: stereo pairs, or images with depth, in; odometry out.

A message tells where the base is after a motion that was measured, since the message before it. At
a start (the first frame, or the one after a loss) no motion leads to the pose: the twist has
variances of 9999. Frames that cannot be used are bridged without a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.estimates import RelativePose
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import Odometer
from hydranet_ros.geometry.stamps import WENT_BACK
from hydranet_ros.gyro.device import set_threads
from hydranet_ros.ros.diagnostics import odometry_health
from hydranet_ros.ros.extrinsics import Extrinsics, FramesConfig
from hydranet_ros.ros.image_input import CameraFrame, ImageInput
from hydranet_ros.ros.image_topics import InputConfig, RgbdConfig
from hydranet_ros.ros.lifecycle import ManagedNode, NodeConfig
from hydranet_ros.ros.odometry_output import OdometryOutput, PathConfig
from hydranet_ros.ros.spin import leave, run
from hydranet_ros.settings import section, setting
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO, warm_up
from hydranet_ros.stereo_vo.result import Lost, VOResult


@dataclass(frozen=True)
class StereoVONodeConfig(NodeConfig):
    """The parameters of stereo_vo_node."""

    threads: int = setting(
        1, "threads of OpenCV; more than free cores stall each other", 1, 256, live=False
    )
    cameras: Literal["stereo", "rgbd"] = setting(
        "stereo", "a pair, or an image with depth (rgbd)", live=False
    )
    input: InputConfig = section(InputConfig)
    rgbd: RgbdConfig = section(RgbdConfig)
    frames: FramesConfig = section(FramesConfig)
    path: PathConfig = section(PathConfig)
    vo: StereoVOConfig = section(StereoVOConfig)


class StereoVONode(ManagedNode[StereoVONodeConfig]):
    """Stereo odometry on topics."""

    def __init__(self, **options: Any) -> None:
        super().__init__("stereo_vo_node", StereoVONodeConfig, **options)
        self._vo: StereoVO | None = None
        self._odometer = Odometer()
        self._result: VOResult | None = None
        self._doubted = False

    def configure(self) -> None:
        """Open the topics."""
        config = self.config
        set_threads(config.threads)
        warm_up()
        self._extrinsics = Extrinsics(self, config.frames)
        self._output = OdometryOutput(self, "vo", config.frames, config.path)
        depth_in = partial(self._extrinsics.depth_in, given=config.rgbd.image_from_depth)
        inputs = self, config.input, config.cameras, self.on_frame
        ImageInput(*inputs, config.rgbd, depth_in, turns=True)

    def reset(self, reason: str) -> None:
        """The next frame has nothing to be compared with, and is at the origin.

        Only where stamps went back the pose goes on, lost: the robot did not go to the origin.
        """
        self._vo = None
        if reason == WENT_BACK:
            self._odometer.lose()
        else:
            self._odometer = Odometer(max_extrapolation_s=self.config.vo.max_interval_s)
        self._output.clear()

    def apply(self, config: StereoVONodeConfig) -> None:
        """Go on with the new settings; the estimate stays."""
        self._odometer.max_extrapolation_s = config.vo.max_interval_s
        self._output.apply(config.path)
        if self._vo is not None:
            self._vo.apply(config.vo)

    def on_frame(self, received: CameraFrame) -> None:
        """Track the pair, and publish the pose after a motion or at a start."""
        frames, stamp_ns = self.config.frames, received.frame.stamp_ns
        T_b_c = self._extrinsics.camera_in(frames.base, received.frame_id)
        T_b_c = T_b_c @ received.T_image_camera
        result = self._result = self._odometry(received.camera).update(received.frame)
        self.productivity.note(result.lost and result.lost.value)
        if not self._doubted and self._vo is not None and self._vo.doubt is not None:
            self._doubted = True  # said once: it stays so
            self.get_logger().warning(self._vo.doubt)
        if result.pose is not None:
            self._odometer.move(result.pose)
        elif result.bridged and result.lost is not None:
            raise BadInput(result.lost.name.lower(), result.lost.value)
        else:
            if result.lost is not None and result.lost is not Lost.INITIALISING:
                self.warn("lost", f"{result.lost.value}: goes on from here")
            self._odometer.restart(stamp_ns)
        self._publish(stamp_ns, T_b_c, result.pose)

    def _odometry(self, camera: Any) -> StereoVO:
        assert isinstance(camera, StereoCamera)
        if self._vo is None or self._vo.camera != camera:
            self._vo = StereoVO(camera, self.config.vo)
        return self._vo

    def _publish(self, stamp_ns: int, T_b_c: Array, motion: RelativePose | None) -> None:
        velocity = Sigma = None
        if motion is not None:
            velocity = -lie.se3_log(motion.T_2_1) / motion.seconds
            Sigma = motion.Sigma_2_1 / motion.seconds**2
        pose = self._odometer.T_w_c, self._odometer.Sigma_c_w
        self._output.publish(stamp_ns, T_b_c, pose, velocity, Sigma)

    def diagnostics(self) -> dict[str, str]:
        """How the last frame went."""
        if (result := self._result) is None:
            return {}
        return odometry_health(result, None if self._vo is None else self._vo.calibration_px)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the node."""
    leave(run(StereoVONode, arguments))


if __name__ == "__main__":
    main()
