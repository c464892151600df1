"""Launch files, configuration files and RViz's: they fit the nodes that there are."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from geometry_msgs.msg import TransformStamped
from nav_msgs.msg import Odometry
from ros.in_process import overrides, spinning
from ros.node_processes import Bench, processes

from hydranet_ros.ros.conversions import message_class
from hydranet_ros.ros.fusion_node import FusionNode, FusionNodeConfig
from hydranet_ros.ros.hydranet_node import HydraNetNode, HydraNetNodeConfig
from hydranet_ros.ros.odometry_output import Broadcast
from hydranet_ros.ros.stereo_vo_node import StereoVONode, StereoVONodeConfig
from hydranet_ros.settings import update, walk
from hydranet_ros.view.scene import COLOURS

CONFIGS = {
    "hydranet_node": HydraNetNodeConfig,
    "stereo_vo_node": StereoVONodeConfig,
    "fusion_node": FusionNodeConfig,
}
# What the player publishes, and what RViz's displays show.
PLAYED = {"/left/image_rect": "sensor_msgs/msg/Image", "/ground_truth/path": "nav_msgs/msg/Path"}
FOUND_BIAS = "geometry_msgs/msg/TwistWithCovarianceStamped"
SHOWN = {
    "rviz_default_plugins/Image": "sensor_msgs/msg/Image",
    "rviz_default_plugins/Path": "nav_msgs/msg/Path",
    "rviz_default_plugins/Odometry": "nav_msgs/msg/Odometry",
    "rviz_default_plugins/MarkerArray": "visualization_msgs/msg/MarkerArray",
}


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def parameters(path: Path) -> dict[str, dict[str, Any]]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        name.rpartition("/")[2]: dict(flat(section["ros__parameters"]))
        for name, section in document.items()
    }


@pytest.mark.parametrize("name", ["hydranet.yaml", "kitti.yaml"])
def test_configuration_files_name_parameters_that_there_are(name: str) -> None:
    for node, values in parameters(ROOT / "config" / name).items():
        known = {item.name: item.default for item in walk(CONFIGS[node])}
        for key, value in values.items():
            assert type(value) is type(known[key]) or isinstance(known[key], tuple), key
        update(CONFIGS[node](), values)


def test_the_live_configuration_is_that_of_the_defaults() -> None:
    for node, values in parameters(ROOT / "config" / "hydranet.yaml").items():
        known = {item.name: item.default for item in walk(CONFIGS[node])}
        for key, value in values.items():
            expected = known[key]
            assert value == (list(expected) if isinstance(expected, tuple) else expected), key


def test_a_node_takes_the_replay_configuration(tmp_path: Path) -> None:
    bench = Bench("configured")
    try:
        file = ["--params-file", str(ROOT / "config" / "kitti.yaml")]
        with processes(tmp_path, fusion_node=[*file, "-r", "__ns:=/robot"]) as nodes:
            topic = "/robot/vo/odometry"
            assert bench.spin_until(lambda: bench.node.count_subscribers(topic) == 1, 30.0)
            assert nodes["fusion_node"].interrupt()[0] == 0, nodes["fusion_node"].log
    finally:
        bench.close()


def displays() -> dict[str, str]:
    document = yaml.safe_load((ROOT / "config" / "fusion.rviz").read_text(encoding="utf-8"))
    shown = [d for d in document["Visualization Manager"]["Displays"] if "Topic" in d]
    return {display["Topic"]["Value"]: SHOWN[display["Class"]] for display in shown}


def test_rviz_shows_what_the_nodes_publish(weights: Path) -> None:
    bench = Bench("rviz")
    net = HydraNetNode(
        parameter_overrides=overrides(gyro__weights=str(weights), gyro__cameras="stereo")
    )
    nodes = net, StereoVONode(), FusionNode()
    try:
        with spinning(*nodes):

            def published() -> dict[str, str]:
                topics = dict(PLAYED)
                for node in nodes:
                    found = node.get_publisher_names_and_types_by_node(node.get_name(), "/")
                    topics.update((topic, kinds[0]) for topic, kinds in found)
                return topics

            # The graph knows of a new publisher a moment later.
            bench.spin_until(lambda: displays().items() <= published().items(), 20.0)
            known = published()
        assert displays().items() <= known.items()
        assert len(displays()) >= 8
        assert {"/imu_visual/data_raw", "/diagnostics"} < set(known)
    finally:
        bench.close()


def published_by(nodes: tuple[Any, ...]) -> dict[str, str]:
    topics = dict(PLAYED)
    for node in nodes:
        found = node.get_publisher_names_and_types_by_node(node.get_name(), "/")
        topics.update((topic, kinds[0]) for topic, kinds in found)
    return topics


def foxglove() -> dict[str, set[str]]:
    """The topics of the panels, by the type that a panel can show."""
    layout = json.loads((ROOT / "config" / "foxglove.json").read_text(encoding="utf-8"))
    kinds = {
        "path": "nav_msgs/msg/Path",
        "odometry": "nav_msgs/msg/Odometry",
        "markers": "visualization_msgs/msg/MarkerArray",
    }
    shown: dict[str, set[str]] = {}
    for name, panel in layout["configById"].items():
        for topic in panel.get("topics", {}):
            shown.setdefault(kinds[topic.rpartition("/")[2]], set()).add(topic)
        if name.startswith("Image!"):
            shown.setdefault("sensor_msgs/msg/Image", set()).add(panel["imageMode"]["imageTopic"])
        for line in panel.get("paths", ()):
            topic, _, field = line["value"].partition(".")
            kind = "sensor_msgs/msg/Imu" if "imu_visual" in topic else FOUND_BIAS
            shown.setdefault(kind, set()).add(topic)
            value: Any = message_class(kind)()  # type: ignore[misc]
            for part in field.split("."):
                value = getattr(value, part)
            assert isinstance(value, float), line["value"]
    return shown


def test_foxglove_shows_what_the_nodes_publish(weights: Path) -> None:
    bench = Bench("foxglove")
    nodes = (
        HydraNetNode(parameter_overrides=overrides(gyro__weights=str(weights))),
        StereoVONode(),
        FusionNode(),
    )
    wanted = {topic: kind for kind, topics in foxglove().items() for topic in topics}
    try:
        with spinning(*nodes):
            bench.spin_until(lambda: wanted.items() <= published_by(nodes).items(), 20.0)
            known = published_by(nodes)
        assert wanted.items() <= known.items()
        assert len(wanted) >= 9
    finally:
        bench.close()


def test_the_colours_are_those_of_the_reports() -> None:
    document = yaml.safe_load((ROOT / "config" / "fusion.rviz").read_text(encoding="utf-8"))
    layout = json.loads((ROOT / "config" / "foxglove.json").read_text(encoding="utf-8"))
    wanted = {"/ground_truth/path": "truth", "/vo/path": "odometry", "/fused/path": "fused"}
    shown = {
        d["Topic"]["Value"]: d["Color"]
        for d in document["Visualization Manager"]["Displays"]
        if d["Class"].endswith("/Path")
    }
    assert shown == {
        topic: "; ".join(str(part) for part in COLOURS[name]) for topic, name in wanted.items()
    }
    topics = layout["configById"]["3D!paths"]["topics"]
    for topic, name in wanted.items():
        assert topics[topic]["gradient"][0] == "#{:02x}{:02x}{:02x}ff".format(*COLOURS[name])


def test_rviz_gives_the_scene_most_of_the_window() -> None:
    """QMainWindow::saveState of Qt 5: docks with their sizes, then the size of what is central."""
    document = yaml.safe_load((ROOT / "config" / "fusion.rviz").read_text(encoding="utf-8"))
    window = document["Window Geometry"]
    state = bytes.fromhex(window["QMainWindow State"])
    assert state[:4] == bytes([0, 0, 0, 0xFF])
    tools = state.rindex(b"\xfc\x00\x00\x00\x01\x00\x00\x00\x02")
    width, height = struct.unpack(">ii", state[tools - 24 : tools - 16])
    assert 0.5 * window["Width"] * window["Height"] < width * height
    assert width < window["Width"]
    assert height < window["Height"]
    tabs = state.index(b"\xfa")
    names = [display["Name"] for display in document["Visualization Manager"]["Displays"]]
    for image in ("Left image", "Flow"):
        assert image in names
        assert image in window
        assert state.index(image.encode("utf-16-be")) > tabs  # both are in the tab group
    options = document["Visualization Manager"]["Global Options"]
    assert options["Fixed Frame"] == "odom"
    assert document["Visualization Manager"]["Views"]["Current"]["Target Frame"] == "base_link"


def transform(base: str, second: int, metres: float = 0.0) -> TransformStamped:
    made = TransformStamped(child_frame_id=base)
    made.transform.translation.x = metres
    made.header.frame_id, made.header.stamp.sec = "odom", second
    return made


def test_a_transform_is_left_to_whoever_else_broadcasts_it() -> None:
    sent: list[TransformStamped] = []
    said: list[str] = []
    ours = Broadcast(sent.append, "base_link", said.append)
    for second in range(5):
        ours.send(transform("base_link", second))
        ours.hear([transform("base_link", second), transform("wheel", 77)])  # our own comes back
    assert (len(sent), said) == (5, [])
    ours.hear([transform("base_link", 99)])
    ours.send(transform("base_link", 5))
    assert len(sent) == 5
    assert said == ["somebody else broadcasts odom to base_link: TF is left to it"]


def test_another_broadcaster_may_have_the_stamps_of_the_odometry() -> None:
    """A driver of wheels sends both with one stamp, and the fused pose has it too."""
    sent: list[TransformStamped] = []
    ours = Broadcast(sent.append, "base_link", lambda _: None)
    for second in range(10):
        ours.send(transform("base_link", second, 0.1 * second))
        ours.hear(sent[-1:])
        ours.hear([transform("base_link", second, 0.13 * second)])
    assert len(sent) == 2  # at the start both are at the origin


def test_the_fast_dds_profile_asks_for_32_megabytes() -> None:
    root = ElementTree.parse(ROOT / "config" / "fastdds.xml").getroot()
    sizes = [e.text for e in root.iter() if e.tag.endswith("segment_size")]
    assert sizes == [str(32 * 1024 * 1024)]


# --- with launch ---------------------------------------------------------------------------------

RUN = """
import sys
from launch import LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch import LaunchDescription
arguments = [tuple(each.split(":=")) for each in sys.argv[2:]]
source = PythonLaunchDescriptionSource(sys.argv[1])
included = IncludeLaunchDescription(source, launch_arguments=arguments)
service = LaunchService(noninteractive=True)
service.include_launch_description(LaunchDescription([included]))
sys.exit(service.run())
"""


@pytest.fixture
def launched() -> Any:
    pytest.importorskip("launch_ros", reason="launch and launch_ros are not installed")
    from launch.launch_description_sources import get_launch_description_from_python_launch_file

    return lambda name: get_launch_description_from_python_launch_file(str(ROOT / "launch" / name))


def test_the_arguments_are_declared(launched: Any) -> None:
    declared = {each.name for each in launched("fusion.launch.py").get_launch_arguments()}
    wanted = {"bag", "rate", "rviz", "use_sim_time", "device", "cameras", "odometry", "config"}
    wanted |= {"left", "right", "image", "camera_info", "odom", "transport"}
    wanted |= {
        f"{side}_{topic}" for side in ("left", "right") for topic in ("image", "camera_info")
    }
    wanted |= {
        "namespace",
        "frame_prefix",
        "publish_tf",
        "extrinsics",
        "start",
        "loop",
        "keep",
        "processes",
    }
    assert declared >= wanted
    replay = {each.name for each in launched("kitti_replay.launch.py").get_launch_arguments()}
    assert replay >= {"source", "rate", "rviz", "device", "config", "keep", "loop", "start"}


@pytest.mark.parametrize("processes", ["three", "one"])
def test_a_launch_connects_the_nodes_and_ends_them(
    launched: Any, weights: Path, tmp_path: Path, processes: str
) -> None:
    bench = Bench("launch_test")
    path, log = str(ROOT / "launch" / "fusion.launch.py"), tmp_path / "log"
    given = [f"weights:={weights}", "left:=/cameras/l", "right:=/cameras/r", "odom:=/my_vo"]
    given += [f"processes:={processes}", f"namespace:={processes}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, path, *given], stdout=out, stderr=subprocess.STDOUT
        )
    hearers = 1 if processes == "one" else 2
    expected = {"/cameras/l/image_rect": hearers, "/cameras/r/camera_info": hearers, "/my_vo": 1}
    expected |= {f"/{processes}/hydranet_node/relative_rotation/interval": 1}
    count = bench.node.count_subscribers
    try:
        for topic, listeners in expected.items():
            assert bench.spin_until(lambda t=topic, n=listeners: count(t) == n, 180.0), (
                topic,
                log.read_text(),
            )
        bench.spin(1.0)
    finally:
        process.send_signal(signal.SIGINT)  # not kill: its nodes would live on
        code = process.wait(timeout=60.0)
        bench.close()
    assert code == 0, log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("processes", ["three", "one"])
def test_a_replay_is_played_fused_and_ended(
    launched: Any, weights: Path, tmp_path: Path, processes: str
) -> None:
    """In a namespace: the gyro of a pair, as asked, whatever the file of parameters says."""
    bench, config = Bench("replayed"), tmp_path / "mono.yaml"
    config.write_text("/**/hydranet_node: {ros__parameters: {gyro: {cameras: mono}}}\n")
    given = [f"weights:={weights}", f"config:={config}", "bag:=street", "cameras:=stereo"]
    given += ["rate:=4", f"processes:={processes}", f"namespace:={processes}"]
    path, log = str(ROOT / "launch" / "fusion.launch.py"), tmp_path / "log"
    fused = bench.hear(Odometry, f"/{processes}/fused/odometry")
    command = [sys.executable, "-c", RUN, path, *given]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        assert bench.spin_until(lambda: process.poll() is not None, 120.0)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60.0)
        bench.close()
    assert process.returncode == 0, log.read_text()
    assert len(fused) > 5
    assert "cameras: stereo" in log.read_text()
