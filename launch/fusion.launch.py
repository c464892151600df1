"""Visual gyro, stereo visual odometry and their fusion.

ros2 launch hydranet_ros fusion.launch.py left:=/camera/left right:=/camera/right rviz:=true
ros2 launch hydranet_ros fusion.launch.py bag:=drive.mcap use_sim_time:=true
ros2 launch hydranet_ros fusion.launch.py mono:=true image:=/camera/image vo:=external
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

from hydranet_ros.ros import environment as fast_dds

CONFIG = Path(__file__).resolve().parent.parent / "config"

ARGUMENTS = {
    "bag": ("", "rosbag2 or KITTI folder to play; empty: a live camera"),
    "rate": ("1.0", "times the recorded speed"),
    "rviz": ("false", "show it in RViz"),
    "use_sim_time": ("false", "take the time from /clock"),
    "device": ("auto", "auto, cpu, cuda or cuda:N"),
    "weights": ("", "file of weights; empty: the ones that ship"),
    "mono": ("false", "rotation from one image instead of the pair"),
    "vo": ("own", "own stereo odometry, or external"),
    "config": (str(CONFIG / "hydranet.yaml"), "file of parameters"),
    "left": ("left", "namespace of the left image_rect and camera_info"),
    "right": ("right", "namespace of the right image_rect and camera_info"),
    "image": ("image", "topic of the mono image"),
    "camera_info": ("camera_info", "topic of its calibration"),
    "vo_topic": ("vo/odometry", "topic of the odometry"),
}
CHOICES = {"vo": ["own", "external"]}

arg = LaunchConfiguration


def is_true(*words: Any) -> PythonExpression:
    """Whether an expression in arguments holds."""
    return PythonExpression(list(words))


def believed() -> PythonExpression:
    """The file that says how our own odometry is believed; with other odometry, no more."""
    own = f"'{CONFIG / 'own_vo.yaml'}' if '"
    return PythonExpression([own, arg("vo"), "' == 'own' else '", arg("config"), "'"])


def node(name: str, remaps: list[tuple[Any, Any]], condition: Any = None, **own: Any) -> Node:
    """A node of this package, with the python3 of the environment: it has torch."""
    sim_time = ParameterValue(arg("use_sim_time"), value_type=bool)
    return Node(
        executable="python3",
        arguments=["-m", f"hydranet_ros.ros.{name}"],
        exec_name=name,
        name=name,
        output="screen",
        parameters=[believed(), arg("config"), {"use_sim_time": sim_time, **own}],
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
    vo = [("vo/odometry", arg("vo_topic"))]
    rotation = [
        (f"relative_rotation{part}", f"hydranet_node/relative_rotation{part}")
        for part in ("", "/interval")
    ]
    stereo = ParameterValue(is_true("'", arg("mono"), "' != 'true'"), value_type=bool)
    # A player waits until all who work on the left image listen to it.
    both = ("'", arg("mono"), "' != 'true' and '", arg("vo"), "' == 'own'")
    listeners = PythonExpression(["2 if ", *both, " else 1"])
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(
                    name, default_value=value, description=text, choices=CHOICES.get(name)
                )
                for name, (value, text) in ARGUMENTS.items()
            ),
            *(SetEnvironmentVariable(*each) for each in fast_dds.profile().items()),
            node(
                "hydranet_node",
                pair + mono,
                stereo=stereo,
                device=arg("device"),
                weights=ParameterValue(arg("weights"), value_type=str),
            ),
            node("stereo_vo_node", pair + vo, IfCondition(is_true("'", arg("vo"), "' == 'own'"))),
            node("fusion_node", vo + rotation),
            node(
                "player_node",
                pair,
                IfCondition(is_true("'", arg("bag"), "' != ''")),
                source=ParameterValue(arg("bag"), value_type=str),
                rate=ParameterValue(arg("rate"), value_type=float),
                subscribers=ParameterValue(listeners, value_type=int),
            ),
            Node(
                package="rviz2",
                executable="rviz2",
                arguments=["-d", str(CONFIG / "fusion.rviz")],
                condition=IfCondition(arg("rviz")),
            ),
        ]
    )
