"""Launch arguments: checked before anything starts, and only what is given is passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

import sensor_msgs.msg
from rclpy.serialization import serialize_message

from hydranet_ros.datasets.bag_files import new_bag
from hydranet_ros.datasets.bag_messages import Message
from hydranet_ros.errors import HydraNetError
from hydranet_ros.ros.environment import LaunchArguments, camera_topics
from hydranet_ros.ros.parameters import file_parameter, refuse_misspelt

LAUNCH = ROOT / "launch" / "fusion.launch.py"


def arguments(**given: str) -> LaunchArguments:
    return LaunchArguments(given)


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes", "Yes", "on"])
def test_the_usual_words_for_true(text: str) -> None:
    assert arguments(loop=text).flag("loop") is True


@pytest.mark.parametrize("text", ["false", "False", "0", "no", "NO", "off"])
def test_the_usual_words_for_false(text: str) -> None:
    assert arguments(loop=text).flag("loop") is False


def test_what_is_not_given_is_none() -> None:
    args = arguments(loop="", rate=" ")
    assert args.flag("loop") is args.flag("keep") is args.number("rate") is None
    assert args.topic("left") == args.device("device") == args.file("weights") == ""
    assert args.extrinsics("extrinsics") == {}


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (lambda a: a.flag("x"), "maybe", "x:=maybe: must be true or false"),
        (lambda a: a.number("x", positive=True), "fast", "x:=fast: must be a number above 0"),
        (lambda a: a.number("x", positive=True), "0", "above 0"),
        (lambda a: a.number("x"), "-1", "must be a number from 0"),
        (lambda a: a.number("x"), "nan", "must be a number"),
        (lambda a: a.number("x"), "inf", "must be a number"),
        (lambda a: a.device("x"), "tpu", "x:=tpu: must be auto, numpy, cpu, cuda or cuda:N"),
        (lambda a: a.device("x"), "cuda:one", "must be auto"),
        (lambda a: a.file("x"), "/nope", "x:=/nope: there is no such file"),
        (lambda a: a.source("x"), "/nope", "x:=/nope: there is no such file"),
        (lambda a: a.choice("x", "mono", "stereo"), "three", "must be one of mono, stereo"),
        (lambda a: a.topic("x"), "a b", "is not the name of a topic"),
        (lambda a: a.topic("x"), "/a//b", "is not the name of a topic"),
        (lambda a: a.extrinsics("x"), "1 2 3", "x y z qx qy qz qw"),
        (lambda a: a.extrinsics("x"), "0 0 0 0 0 0 2", "unit quaternion"),
        (lambda a: a.extrinsics("x"), "urdf", "must be tf"),
    ],
)
def test_a_wrong_argument_is_named(read: Any, text: str, reason: str) -> None:
    with pytest.raises(HydraNetError, match=reason):
        read(arguments(x=text))


def test_an_unknown_argument_is_named() -> None:
    args = arguments()
    args.refuse_unknown(["rate:=2", "verbose"], ["rate"])
    with pytest.raises(HydraNetError, match=r"camera is not known: did you mean cameras\?"):
        args.refuse_unknown(["camera:=mono"], ["cameras"])


@pytest.mark.parametrize("text", ["1,2,3,0,0,0,1", "1 2 3 0 0 0 1", "[1.0, 2, 3, 0, 0, 0, 1]"])
def test_extrinsics_are_numbers_or_tf(text: str) -> None:
    found = arguments(extrinsics=text).extrinsics("extrinsics")
    assert found["frames.base_from_camera"] == [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0]
    assert arguments(extrinsics="tf").extrinsics("extrinsics") == {"frames.extrinsics": "tf"}


@pytest.mark.parametrize("left", ["/cam/left", "/cam/left/", "/cam/left//"])
def test_a_slash_at_the_end_changes_nothing(left: str) -> None:
    found = camera_topics(arguments(left=left), "stereo", True, "")
    assert found.remaps == [("left/image_rect", "/cam/left/image_rect")]


def test_topics_by_side() -> None:
    given = {"left_image": "/l/image_raw", "right": "/r", "right_camera_info": "/calibration"}
    found = dict(camera_topics(arguments(**given), "stereo", True, "").remaps)
    assert found == {
        "left/image_rect": "/l/image_raw",
        "right/image_rect": "/r/image_rect",
        "right/camera_info": "/calibration",
    }


@pytest.mark.parametrize(("pair", "subscribers"), [(True, 2), (False, 1)])
def test_one_camera_of_a_replay_is_the_left_one(pair: bool, subscribers: int) -> None:
    found = camera_topics(arguments(), "mono", pair, "street")
    assert ("image", "left/image_rect") in found.remaps
    assert (found.played, found.subscribers) == ("left/image_rect", subscribers)
    live = camera_topics(arguments(), "mono", False, "")
    assert live.remaps == []  # a topic `image`, of whoever has one


@pytest.mark.parametrize("suffix", ["", "/compressed"])
def test_the_topics_of_a_bag_are_found(tmp_path: Path, suffix: str) -> None:
    """Whatever the cameras are called; relative, so that a namespace applies."""
    with new_bag(tmp_path / "bag", "mcap") as bag:
        for side in ("infra1", "infra2"):
            kind = ("Compressed" if suffix else "") + "Image"
            written = {f"image_rect_raw{suffix}": kind, "camera_info": "CameraInfo"}
            for topic, name in written.items():
                data = serialize_message(getattr(sensor_msgs.msg, name)())
                message = Message(f"/cam/{side}/{topic}", f"sensor_msgs/msg/{name}", 1, data)
                bag.write(message)
    found = camera_topics(arguments(), "stereo", True, str(tmp_path / "bag"))
    assert dict(found.remaps) == {
        "left/image_rect": "cam/infra1/image_rect_raw",
        "left/camera_info": "cam/infra1/camera_info",
        "right/image_rect": "cam/infra2/image_rect_raw",
        "right/camera_info": "cam/infra2/camera_info",
    }
    assert (found.played, found.subscribers) == ("cam/infra1/image_rect_raw", 2)
    mono = camera_topics(arguments(), "mono", False, str(tmp_path / "bag"))
    assert dict(mono.remaps)["image"] == "cam/infra1/image_rect_raw"
    assert mono.rectified


def test_the_topics_of_an_image_with_depth(tmp_path: Path) -> None:
    given = {"image": "/c/image_raw", "depth_image": "/d/image_raw", "camera_info": "/c/info"}
    found = camera_topics(arguments(**given), "rgbd", True, "")
    assert dict(found.remaps) == {
        "image": "/c/image_raw",
        "camera_info": "/c/info",
        "depth/image": "/d/image_raw",
    }
    assert not found.rectified
    with new_bag(tmp_path / "bag", "mcap") as bag:
        for topic, name in (
            ("color/image_raw", "Image"),
            ("color/camera_info", "CameraInfo"),
            ("aligned_depth_to_color/image_raw", "Image"),
        ):
            data = serialize_message(getattr(sensor_msgs.msg, name)())
            bag.write(Message(f"/cam/{topic}", f"sensor_msgs/msg/{name}", 1, data))
    found = camera_topics(arguments(), "rgbd", True, str(tmp_path / "bag"))
    assert dict(found.remaps) == {
        "image": "cam/color/image_raw",
        "camera_info": "cam/color/camera_info",
        "depth/image": "cam/aligned_depth_to_color/image_raw",
    }
    # The gyro and our odometry look at the image.
    assert (found.played, found.subscribers) == ("cam/color/image_raw", 2)


def test_what_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "/**:\n  ros__parameters: {gyro: {cameras: mono}}\n"
        "/**/fusion_node:\n  ros__parameters: {fusion.odometry: wheels}\n"
    )
    assert file_parameter(str(file), "hydranet_node", "gyro.cameras") == "mono"
    assert file_parameter(str(file), "fusion_node", "fusion.odometry") == "wheels"
    assert file_parameter(str(file), "hydranet_node", "gyro.device") is None


@pytest.mark.parametrize(
    ("section", "meant"),
    [
        ("fusion_nod", "fusion_node"),
        ("/**/hydranet_mode", "hydranet_node"),
        ("/robot1/stereo_node", "stereo_vo_node"),
        ("fusionnode", "fusion_node"),
        *((name, None) for name in ("/**", "amcl", "/robot1/fusion_node", "fusion_node_2")),
        *((name, None) for name in ("front_stereo_vo_node", "/**/recorder_node", "camera_node")),
    ],
)
def test_a_misspelt_section_is_refused(tmp_path: Path, section: str, meant: str | None) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text(f"{section}:\n  ros__parameters: {{}}\n")
    if meant is None:
        refuse_misspelt(str(file))
        return
    with pytest.raises(HydraNetError, match=f"did you mean '{meant}'"):
        refuse_misspelt(str(file))
    file.write_text(f"robot1:\n  {section.rpartition('/')[2]}:\n    ros__parameters: {{}}\n")
    with pytest.raises(HydraNetError, match=f"did you mean '{meant}'"):
        refuse_misspelt(str(file))


# --- with launch ---------------------------------------------------------------------------------


@pytest.fixture
def nodes() -> Any:
    """The nodes that arguments give: name to command line."""
    pytest.importorskip("launch_ros", reason="launch and launch_ros are not installed")
    from launch import LaunchContext
    from launch.actions import DeclareLaunchArgument, OpaqueFunction
    from launch.launch_description_sources import get_launch_description_from_python_launch_file

    def started(**given: str) -> dict[str, Any]:
        description = get_launch_description_from_python_launch_file(str(LAUNCH))
        context = LaunchContext()
        context.launch_configurations.update(given)
        found = {}
        for entity in description.entities:
            if isinstance(entity, DeclareLaunchArgument):
                entity.visit(context)
            elif isinstance(entity, OpaqueFunction):
                for node in entity.visit(context):
                    node._perform_substitutions(context)
                    found[node.node_name.rpartition("/")[2]] = node
        return found

    return started


def parameters(node: Any) -> dict[str, Any]:
    """What is passed on besides the user's file."""
    import yaml

    files = [Path(path) for path, _ in node._Node__expanded_parameter_arguments or []][1:]
    found: dict[str, Any] = {}
    for file in files:
        text = file.read_text().replace("!!python/tuple", "")  # rcl does not mind
        for section in yaml.safe_load(text).values():
            found |= section["ros__parameters"]
    return found


def test_only_what_is_given_is_passed_on(nodes: Any, tmp_path: Path) -> None:
    plain = nodes()
    assert parameters(plain["hydranet_node"]) == {"gyro.cameras": "stereo"}
    assert parameters(plain["stereo_vo_node"]) == {}
    assert parameters(plain["fusion_node"]) == {"fusion.odometry": "own"}
    file = tmp_path / "mine.yaml"
    file.write_text(
        "/**/hydranet_node:\n  ros__parameters: {gyro: {cameras: mono, device: cpu}}\n"
        "/**/fusion_node:\n  ros__parameters: {fusion: {odometry: wheels}}\n"
    )
    mine = nodes(config=str(file))
    assert mine.keys() == {"hydranet_node", "fusion_node"}
    assert parameters(mine["hydranet_node"]) == {"gyro.cameras": "mono"}


def test_arguments_choose_the_nodes(nodes: Any) -> None:
    three = {"hydranet_node", "stereo_vo_node", "fusion_node"}
    assert nodes().keys() == three
    assert nodes(odometry="wheels").keys() == three - {"stereo_vo_node"}
    assert nodes(bag="street").keys() == three | {"player_node"}
    one = nodes(odometry="wheels", image="/camera/image_raw", odom="/odom")
    assert parameters(one["hydranet_node"])["gyro.cameras"] == "mono"


def test_an_image_with_depth(nodes: Any) -> None:
    found = nodes(cameras="rgbd", image="/c/image_raw", depth_image="/d/image_raw")
    assert parameters(found["hydranet_node"])["gyro.cameras"] == "mono"
    assert parameters(found["stereo_vo_node"]) == {"cameras": "rgbd"}


def test_an_imu_is_remapped(nodes: Any) -> None:
    def remaps(**arguments: str) -> dict[str, str]:
        node = nodes(odometry="wheels", **arguments)["fusion_node"]
        pairs = node._Node__remappings
        texts = [["".join(part.text for part in side) for side in pair] for pair in pairs]
        return dict(texts)

    assert remaps(imu="/imu/raw")["imu/data_raw"] == "/imu/raw"
    assert "imu/data_raw" not in remaps()


def test_arguments_reach_all_nodes(nodes: Any) -> None:
    found = nodes(
        namespace="robot",
        frame_prefix="robot/",
        publish_tf="Yes",
        transport="compressed",
        extrinsics="0 0 1 0 0 0 1",
        use_sim_time="True",
        bag="street",
        loop="1",
        start="2",
    )
    for name, node in found.items():
        assert node.node_name == f"/robot/{name}"
        assert parameters(node)["use_sim_time"] is True
    for name in ("stereo_vo_node", "fusion_node"):
        assert parameters(found[name])["frames.prefix"] == "robot/"
        assert list(parameters(found[name])["frames.base_from_camera"])[2] == 1.0
    for name in ("stereo_vo_node", "hydranet_node"):
        assert parameters(found[name])["input.transport"] == "compressed"
    assert parameters(found["fusion_node"])["output.publish_tf"] is True
    player = parameters(found["player_node"])
    assert (player["source"], player["loop"], player["start"]) == ("street", True, 2.0)


RUN = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
source = PythonLaunchDescriptionSource(sys.argv[1])
arguments = [tuple(each.split(":=")) for each in sys.argv[2:]]
service = LaunchService(noninteractive=True)
included = IncludeLaunchDescription(source, launch_arguments=arguments)
service.include_launch_description(LaunchDescription([included]))
sys.exit(service.run())
"""


class Launched:
    """A launch in a process of its own; which nodes it has left behind."""

    def __init__(self, folder: Path, *given: str) -> None:
        pytest.importorskip("launch_ros", reason="launch and launch_ros are not installed")
        self._log, self.mark = folder / "log", f"mark{time.monotonic_ns()}"
        given = (*given, f"frame_prefix:={self.mark}/")
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(LAUNCH), *given],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROS_LOG_DIR": str(folder)},
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def pids(self) -> list[int]:
        """Of the nodes, by what the launch has said of them."""
        words = [line.partition("started with pid [")[2] for line in self.log.splitlines()]
        return [int(word.rstrip("]")) for word in words if word]

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60.0
        while len(self.pids()) < count and time.monotonic() < deadline:
            time.sleep(0.1)

    def left(self) -> list[int]:
        deadline = time.monotonic() + 20.0  # a node that starts ends once it has loaded
        while time.monotonic() < deadline:
            alive = [pid for pid in self.pids() if Path(f"/proc/{pid}").exists()]
            if not alive:
                break
            time.sleep(0.1)
        return alive


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("rviz:=maybe", "rviz:=maybe: must be true or false"),
        ("rate:=fast", "rate:=fast"),
        ("weights:=/nope", "weights:=/nope: there is no such file"),
        ("device:=tpu", "device:=tpu: must be"),
        ("bag:=/nope", "bag:=/nope: there is no such file"),
        ("config:=/nope.yaml", "config:=/nope.yaml: there is no such file"),
    ],
)
def test_a_wrong_argument_starts_nothing(tmp_path: Path, given: str, reason: str) -> None:
    launched = Launched(tmp_path, given)
    assert launched.process.wait(timeout=60.0) != 0
    assert reason in launched.log
    assert launched.pids() == []


def test_a_node_that_cannot_start_ends_the_launch(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.safetensors"
    rubbish.write_bytes(b"rubbish")
    launched = Launched(tmp_path, f"weights:={rubbish}")
    assert launched.process.wait(timeout=120.0) != 0
    assert "hydranet_node ended with exit code 2" in launched.log
    assert launched.left() == []


def test_a_node_that_dies_ends_the_launch(tmp_path: Path) -> None:
    launched = Launched(tmp_path, "odometry:=wheels")
    launched.wait_for(2)
    time.sleep(1.0)
    os.kill(launched.pids()[1], signal.SIGKILL)
    assert launched.process.wait(timeout=60.0) != 0
    assert "fusion_node ended with exit code 137" in launched.log
    assert launched.left() == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.3, 4.0])
def test_an_interrupted_launch_leaves_nothing(
    tmp_path: Path, sent: signal.Signals, seconds: float
) -> None:
    launched = Launched(tmp_path)
    launched.wait_for(3)
    time.sleep(seconds)
    launched.process.send_signal(sent)
    code = launched.process.wait(timeout=60.0)
    assert launched.left() == []
    assert code == 0 or sent == signal.SIGTERM  # launch itself has no better answer to that
    assert "Traceback" not in launched.log.partition("run task was canceled")[0]


def test_the_end_of_a_replay_ends_the_launch(tmp_path: Path, weights: Path) -> None:
    """Of one camera: the player waits for the gyro alone, which has its image."""
    given = ["bag:=street", "cameras:=mono", "odometry:=wheels", "rate:=10", "start:=8"]
    launched = Launched(tmp_path, *given, f"weights:={weights}")
    assert launched.process.wait(timeout=180.0) == 0, launched.log
    assert "played" in launched.log
    assert launched.left() == []
