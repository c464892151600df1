"""`hydranet kitti2bag SOURCE OUT`: a folder of images as a bag of ROS 2."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from hydranet_ros.cli.arguments import (
    CAMERAS,
    add_command,
    add_frames,
    add_poses,
    add_source,
    open_chosen,
)
from hydranet_ros.errors import HydraNetError, printable, require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands

EXAMPLES = """\
  hydranet kitti2bag dataset/sequences/09 kitti_09
  hydranet kitti2bag dataset/sequences/09 kitti_09 --storage sqlite3 --compressed
  hydranet kitti2bag street street_bag --frames 50
"""
STORAGES = ("mcap", "sqlite3")
# builtin_interfaces/Time has 31 bits of seconds.
LATEST_S = 2**31 - 1


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "kitti2bag",
        run,
        "write a folder of images, or the simulated street, as a bag",
        "Write the frames of SOURCE as a rosbag2: /left and /right image_rect and camera_info, "
        "/ground_truth/odometry where the poses are known, /tf_static. Images lose nothing, with "
        "--compressed neither (PNG).",
        EXAMPLES,
    )
    add_source(parser, optional=False)
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder of the bag, a new one")
    parser.add_argument("--storage", choices=STORAGES, default="mcap", help="default: %(default)s")
    parser.add_argument("--compressed", action="store_true", help="CompressedImage, as PNG")
    parser.add_argument(
        "--cameras", choices=CAMERAS, default="stereo", help="mono: image_1 may be missing"
    )
    add_poses(parser)
    add_frames(parser, least=1)
    parser.add_argument(
        "--epoch",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds to add to the stamps, which start at 0 in KITTI (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> None:
    """Check, write, say what was written."""
    require("a bag", "rosbags")
    from hydranet_ros.datasets.bag_files import check_new, write_bag
    from hydranet_ros.datasets.bag_messages import message_count, recorded
    from hydranet_ros.evaluation.output import progress

    check_new(options.out)
    source = open_chosen(options, options.cameras)
    epoch_ns = _epoch(options.epoch, int(source.stamps_ns[0]), int(source.stamps_ns[-1]))
    messages = recorded(source, options.compressed, epoch_ns)
    bar = progress(messages, message_count(source), "write", "message")
    count = write_bag(options.out, bar, options.storage)
    truth = "no ground truth" if source.T_w_c is None else "ground truth"
    print(
        f"{len(source)} frames, {truth}: {count} messages written to {printable(str(options.out))}"
    )


def _epoch(seconds: float, first_ns: int, last_ns: int) -> int:
    first, last = (seconds + stamp * 1e-9 for stamp in (first_ns, last_ns))
    if not math.isfinite(seconds) or not 0.0 <= first <= last < LATEST_S:
        raise HydraNetError(f"--epoch {seconds}: stamps must stay between 0 and 2^31 seconds")
    return round(seconds * 1e9)
