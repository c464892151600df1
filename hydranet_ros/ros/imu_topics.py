"""An IMU on topics: `imu/data_raw` in, `imu/data_unbiased` and `imu/bias` out.

The bias comes as the angular part of a TwistWithCovarianceStamped, in the axes of the IMU, with
every solution of the fusion. A message is passed on without the bias as it comes, once one was
found; its covariance is that of the sample and of the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from geometry_msgs.msg import TwistWithCovarianceStamped
from sensor_msgs.msg import Imu

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.imu import ImuSample
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros.conversions import header, stamp_ns
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.ros.qos import QualityConfig
from hydranet_ros.settings import setting


@dataclass(frozen=True)
class ImuInputConfig(QualityConfig):
    """How an IMU is subscribed to. It is optional: its silence is a fault once it was heard."""

    expected_from_start: ClassVar[bool] = False

    depth: int = setting(200, "messages that the middleware keeps", 1, 10000, live=False)
    frame: str = setting(
        "", "frame of the IMU, where its messages name another or none", live=False
    )


def imu_sample(message: Imu) -> ImuSample:
    """The sample of a message; a BadInput where it has no rate. Covariance -1: not measured."""
    if message.angular_velocity_covariance[0] == -1.0:
        raise BadInput("imu", "the message says that it has no angular velocity")
    rate, felt = message.angular_velocity, message.linear_acceleration
    acceleration = None
    if message.linear_acceleration_covariance[0] != -1.0:
        acceleration = np.array([felt.x, felt.y, felt.z])
    sample = ImuSample(
        stamp_ns(message.header.stamp), np.array([rate.x, rate.y, rate.z]), acceleration
    )
    if not sample.sound:
        raise BadInput("imu", "rate or acceleration are no numbers that a sensor can send")
    return sample


class ImuTopics:
    """Give the samples to a fusion, and publish the bias that it finds.

    `camera_in` tells T_i_c of the camera in a frame, or raises a BadInput where it is not known.
    """

    def __init__(
        self,
        node: ManagedNode[Any],
        config: ImuInputConfig,
        fusion: Fusion,
        camera_in: Callable[[str], Array],
    ) -> None:
        self._node, self._frame, self._fusion = node, config.frame, fusion
        self._camera_in = camera_in
        self._unbiased = node.advertise(Imu, "imu/data_unbiased")
        self._bias = node.advertise(TwistWithCovarianceStamped, "imu/bias")
        self.clear()
        node.subscribe(Imu, "imu/data_raw", self._on_imu, config)

    def clear(self) -> None:
        """Forget the bias."""
        self._found: tuple[Array, Array] | None = None
        self._mount: tuple[str, Array] | None = None

    def _on_imu(self, message: Imu) -> None:
        frame = self._frame or message.header.frame_id
        if not frame:
            raise BadInput("frames", "IMU has no frame_id: set imu.frame")
        try:
            C_c_i = self._camera_in(frame)[:3, :3].T
        except BadInput as error:
            raise BadInput(error.kind, f"IMU: {error}; or set imu.frame to a known one") from None
        self._fusion.add_imu(imu_sample(message), C_c_i)
        self._mount = frame, C_c_i
        if self._found is None:
            return
        bias, Sigma = self._found[0], self._found[1]
        out = Imu(header=message.header, orientation=message.orientation)
        out.orientation_covariance = message.orientation_covariance
        out.linear_acceleration = message.linear_acceleration
        out.linear_acceleration_covariance = message.linear_acceleration_covariance
        rate, told = out.angular_velocity, message.angular_velocity
        rate.x, rate.y, rate.z = (
            float(v) for v in np.array([told.x, told.y, told.z]) - C_c_i.T @ bias
        )
        own = np.array(message.angular_velocity_covariance).reshape(3, 3)
        out.angular_velocity_covariance = (own + C_c_i.T @ Sigma @ C_c_i).ravel()
        self._node.publish(self._unbiased, out)

    def publish(self, state: FusedState) -> None:
        """Publish the bias of a state, in the axes of the IMU."""
        if state.Sigma_imu_bias is None or self._mount is None:
            return
        self._found = state.imu_bias, state.Sigma_imu_bias
        frame, C_c_i = self._mount
        message = TwistWithCovarianceStamped(header=header(state.stamp_ns, frame))
        rate = message.twist.twist.angular
        rate.x, rate.y, rate.z = (float(v) for v in C_c_i.T @ state.imu_bias)
        covariance = np.zeros((6, 6))
        covariance[3:, 3:] = C_c_i.T @ state.Sigma_imu_bias @ C_c_i
        message.twist.covariance = covariance.ravel()
        self._node.publish(self._bias, message)
