"""Each node, as a process, is killed and started again while the car drives on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("torch", reason="rotations from images need torch")

from faults.cameras import T_b_c
from faults.tally import METRES, Report, Row
from faults.worlds import judge_odometry
from nav_msgs.msg import Odometry
from ros.in_process import finite
from ros.node_processes import REMAPS, REPLAY, Bench, NodeProcess, StereoRig, processes

from hydranet_ros.geometry import lie
from hydranet_ros.ros.conversions import covariance_matrix, pose_matrix, stamp_ns
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

PERIOD = 100_000_000
START = 2_000 * 10**9
T_c_b = lie.se3_inverse(T_b_c)
FRAMES = 60
ARGUMENTS = {
    "hydranet_node": [*REPLAY, "-p", "gyro.cameras:=stereo", "-p", "gyro.device:=cpu"],
    "stereo_vo_node": REPLAY,
    "fusion_node": [*REMAPS, "-p", "fusion.odometry:=own", "-p", "fusion.max_wait_s:=0.3"],
}


class Fleet:
    """The three nodes in processes of their own, in a car on a simulated street."""

    def __init__(self, folder: Path, nodes: dict[str, NodeProcess]) -> None:
        self.folder, self.nodes, self.bench = folder, nodes, Bench("fleet")
        self.street = Street(StreetConfig(frames=FRAMES, width=310, height=120, seed=3))
        self.frames = list(self.street)
        self.rig = StereoRig(self.bench, self.street.camera, self.frames[0].left.shape)
        self.heard = {
            name: self.bench.hear(Odometry, f"{name}/odometry") for name in ("vo", "fused")
        }
        self.next = 0
        self.origins: dict[str, Odometry] = {}

    def drive(self, frames: int) -> list[int]:
        """Send the next frames as they come; their stamps."""
        stamps = []
        for frame in self.frames[self.next : self.next + frames]:
            stamps.append(START + frame.stamp_ns)
            self.rig.send(stamps[-1], frame.left, frame.right)
            self.bench.spin(0.1)
        self.next += frames
        return stamps

    def says(self, name: str, stamps: list[int], seconds: float = 10.0) -> bool:
        """Whether one of these stamps comes to be heard on an output."""
        wanted = set(stamps)
        return self.bench.spin_until(
            lambda: any(stamp_ns(m.header.stamp) in wanted for m in self.heard[name]), seconds
        )

    def ready(self) -> bool:
        """Whether the nodes are there and have found each other."""
        names = self.bench.node.get_node_names()
        return all(name in names for name in ARGUMENTS) and self.rig.listened(2)

    def truth(self, message: Odometry, origin: Odometry) -> np.ndarray:
        """T_w_b at a message, where that of `origin` is right."""
        first, now = (
            T_b_c @ self.street.T_w_c[round((stamp_ns(m.header.stamp) - START) / PERIOD)] @ T_c_b
            for m in (origin, message)
        )
        return np.asarray(pose_matrix(origin.pose.pose) @ lie.se3_inverse(first) @ now)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with processes(folder, **ARGUMENTS) as nodes:
        made = Fleet(folder, nodes)
        try:
            assert made.bench.spin_until(made.ready, 120.0)
            made.bench.spin(2.0)
            yield made
        finally:
            made.bench.close()


@pytest.mark.faults
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_node_is_killed_and_started_again(report: Report, fleet: Fleet, name: str) -> None:
    """The others go on meanwhile, and it goes on when it is back; a new one has a new origin."""
    row = report.row("kill -9 and start again")
    row.tried += 1
    before = fleet.drive(6)
    assert fleet.says("fused", before[-2:])
    fleet.nodes[name].end()
    alone = fleet.drive(6)
    if name != "fusion_node" and not fleet.says("fused", alone):
        row.crash(f"without {name} nothing is fused")
    known = {n: len(fleet.heard[n]) for n in fleet.heard}
    fleet.nodes[name] = NodeProcess(name, ARGUMENTS[name], fleet.folder)
    log = fleet.nodes[name]
    assert fleet.bench.spin_until(lambda: back(fleet, name, log), 60.0), log.log
    fleet.bench.spin(2.0)  # until the others have found it
    after = fleet.drive(8)
    if not fleet.says("fused", after[-2:]):
        row.crash(f"after {name} was killed nothing is fused: {log.log[-2000:]}")
    for each, process in fleet.nodes.items():
        if not process.running:
            row.crash(f"{each} has ended: {process.log[-2000:]}")
    judge(fleet, row, name, known)
    row.check()


def back(fleet: Fleet, name: str, process: NodeProcess) -> bool:
    """Whether a node that was started again listens; DDS remembers the killed one for a while."""
    topic = "vo/odometry" if name == "fusion_node" else "left/image_rect"
    listeners = fleet.bench.node.get_subscriptions_info_by_topic(f"/{topic}")
    return sum(each.node_name == name for each in listeners) >= 2 or not process.running


def judge(fleet: Fleet, row: Row, killed: str, known: dict[str, int]) -> None:
    """All that was said; whoever was killed begins a new world where it is sure of its pose."""
    of = {"vo": "stereo_vo_node", "fused": "fusion_node"}
    for output, messages in fleet.heard.items():
        for number, message in enumerate(messages):
            if not finite(message):
                row.non_finite += 1
                continue
            if of[output] == killed and number == known[output]:
                fleet.origins.pop(output)
            if output not in fleet.origins and is_sure(message):
                fleet.origins[output] = message
            if output in fleet.origins:
                truth = fleet.truth(message, fleet.origins[output])
                judge_odometry(row, message, truth, f"{killed} killed, {output}")
        messages.clear()


def is_sure(message: Odometry) -> bool:
    return bool(np.diagonal(covariance_matrix(message.pose.covariance))[:3].max() < METRES**2)
