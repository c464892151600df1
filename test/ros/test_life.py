"""How nodes live: the managed states, silence, the clock, overload, and the end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

import yaml
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMessage
from rcl_interfaces.srv import GetParameters, ListParameters, SetParameters
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import (
    Parameter,
    parameter_dict_from_yaml_file,
    parameter_value_to_python,
)
from rclpy.qos import QoSProfile, ReliabilityPolicy
from ros.in_process import DrivenFusion, counted, overrides, spinning, topics
from ros.node_processes import Bench, NodeProcess, StereoRig, image, processes, stamp
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image
from std_srvs.srv import Trigger

from hydranet_ros.datasets.bag_files import read_messages
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.ros import environment, extrinsics, odometry_output
from hydranet_ros.ros.conversions import stamp_ns
from hydranet_ros.ros.environment import share_file
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.image_input import CameraFrame
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.ros.qos import LATCHED
from hydranet_ros.ros.stereo_vo_node import StereoVONode

# rclpy's own answer to a publisher that does not match.
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in favor of:DeprecationWarning")

CAMERA = StereoCamera(Camera(350.0, 350.0, 160.0, 60.0), 0.5)
SHAPE = (120, 320)
TEXTURE = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("life")
    yield made
    made.close()


def change(bench: Bench, node: str, transition: int) -> None:
    request = ChangeState.Request(transition=Transition(id=transition))
    bench.call(ChangeState, f"{node}/change_state", request)


def state(bench: Bench, node: str) -> int:
    return int(bench.call(GetState, f"{node}/get_state", GetState.Request()).current_state.id)


def test_a_manager_leads_a_node_through_its_states(bench: Bench, tmp_path: Path) -> None:
    with processes(tmp_path, fusion_node=["-p", "autostart:=false"]) as nodes:
        assert state(bench, "fusion_node") == State.PRIMARY_STATE_UNCONFIGURED
        for transition, reached in (
            (Transition.TRANSITION_CONFIGURE, State.PRIMARY_STATE_INACTIVE),
            (Transition.TRANSITION_ACTIVATE, State.PRIMARY_STATE_ACTIVE),
            (Transition.TRANSITION_DEACTIVATE, State.PRIMARY_STATE_INACTIVE),
            (Transition.TRANSITION_CLEANUP, State.PRIMARY_STATE_UNCONFIGURED),
            (Transition.TRANSITION_CONFIGURE, State.PRIMARY_STATE_INACTIVE),
            (Transition.TRANSITION_ACTIVATE, State.PRIMARY_STATE_ACTIVE),
        ):
            change(bench, "fusion_node", transition)
            assert state(bench, "fusion_node") == reached, nodes["fusion_node"].log
        assert nodes["fusion_node"].interrupt()[0] == 0, nodes["fusion_node"].log


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        (
            "hydranet_node",
            ["-p", "gyro.weights:=/nowhere.safetensors"],
            "/nowhere.safetensors: cannot",
        ),
        ("fusion_node", ["-p", "fusion.window_size:=2"], "parameter fusion.window_size"),
        (
            "fusion_node",
            ["-p", "odometry.covariance:=guess"],
            "must be one of twist, twist_per_frame",
        ),
        ("fusion_node", ["--params-file", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_what_cannot_start_ends_with_one_line_and_code_2(
    tmp_path: Path, name: str, arguments: list[str], text: str
) -> None:
    if name == "hydranet_node":
        pytest.importorskip("torch", reason="rotations from images need torch")
    node = NodeProcess(name, arguments, tmp_path)
    try:
        assert node.process.wait(timeout=60.0) == 2, node.log
    finally:
        node.end()
    assert text in node.log
    assert "Traceback" not in node.log


def test_a_node_refuses_a_file_with_a_misspelt_section(tmp_path: Path) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text("/**/fusion_nod:\n  ros__parameters:\n    fusion: {window_size: 5}\n")
    node = NodeProcess("fusion_node", ["--params-file", str(file)], tmp_path)
    try:
        assert node.process.wait(timeout=60.0) == 2, node.log
    finally:
        node.end()
    assert "no node is called 'fusion_nod': did you mean 'fusion_node'?" in node.log


def test_a_fusion_node_starts_without_torch(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "torch.py"
    blocked.write_text("raise ModuleNotFoundError('torch is not here', name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with processes(tmp_path, fusion_node=["-r", "__ns:=/without_torch"]) as nodes:
        name = "/without_torch/vo/odometry"
        assert bench.spin_until(lambda: bench.node.count_subscribers(name) == 1, 30.0)
        assert nodes["fusion_node"].interrupt()[0] == 0


@pytest.fixture
def vo(bench: Bench) -> Iterator[SimpleNamespace]:
    node = StereoVONode(
        namespace="slow",
        parameter_overrides=overrides(input__silence_s=1.0, input__reliability="reliable"),
    )
    odometry = bench.hear(Odometry, "/slow/vo/odometry")
    told = bench.hear(DiagnosticArray, "/diagnostics")
    with spinning(node):
        yield SimpleNamespace(node=node, odometry=odometry, told=told)


def test_a_silent_topic_is_warned_about_with_its_qos(
    bench: Bench, vo: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    deaf = bench.publisher(Image, "/slow/left/image_rect", best_effort)
    bench.spin(3.5)
    log = capfd.readouterr().err
    line = next(line for line in log.splitlines() if "no message" in line and "left/im" in line)
    assert "on /slow/left/image_rect for 1 s, subscribed with QoS reliable, depth 5" in line
    why = "Best effort publisher and reliable subscription"
    assert f"published by life (best_effort, volatile, does not match: {why})" in line
    assert log.count("no message on /slow/left/image_rect") == 1
    warnings = [s.message for m in vo.told for s in m.status if s.name == "/slow/stereo_vo_node"]
    assert any("no message on /slow/left/image_rect" in each for each in warnings)
    bench.node.destroy_publisher(deaf)


def test_under_overload_the_newest_frame_is_next(
    bench: Bench, vo: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten pairs while the node is at the first: the last is next, nine are counted."""
    rig = StereoRig(bench, CAMERA, SHAPE, "/slow/")
    node, seen, busy = vo.node, [], [True]

    def slow(received: CameraFrame) -> None:
        seen.append(received.frame.stamp_ns)
        while busy:
            time.sleep(0.01)

    assert node.trigger_deactivate() == node.trigger_cleanup() == TransitionCallbackReturn.SUCCESS
    monkeypatch.setattr(node, "on_frame", slow)
    node.trigger_configure()
    node.trigger_activate()
    assert bench.spin_until(lambda: rig.listened(1), 10.0)
    rig.send(10**9, TEXTURE, TEXTURE)
    assert bench.spin_until(lambda: seen, 10.0)
    for i in range(1, 11):
        rig.send(10**9 + i * 10**8, TEXTURE, TEXTURE)
        bench.spin(0.02)
    assert bench.spin_until(lambda: node.workers[0].diagnostics()["dropped"] == "9", 10.0)
    busy.clear()
    assert bench.spin_until(lambda: len(seen) == 2, 10.0)
    assert seen == [10**9, 2 * 10**9]
    assert node.warn.counts["dropped frames"] == 9


def test_the_rest_of_a_frame_is_done_beside_the_next_and_in_order(
    bench: Bench, vo: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads where frames wait; a reset waits for both, and a bad frame stops neither."""
    rig = StereoRig(bench, CAMERA, SHAPE, "/slow/")
    node, held = vo.node, Event()
    begun: list[int] = []
    ended: list[int] = []
    resets: list[int] = []

    def on_frame(received: CameraFrame) -> Callable[[], None]:
        begun.append(received.frame.stamp_ns)
        if len(begun) == 1:
            bench_has_sent.wait(10.0)  # others wait from now on

        def rest() -> None:
            held.wait(10.0)
            if received.frame.stamp_ns == 2 * 10**9:
                raise ValueError("a bad frame")
            ended.append(received.frame.stamp_ns)

        return rest

    bench_has_sent = Event()
    assert node.trigger_deactivate() == node.trigger_cleanup() == TransitionCallbackReturn.SUCCESS
    monkeypatch.setattr(node, "on_frame", on_frame)
    monkeypatch.setattr(node, "reset", lambda _: resets.append(len(ended)))
    node.trigger_configure()
    node.trigger_activate()
    assert bench.spin_until(lambda: rig.listened(1), 10.0)
    rig.send(10**9, TEXTURE, TEXTURE)
    assert bench.spin_until(lambda: begun, 10.0)
    rig.send(2 * 10**9, TEXTURE, TEXTURE)
    worker = node.workers[0]
    assert bench.spin_until(lambda: worker.diagnostics()["waiting"] == "2", 10.0)
    bench_has_sent.set()
    assert bench.spin_until(lambda: len(begun) == 2, 10.0), "the rest of the first holds it up"
    assert ended == []
    resets.clear()  # that of the activation
    worker.request_reset("asked for")
    rig.send(3 * 10**9, TEXTURE, TEXTURE)
    bench.spin(0.5)
    assert resets == []
    assert worker.diagnostics()["waiting"] == "3"
    held.set()
    assert bench.spin_until(lambda: len(ended) == 2, 10.0)
    assert (begun, ended) == ([10**9, 2 * 10**9, 3 * 10**9], [10**9, 3 * 10**9])
    assert resets == [1]
    assert node.warn.counts["not computed"] == 1
    assert bench.spin_until(lambda: worker.diagnostics()["waiting"] == "0", 10.0)


def clock_of(bench: Bench, node: FusionNode) -> Callable[[int], None]:
    """What sets the simulated time of a node that spins."""
    clock = bench.publisher(Clock, "/clock", QoSProfile(depth=10))
    assert bench.spin_until(lambda: clock.get_subscription_count() > 0, 10.0)

    def set_clock(nanoseconds: int) -> None:
        clock.publish(Clock(clock=stamp(nanoseconds)))
        now = node.get_clock().now
        assert bench.spin_until(lambda: now().nanoseconds == nanoseconds, 10.0)

    return set_clock


def test_a_clock_that_jumps_back_clears_the_state(bench: Bench) -> None:
    car = DrivenFusion(bench, "timed", use_sim_time=True)
    with spinning(car.node):
        set_clock = clock_of(bench, car.node)
        set_clock(50 * 10**9)
        assert car.drive(6) == pytest.approx(5.0, abs=0.1)
        set_clock(51 * 10**9)
        assert car.drive(1) == pytest.approx(6.0, abs=0.1)
        set_clock(10 * 10**9)
        assert counted(bench, car.node, "clock jumped")
        # The pose is the identity again: the first message after the jump starts a motion only.
        assert car.drive(4) == pytest.approx(3.0, abs=0.1)
        assert car.node.warn.counts["clock jumped"] == 1


def test_what_was_on_its_way_when_time_jumped_back_is_not_used(bench: Bench) -> None:
    """A bag that loops: its last messages come after the reset, and must begin no new state."""
    car = DrivenFusion(bench, "looped", use_sim_time=True)
    topic = "/looped/fusion_node/set_pose"
    setting, pose = bench.publisher(PoseWithCovarianceStamped, topic), PoseWithCovarianceStamped()
    pose.header.frame_id = "map"  # which is told, with every pose that is looked at
    with spinning(car.node):
        set_clock = clock_of(bench, car.node)
        set_clock(car.began_ns)
        car.drive(100)
        pose.header.stamp = stamp(car.began_ns + 19 * 10**8)
        setting.publish(pose)
        assert counted(bench, car.node, f"{topic}: set_pose")
        set_clock(car.began_ns + 10 * 10**9)
        set_clock(car.began_ns)
        assert counted(bench, car.node, "clock jumped")
        for _ in range(3):
            car.step()
        assert counted(bench, car.node, "before the jump", 3)
        pose.header.stamp = stamp(car.began_ns + 2 * 10**9)
        setting.publish(pose)
        assert counted(bench, car.node, f"{topic}: set_pose", 2), "once in a while is no stream"
        car.steps = 0
        assert car.drive(50) == pytest.approx(49.0, abs=0.1)
        assert car.node.warn.counts["stamps went back"] == 0
        assert np.sqrt(car.fused[-1].pose.covariance[0]) < 5.0  # 100 m where it is lost


def test_a_fault_while_configuring_leaves_nothing_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next try would hear every message twice."""
    node = FusionNode(namespace="broken")
    before, subscribe = topics(node), node.subscribe

    def broken(kind: type[Any], topic: str, *others: Any) -> Any:
        if topic == "~/set_pose":
            raise KeyError("a fault of our own")
        return subscribe(kind, topic, *others)

    monkeypatch.setattr(node, "subscribe", broken)
    assert node.trigger_configure() == TransitionCallbackReturn.ERROR
    assert topics(node) == before
    monkeypatch.undo()
    assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
    assert len(topics(node)) == len(set(topics(node)))
    node.end()


class Listener:
    """What tf2_ros has by this name: the node hears TF until it is unregistered."""

    def __init__(self, _: object, node: FusionNode) -> None:
        self.node = node
        self.heard = node.create_subscription(Odometry, "/tf_static", lambda _: None, 100)

    def unregister(self) -> None:
        self.node.destroy_subscription(self.heard)


def test_a_node_that_is_cleaned_up_hears_tf_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tf2 is not among the wheels: what stands in for it has real topics."""
    tf2 = SimpleNamespace(
        Buffer=SimpleNamespace,
        TransformListener=Listener,
        TransformBroadcaster=lambda node: SimpleNamespace(sendTransform=None),
    )
    monkeypatch.setattr(odometry_output, "tf2_ros", tf2, raising=False)
    monkeypatch.setattr(odometry_output, "TFMessage", Odometry)
    monkeypatch.setattr(extrinsics, "tf2_ros", tf2)
    wanted = overrides(output__tf_if_nobody=True, frames__extrinsics="tf")
    node = FusionNode(namespace="transforms", parameter_overrides=wanted)
    before = topics(node)
    for _ in range(2):
        assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
        assert {"/tf", "/tf_static"} <= set(topics(node))
        assert node.trigger_cleanup() == TransitionCallbackReturn.SUCCESS
        assert topics(node) == before
    node.end()


def test_a_path_is_kept_for_those_who_come_later(bench: Bench) -> None:
    """Also where nobody was there, and nothing is fused any more."""
    car = DrivenFusion(bench, "latched")
    with spinning(car.node):
        car.drive(6)
        paths = bench.hear(PathMessage, "/latched/fused/path", LATCHED)
        assert bench.spin_until(lambda: paths, 10.0)
    assert [stamp_ns(pose.header.stamp) for pose in paths[-1].poses] == [
        stamp_ns(message.header.stamp) for message in car.fused
    ]


def test_the_reset_service_puts_the_pose_to_the_identity(bench: Bench) -> None:
    car = DrivenFusion(bench, "cleared")
    with spinning(car.node):
        assert car.drive(6) == pytest.approx(5.0, abs=0.1)
        answer = bench.call(Trigger, "/cleared/fusion_node/reset", Trigger.Request())
        assert answer.success
        assert car.drive(3) == pytest.approx(2.0, abs=0.1)


def test_a_parameter_set_while_running_is_used(bench: Bench) -> None:
    """Odometry is believed by the model that is chosen: the covariance follows at once."""
    car = DrivenFusion(bench, "tuned", fusion__odometry="own")
    with spinning(car.node):
        assert car.drive(4) == pytest.approx(3.0, abs=0.1)
        (result,) = car.node.set_parameters([Parameter("fusion.own.scale", value=100.0)])
        assert result.successful
        before = car.fused[-1].twist.covariance[0]
        assert car.drive(4) > 3.0  # the pose goes on
        assert car.fused[-1].twist.covariance[0] > 10.0 * before
        (result,) = car.node.set_parameters([Parameter("fusion.window_size", value=1)])
        assert not result.successful
        assert "fusion.window_size" in result.reason


def test_a_pose_can_be_set(bench: Bench) -> None:
    """Of the base in the odom frame, with its covariance; the motion goes on from there."""
    car = DrivenFusion(bench, "placed")
    sent = bench.publisher(PoseWithCovarianceStamped, "/placed/fusion_node/set_pose")
    wanted = PoseWithCovarianceStamped()
    wanted.header.frame_id = "odom"
    half = float(np.sqrt(0.5))  # a quarter turn to the left
    wanted.pose.pose.orientation.z = wanted.pose.pose.orientation.w = half
    wanted.pose.pose.position.x, wanted.pose.pose.position.y = 100.0, 20.0
    wanted.pose.covariance = (np.eye(6) * 0.25).ravel()
    with spinning(car.node):
        assert car.drive(4) == pytest.approx(3.0, abs=0.1)
        assert bench.spin_until(sent.get_subscription_count, 10.0)
        elsewhere = PoseWithCovarianceStamped(pose=wanted.pose)
        elsewhere.header.frame_id = "map"
        sent.publish(elsewhere)
        assert counted(bench, car.node, "/placed/fusion_node/set_pose: set_pose")
        sent.publish(wanted)
        bench.spin(0.5)
        car.drive(3)
        pose = car.fused[-1].pose
        assert pose.pose.position.x == pytest.approx(100.0, abs=0.2)
        assert 21.5 < pose.pose.position.y < 23.2
        assert pose.covariance[0] > 0.2


def test_settings_can_change_after_a_clean_up(bench: Bench) -> None:
    node = FusionNode(namespace="settings")
    other = [Parameter("frames.odom_frame", value="world")]
    with spinning(node):
        (refused,) = node.set_parameters(other)
        assert not refused.successful
        assert "only while the node is unconfigured" in refused.reason
        assert node.trigger_deactivate() == node.trigger_cleanup()
        (result,) = node.set_parameters(other)
        assert result.successful
        assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
        assert node.trigger_activate() == TransitionCallbackReturn.SUCCESS
        assert node._output._frames.odom == "world"
        assert not node.set_parameters([Parameter("frames.odom_frame", value="x")])[0].successful


def dumped(bench: Bench, name: str) -> str:
    """As `ros2 param dump` does it."""
    names = bench.call(ListParameters, f"/{name}/list_parameters", ListParameters.Request())
    names = sorted(names.result.names)
    request = GetParameters.Request(names=names)
    values = bench.call(GetParameters, f"/{name}/get_parameters", request).values
    tree: dict[str, Any] = {}
    for key, value in zip(names, values, strict=True):
        *sections, last = key.split(".")
        inner = tree
        for each in sections:
            inner = inner.setdefault(each, {})
        plain = parameter_value_to_python(value)
        inner[last] = plain if isinstance(plain, (bool, int, float, str)) else list(plain)
    return yaml.dump({f"/{name}": {"ros__parameters": tree}}, default_flow_style=False)


@pytest.mark.parametrize(
    "name", ["fusion_node", pytest.param("stereo_vo_node", marks=pytest.mark.slow)]
)
def test_parameters_that_are_dumped_load_again(bench: Bench, tmp_path: Path, name: str) -> None:
    own = ["-r", f"__node:={name}_dumped"]
    with processes(tmp_path, **{name: own}) as nodes:
        first = dumped(bench, f"{name}_dumped")
        assert nodes[name].interrupt()[0] == 0
    file = tmp_path / "dump.yaml"
    file.write_text(first)
    with processes(tmp_path, **{name: [*own, "--params-file", str(file)]}) as nodes:
        assert dumped(bench, f"{name}_dumped") == first
        assert nodes[name].interrupt()[0] == 0, nodes[name].log


@pytest.mark.parametrize("make", [FusionNode, StereoVONode])
def test_what_is_dumped_is_loaded_while_the_node_runs(
    bench: Bench, tmp_path: Path, make: type[ManagedNode[Any]]
) -> None:
    """As `ros2 param load` does it: every parameter is set, to what it is."""
    node = make()
    name, file = node.get_name(), tmp_path / "dump.yaml"
    with spinning(node):
        file.write_text(dumped(bench, name))
        loaded = list(parameter_dict_from_yaml_file(str(file), False, [f"/{name}"]).values())
        request = SetParameters.Request(parameters=loaded)
        results = bench.call(SetParameters, f"/{name}/set_parameters", request).results
    refused = {p.name: r.reason for p, r in zip(loaded, results, strict=True) if not r.successful}
    assert set(refused) <= {"start_type_description_service"}, refused  # rclpy's own


def shared_memory(process: int | str) -> set[str]:
    """The segments of Fast DDS that a process has mapped: its own, and those of whom it hears."""
    maps = Path(f"/proc/{process}/maps").read_text()
    return set(re.findall(r"/dev/shm/fastdds_[0-9a-f]{16}\b", maps))


@pytest.mark.parametrize(
    "name", ["fusion_node", pytest.param("stereo_vo_node", marks=pytest.mark.slow)]
)
def test_a_node_that_ends_leaves_no_shared_memory(bench: Bench, tmp_path: Path, name: str) -> None:
    before = shared_memory("self")
    with processes(tmp_path, **{name: []}) as nodes:
        node = nodes[name]
        started = State.PRIMARY_STATE_ACTIVE
        assert bench.spin_until(lambda: state(bench, name) == started, 60.0), node.log
        bench.spin(1.0)
        if not (own := shared_memory(node.process.pid) - before):
            pytest.skip("this middleware has no shared memory")
        assert node.interrupt()[0] == 0, node.log
    assert not [path for path in own if Path(path).exists()]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("name", ["hydranet_node", "player_node", "recorder_node"])
def test_a_node_that_still_starts_is_interrupted(
    tmp_path: Path, name: str, seconds: float, sent: signal.Signals
) -> None:
    """While it loads its libraries: no traceback."""
    arguments = ["-p", f"out:={tmp_path / 'bag'}"] if name == "recorder_node" else []
    node = NodeProcess(name, arguments, tmp_path)
    try:
        time.sleep(seconds)
        node.process.send_signal(sent)
        assert node.process.wait(timeout=10.0) == 0, node.log
        assert "Traceback" not in node.log
    finally:
        node.end()


def test_a_terminated_recorder_keeps_what_it_has(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "bag"
    topics = "-p", "topics:=['/kept nav_msgs/msg/Odometry']", "-p", "awaited:=['/kept']"
    sent = bench.publisher(Odometry, "/kept")
    with processes(tmp_path, recorder_node=[*topics, "-p", f"out:={out}"]) as nodes:
        recorder = nodes["recorder_node"]
        assert bench.spin_until(
            lambda: sent.get_subscription_count() and "ready" in recorder.log, 60.0
        )
        recorder.process.send_signal(signal.SIGSTOP)  # too busy to write down what comes
        for _ in range(5):
            sent.publish(Odometry())
            bench.spin(0.1)
        recorder.process.send_signal(signal.SIGTERM)
        recorder.process.send_signal(signal.SIGCONT)
        assert recorder.process.wait(timeout=20.0) == 0
    assert len(list(read_messages(out))) == 5


def test_large_images_need_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert environment.missing_profile(100_000, "rmw_fastrtps_cpp") is None
    assert environment.missing_profile(467_000, "rmw_cyclonedds_cpp") is None
    advice = environment.missing_profile(467_000, "rmw_fastrtps_cpp")
    ((name, path),) = environment.fast_dds_profile().items()
    assert path == str(share_file("config/fastdds.xml"))
    assert advice is not None
    assert f"{name}={path}" in advice
    monkeypatch.setenv(name, path)
    assert environment.missing_profile(467_000, "rmw_fastrtps_cpp") is None


@pytest.mark.parametrize("name", environment.VARIABLES)
def test_a_profile_of_the_users_choice_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "mine.xml")
    assert environment.fast_dds_profile() == {}


def test_messages_keep_nanoseconds() -> None:
    assert stamp_ns(image(TEXTURE, 1_700_000_000_123_456_789).header.stamp) % 1000 == 789


def test_a_second_interruption_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    with processes(tmp_path, stereo_vo_node=["-r", "__ns:=/twice"]) as nodes:
        node = nodes["stereo_vo_node"]
        topic = "/twice/left/image_rect"
        assert bench.spin_until(lambda: bench.node.count_subscribers(topic) == 1, 30.0)
        for _ in range(3):
            node.process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        assert node.process.wait(timeout=20.0) == 0, node.log
    assert "Traceback" not in node.log


@pytest.mark.parametrize(
    ("where", "behind_s"),
    [("broken", 1.0), ("lambda *_: broken", 1.0), ("lambda *_: broken", -1.0)],
    ids=["at once", "in the rest", "in the second thread"],
)
def test_a_fault_of_our_own_ends_the_node_visibly(
    bench: Bench, where: str, behind_s: float
) -> None:
    program = f"""
from hydranet_ros.ros import image_input, stereo_vo_node
def broken(*_): raise KeyError("a fault of our own")
image_input.BEHIND_S = {behind_s}
stereo_vo_node.StereoVONode.on_frame = {where}
stereo_vo_node.main()
"""
    reliable = ["-p", "input.reliability:=reliable"]
    command = [sys.executable, "-c", program, "--ros-args", "-r", "__ns:=/faulty", *reliable]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            rig = StereoRig(bench, CAMERA, SHAPE, "/faulty/")
            deadline, nanoseconds = time.monotonic() + 60.0, 10**9
            while process.poll() is None and time.monotonic() < deadline:
                nanoseconds += 10**8
                rig.send(nanoseconds, TEXTURE, TEXTURE)
                bench.spin(0.1)
        finally:
            process.kill()
        assert process.stderr is not None
        assert "KeyError: 'a fault of our own'" in process.stderr.read()
    assert process.returncode == 1
