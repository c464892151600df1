"""What fusion_node says: odometry, a path, markers of the covariance, and TF where asked for."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TransformStamped
from nav_msgs.msg import Odometry, Path
from visualization_msgs.msg import Marker, MarkerArray

from hydranet_ros.errors import HydraNetError
from hydranet_ros.fusion.sliding_window import FusedState
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros import conversions
from hydranet_ros.geometry.estimates import change_frame
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.settings import Configuration, section, setting

try:
    import tf2_ros
except ImportError:  # not with the wheels
    tf2_ros = None


@dataclass(frozen=True)
class TrailConfig(Configuration):
    """How long a path is, and how often it is told."""

    poses: int = setting(5000, "poses that the path keeps", 1, 1000000, live=False)
    period_s: float = setting(1.0, "the path is told this often at most", 0.0, 3600.0)


class Trail:
    """Collect the poses of odometry, and publish them as a path."""

    def __init__(self, node: ManagedNode[Any], topic: str, config: TrailConfig) -> None:
        self._node, self._config = node, config
        self._publisher = node.speak(Path, topic)
        self._poses: deque[PoseStamped] = deque(maxlen=config.poses)
        self._told = 0.0

    def clear(self) -> None:
        """Begin a new path."""
        self._poses.clear()

    def add(self, message: Odometry) -> None:
        """Take a pose in; tell the path when it is due and somebody listens."""
        self._poses.append(PoseStamped(header=message.header, pose=message.pose.pose))
        now = time.monotonic()
        due = now - self._told >= self._config.period_s
        if due and self._publisher.get_subscription_count():
            self._told = now
            self._node.publish(
                self._publisher, Path(header=message.header, poses=list(self._poses))
            )


SIGMAS = 3.0
LEAST_SIZE_M = 0.02  # an ellipsoid below this is not seen
RECENT_NIS = 100


@dataclass(frozen=True)
class OutputConfig(Configuration):
    """What is published besides the odometry."""

    publish_tf: bool = setting(
        False, "broadcast odom_frame to base_frame; nobody else may", live=False
    )
    path: TrailConfig = section(TrailConfig)


class FusedOutput:
    """Publish fused states in the base frame."""

    def __init__(self, node: ManagedNode[Any], config: OutputConfig, frames: FramesConfig) -> None:
        self._node, self._frames = node, frames
        self._odometry = node.speak(Odometry, "fused/odometry")
        self._path = Trail(node, "fused/path", config.path)
        self._markers = node.speak(MarkerArray, "fused/markers")
        self._nis: dict[str, deque[float]] = {}
        self._broadcaster: Any = None
        if config.publish_tf:
            if tf2_ros is None:
                raise HydraNetError(
                    "parameter output.publish_tf is true and tf2_ros is not installed: install it"
                )
            self._broadcaster = tf2_ros.TransformBroadcaster(node)

    def clear(self) -> None:
        """Begin a new path."""
        self._path.clear()
        self._nis.clear()

    def tell(self, state: FusedState, T_b_c: Array, dt: float | None) -> None:
        """Publish a state; `dt` is the time since the state before, None where there is none."""
        for source, value in state.nis.items():
            self._nis.setdefault(source, deque(maxlen=RECENT_NIS)).append(value)
        names = self._frames.odom_frame, self._frames.base_frame
        message = odometry_of(state, T_b_c, dt, names)
        self._node.publish(self._odometry, message)
        self._path.add(message)
        if self._markers.get_subscription_count():
            self._node.publish(self._markers, ellipsoid(message))
        if self._broadcaster is not None:
            self._broadcaster.sendTransform(transform_of(message))

    def health(self, state: FusedState) -> dict[str, str]:
        """For diagnostics: NIS per source (about its degrees of freedom), sigmas, bias."""
        sigma = np.sqrt(np.diag(state.Sigma_c_w))
        values = {
            "sigma position (m)": f"{sigma[:3].max():.3f}",
            "sigma orientation (deg)": f"{np.rad2deg(sigma[3:].max()):.3f}",
            "bias (deg/s)": " ".join(f"{v:.3f}" for v in np.rad2deg(state.bias)),
        }
        for source, recent in self._nis.items():
            values[f"NIS {source}"] = f"{np.mean(recent):.2f} over {len(recent)}"
        return values


def odometry_of(
    state: FusedState, T_b_c: Array, dt: float | None, frames: tuple[str, str]
) -> Odometry:
    """A fused state of the camera as odometry of the base."""
    T_w_b, Sigma_b_w = change_frame(T_b_c, state.T_w_c, state.Sigma_c_w)
    adjoint = lie.se3_adjoint(T_b_c)
    Sigma_velocity = np.eye(6) * conversions.LOST_VARIANCE
    if state.Sigma_2_1 is not None and dt is not None:
        Sigma_velocity = adjoint @ state.Sigma_2_1 @ adjoint.T / dt**2
    velocity = adjoint @ state.velocity
    return conversions.odometry_message(
        state.stamp_ns, frames, T_w_b, Sigma_b_w, velocity, Sigma_velocity
    )


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
    marker.color.r, marker.color.g, marker.color.b, marker.color.a = 0.1, 0.6, 1.0, 0.35
    return MarkerArray(markers=[marker])


def transform_of(message: Odometry) -> TransformStamped:
    """The transform that the odometry says."""
    transform = TransformStamped(header=message.header, child_frame_id=message.child_frame_id)
    p, t = message.pose.pose.position, transform.transform.translation
    t.x, t.y, t.z = p.x, p.y, p.z
    transform.transform.rotation = message.pose.pose.orientation
    return transform
