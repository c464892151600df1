"""view_node: the page of a running system, from the topics of the nodes.

    python -m hydranet_ros.ros.view_node --ros-args -p port:=8080

It only listens. Images are subscribed to while a browser looks, or what is shown is kept (`out`):
nobody draws in vain.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, Image, TimeReference

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry.stamps import StampMatcher
from hydranet_ros.ros import conversions
from hydranet_ros.ros.parameters import Parameters
from hydranet_ros.ros.qos import subscribed
from hydranet_ros.ros.spin import run_until_stopped
from hydranet_ros.view import arrivals
from hydranet_ros.view.arrivals import Arrivals, Drives, camera_pose
from hydranet_ros.view.page import PageConfig, exposure, open_page

POLL_S, ASK_S = 0.1, 1.0
# Any publisher matches, and a slow view delays none.
QUALITY = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
FUSION, FLOW = "fusion_node", "hydranet_node/flow/image"
FUSED, ROTATIONS = "fused/odometry", "hydranet_node/relative_rotation"


class ViewNode(Node):
    """Collects what the nodes publish, and shows each state of the fusion."""

    def __init__(self, **options: Any) -> None:
        super().__init__("view_node", **options)
        self.config = Parameters(self, PageConfig).config
        self.drives = Drives(self.config.out)
        self._arrivals = Arrivals(self.drives.newest, self.drives.begin)
        self._halves: StampMatcher[Any] = StampMatcher(2, 0)
        self._flow: Any = None
        kept = self._arrivals.keep
        self._listen(
            Odometry, "ground_truth/odometry", lambda m: kept(arrivals.TRUTH, _stamp(m), _pose(m))
        )
        self._odometry = self._listen(Odometry, "vo/odometry", self._on_odometry)
        self._listen(Odometry, FUSED, self._on_fused)
        self._listen(PoseWithCovarianceStamped, ROTATIONS, lambda m: self._on_half(0, m))
        self._listen(TimeReference, f"{ROTATIONS}/interval", lambda m: self._on_half(1, m))
        for topic in ("left/camera_info", "camera_info"):
            self._listen(CameraInfo, topic, lambda m: self._arrivals.keep_moment(_stamp(m)))
        self._listen(
            DiagnosticArray, "/diagnostics", lambda m: self._arrivals.diagnosis.hear(m.status)
        )

    def follow_fusion(self) -> None:
        """Show the odometry that fusion_node fuses, whatever its topic is."""
        fused = subscribed(self, FUSION, "nav_msgs/msg/Odometry")
        if fused and self._odometry.topic_name not in fused:
            self.destroy_subscription(self._odometry)
            self._odometry = self._listen(Odometry, fused[0], self._on_odometry)

    def look(self, wanted: bool) -> None:
        """Subscribe to the pictures while somebody looks."""
        if wanted and self._flow is None:
            kept = partial(self._arrivals.keep, arrivals.PICTURE)
            self._flow = self._listen(Image, FLOW, lambda m: kept(_stamp(m), m))
        elif not wanted and self._flow is not None:
            self.destroy_subscription(self._flow)
            self._flow = None

    def _listen(self, kind: Any, topic: str, callback: Callable[[Any], None]) -> Any:
        return self.create_subscription(kind, topic, callback, QUALITY)

    def _on_half(self, side: int, message: Any) -> None:
        halves = self._halves.add(side, _stamp(message), message)
        if halves is None:
            return
        try:
            rotation = conversions.rotation_from(*halves)
        except BadInput as error:
            self._arrivals.diagnosis.states["gyro"] = f"lost: {error}"
        else:
            self._arrivals.keep(arrivals.ROTATION, _stamp(message), rotation)

    def _on_odometry(self, message: Odometry) -> None:
        self._arrivals.keep(arrivals.ODOMETRY, _stamp(message), _pose(message))
        if not self.count_publishers(FUSED):  # nobody fuses: odometry leads
            self._arrivals.show(_stamp(message))

    def _on_fused(self, message: Odometry) -> None:
        Sigma = conversions.covariance_matrix(message.pose.covariance)[:3, :3]
        self._arrivals.show(_stamp(message), _pose(message), Sigma)


def _stamp(message: Any) -> int:
    return conversions.stamp_ns(message.header.stamp)


def _pose(message: Odometry) -> Any:
    try:
        return camera_pose(conversions.pose_matrix(message.pose.pose), message.child_frame_id)
    except BadInput:  # its node says so in /diagnostics
        return None


def main(arguments: list[str] | None = None) -> int:
    """Serve the page as a process, and give its exit code."""
    return run_until_stopped("view_node", _serve, arguments)


def _serve(stop: Event) -> None:
    node = ViewNode()
    config, asked_s = node.config, -ASK_S
    with open_page(node.drives.newest, config.host, config.port, "live") as page:
        print(f"view: {page.url}, {exposure(config.host)}", flush=True)
        while not stop.is_set():
            page.show(node.drives.newest)
            node.look(bool(config.out) or page.browsers > 0)
            if time.monotonic() - asked_s >= ASK_S:
                asked_s = time.monotonic()
                node.follow_fusion()
            rclpy.spin_once(node, timeout_sec=POLL_S)
    node.drives.keep()
    node.destroy_node()


if __name__ == "__main__":
    sys.exit(main())
