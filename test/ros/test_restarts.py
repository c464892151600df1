"""A killed and restarted VO node, and a bag that loops, with all nodes in their own processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("torch", reason="rotations from images need torch")

from nav_msgs.msg import Odometry
from ros.in_process import finite
from ros.node_processes import (
    FUSED_FROM,
    REMAPS,
    REPLAY,
    Bench,
    NodeProcess,
    StereoRig,
    processes,
)

from hydranet_ros.ros.conversions import covariance_matrix, pose_matrix, stamp_ns
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

FRAMES = 10
PERIOD_NS = 100_000_000


@pytest.fixture(scope="module")
def world(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("restarts")
    street = Street(StreetConfig(frames=FRAMES))
    frames = list(street)
    bench = Bench("restarts")
    rig = StereoRig(bench, street.camera, frames[0].left.shape)
    fused, vo = bench.hear(Odometry, "fused/odometry"), bench.hear(Odometry, "vo/odometry")
    # The untrained network knows nothing: it must not outweigh VO when they disagree.
    fusion = [*REMAPS, "-p", "fusion.max_wait_s:=2.0", "-p", "fusion.gyro.inflation:=1e4"]
    net = [*REPLAY, "-p", f"gyro.weights:={weights}", "-p", "gyro.cameras:=stereo"]
    try:
        with processes(
            folder, hydranet_node=net, stereo_vo_node=REPLAY, fusion_node=fusion
        ) as nodes:
            assert bench.spin_until(lambda: rig.listened(2), 180.0)
            # The fusion hears everything; our own ear for odometry is heard too.
            assert bench.wait_for_listeners(
                {**dict.fromkeys(FUSED_FROM, 1), "vo/odometry": 2, "fused/odometry": 1}
            )
            yield SimpleNamespace(
                bench=bench, rig=rig, frames=frames, nodes=nodes, fused=fused, vo=vo, folder=folder
            )
    finally:
        bench.close()


def play(world: SimpleNamespace, indices: range, start_ns: int) -> list[int]:
    """Send frames, each when the one before has been fused or given up."""
    stamps = [start_ns + i * PERIOD_NS for i in indices]
    for i, stamp in zip(indices, stamps, strict=True):
        world.rig.send(stamp, world.frames[i].left, world.frames[i].right)
        world.bench.spin(0.1)
        world.bench.spin_until(
            lambda wanted=stamp: any(stamp_ns(m.header.stamp) == wanted for m in world.fused), 0.4
        )
    return stamps


def fused_up_to(world: SimpleNamespace, stamp: int) -> bool:
    return world.bench.spin_until(
        lambda: any(stamp_ns(m.header.stamp) == stamp for m in world.fused), 30.0
    )


def poses(world: SimpleNamespace) -> dict[int, np.ndarray]:
    return {stamp_ns(m.header.stamp): pose_matrix(m.pose.pose) for m in world.fused}


def test_a_bag_that_loops_gives_the_same_motion_again(world: SimpleNamespace) -> None:
    """Without simulated time nobody knows that it is a loop: the pose goes on, lost."""
    rounds = []
    for _ in range(3):
        world.fused.clear()
        stamps = play(world, range(FRAMES), 10**12)
        assert fused_up_to(world, stamps[-1]), [n.log for n in world.nodes.values()]
        rounds.append(poses(world))
    first = min(rounds[0])
    for again in rounds[1:]:
        assert again.keys() == rounds[0].keys()
        for stamp, pose in rounds[0].items():
            wanted = np.linalg.solve(rounds[0][first], pose)
            np.testing.assert_allclose(
                np.linalg.solve(again[first], again[stamp]), wanted, atol=1e-5
            )
        gone_on = np.linalg.solve(rounds[0][max(rounds[0])], rounds[1][first])
        assert np.linalg.norm(gone_on[:3, 3]) < 2.0
    sigma = np.sqrt(np.diagonal(covariance_matrix(world.fused[-1].pose.covariance)))
    assert sigma[:3].min() > 50.0
    for name, node in world.nodes.items():
        assert node.log.count("[stamps went back") == 1, (name, node.log)  # once for both


def test_a_killed_vo_node_comes_back(world: SimpleNamespace) -> None:
    start = 2 * 10**12
    world.fused.clear()
    stamps = play(world, range(4), start)
    assert fused_up_to(world, stamps[-1])
    world.nodes["stereo_vo_node"].end()
    alone = play(world, range(4, 6), start)
    assert fused_up_to(world, alone[-1])  # by rotations, after a single wait
    again = NodeProcess("stereo_vo_node", [*REPLAY, "-r", "__node:=again"], world.folder)
    world.nodes["stereo_vo_node"] = again
    # DDS takes 20 s to forget a killed process: wait for the new one by its name.
    names = world.bench.node.get_node_names
    assert world.bench.spin_until(lambda: "again" in names(), 180.0), again.log
    world.bench.spin(1.0)
    back = play(world, range(6, FRAMES), start)
    assert fused_up_to(world, back[-1]), world.nodes["fusion_node"].log
    assert set(poses(world)) >= {*stamps[1:], *alone, *back}
    assert all(finite(m) for m in world.fused)
    # It began anew at its own origin; the fused pose did not jump back with it.
    assert np.linalg.norm(pose_matrix(world.vo[-1].pose.pose)[:3, 3]) < 5.0
    path = np.array([pose[:3, 3] for _, pose in sorted(poses(world).items())])
    assert np.linalg.norm(np.diff(path, axis=0), axis=1).max() < 2.0  # 8 m/s, 10 Hz
    assert np.linalg.norm(path[-1]) > 4.0


def test_all_end_well(world: SimpleNamespace) -> None:
    for name, node in world.nodes.items():
        assert node.running, (name, node.log)
        code, seconds = node.interrupt()
        assert code == 0, (name, node.log)
        assert seconds < 10.0, name
        assert "Traceback" not in node.log
