"""stereo_vo_node: rectified stereo pairs in, odometry out.

A message says where the camera is after a motion that was measured, since the message before it.
At a start there is no such motion: the first frame, or the one from which it goes on after a loss,
has variance 9999 in the twist. Frames that cannot be used are bridged without a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from nav_msgs.msg import Odometry
from sensor_msgs.msg import CameraInfo

from hydranet_ros.datasets.sensor_messages import Grey, stereo_camera
from hydranet_ros.errors import BadInput
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, compose_with_covariance
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros.conversions import LOST_VARIANCE, odometry_message
from hydranet_ros.geometry.estimates import change_frame
from hydranet_ros.ros.extrinsics import Frames, FramesConfig
from hydranet_ros.ros.image_input import STEREO, Arrival, ImageNode, ImageNodeConfig
from hydranet_ros.ros.odometry_output import Trail, TrailConfig
from hydranet_ros.ros.spin import leave, run
from hydranet_ros.settings import section
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import Lost, VOResult

# The first pose is the origin by definition; filters want a covariance that they can invert.
ORIGIN_VARIANCE = 1e-12
# These frames are bridged; after any other loss the frame is where it goes on from.
UNUSABLE = {
    Lost.FLAT_IMAGE,
    Lost.TOO_FEW_FEATURES,
    Lost.NOT_A_STEREO_PAIR,
    Lost.SWAPPED_CAMERAS,
}


@dataclass(frozen=True)
class StereoVONodeConfig(ImageNodeConfig):
    """The parameters of stereo_vo_node."""

    frames: FramesConfig = section(FramesConfig)
    path: TrailConfig = section(TrailConfig)
    vo: StereoVOConfig = section(StereoVOConfig)


class Track:
    """Where the camera is: motions chained, with their covariances."""

    def __init__(self) -> None:
        self.T_w_c = np.eye(4)
        self.Sigma_c_w = np.eye(6) * ORIGIN_VARIANCE
        self._velocity = np.zeros(6)  # Log(T_2_1) per second
        self._stamp_ns: int | None = None

    def move(self, motion: RelativePose) -> None:
        """Take a measured motion in."""
        T_c_w, self.Sigma_c_w = compose_with_covariance(
            motion.T_2_1, motion.Sigma_2_1, lie.se3_inverse(self.T_w_c), self.Sigma_c_w
        )
        self.T_w_c = lie.se3_inverse(T_c_w)
        self._velocity = lie.se3_log(motion.T_2_1) / seconds(motion)
        self._stamp_ns = motion.stamp_2_ns

    def carry(self, stamp_ns: int, longest_s: float) -> None:
        """Go on to a start at the last velocity; how far it really was, nobody knows."""
        if self._stamp_ns is not None:
            dt = min((stamp_ns - self._stamp_ns) * 1e-9, longest_s)
            self.T_w_c = self.T_w_c @ lie.se3_exp(-self._velocity * dt)
            self.Sigma_c_w = self.Sigma_c_w + np.eye(6) * LOST_VARIANCE
        self._stamp_ns = stamp_ns


def seconds(motion: RelativePose) -> float:
    """How long a motion took."""
    return (motion.stamp_2_ns - motion.stamp_1_ns) * 1e-9


class StereoVONode(ImageNode[StereoVONodeConfig]):
    """Visual odometry on topics."""

    def __init__(self, **options: Any) -> None:
        super().__init__("stereo_vo_node", StereoVONodeConfig, **options)
        self._vo: StereoVO | None = None
        self._track = Track()
        self._result: VOResult | None = None

    def set_up(self) -> None:
        """Open the topics."""
        self._frames = Frames(self, self.config.frames)
        self._odometry = self.speak(Odometry, "vo/odometry")
        self._trail = Trail(self, "vo/path", self.config.path)
        self.take_in(STEREO)

    def begin(self) -> None:
        """Start at the origin."""
        self._track = Track()
        super().begin()

    def calibrate(self, infos: tuple[CameraInfo, ...], shape: tuple[int, int]) -> None:
        """Begin with this pair; the pose goes on."""
        self._vo = StereoVO(stereo_camera(*infos), self.config.vo)

    def restart(self) -> None:
        """Compare the next frame with none before it."""
        if self._vo is not None:
            self._vo.reset()

    def start_over(self) -> None:
        """Begin anew at the origin."""
        self._track = Track()
        self._trail.clear()
        self.restart()

    def work(self, arrival: Arrival, images: tuple[Grey, ...]) -> None:
        """Track the pair and publish where it leads."""
        assert self._vo is not None
        T_b_c = self._frames.camera_in(self.config.frames.base_frame, arrival.frame_id)
        result = self._result = self._vo.update(images[0], images[1], arrival.stamp_ns)
        if result.pose is not None:
            self._track.move(result.pose)
            self._tell(arrival.stamp_ns, T_b_c, result.pose)
            return
        assert result.lost is not None
        if result.lost in UNUSABLE:
            raise BadInput(result.lost.name.lower(), result.lost.value)
        if result.lost is not Lost.INITIALISING:
            self.complain("lost", f"{result.lost.value}: goes on from here")
        self._track.carry(arrival.stamp_ns, self.config.input.max_interval_s)
        self._tell(arrival.stamp_ns, T_b_c, None)

    def _tell(self, stamp_ns: int, T_b_c: Array, motion: RelativePose | None) -> None:
        frames, track = self.config.frames, self._track
        T_w_b, Sigma_b_w = change_frame(T_b_c, track.T_w_c, track.Sigma_c_w)
        velocity, Sigma = np.zeros(6), np.eye(6) * LOST_VARIANCE
        if motion is not None:
            T_2_1, Sigma_2_1 = change_frame(T_b_c, motion.T_2_1, motion.Sigma_2_1)
            dt = seconds(motion)
            velocity, Sigma = -lie.se3_log(T_2_1) / dt, Sigma_2_1 / dt**2
        names = frames.odom_frame, frames.base_frame
        message = odometry_message(stamp_ns, names, T_w_b, Sigma_b_w, velocity, Sigma)
        self.publish(self._odometry, message)
        self._trail.add(message)

    def figures(self) -> dict[str, str]:
        """How the last frame went."""
        values = super().figures()
        if self._result is not None:
            s = self._result.statistics
            values["tracks"], values["inliers"] = str(s.tracks), str(s.inliers)
            values["residual scale"] = f"{s.residual_scale:.2f}"
            values["computing (ms)"] = f"{s.milliseconds:.1f}"
            pose = self._result.pose
            if pose is not None:
                sigma = np.sqrt(np.diag(pose.Sigma_2_1))
                values["sigma (m)"] = f"{sigma[:3].max():.4f}"
                values["sigma (deg)"] = f"{np.rad2deg(sigma[3:].max()):.4f}"
        return values


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the node."""
    leave(run(StereoVONode, arguments))


if __name__ == "__main__":
    main()
