"""`hydranet play SOURCE`: publish what was recorded, where rosbag2 is not installed."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from hydranet_ros.cli.arguments import add_command, add_source, number, whole_number
from hydranet_ros.errors import require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands

EXAMPLES = """\
  hydranet play kitti_09                        a bag, at the recorded rate
  hydranet play dataset/sequences/09 --rate 0.5
  hydranet play street --loop
"""


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "play",
        run,
        "publish a bag, a folder of images, or the simulated street over ROS 2",
        "Publish SOURCE with /clock: the messages of a rosbag2 as they are, or the images, "
        "calibration and truth of a folder (KITTI, EuRoC, TUM, 7-Scenes) or of 'street'; one "
        "camera is left/image_rect. Says at the end which rate it held.",
        EXAMPLES,
    )
    add_source(parser)
    parser.add_argument(
        "--rate", type=number(above=0.0), default=1.0, metavar="R", help="times the speed"
    )
    parser.add_argument("--loop", action="store_true", help="start again at the end")
    parser.add_argument(
        "--start", type=number(least=0.0), default=0.0, metavar="S", help="start S seconds in"
    )
    parser.add_argument(
        "--subscribers",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="wait for N subscribers of the images (default: do not wait)",
    )


def run(options: argparse.Namespace) -> None:
    """Check, then become the node: signals and the exit code are its own."""
    require("this command", "rclpy")
    from hydranet_ros.ros.environment import WHEELS_GUARD, node_command

    command = node_command(
        "player_node",
        {
            "source": options.source,
            "rate": options.rate,
            "loop": options.loop,
            "start": options.start,
            "subscribers": options.subscribers,
        },
    )
    os.environ.pop(WHEELS_GUARD, None)
    sys.stdout.flush()
    os.execv(command[0], command)
