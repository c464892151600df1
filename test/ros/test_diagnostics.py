"""What nodes tell of themselves: levels, warnings that repeat, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from nav_msgs.msg import Odometry
from rclpy.logging import get_logger
from ros.in_process import overrides, spinning
from ros.node_processes import Bench, StereoRig, camera_info, image, stamp
from sensor_msgs.msg import CameraInfo, Image, Imu

from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.ros import diagnostics, player
from hydranet_ros.ros.diagnostics import PairHealth, Productivity, Throughput, WarningCounter
from hydranet_ros.ros.fusion_node import FusionNode, FusionNodeConfig
from hydranet_ros.ros.hydranet_all import HydraNetAll
from hydranet_ros.ros.player import Backlog
from hydranet_ros.ros.qos import NEVER_S
from hydranet_ros.ros.stereo_vo_node import StereoVONode

CAMERA = StereoCamera(Camera(350.0, 350.0, 160.0, 60.0), 0.5)
SHAPE = (120, 320)
OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("diagnosed")
    yield made
    made.close()


class Clock:
    """A time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(diagnostics.time, "monotonic", lambda: self.now)


def test_a_warning_repeats_with_its_count() -> None:
    lines: list[str] = []
    clock = SimpleNamespace(now=0.0)
    warn = WarningCounter(SimpleNamespace(warning=lines.append), lambda: clock.now)  # type: ignore
    for second in range(25):
        clock.now = float(second)
        warn("sort", f"number {second}")
    assert lines == [
        "number 0 [sort]",
        "number 10 [sort; 10 since the last such line]",
        "number 20 [sort; 10 since the last such line]",
    ]
    assert warn.counts["sort"] == 25
    assert warn.news()["sort"] == 6  # of the last five seconds
    clock.now = 60.0
    assert not warn.news()


def test_a_rotation_tells_what_of_its_variance_lasts_and_for_how_long() -> None:
    Sigma = 1e-8 * np.eye(3)
    plain = RelativeRotation(np.eye(3), Sigma, 0, 1)
    assert not any("persistent" in key for key in diagnostics.rotation_health(plain))
    lasting = RelativeRotation(np.eye(3), Sigma, 0, 1, None, 0.25 * Sigma, 1.5)
    values = diagnostics.rotation_health(lasting)
    assert (values["persistent share"], values["persistent for (s)"]) == ("0.250", "1.5")


def test_input_without_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    work = Productivity()
    clock.now += 4.0
    assert work.problem(5.0) is None  # it may need a while
    clock.now += 4.0
    assert work.problem(5.0) == (WARN, "rate 0: no input")
    work.hear()
    assert work.problem(5.0) == (ERROR, "no output for 8 s although there is input")
    work.note("no texture")
    assert work.problem(5.0) == (ERROR, "no output for 8 s, lost: no texture")
    work.note(None)
    assert work.problem(5.0) is None


def test_a_lost_image_now_and_then_is_no_problem() -> None:
    health = PairHealth()
    assert all(health.problem(10 * s, s // 3) is None for s in range(30))
    assert health.problem(300, 20) == "12 of 112 images without their other half"


def level(heard: list[Any], name: str) -> tuple[bytes, str]:
    found = [s for m in heard for s in m.status if s.name == name]
    return (found[-1].level, found[-1].message) if found else (OK, "")


def test_a_node_that_is_lost_for_long_says_so(bench: Bench) -> None:
    """White walls: images come, and no motion comes out."""
    node = StereoVONode(
        namespace="white",
        parameter_overrides=overrides(input__silence_s=1.0, input__reliability="reliable"),
    )
    heard, name = bench.hear(DiagnosticArray, "/diagnostics"), "/white/stereo_vo_node"
    rig = StereoRig(bench, CAMERA, SHAPE, "/white/")
    blank = np.full(SHAPE, 255, dtype=np.uint8)
    with spinning(node):
        assert bench.spin_until(lambda: rig.listened(1), 10.0)
        for index in range(60):
            rig.send(10**12 + index * 10**8, blank, blank)
            bench.spin(0.1)
            if level(heard, name)[0] == ERROR:
                break
        found = level(heard, name)
        assert found[0] == ERROR
        assert found[1].startswith("no output for")


def test_a_fusion_that_makes_nothing_of_its_input_says_so(bench: Bench) -> None:
    """A quaternion of zeros is how somebody's odometry says that it is lost."""
    brief = overrides(input__silence_s=0.5, imu__silence_s=100.0)  # nobody waits for an IMU
    node = FusionNode(namespace="fruitless", parameter_overrides=brief)
    heard, name = bench.hear(DiagnosticArray, "/diagnostics"), "/fruitless/fusion_node"
    sent = bench.publisher(Odometry, "/fruitless/vo/odometry")
    with spinning(node):
        assert bench.spin_until(sent.get_subscription_count, 10.0)
        for index in range(1, 50):
            lost = Odometry(child_frame_id="base_link")
            lost.header.stamp = stamp(index * 10**8)
            lost.pose.pose.orientation.w = 0.0
            sent.publish(lost)
            bench.spin(0.1)
            if level(heard, name)[0] == ERROR:
                break
    found = level(heard, name)
    assert found[0] == ERROR
    assert "although there is input" in found[1]


def test_an_rgbd_camera_that_sees_nothing_is_told(bench: Bench) -> None:
    """Depth of the image's pixels needs no camera_info, and that it never comes hides nothing."""
    node = StereoVONode(
        namespace="dark",
        parameter_overrides=overrides(
            cameras="rgbd", input__silence_s=0.5, input__reliability="reliable"
        ),
    )
    heard, name = bench.hear(DiagnosticArray, "/diagnostics"), "/dark/stereo_vo_node"
    images = bench.publisher(Image, "/dark/image"), bench.publisher(Image, "/dark/depth/image")
    infos = bench.publisher(CameraInfo, "/dark/camera_info")
    blank, metres = np.zeros(SHAPE, dtype=np.uint8), np.ones(SHAPE, dtype=np.float32)
    with spinning(node):
        assert bench.spin_until(
            lambda: all(each.get_subscription_count() for each in (*images, infos)), 10.0
        )
        for index in range(1, 50):
            infos.publish(camera_info(CAMERA, SHAPE, False))
            images[0].publish(image(blank, index * 10**8))
            depth = image(blank, index * 10**8)
            depth.encoding, depth.step, depth.data = "32FC1", 4 * SHAPE[1], metres.tobytes()
            images[1].publish(depth)
            bench.spin(0.1)
            if level(heard, name)[0] == ERROR:
                break
    assert level(heard, name)[0] == ERROR
    assert level(heard, name)[1].startswith("no output for")


def test_a_node_without_inputs_of_its_own_is_well(bench: Bench) -> None:
    """hydranet_all only holds the others; nor is silence told that nobody wants to hear of."""
    never = overrides(input__silence_s=NEVER_S)
    for node in (HydraNetAll(namespace="well"), FusionNode(parameter_overrides=never)):
        node.trigger_configure()
        node.trigger_activate()
        node.productivity._estimated -= 100.0
        node.productivity._heard -= 100.0
        assert node._problems([]) == []
        node.end()


def test_an_imu_is_missed_once_it_was_heard(bench: Bench) -> None:
    """It is optional: one that never came is no fault, one that stops is."""
    assert FusionNodeConfig().imu.silence_s == FusionNodeConfig().input.silence_s
    brief = overrides(input__silence_s=0.5, imu__silence_s=0.5, imu__frame="base_link")
    node = FusionNode(namespace="stopped", parameter_overrides=brief)
    heard, name = bench.hear(DiagnosticArray, "/diagnostics"), "/stopped/fusion_node"
    sent = bench.publisher(Imu, "/stopped/imu/data_raw")
    with spinning(node):
        assert bench.spin_until(lambda: "no message on" in level(heard, name)[1], 10.0)
        assert "imu" not in level(heard, name)[1]
        assert bench.spin_until(sent.get_subscription_count, 10.0)
        sent.publish(Imu())
        told = "no message on /stopped/imu/data_raw"
        assert bench.spin_until(lambda: told in level(heard, name)[1], 10.0)


def test_counters_are_read_while_a_worker_adds_to_them() -> None:
    """Each is read by what adds to it in the midst of that."""
    warn, throughput = WarningCounter(get_logger("worker")), Throughput()

    class Kind(str):
        def __hash__(self) -> int:
            warn("another", "from the worker")
            return super().__hash__()

    class Moment(float):
        def __rsub__(self, now: float) -> float:
            throughput.add(0.0)
            return now - float(self)

    for _ in range(3):
        warn._recent.append((time.monotonic(), Kind("kind")))
        throughput._moments.append(Moment(time.monotonic()))
    assert warn.news()["kind"] == 3
    assert throughput.rate > 0.0


def test_a_missing_source_is_a_warning(bench: Bench) -> None:
    node = FusionNode(namespace="alone", parameter_overrides=overrides(input__silence_s=0.5))
    heard, name = bench.hear(DiagnosticArray, "/diagnostics"), "/alone/fusion_node"
    with spinning(node):
        assert bench.spin_until(lambda: "no message on" in level(heard, name)[1], 10.0)
        found = level(heard, name)
        assert found[0] == WARN
        assert "no message on /alone/vo/odometry" in found[1]
        assert "set_pose" not in found[1]  # nobody has to use it


def test_a_player_waits_for_what_nodes_have_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "FIRST_REPORT_S", 0.0)
    monkeypatch.setattr(player, "PATIENCE_S", 0.3)
    backlog, stop = Backlog(bench.node), Event()

    def report(waiting: int, done: int) -> None:
        values = [KeyValue(key="waiting", value=str(waiting))]
        values += [KeyValue(key="done", value=str(done))]
        backlog._note(DiagnosticArray(status=[DiagnosticStatus(name="/node", values=values)]))

    assert backlog.wait(stop) == []  # nobody is there
    report(3, 1)
    assert backlog.wait(stop) == ["/node"]  # it makes no progress
    monkeypatch.setattr(stop, "wait", lambda _: report(0, 4))
    assert backlog.wait(stop) == []
