r"""Visual gyro, stereo odometry and their fusion.

ros2 launch hydranet_ros fusion.launch.py left:=/camera/left right:=/camera/right rviz:=true
ros2 launch hydranet_ros fusion.launch.py bag:=drive.mcap use_sim_time:=true
ros2 launch hydranet_ros fusion.launch.py cameras:=rgbd image:=/camera/color/image_raw \
  depth_image:=/camera/aligned_depth_to_color/image_raw
ros2 launch hydranet_ros fusion.launch.py odometry:=wheels image:=/camera/image_raw odom:=/odom \
  imu:=/imu/data_raw

Arguments are checked before anything starts. What is not given is as the file of parameters says.
A node that cannot start, or dies, ends the launch with its exit code; so does the end of a replay.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml
from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    OpaqueFunction,
    SetEnvironmentVariable,
    Shutdown,
)
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from hydranet_ros.errors import HydraNetError
from hydranet_ros.ros.environment import (
    LAUNCHED,
    LaunchArguments,
    camera_topics,
    fast_dds_profile,
    together_parameters,
)
from hydranet_ros.ros.parameters import file_parameter, refuse_misspelt

CONFIG = Path(__file__).resolve().parent.parent / "config"

ARGUMENTS = {
    "bag": "rosbag2, folder of images or 'street' to play; empty: a live camera",
    "rate": "times the recorded speed",
    "start": "begin so many seconds into the bag",
    "loop": "begin again at the end of the bag: true or false",
    "keep": "keep the nodes at the end of the bag: true or false",
    "rviz": "show it in RViz: true, false, or auto where it is installed",
    "use_sim_time": "take the time from /clock: true or false",
    "device": "auto, numpy, cpu, cuda or cuda:N",
    "weights": "file of weights; empty: the ones that ship",
    "cameras": "mono or stereo: rotation from one image, or from the pair (stereo); rgbd: from an "
    "image, whose depth our own odometry takes",
    "odometry": "own stereo odometry, somebody's visual odometry, or wheels (own)",
    "transport": "auto, raw or compressed images",
    "config": "file of parameters",
    "processes": "three, one for each node, or one for all of them (three)",
    "namespace": "of all nodes and of their topics",
    "frame_prefix": "put before odom_frame and base_frame: robot1/",
    "publish_tf": "broadcast odom_frame to base_frame: true or false; not given, RViz of this "
    "launch gets it as long as nobody else broadcasts it",
    "extrinsics": "tf, or x y z qx qy qz qw of the left optical frame in base_frame",
    "left": "namespace of the left image_rect and camera_info",
    "right": "namespace of the right image_rect and camera_info",
    "left_image": "topic of the left image, where it has another name",
    "right_image": "topic of the right image",
    "left_camera_info": "topic of the left calibration; empty: beside the image",
    "right_camera_info": "topic of the right calibration",
    "image": "topic of the mono image; empty: the left one, where there is a pair",
    "camera_info": "topic of its calibration; empty: beside the image",
    "depth_image": "topic of the depth of the image, with cameras:=rgbd",
    "depth_camera_info": "topic of its calibration, where depth has a camera of its own",
    "odom": "topic of the odometry",
    "imu": "topic of an IMU, which is optional",
}
DEFAULTS = {"config": str(CONFIG / "hydranet.yaml")}
FILES = ("fusion.launch.py", "kitti_replay.launch.py")  # not a user's own that includes them
OF_A_BAG = ("rate", "start", "loop", "keep")


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments, check them, start the nodes."""
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=DEFAULTS.get(name, ""), description=text)
                for name, text in ARGUMENTS.items()
            ),
            *(SetEnvironmentVariable(*each) for each in fast_dds_profile().items()),
            OpaqueFunction(function=checked),
        ]
    )


def checked(context: LaunchContext) -> list[Any]:
    """The nodes, or the end of the launch with one line that names the wrong argument."""
    given = {name: context.launch_configurations.get(name, "") for name in ARGUMENTS}
    args = LaunchArguments(given)
    try:
        if any(Path(word).name in FILES for word in sys.argv):
            args.refuse_unknown(context.argv, [*ARGUMENTS, "source"])
        return nodes(args)
    except HydraNetError as error:
        return fail(str(error), 2)


def nodes(args: LaunchArguments) -> list[Any]:
    """What is to be started; a HydraNetError where an argument is wrong."""
    config, bag, device = args.file("config"), args.source("bag"), args.device("device")
    refuse_misspelt(config)
    if not bag and (idle := [name for name in OF_A_BAG if args.text(name)]):
        raise args.wrong(idle[0], "needs bag:=")
    odometry = args.choice("odometry", "own", "visual", "wheels")
    odometry = odometry or file_parameter(config, "fusion_node", "fusion.odometry") or "own"
    cameras = args.choice("cameras", "mono", "stereo", "rgbd")
    if odometry != "own" and args.text("image") and not (args.text("left") or cameras):
        cameras = "mono"  # one image is named, and nobody else needs a pair
    cameras = cameras or file_parameter(config, "hydranet_node", "gyro.cameras") or "stereo"
    topics = camera_topics(args, cameras, odometry == "own", bag)
    odom, imu, rviz = args.topic("odom"), args.topic("imu"), args.flag_or_auto("rviz")
    namespace, prefix = args.topic("namespace"), args.text("frame_prefix")
    frames = {**args.extrinsics("extrinsics"), "frames.prefix": prefix}
    transport = {"input.transport": args.choice("transport", "auto", "raw", "compressed")}
    everywhere = {"use_sim_time": args.flag("use_sim_time")}
    one = args.choice("processes", "one", "three") == "one"
    player = {
        "source": bag,
        "rate": args.number("rate", positive=True),
        "start": args.number("start"),
        "loop": args.flag("loop"),
        "image": topics.played,
        "subscribers": 1 if one else topics.subscribers,  # nodes of one process share theirs
        "drain": True,
    }
    depth = cameras == "rgbd"  # the gyro sees the one image
    gyro = {
        "gyro.cameras": "mono" if depth else cameras,
        "gyro.device": device,
        "gyro.weights": args.file("weights"),
    }
    publish_tf, seen = args.flag("publish_tf"), shows_rviz(rviz, args)
    fusion = {"fusion.odometry": odometry, "output.publish_tf": publish_tf}
    if seen and publish_tf is None:  # RViz follows base_frame
        fusion["output.tf_if_nobody"] = True
    vo_remap = [("vo/odometry", odom)] if odom else []
    imu_remap = [("imu/data_raw", imu)] if imu else []
    rotation = [
        (f"relative_rotation{part}", f"hydranet_node/relative_rotation{part}")
        for part in ("", "/interval")
    ]

    rectified = {"input.rectified": topics.rectified or None}
    own = {"cameras": "rgbd", **rectified} if depth else {}
    working: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
        "hydranet_node": ({**transport, **gyro, **rectified}, topics.remaps),
        "fusion_node": ({**frames, **fusion}, vo_remap + imu_remap + rotation),
    }
    if odometry == "own":
        remaps = topics.remaps + vo_remap
        working["stereo_vo_node"] = ({**transport, **frames, **own}, remaps)
    if one:
        actions = [together(namespace, config, working, everywhere)]
    else:
        actions = [
            started(name, namespace, config, everywhere | values, remaps)
            for name, (values, remaps) in working.items()
        ]
    if bag:
        over = ended("player_node", args.flag("keep"))
        actions.append(
            started("player_node", namespace, config, everywhere | player, topics.remaps, over)
        )
    if seen:
        actions.append(rviz_node(namespace, prefix))
    return actions


def given(values: dict[str, Any]) -> dict[str, Any]:
    """What was not given, an empty text or None, is left to the file of parameters."""
    return {key: value for key, value in values.items() if value not in ("", None)}


def together(
    namespace: str,
    config: str,
    working: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]],
    everywhere: dict[str, Any],
) -> Node:
    """All nodes in one process."""
    values = {name: given(everywhere | each) for name, (each, _) in working.items()}
    file = Path(tempfile.mkdtemp(prefix="hydranet_")) / "hydranet_all.yaml"
    file.write_text(together_parameters(values, namespace), encoding="utf-8")
    return Node(
        executable="python3",
        arguments=["-m", "hydranet_ros.ros.hydranet_all"],
        exec_name="hydranet_all",
        namespace=namespace,
        output="screen",
        parameters=[config, str(file)],  # the latter wins
        remappings=[
            (f"{name}:{old}", new) for name, (_, remaps) in working.items() for old, new in remaps
        ],
        additional_env={LAUNCHED: str(os.getpid())},
        on_exit=ended("hydranet_all"),
    )


def started(
    name: str,
    namespace: str,
    config: str,
    values: dict[str, Any],
    remaps: list[tuple[str, str]],
    on_exit: Callable[[Any, LaunchContext], Any] | None = None,
) -> Node:
    """A node of this package, with the python3 of the environment: it may have torch."""
    chosen = {
        key: ParameterValue(value, value_type=str) if isinstance(value, str) else value
        for key, value in given(values).items()
    }
    return Node(
        executable="python3",
        arguments=["-m", f"hydranet_ros.ros.{name}"],
        exec_name=name,
        name=name,
        namespace=namespace,
        output="screen",
        parameters=[config, chosen] if chosen else [config],
        remappings=remaps,
        additional_env={LAUNCHED: str(os.getpid())},
        on_exit=on_exit or ended(name),
    )


# --- the end -------------------------------------------------------------------------------------


def ended(name: str, keep: bool | None = None) -> Callable[[Any, LaunchContext], Any]:
    """What to do when a node has ended by itself."""

    def on_exit(event: Any, context: LaunchContext) -> Any:
        if context.is_shutdown:
            return None
        if event.returncode != 0:
            code = event.returncode if event.returncode > 0 else 128 - event.returncode
            fail(f"{name} ended with exit code {code}", code)
        if name == "player_node" and not keep:
            return [Shutdown(reason="the replay is over")]
        return None

    return on_exit


def fail(reason: str, code: int) -> NoReturn:
    """End the launch, and with it all nodes."""
    if Path(sys.argv[0]).name == "ros2":
        # launch itself knows only 0 and 1.
        atexit.register(exit_with, code)
    raise RuntimeError(reason)


def exit_with(code: int) -> None:
    """End the process after all else."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# --- RViz ----------------------------------------------------------------------------------------


def shows_rviz(wanted: bool | str | None, args: LaunchArguments) -> bool:
    """Whether to start RViz; a HydraNetError where it is wanted and not installed."""
    if not wanted:
        return False
    try:
        get_package_prefix("rviz2")
    except PackageNotFoundError:
        if wanted == "auto":
            return False
        raise args.wrong("rviz", "rviz2 is not installed: install it, or rviz:=false") from None
    return True


def rviz_node(namespace: str, prefix: str) -> Node:
    """RViz, which looks at the topics in the namespace."""
    file = CONFIG / "fusion.rviz"
    shown = yaml.safe_load(file.read_text(encoding="utf-8"))["Visualization Manager"]["Displays"]
    topics = [display["Topic"]["Value"] for display in shown if "Topic" in display]
    root = f"/{namespace.strip('/')}"
    if prefix:  # what the view follows is told by the file alone
        text = file.read_text(encoding="utf-8").replace("base_link", f"{prefix}base_link")
        file = Path(tempfile.mkdtemp(prefix="hydranet_")) / file.name
        file.write_text(text, encoding="utf-8")
    return Node(
        package="rviz2",
        executable="rviz2",
        arguments=["-d", str(file), *(["-f", f"{prefix}odom"] if prefix else [])],
        remappings=[(topic, root + topic) for topic in topics] if namespace else [],
        on_exit=ended("rviz2"),
    )
