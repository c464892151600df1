"""Odometry out: messages in the base frame, a path, a marker of the covariance, TF where asked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TransformStamped
from nav_msgs.msg import Odometry, Path
from rclpy.qos import QoSProfile
from visualization_msgs.msg import Marker, MarkerArray

from hydranet_ros.errors import HydraNetError
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import change_frame
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import LOST_VARIANCE
from hydranet_ros.ros import conversions
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.ros.qos import LATCHED, NEVER_S, ReliableConfig
from hydranet_ros.settings import Configuration, section, setting

try:
    from tf2_msgs.msg import TFMessage
except ImportError:  # not with the wheels
    TFMessage = None

SIGMAS = 3.0
LEAST_SIZE_M = 0.02  # a smaller ellipsoid is not seen
BLUE = 0.122, 0.373, 0.749  # what is fused, here as everywhere
MOST_SENT = 1000  # transforms that are known again as our own


@dataclass(frozen=True)
class PathConfig(Configuration):
    """How long a path is, and how often it is published."""

    poses: int = setting(5000, "poses that the path keeps", 1, 1000000, live=False)
    period_s: float = setting(1.0, "the path is published this often at most", 0.0, 3600.0)


@dataclass(frozen=True)
class FusedOutputConfig(Configuration):
    """What fusion_node publishes besides the odometry."""

    publish_tf: bool = setting(
        False, "broadcast odom_frame to base_frame; nobody else may", live=False
    )
    tf_if_nobody: bool = setting(
        False,
        "broadcast it as long as nobody else does, as the launch file's own RViz needs it",
        live=False,
    )
    smooth_s: float = setting(
        0.3, "odometry at its own rate goes over to a new solution within this time", 0.0, 10.0
    )
    path: PathConfig = section(PathConfig)


class OdometryOutput:
    """Publish poses of the camera as odometry of the base: NAME/odometry, NAME/path."""

    def __init__(
        self,
        node: ManagedNode[Any],
        name: str,
        frames: FramesConfig,
        path: PathConfig,
        fused: FusedOutputConfig | None = None,
    ) -> None:
        self._node, self._frames = node, frames
        self._odometry = node.advertise(Odometry, f"{name}/odometry")
        self._path = PathPublisher(node, f"{name}/path", path)
        self._markers = (
            node.advertise(MarkerArray, f"{name}/markers") if fused is not None else None
        )
        self._broadcast: Broadcast | None = None
        if fused is not None and (fused.publish_tf or fused.tf_if_nobody):
            if TFMessage is None:
                name = "publish_tf" if fused.publish_tf else "tf_if_nobody"
                raise HydraNetError(
                    f"parameter output.{name} is true and tf2_msgs is not installed: install it"
                )
            sent = node.advertise(TFMessage, "/tf", QoSProfile(depth=100))
            self._broadcast = Broadcast(
                lambda each: node.publish(sent, TFMessage(transforms=[each])),
                frames.base,
                node.get_logger().info,
            )
            if not fused.publish_tf:
                hear = self._broadcast.hear
                quality = ReliableConfig(silence_s=NEVER_S)  # nobody need broadcast
                node.subscribe(TFMessage, "/tf", lambda m: hear(m.transforms), quality)

    def clear(self) -> None:
        """Begin a new path."""
        self._path.clear()

    def apply(self, path: PathConfig) -> None:
        """Take other settings of the path."""
        self._path.config = path

    def publish(
        self,
        stamp_ns: int,
        T_b_c: Array,
        pose: tuple[Array, Array],
        velocity: Array | None = None,
        Sigma_velocity: Array | None = None,
    ) -> None:
        """Publish T_w_c with Sigma_c_w; velocities are the camera's, None where not measured."""
        T_w_b, Sigma_b_w = change_frame(T_b_c, *pose)
        twist, Sigma_twist = np.zeros(6), np.eye(6) * LOST_VARIANCE
        adjoint = lie.se3_adjoint(T_b_c)
        if velocity is not None:
            twist = adjoint @ velocity
        if Sigma_velocity is not None:
            Sigma_twist = adjoint @ Sigma_velocity @ adjoint.T
        names = self._frames.odom, self._frames.base
        message = conversions.odometry_message(
            stamp_ns, names, T_w_b, Sigma_b_w, twist, Sigma_twist
        )
        self._node.publish(self._odometry, message)
        self._path.add(message)
        if self._markers is not None and self._markers.get_subscription_count():
            self._node.publish(self._markers, ellipsoid(message))
        if self._broadcast is not None:
            self._broadcast.send(transform_of(message))

    def publish_state(self, state: FusedState, T_b_c: Array) -> None:
        """Publish a fused state."""
        Sigma = None
        if state.Sigma_2_1 is not None and state.step_s is not None:
            Sigma = state.Sigma_2_1 / state.step_s**2
        pose = state.T_w_c, state.Sigma_c_w
        self.publish(state.stamp_ns, T_b_c, pose, state.velocity, Sigma)


class Broadcast:
    """The transform of a base, sent until somebody else is heard who sends one as well."""

    def __init__(
        self, send: Callable[[TransformStamped], None], base: str, say: Callable[[str], Any]
    ) -> None:
        self._send, self._base, self._say = send, base, say
        self._sent: deque[tuple[float, ...]] = deque(maxlen=MOST_SENT)
        self.silent = False

    def send(self, transform: TransformStamped) -> None:
        """Send a transform, unless somebody else does."""
        if not self.silent:
            self._sent.append(numbers_of(transform))
            self._send(transform)

    def hear(self, transforms: Iterable[TransformStamped]) -> None:
        """Take in what is on /tf, our own transforms among it."""
        for each in transforms:
            if self.silent or each.child_frame_id != self._base:
                continue
            if numbers_of(each) not in self._sent:
                self.silent = True
                parent = each.header.frame_id
                self._say(f"somebody else broadcasts {parent} to {self._base}: TF is left to it")


class PathPublisher:
    """Collect the poses of odometry, and publish them as a path: bounded, and not too often.

    Whoever subscribes has it at once, also after the last pose. Without a subscriber it costs
    nothing.
    """

    def __init__(self, node: ManagedNode[Any], topic: str, config: PathConfig) -> None:
        self._node, self.config = node, config
        self._publisher = node.advertise(Path, topic, LATCHED, self._publish)
        self._poses: deque[PoseStamped] = deque(maxlen=config.poses)
        self._published = 0.0

    def clear(self) -> None:
        """Begin a new path, also for those who come before its first pose."""
        if self._poses:
            self._node.publish(self._publisher, Path(header=self._poses[-1].header))
        self._poses.clear()

    def add(self, message: Odometry) -> None:
        """Take a pose in; publish the path when it is due and somebody subscribes."""
        self._poses.append(PoseStamped(header=message.header, pose=message.pose.pose))
        now = time.monotonic()
        due = now - self._published >= self.config.period_s
        if due and self._publisher.get_subscription_count():
            self._published = now
            self._publish()

    def _publish(self) -> None:
        poses = list(self._poses)  # a worker may add to it
        if poses:
            self._node.publish(self._publisher, Path(header=poses[-1].header, poses=poses))


def ellipsoid(message: Odometry) -> MarkerArray:
    """The region that holds the position with three standard deviations."""
    covariance = conversions.covariance_matrix(message.pose.covariance)[:3, :3]
    variances, axes = np.linalg.eigh(covariance)
    if np.linalg.det(axes) < 0.0:
        axes[:, 0] *= -1.0
    position = conversions.pose_matrix(message.pose.pose)[:3, 3]
    marker = Marker(header=message.header, ns="position_3_sigma", id=0)
    marker.type, marker.action = Marker.SPHERE, Marker.ADD
    marker.pose = conversions.pose_message(lie.se3_from(axes, position))
    size = np.maximum(2.0 * SIGMAS * np.sqrt(np.maximum(variances, 0.0)), LEAST_SIZE_M)
    marker.scale.x, marker.scale.y, marker.scale.z = (float(v) for v in size)
    marker.color.r, marker.color.g, marker.color.b = BLUE
    marker.color.a = 0.35
    return MarkerArray(markers=[marker])


def numbers_of(transform: TransformStamped) -> tuple[float, ...]:
    """Its stamp and its values: another's may have the stamp of the same odometry."""
    t, q = transform.transform.translation, transform.transform.rotation
    return conversions.stamp_ns(transform.header.stamp), t.x, t.y, t.z, q.x, q.y, q.z, q.w


def transform_of(message: Odometry) -> TransformStamped:
    """The transform that the odometry says."""
    transform = TransformStamped(header=message.header, child_frame_id=message.child_frame_id)
    p, t = message.pose.pose.position, transform.transform.translation
    t.x, t.y, t.z = p.x, p.y, p.z
    transform.transform.rotation = message.pose.pose.orientation
    return transform
