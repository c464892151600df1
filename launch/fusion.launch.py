r"""Visual gyro, stereo odometry and their fusion.

ros2 launch hydranet_ros fusion.launch.py left:=/camera/left right:=/camera/right rviz:=true
ros2 launch hydranet_ros fusion.launch.py bag:=drive.mcap use_sim_time:=true
ros2 launch hydranet_ros fusion.launch.py cameras:=mono image:=/camera/image \
  odometry:=wheels odom:=/odom
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, SetEnvironmentVariable
from launch.conditions import IfCondition
from launch.substitutions import LaunchConfiguration, PythonExpression
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from hydranet_ros.ros.environment import fast_dds_profile

CONFIG = Path(__file__).resolve().parent.parent / "config"

ARGUMENTS = {
    "bag": ("", "rosbag2 or KITTI folder to play; empty: a live camera"),
    "rate": ("1.0", "times the recorded speed"),
    "rviz": ("false", "show it in RViz"),
    "use_sim_time": ("false", "take the time from /clock"),
    "device": ("auto", "auto, cpu, cuda or cuda:N"),
    "weights": ("", "file of weights; empty: the ones that ship"),
    "cameras": ("stereo", "rotation from one image, or from the pair"),
    "odometry": ("own", "own stereo odometry, somebody's visual odometry, or wheels"),
    "transport": ("raw", "raw images, or compressed ones"),
    "config": (str(CONFIG / "hydranet.yaml"), "file of parameters"),
    "left": ("left", "namespace of the left image_rect and camera_info"),
    "right": ("right", "namespace of the right image_rect and camera_info"),
    "image": ("image", "topic of the mono image"),
    "camera_info": ("camera_info", "topic of its calibration"),
    "odom": ("vo/odometry", "topic of the odometry"),
}
CHOICES = {
    "cameras": ["mono", "stereo"],
    "odometry": ["own", "visual", "wheels"],
    "transport": ["raw", "compressed"],
}

arg = LaunchConfiguration


def is_true(*words: Any) -> PythonExpression:
    """Whether an expression in arguments holds."""
    return PythonExpression(list(words))


def text(name: str) -> ParameterValue:
    """An argument as a text, whatever it looks like."""
    return ParameterValue(arg(name), value_type=str)


def node(name: str, remaps: list[tuple[Any, Any]], condition: Any = None, **own: Any) -> Node:
    """A node of this package, with the python3 of the environment: it has torch."""
    sim_time = ParameterValue(arg("use_sim_time"), value_type=bool)
    parameters = {key.replace("__", "."): value for key, value in own.items()}
    return Node(
        executable="python3",
        arguments=["-m", f"hydranet_ros.ros.{name}"],
        exec_name=name,
        name=name,
        output="screen",
        parameters=[arg("config"), {"use_sim_time": sim_time, **parameters}],
        remappings=remaps,
        condition=condition,
    )


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments, start the nodes."""
    pair = [
        (f"{side}/{topic}", [arg(side), f"/{topic}"])
        for side in ("left", "right")
        for topic in ("image_rect", "camera_info")
    ]
    mono = [(topic, arg(topic)) for topic in ("image", "camera_info")]
    odometry = [("vo/odometry", arg("odom"))]
    rotation = [
        (f"relative_rotation{part}", f"hydranet_node/relative_rotation{part}")
        for part in ("", "/interval")
    ]
    own = ("'", arg("odometry"), "' == 'own'")
    # A player waits until all nodes that process the left image subscribe to it.
    both = ("'", arg("cameras"), "' == 'stereo' and ", *own)
    subscribers = PythonExpression(["2 if ", *both, " else 1"])
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(
                    name, default_value=value, description=about, choices=CHOICES.get(name)
                )
                for name, (value, about) in ARGUMENTS.items()
            ),
            *(SetEnvironmentVariable(*each) for each in fast_dds_profile().items()),
            node(
                "hydranet_node",
                pair + mono,
                gyro__cameras=text("cameras"),
                gyro__device=text("device"),
                gyro__weights=text("weights"),
                input__transport=text("transport"),
            ),
            node(
                "stereo_vo_node",
                pair + odometry,
                IfCondition(is_true(*own)),
                input__transport=text("transport"),
            ),
            node("fusion_node", odometry + rotation, fusion__odometry=text("odometry")),
            node(
                "player_node",
                pair,
                IfCondition(is_true("'", arg("bag"), "' != ''")),
                source=text("bag"),
                rate=ParameterValue(arg("rate"), value_type=float),
                subscribers=ParameterValue(subscribers, value_type=int),
            ),
            Node(
                package="rviz2",
                executable="rviz2",
                arguments=["-d", str(CONFIG / "fusion.rviz")],
                condition=IfCondition(arg("rviz")),
            ),
        ]
    )
