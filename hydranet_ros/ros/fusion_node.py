"""fusion_node: odometry of any source, rotations, an IMU in, fused odometry out. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from sensor_msgs.msg import TimeReference

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.odometry_input import OdometryInputConfig
from hydranet_ros.geometry.stamps import StampMatcher
from hydranet_ros.ros.conversions import odometry_sample, rotation_from, stamp_ns
from hydranet_ros.ros.diagnostics import FusionHealth
from hydranet_ros.ros.extrinsics import Extrinsics, FramesConfig, SteadyName
from hydranet_ros.ros.imu_topics import ImuInputConfig, ImuTopics
from hydranet_ros.ros.lifecycle import ManagedNode, NodeConfig, steady_clock
from hydranet_ros.ros.odometry_output import FusedOutputConfig, OdometryOutput
from hydranet_ros.ros.qos import REQUESTS, ReliableConfig
from hydranet_ros.ros.spin import leave, run
from hydranet_ros.settings import section

POLL_S = 0.05


@dataclass(frozen=True)
class FusionNodeConfig(NodeConfig):
    """The parameters of fusion_node."""

    odometry: OdometryInputConfig = section(OdometryInputConfig)
    input: ReliableConfig = section(ReliableConfig)
    imu: ImuInputConfig = section(ImuInputConfig)
    frames: FramesConfig = section(FramesConfig)
    output: FusedOutputConfig = section(FusedOutputConfig)
    fusion: FusionConfig = section(FusionConfig)


class FusionNode(ManagedNode[FusionNodeConfig]):
    """The fusion on topics."""

    def __init__(self, **options: Any) -> None:
        super().__init__("fusion_node", FusionNodeConfig, **options)
        self._camera, self._child = SteadyName(), SteadyName()
        self._rotations: StampMatcher[Any] = StampMatcher(2, 0)  # with their intervals
        self._health, self._published_ns = FusionHealth(), -1
        self.create_timer(POLL_S, self._poll, clock=steady_clock())

    def configure(self) -> None:
        """Open the topics."""
        config, output = self.config, self.config.output
        self._fusion = Fusion(config.fusion, None, config.odometry, self._restarted, self.warn)
        self._fusion.apply(config.fusion, smooth_s=output.smooth_s)
        self._extrinsics = Extrinsics(self, config.frames)
        self._camera_in = self._extrinsics.of(lambda: self._camera.name)
        self._output = OdometryOutput(self, "fused", config.frames, output.path, output)
        self._imu = ImuTopics(self, config.imu, self._fusion, self._camera_in)
        self.subscribe(Odometry, "vo/odometry", self._on_odometry, config.input)
        rotation, on_half = "relative_rotation", self._on_half
        self.subscribe(PoseWithCovarianceStamped, rotation, partial(on_half, 0), config.input)
        self.subscribe(TimeReference, f"{rotation}/interval", partial(on_half, 1), config.input)
        self.subscribe(PoseWithCovarianceStamped, "~/set_pose", self._on_set_pose, REQUESTS)

    def reset(self, reason: str) -> None:
        """Begin at the origin."""
        self._fusion.reset()
        self._camera.clear()
        self._child.clear()
        self._forget()

    def _restarted(self, reason: str) -> None:
        self.warn("stamps went back", f"{reason}: the pose goes on, its covariance is lost")
        self._forget()

    def _forget(self) -> None:
        self._rotations.clear()
        self._published_ns = -1
        self._health.clear()
        self._output.clear()
        self._imu.clear()

    def apply(self, config: FusionNodeConfig) -> None:
        """Go on with the new settings; the estimate stays."""
        self._fusion.apply(config.fusion, config.odometry, config.output.smooth_s)
        self._output.apply(config.output.path)

    # --- inputs ----------------------------------------------------------------------------------

    def _on_odometry(self, message: Odometry) -> None:
        try:
            sample = odometry_sample(message)
            T_b_c = self._camera_in(self._child.take(sample.child))
        except BadInput:
            self._publish(self._fusion.lose_odometry(stamp_ns(message.header.stamp)))
            raise
        self._publish(self._fusion.add_odometry(sample, T_b_c))

    def _on_half(self, side: int, message: Any) -> None:
        """A rotation (side 0) counts once its interval (side 1) is here."""
        match = self._rotations.add(side, stamp_ns(message.header.stamp), message)
        if match is not None:
            self._camera.take(match[0].header.frame_id)
            self._publish(self._fusion.add(rotation_from(*match)))

    def _on_set_pose(self, message: PoseWithCovarianceStamped) -> None:
        """Put the base to a pose in the odom frame, with the covariance of the message."""
        self._fusion.set_pose(*self._extrinsics.camera_pose(message, self._camera.name))
        self._output.clear()

    def _poll(self) -> None:
        if self.active:
            self.guard(lambda _: self._publish(self._fusion.poll()), None, "fusion")

    def _publish(self, states: list[FusedState]) -> None:
        for state in states:
            self._health.add(state, self.warn)
            self.throughput.add(state.waited_s)
            self.productivity.note(None)
            if state.stamp_ns > self._published_ns:
                self._published_ns = state.stamp_ns
                self._output.publish_state(state, self._camera_in(self.config.frames.base))
                self._imu.publish(state)

    def diagnostics(self) -> dict[str, str]:
        """Consistency, bias, and how sure the pose is."""
        return {"waiting": str(self._fusion.waiting)} | self._health.values(self._fusion.state)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the node."""
    leave(run(FusionNode, arguments))


if __name__ == "__main__":
    main()
