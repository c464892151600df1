"""What fusion_node says: odometry, a path, markers of the covariance, and TF where asked for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from geometry_msgs.msg import TransformStamped
from nav_msgs.msg import Odometry
from visualization_msgs.msg import Marker, MarkerArray

from hydranet_ros.errors import HydraNetError
from hydranet_ros.fusion.sliding_window import FusedState
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros import conversions
from hydranet_ros.ros.conversions import change_frame
from hydranet_ros.ros.frames import FramesConfig
from hydranet_ros.ros.managed import ManagedNode
from hydranet_ros.ros.trail import Trail, TrailConfig
from hydranet_ros.settings import about, check

try:
    import tf2_ros
except ImportError:  # not with the wheels
    tf2_ros = None

SIGMAS = 3.0
LEAST_SIZE_M = 0.02  # an ellipsoid below this is not seen
RECENT_NIS = 100


@dataclass(frozen=True)
class OutputConfig:
    """What is published besides the odometry."""

    publish_tf: bool = field(
        default=False,
        metadata=about("broadcast odom_frame to base_frame; nobody else may", read_only=True),
    )
    path: TrailConfig = field(default_factory=TrailConfig)

    def __post_init__(self) -> None:
        check(self)


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
