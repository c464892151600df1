"""hydranet_all: hydranet_node, stereo_vo_node and fusion_node in one process.

    ros2 run hydranet_ros hydranet_all --ros-args --params-file hydranet.yaml

The same nodes with the same topics, parameters and results as in three processes. Images that two
of them hear are received and decoded once; each works in a thread of its own.

    -p nodes:=['hydranet_node', 'fusion_node']    only these
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from rclpy.clock import TimeJump

from hydranet_ros.fusion import window
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.hydranet_node import HydraNetNode
from hydranet_ros.ros.lifecycle import ManagedNode, NodeConfig
from hydranet_ros.ros.sharing import SharedSubscriptions
from hydranet_ros.ros.spin import leave, run_together
from hydranet_ros.ros.stereo_vo_node import StereoVONode
from hydranet_ros.settings import setting
from hydranet_ros.stereo_vo import odometry as stereo_vo

# In this order: who waits for a subscriber of images (a player) waits for the one that takes
# longest to start, and when the fusion is ready, so are those that it hears.
NODES: dict[str, type[ManagedNode[Any]]] = {
    "hydranet_node": HydraNetNode,
    "stereo_vo_node": StereoVONode,
    "fusion_node": FusionNode,
}
WARM_UPS = {"stereo_vo_node": stereo_vo.warm_up, "fusion_node": window.warm_up}


@dataclass(frozen=True)
class AllConfig(NodeConfig):
    """Which nodes there are."""

    nodes: tuple[str, ...] = setting(tuple(NODES), "the nodes of this process", live=False)

    def validate(self) -> None:
        """Check the names."""
        for name in self.nodes:
            if name not in NODES:
                raise ValueError(f"nodes must be some of {', '.join(NODES)}, got {name!r}")


class HydraNetAll(ManagedNode[AllConfig]):
    """Holds what the others share, and tells of the process."""

    def __init__(self, **options: Any) -> None:
        super().__init__("hydranet_all", AllConfig, **options)
        self.members: list[ManagedNode[Any]] = []

    def request_reset(self, reason: str) -> None:
        """Reset the others: this node has no state."""
        for node in self.members:
            if node.active:
                node.request_reset(reason)

    def _clock_jumped(self, jump: TimeJump) -> None:
        """Each of the others hears the clock itself."""

    def diagnostics(self) -> dict[str, str]:
        """Who is in this process."""
        return {"nodes": ", ".join(self.config.nodes)}


def make_nodes(**options: Any) -> list[ManagedNode[Any]]:
    """The nodes, and before them the one that holds what they share."""
    owner = HydraNetAll(**options)
    shared, chosen = SharedSubscriptions(owner), owner.config.nodes
    for name, warm_up in WARM_UPS.items():
        if name in chosen:  # before anybody subscribes
            warm_up()
    owner.members = [
        make(shared=shared, **options) for name, make in NODES.items() if name in chosen
    ]
    return [owner, *owner.members]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the nodes."""
    leave(run_together(make_nodes, arguments))


if __name__ == "__main__":
    main()
