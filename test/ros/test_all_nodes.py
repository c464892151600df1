"""The nodes of one process: who is in it, and what one of them leaves to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from nav_msgs.msg import Odometry
from rclpy.qos import QoSProfile
from ros.node_processes import RELIABLE, Bench, NodeProcess

from hydranet_ros.ros.sharing import SharedSubscriptions


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("all_nodes")
    yield made
    made.close()


def test_two_hear_one_subscription_until_both_have_left(bench: Bench) -> None:
    shared, topic = SharedSubscriptions(bench.node), "/shared"
    heard: dict[str, list[Odometry]] = {"one": [], "two": [], "other": []}
    sent = bench.publisher(Odometry, topic)
    one, two = (
        shared.subscribe(bench.node, Odometry, topic, heard[name].append, RELIABLE)
        for name in ("one", "two")
    )
    other = shared.subscribe(
        bench.node, Odometry, topic, heard["other"].append, QoSProfile(depth=5)
    )
    assert bench.spin_until(lambda: sent.get_subscription_count() == 2, 20.0)
    sent.publish(Odometry())
    assert bench.spin_until(lambda: all(heard.values()), 20.0)
    assert heard["one"][0] is heard["two"][0]
    assert heard["one"][0] is not heard["other"][0]
    one.close()
    other.close()
    sent.publish(Odometry())
    assert bench.spin_until(lambda: len(heard["two"]) == 2, 20.0)
    assert len(heard["one"]) == len(heard["other"]) == 1
    two.close()
    assert bench.spin_until(lambda: sent.get_subscription_count() == 0, 20.0)
    again = shared.subscribe(bench.node, Odometry, topic, heard["one"].append, RELIABLE)
    assert bench.spin_until(lambda: sent.get_subscription_count() == 1, 20.0)
    again.close()


def test_a_message_is_decoded_once() -> None:
    shared, calls = SharedSubscriptions(), []

    def decode() -> object:
        calls.append(1)
        return object()

    first, second = Odometry(), Odometry()
    assert shared.decoded(first, decode) is shared.decoded(first, decode)
    assert shared.decoded(first, decode) is not shared.decoded(second, decode)
    assert len(calls) == 2


def test_some_nodes_of_one_process(bench: Bench, tmp_path: Path) -> None:
    chosen = "-p", "hydranet_all:nodes:=['stereo_vo_node', 'fusion_node']"
    process = NodeProcess("hydranet_all", chosen, tmp_path)
    try:
        named = bench.node.get_node_names
        wanted = {"hydranet_all", "stereo_vo_node", "fusion_node"}
        assert bench.spin_until(lambda: wanted <= set(named()), 60.0), process.log
        assert "hydranet_node" not in named()
        assert process.interrupt()[0] == 0, process.log
    finally:
        process.end()


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    process = NodeProcess("hydranet_all", ("-p", "hydranet_all:nodes:=['vo']"), tmp_path)
    try:
        assert process.process.wait(timeout=60.0) == 2
        assert "nodes must be some of" in process.log
        assert "Traceback" not in process.log
    finally:
        process.end()
