"""Launch files, configuration files and RViz's: they fit the nodes that there are."""

from __future__ import annotations

import signal
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

from ros.in_process import overrides, spinning
from ros.node_processes import Bench, processes

from hydranet_ros.ros.fusion_node import FusionNode, FusionNodeConfig
from hydranet_ros.ros.hydranet_node import HydraNetNode, HydraNetNodeConfig
from hydranet_ros.ros.stereo_vo_node import StereoVONode, StereoVONodeConfig
from hydranet_ros.settings import update, walk

CONFIGS = {
    "hydranet_node": HydraNetNodeConfig,
    "stereo_vo_node": StereoVONodeConfig,
    "fusion_node": FusionNodeConfig,
}
# What the player publishes, and what RViz's displays show.
PLAYED = {"/left/image_rect": "sensor_msgs/msg/Image", "/ground_truth/path": "nav_msgs/msg/Path"}
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
