"""A KITTI folder or a bag through the nodes, with RViz.

ros2 launch hydranet_ros kitti_replay.launch.py source:=dataset/sequences/09
"""

from __future__ import annotations

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

HERE = Path(__file__).resolve().parent

ARGUMENTS = {
    "rate": ("1.0", "times the recorded speed"),
    "rviz": ("true", "show it in RViz"),
    "device": ("auto", "auto, cpu, cuda or cuda:N"),
    "weights": ("", "file of weights; empty: the ones that ship"),
    "config": (str(HERE.parent / "config" / "kitti.yaml"), "file of parameters"),
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
