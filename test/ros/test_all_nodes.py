"""The nodes of one process: who is in it, and what one of them leaves to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from nav_msgs.msg import Odometry
from rcl_interfaces.srv import GetParameters
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from ros.in_process import DrivenFusion, counted, overrides, spinning
from ros.node_processes import RELIABLE, Bench, NodeProcess, stamp
from rosgraph_msgs.msg import Clock
from std_srvs.srv import Trigger

from hydranet_ros.ros.environment import together_parameters
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.hydranet_all import HydraNetAll, make_nodes
from hydranet_ros.ros.sharing import SharedSubscriptions
from hydranet_ros.ros.stereo_vo_node import StereoVONode


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


@pytest.mark.parametrize("own_section", ["/**", "/r1/fusion_node"])
def test_parameters_of_a_file_are_those_of_each_in_any_namespace(
    bench: Bench, tmp_path: Path, own_section: str
) -> None:
    """As the launch file gives them: after the user's own, and stronger."""
    own, launched = tmp_path / "own.yaml", tmp_path / "launched.yaml"
    mine = "{ros__parameters: {frames: {prefix: mine}}}"
    own.write_text(f"/**/fusion_node: {mine}\n{own_section}: {mine}\n")
    values = {"frames.prefix": "09", "output.path.poses": 7}
    launched.write_text(together_parameters({"fusion_node": values}, "/r1"))
    files = "--params-file", str(own), "--params-file", str(launched)
    process = NodeProcess("hydranet_all", ("-r", "__ns:=/r1", *files), tmp_path)
    try:
        request = GetParameters.Request(names=list(values))
        answer = bench.call(GetParameters, "/r1/fusion_node/get_parameters", request).values
        assert [answer[0].string_value, answer[1].integer_value] == ["09", 7]
        assert ("stereo_vo_node", "/r1") not in bench.node.get_node_names_and_namespaces()
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


def test_the_reset_of_all_resets_each(bench: Bench) -> None:
    only = [Parameter("nodes", value=["fusion_node"]), *overrides(fusion__max_wait_s=0.0)]
    nodes = make_nodes(namespace="together", parameter_overrides=only)
    (member,) = nodes[1:]
    assert isinstance(member, FusionNode)
    car = DrivenFusion(bench, "together", member)
    with spinning(*nodes):
        assert car.drive(6) == pytest.approx(5.0, abs=0.1)
        assert bench.call(Trigger, "/together/hydranet_all/reset", Trigger.Request()).success
        assert car.drive(3) == pytest.approx(2.0, abs=0.1)


def test_a_clock_that_jumps_back_resets_each_once(bench: Bench) -> None:
    """Each node hears the clock: a second reset would come in the middle of the new drive."""
    only = [Parameter("nodes", value=["fusion_node"]), Parameter("use_sim_time", value=True)]
    nodes = make_nodes(namespace="timed", parameter_overrides=only)
    clock = bench.publisher(Clock, "/clock")
    times, resets = [node.get_clock().now for node in nodes], []
    nodes[1].reset = resets.append  # type: ignore[method-assign]
    with spinning(*nodes):
        assert bench.spin_until(lambda: clock.get_subscription_count() == 2, 10.0)
        for second in (50, 51, 10):
            clock.publish(Clock(clock=stamp(second * 10**9)))
            assert bench.spin_until(
                lambda at=second: {now().nanoseconds for now in times} == {at * 10**9}, 10.0
            )
        assert counted(bench, nodes[1], "clock jumped")
        bench.spin(0.2)
    assert resets == ["activated", "the clock jumped"]


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ((), "/left/image_rect"),
        (("left/image_rect:=/a", "right/image_rect:=/b"), "/a"),
        (("left/image_rect:=right/image_rect", "right/image_rect:=left/image_rect"), None),
        (("left/image_rect:=image", "image:=front"), "/image"),
        (("stereo_vo_node:left/image_rect:=image", "image:=front"), "/image"),
    ],
)
def test_names_are_remapped_once(rules: tuple[str, ...], left: str | None) -> None:
    """As in a process of its own."""
    words = ["--ros-args", *(word for rule in rules for word in ("-r", rule))]
    owner = HydraNetAll(cli_args=words)
    nodes = [
        StereoVONode(cli_args=words),
        StereoVONode(cli_args=words, shared=SharedSubscriptions(owner)),
    ]
    heard = []
    for node in nodes:
        node.trigger_configure()
        heard.append([each.topic_name for each in node._open_subscriptions])
        node.end()
    owner.end()
    assert heard[0] == heard[1]
    assert (left or "/left/image_rect") in heard[0]
