"""`hydranet play SOURCE`: publish what was recorded, where rosbag2 is not installed."""

from __future__ import annotations

import argparse
import math
import os
import sys

from hydranet_ros.datasets.source import STREET
from hydranet_ros.errors import HydraNetError, require
from hydranet_ros.ros.environment import WHEELS_GUARD, node_command

EXAMPLES = """\
examples:
  hydranet play kitti_09                        a bag, at the recorded rate
  hydranet play dataset/sequences/09 --rate 0.5
  hydranet play street --loop
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "play",
        help="publish a bag, a folder of images, or the simulated street over ROS 2",
        description=(
            "Publish SOURCE with /clock: the messages of a rosbag2 as they are, or the left and "
            "right images, their calibration and the truth of a KITTI folder or of 'street'. Says "
            "at the end which rate it held."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", default=STREET)
    parser.add_argument("--rate", type=float, default=1.0, metavar="R", help="times the speed")
    parser.add_argument("--loop", action="store_true", help="begin again at the end")
    parser.add_argument("--start", type=float, default=0.0, metavar="S", help="begin S seconds in")
    parser.add_argument(
        "--subscribers",
        type=int,
        default=0,
        metavar="N",
        help="wait until N listen to the images (default: do not wait)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check, then become the node: signals and the exit code are its own."""
    require("this command", "rclpy")
    if not (math.isfinite(options.rate) and options.rate > 0.0):
        raise HydraNetError(f"--rate {options.rate}: must be above 0")
    if not (math.isfinite(options.start) and options.start >= 0.0):
        raise HydraNetError(f"--start {options.start}: must be at least 0")
    if options.subscribers < 0:
        raise HydraNetError(f"--subscribers {options.subscribers}: must be at least 0")
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
