"""The true path, for RViz, from the true poses that are played."""

from __future__ import annotations

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry, Path
from rclpy.node import Node
from rclpy.serialization import deserialize_message

from hydranet_ros.bags.playlist import Playlist
from hydranet_ros.datasets.bag_messages import ODOMETRY, Message

# A path is sent whole each time: not with every pose.
EVERY = 10


class TruthPath:
    """Publish `ground_truth/path` where a playlist has an odometry called ground truth."""

    def __init__(self, node: Node, playlist: Playlist) -> None:
        named = (t for t, k in playlist.types.items() if k == ODOMETRY and "ground_truth" in t)
        self._topic = next(named, None)
        self._path = Path()
        self._publisher = None
        if self._topic is not None:
            self._publisher = node.create_publisher(Path, "ground_truth/path", 10)

    def add(self, message: Message) -> None:
        """Take a pose in, if the message is one; begin anew when time goes back."""
        if self._publisher is None or message.topic != self._topic:
            return
        truth: Odometry = deserialize_message(message.data, Odometry)
        poses = self._path.poses
        if poses and _nanoseconds(poses[-1]) >= _nanoseconds(truth):
            poses.clear()
        poses.append(PoseStamped(header=truth.header, pose=truth.pose.pose))
        self._path.header = truth.header
        if len(poses) % EVERY == 1:
            self._publisher.publish(self._path)


def _nanoseconds(message: PoseStamped | Odometry) -> int:
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)
