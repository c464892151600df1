"""hydranet_node: images in, rotations with covariances out.

`~/relative_rotation` is the orientation of the camera at header.stamp in its own frame at the
`time_ref` of the `interval` message with the same header.stamp: after a dropped frame the two are
further apart, and the message says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from geometry_msgs.msg import PoseWithCovarianceStamped
from sensor_msgs.msg import CameraInfo, Image, Imu, TimeReference

from hydranet_ros.datasets.sensor_messages import (
    Grey,
    RawCamera,
    raw_camera,
    rectified_camera,
    stereo_camera,
)
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.flow import FlowConfig, flow_picture
from hydranet_ros.gyro.visual_gyro import VisualGyro, open_predictor
from hydranet_ros.ros import conversions
from hydranet_ros.ros.conversions import image_message
from hydranet_ros.ros.image_input import MONO, STEREO, Arrival, ImageNode, ImageNodeConfig
from hydranet_ros.ros.spin import leave, run
from hydranet_ros.settings import section, setting

if TYPE_CHECKING:
    from hydranet_ros.gyro.predictor import Predictor

TRIES = 3  # torch traces at the first prediction and optimises what it traced at the next two


@dataclass(frozen=True)
class HydraNetNodeConfig(ImageNodeConfig):
    """The parameters of hydranet_node."""

    weights: str = setting("", "file of weights; the ones that ship if empty", live=False)
    device: str = setting("auto", "auto, cpu, cuda or cuda:N", live=False)
    half: bool = setting(False, "compute in float16, which pays on CUDA", live=False)
    stereo: bool = setting(
        False, "use left/ and right/ together in place of one image", live=False
    )
    rectified: bool = setting(
        False, "the mono image is rectified: use P of camera_info, not K and D", live=False
    )
    flow: FlowConfig = section(FlowConfig)


class HydraNetNode(ImageNode[HydraNetNodeConfig]):
    """A visual gyro on topics."""

    def __init__(self, **options: Any) -> None:
        super().__init__("hydranet_node", HydraNetNodeConfig, **options)
        self._predictor: Predictor | None = None
        self._gyro: VisualGyro | None = None
        self._raw: RawCamera | None = None
        self._latest: RelativeRotation | None = None

    def set_up(self) -> None:
        """Read the weights, try them once, open the topics."""
        config = self.config
        weights = Path(config.weights) if config.weights else None
        self._predictor = open_predictor(
            weights, config.device, half=config.half, threads=config.threads
        )
        self._try_out(self._predictor)
        rotation = "~/relative_rotation"
        self._rotation = self.speak(PoseWithCovarianceStamped, rotation)
        self._interval = self.speak(TimeReference, f"{rotation}/interval")
        self._aleatoric = self.speak(PoseWithCovarianceStamped, f"{rotation}/aleatoric")
        self._epistemic = self.speak(PoseWithCovarianceStamped, f"{rotation}/epistemic")
        self._imu = self.speak(Imu, "imu_visual/data_raw")
        self._flow = self.speak(Image, "~/flow/image")
        self.take_in(STEREO if config.stereo else MONO)
        self.get_logger().info(f"{self._predictor} reads {'a pair' if config.stereo else 'mono'}")

    def _try_out(self, predictor: Predictor) -> None:
        """The first predictions take long: not on the first frames."""
        grid = predictor.model.config.grid
        if grid is None:
            return
        flow = np.zeros((1, 2, grid.rows, grid.columns), dtype=np.float32)
        for _ in range(TRIES):
            if self.config.stereo:
                predictor.predict_stereo((flow, None), (flow, None))
            else:
                predictor.predict(flow)

    def calibrate(self, infos: tuple[CameraInfo, ...], shape: tuple[int, int]) -> None:
        """Make a gyro for this camera."""
        assert self._predictor is not None
        config, self._raw = self.config, None
        if config.stereo:
            camera = stereo_camera(*infos).left
        elif config.rectified:
            camera = rectified_camera(infos[0])
        else:
            self._raw = raw_camera(infos[0])
            camera = self._raw.camera
        flow = config.flow
        if flow.method == "auto":  # what the weights were trained on
            flow = replace(flow, method=self._predictor.weights.flow_method)
        self._gyro = VisualGyro(self._predictor, camera, shape, config.stereo, flow)

    def restart(self) -> None:
        """The next image begins anew."""
        if self._gyro is not None:
            self._gyro.reset()

    def work(self, arrival: Arrival, images: tuple[Grey, ...]) -> None:
        """Estimate and publish."""
        assert self._gyro is not None
        if self._raw is not None:
            images = (self._raw.undistort(images[0]),)
        rotation = self._gyro.update(arrival.stamp_ns, *images)
        if rotation is not None:
            self._latest = rotation
            self._tell(rotation, arrival.frame_id)

    def _tell(self, rotation: RelativeRotation, frame: str) -> None:
        message = conversions.rotation_message
        # The interval first: who has the rotation has been told what it spans.
        self.publish(self._interval, conversions.interval_message(rotation, frame))
        self.publish(self._rotation, message(rotation, frame))
        self.publish(self._imu, conversions.imu_message(rotation, frame))
        for publisher, part in (
            (self._aleatoric, rotation.aleatoric),
            (self._epistemic, rotation.epistemic),
        ):
            if part is not None:
                self.publish(publisher, message(rotation, frame, part))
        if self._gyro is not None and self._gyro.flow and self._flow.get_subscription_count():
            picture = image_message(flow_picture(self._gyro.flow), "bgr8")
            picture.header = conversions.header(rotation.stamp_2_ns, frame)
            self.publish(self._flow, picture)

    def figures(self) -> dict[str, str]:
        """The device, the flow, and how sure the last rotation is."""
        values = super().figures()
        if self._predictor is not None:
            values["device"] = self._predictor.device_name
        if self._gyro is not None:
            values["flow"] = self._gyro.method
        if self._latest is not None:
            values |= covariance_health(self._latest)
        return values


def covariance_health(rotation: RelativeRotation) -> dict[str, str]:
    """Standard deviations, and how much of the variance is the model's own doubt."""
    sigma = np.rad2deg(np.sqrt(np.linalg.eigvalsh(rotation.Sigma_2_1)))
    values = {"sigma (deg)": f"{sigma[0]:.4f} to {sigma[-1]:.4f}"}
    if rotation.epistemic is not None:
        share = np.trace(rotation.epistemic) / np.trace(rotation.Sigma_2_1)
        values["epistemic share"] = f"{share:.3f}"
    return values


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the node."""
    leave(run(HydraNetNode, arguments))


if __name__ == "__main__":
    main()
