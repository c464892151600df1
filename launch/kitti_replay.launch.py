"""A KITTI folder or a bag through the nodes, with RViz where it is installed.

ros2 launch hydranet_ros kitti_replay.launch.py source:=dataset/sequences/09

It ends with the replay; `keep:=true` keeps the nodes.
"""

from __future__ import annotations

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

HERE = Path(__file__).resolve().parent

ARGUMENTS = {
    "rate": ("", "times the recorded speed"),
    "start": ("", "begin so many seconds in"),
    "loop": ("", "begin again at the end: true or false"),
    "keep": ("", "keep the nodes at the end: true or false"),
    "rviz": ("auto", "show it in RViz: true, false, or auto where it is installed"),
    "device": ("", "auto, numpy, cpu, cuda or cuda:N"),
    "weights": ("", "file of weights; empty: the ones that ship"),
    "cameras": ("", "mono or stereo: rotation from one image, or from the pair"),
    "config": (str(HERE.parent / "config" / "kitti.yaml"), "file of parameters"),
    "namespace": ("", "of all nodes and of their topics"),
    "frame_prefix": ("", "put before odom_frame and base_frame"),
}


def generate_launch_description() -> LaunchDescription:
    """fusion.launch.py with a player and simulated time."""
    given = {name: LaunchConfiguration(name) for name in ARGUMENTS}
    return LaunchDescription(
        [
            DeclareLaunchArgument("source", description="a KITTI folder, a rosbag2, or 'street'"),
            *(
                DeclareLaunchArgument(name, default_value=value, description=text)
                for name, (value, text) in ARGUMENTS.items()
            ),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(HERE / "fusion.launch.py")),
                launch_arguments={
                    **given,
                    "bag": LaunchConfiguration("source"),
                    "use_sim_time": "true",
                }.items(),
            ),
        ]
    )
