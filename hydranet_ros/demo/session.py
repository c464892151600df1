"""Run the nodes: start them, play to them, record them, end them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydranet_ros.demo.children import Children
from hydranet_ros.demo.nodes import Value, node_command
from hydranet_ros.demo.surroundings import environment
from hydranet_ros.pipeline import OWN_SOURCES

READY_S = 120.0
IDLE_S = 3.0
# Nothing is lost in a replay; how late it comes is shown.
INPUT: dict[str, Value] = {
    "input.reliability": "reliable",
    "input.depth": 1000,
    "input.queue": 1000,
}
# Our own odometry is believed as `hydranet run` does.
FUSION: dict[str, Value] = {
    "max_wait_s": 30.0,
    "fusion.vo_scale": OWN_SOURCES.vo_scale,
    "fusion.vo_floor_m": OWN_SOURCES.vo_floor_m,
    "fusion.vo_floor_deg": OWN_SOURCES.vo_floor_deg,
}
ROTATION = "hydranet_node/relative_rotation"
POSE, ODOMETRY = "geometry_msgs/msg/PoseWithCovarianceStamped", "nav_msgs/msg/Odometry"
RECORDED = {
    "left/camera_info": "sensor_msgs/msg/CameraInfo",
    "ground_truth/odometry": ODOMETRY,
    "vo/odometry": ODOMETRY,
    "fused/odometry": ODOMETRY,
    ROTATION: POSE,
    f"{ROTATION}/interval": "sensor_msgs/msg/TimeReference",
    f"{ROTATION}/aleatoric": POSE,
    f"{ROTATION}/epistemic": POSE,
    "imu_visual/data_raw": "sensor_msgs/msg/Imu",
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
}
AWAITED = ("vo/odometry", "fused/odometry", ROTATION)
# hydranet_node and stereo_vo_node.
LISTENERS = 2


@dataclass(frozen=True)
class Session:
    """What is asked for; `seconds` is how long the input is."""

    logs: Path
    rate: float
    seconds: float
    weights: str | None
    device: str
    mono: bool = False


def run_nodes(session: Session, played: Path, recorded: Path) -> None:
    """Play one bag through the nodes and record what they say into another."""
    lasting_s = session.seconds / session.rate
    with Children(session.logs, environment(session.logs)) as children:
        for name, command in commands(session, recorded).items():
            children.start(name, command)
        children.wait_for_line("recorder_node", "ready", READY_S)
        player: dict[str, Value] = {"source": str(played), "rate": session.rate}
        player["subscribers"] = LISTENERS
        children.start("player_node", node_command("player_node", player))
        children.wait_for_end("player_node", 60.0 + 2.0 * lasting_s)
        # It goes on for as long as results come.
        children.wait_for_end("recorder_node", 60.0 + 10.0 * lasting_s)


def commands(session: Session, recorded: Path) -> dict[str, list[str]]:
    """The command line of every node but the player."""
    return {
        "recorder_node": node_command("recorder_node", _recorder(recorded)),
        "fusion_node": node_command("fusion_node", FUSION, _rotations()),
        "stereo_vo_node": node_command("stereo_vo_node", INPUT),
        "hydranet_node": node_command("hydranet_node", _hydranet(session), _left()),
    }


def _recorder(recorded: Path) -> dict[str, Value]:
    topics = [f"{name} {kind}" for name, kind in RECORDED.items()]
    return {"out": str(recorded), "topics": topics, "awaited": AWAITED, "idle_s": IDLE_S}


def _hydranet(session: Session) -> dict[str, Value]:
    chosen: dict[str, Value] = {"stereo": not session.mono, "device": session.device}
    if session.mono:
        chosen["rectified"] = True
    if session.weights is not None:
        chosen["weights"] = session.weights
    return {**INPUT, **chosen}


def _left() -> dict[str, str]:
    return {"image": "left/image_rect", "camera_info": "left/camera_info"}


def _rotations() -> dict[str, str]:
    """The fusion takes the rotations of hydranet_node."""
    parts = ("", "/interval")
    return {f"relative_rotation{part}": f"{ROTATION}{part}" for part in parts}
