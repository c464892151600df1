"""`hydranet kitti2bag SEQUENCE OUT`: a folder of images as a bag of ROS 2."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from hydranet_ros.datasets.source import open_source
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.output import progress

EXAMPLES = """\
examples:
  hydranet kitti2bag dataset/sequences/09 kitti_09
  hydranet kitti2bag dataset/sequences/09 kitti_09 --storage sqlite3 --compressed
  hydranet kitti2bag street street_bag --max-frames 50
"""
STORAGES = ("mcap", "sqlite3")
# builtin_interfaces/Time has 31 bits of seconds.
LATEST_S = 2**31 - 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "kitti2bag",
        help="write a folder of images, or the simulated street, as a bag",
        description=(
            "Write the frames of SEQUENCE (a folder in KITTI's layout, or 'street') as a rosbag2: "
            "/left and /right image_rect and camera_info, /ground_truth/odometry where the poses "
            "are known, /tf_static. Images lose nothing, with --compressed neither (PNG)."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sequence", metavar="SEQUENCE")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder of the bag, a new one")
    parser.add_argument("--storage", choices=STORAGES, default="mcap", help="default: %(default)s")
    parser.add_argument("--compressed", action="store_true", help="CompressedImage, as PNG")
    parser.add_argument("--poses", metavar="FILE", help="the true poses, as of `hydranet run`")
    parser.add_argument("--max-frames", type=int, metavar="N", help="stop after N frames")
    parser.add_argument(
        "--epoch",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds to add to the stamps, which start at 0 in KITTI (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check, write, say what was written."""
    from hydranet_ros.datasets.bag_files import check_new, write_bag
    from hydranet_ros.datasets.bag_messages import message_count, recorded

    check_new(options.out)
    if options.max_frames is not None and options.max_frames < 1:
        raise HydraNetError(f"--max-frames {options.max_frames}: must be at least 1")
    source = open_source(options.sequence, options.poses, options.max_frames)
    epoch_ns = _epoch(options.epoch, int(source.stamps_ns[-1]))
    messages = recorded(source, options.compressed, epoch_ns)
    bar = progress(messages, message_count(source), "write", "message")
    count = write_bag(options.out, bar, options.storage)
    truth = "no ground truth" if source.T_w_c is None else "ground truth"
    print(f"{len(source)} frames, {truth}: {count} messages written to {options.out}")


def _epoch(seconds: float, last_ns: int) -> int:
    if not math.isfinite(seconds) or not 0.0 <= seconds + last_ns * 1e-9 < LATEST_S:
        raise HydraNetError(f"--epoch {seconds}: stamps must stay between 0 and 2^31 seconds")
    return round(seconds * 1e9)
