"""hydranet_node: images in, rotations with covariances out.

`~/relative_rotation` is the orientation of the camera at header.stamp in its own frame at the
`time_ref` of the `interval` message with the same header.stamp: after a dropped frame the two are
further apart, and the message says so. `~/rotation_since_reference` is the same since an image
further back that is still in view. It has errors in common with the others: use one of the two.
`~/relative_rotation/persistent` is the part of the covariance that the next rotations share, for
`PERSISTENT_S` seconds (`gyro.persistent`; also in /diagnostics).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from geometry_msgs.msg import PoseWithCovarianceStamped
from sensor_msgs.msg import Image, Imu, TimeReference

from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.visual_gyro import GyroConfig, GyroLost, Sight, VisualGyro, open_warm
from hydranet_ros.ros import conversions
from hydranet_ros.ros.diagnostics import rotation_health
from hydranet_ros.ros.image_input import CameraFrame, ImageInput, Rest
from hydranet_ros.ros.image_topics import InputConfig
from hydranet_ros.ros.lifecycle import ManagedNode, NodeConfig
from hydranet_ros.ros.spin import leave, run
from hydranet_ros.settings import section


@dataclass(frozen=True)
class HydraNetNodeConfig(NodeConfig):
    """The parameters of hydranet_node."""

    input: InputConfig = section(InputConfig)
    gyro: GyroConfig = section(GyroConfig)


class HydraNetNode(ManagedNode[HydraNetNodeConfig]):
    """A visual gyro on topics."""

    def __init__(self, **options: Any) -> None:
        super().__init__("hydranet_node", HydraNetNodeConfig, **options)
        self._predictor: Any = None
        self._gyro: VisualGyro | None = None
        self._latest: RelativeRotation | None = None

    def configure(self) -> None:
        """Read the weights, run them once, open the topics."""
        config = self.config
        self._predictor, self._gyro = open_warm(config.gyro), None
        rotation = "~/relative_rotation"
        self._rotation = self.advertise(PoseWithCovarianceStamped, rotation)
        self._interval = self.advertise(TimeReference, f"{rotation}/interval")
        since = "~/rotation_since_reference"
        self._since = self.advertise(PoseWithCovarianceStamped, since)
        self._since_interval = self.advertise(TimeReference, f"{since}/interval")
        self._aleatoric = self.advertise(PoseWithCovarianceStamped, f"{rotation}/aleatoric")
        self._epistemic = self.advertise(PoseWithCovarianceStamped, f"{rotation}/epistemic")
        self._persistent = self.advertise(PoseWithCovarianceStamped, f"{rotation}/persistent")
        self._imu = self.advertise(Imu, "imu_visual/data_raw")
        self._flow = self.advertise(Image, "~/flow/image")
        ImageInput(self, config.input, config.gyro.cameras, self.on_frame)
        flow = config.gyro.flow_method(self._predictor)
        self.get_logger().info(f"{self._predictor}, flow: {flow}, cameras: {config.gyro.cameras}")

    def reset(self, reason: str) -> None:
        """The next image has nothing to be compared with."""
        if self._gyro is not None:
            self._gyro.reset()

    def apply(self, config: HydraNetNodeConfig) -> None:
        """Go on with the new settings; the last image stays."""
        if self._gyro is not None:
            self._gyro.apply(config.gyro)

    def on_frame(self, received: CameraFrame) -> Rest:
        """Estimate and publish: the flow here, and the rest beside the flow of the next frame."""
        gyro = self._gyro
        if gyro is None or gyro.camera != received.camera:
            self._gyro = gyro = VisualGyro(received.camera, self.config.gyro, self._predictor)
        return partial(self._tell, gyro, gyro.look(received.frame), received)

    def _tell(self, gyro: VisualGyro, sight: Sight, received: CameraFrame) -> None:
        rotation = gyro.tell(sight)
        self.productivity.note(gyro.lost and gyro.lost.value)
        if rotation is not None:
            self._latest = rotation
            self._publish_rotation(rotation, received.frame_id)
            self._publish_since(gyro.since_reference, received.frame_id)
            self._publish_flow(gyro, received)
        elif gyro.lost is not None and gyro.lost is not GyroLost.FIRST_IMAGE:
            self.warn(f"lost: {gyro.lost.name.lower()}", f"no rotation: {gyro.lost.value}")

    def _publish_rotation(self, rotation: RelativeRotation, frame: str) -> None:
        # The interval before its rotation: the rotation counts once its stamps are known.
        self.publish(self._interval, conversions.interval_message(rotation, frame))
        self.publish(self._rotation, conversions.rotation_message(rotation, frame))
        self.publish(self._imu, conversions.imu_message(rotation, frame))
        for publisher, part in (
            (self._aleatoric, rotation.aleatoric),
            (self._epistemic, rotation.epistemic),
            (self._persistent, rotation.persistent),
        ):
            if part is not None:
                self.publish(publisher, conversions.rotation_message(rotation, frame, part))

    def _publish_since(self, rotation: RelativeRotation | None, frame: str) -> None:
        if rotation is not None:
            self.publish(self._since_interval, conversions.interval_message(rotation, frame))
            self.publish(self._since, conversions.rotation_message(rotation, frame))

    def _publish_flow(self, gyro: VisualGyro, received: CameraFrame) -> None:
        if not self._flow.get_subscription_count():
            return
        picture = gyro.picture(received.frame.left)
        if picture is not None:
            message = conversions.image_message(picture, "bgr8")
            message.header = conversions.header(received.frame.stamp_ns, received.frame_id)
            self.publish(self._flow, message)

    def diagnostics(self) -> dict[str, str]:
        """The device, the flow, and how sure the last rotation is."""
        values = {}
        if self._predictor is not None:
            values["device"] = self._predictor.device_name
        if self._gyro is not None:
            values["flow"] = self._gyro.method
        if self._latest is not None:
            values |= rotation_health(self._latest)
        return values


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the node."""
    leave(run(HydraNetNode, arguments))


if __name__ == "__main__":
    main()
