"""`hydranet evaluate EST GT`: how far a trajectory is from the true one."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from hydranet_ros.cli.arguments import add_command, add_json, number
from hydranet_ros.errors import HydraNetError

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands

EXAMPLES = """\
  hydranet evaluate fused.txt poses/00.txt
  hydranet evaluate fused.tum ground_truth.tum --align SE3
  hydranet evaluate kitti_00.npz:T_w_c_vo kitti_00.npz:T_w_c_gt_oxts \\
    --covariance kitti_00.npz:Sigma_21_vo --json
"""
# Those of geometry.metrics, which loads NumPy.
ALIGNMENTS = ("none", "first", "SE3", "Sim3")


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "evaluate",
        run,
        "compare a trajectory with the ground truth",
        "Compare an estimated trajectory with the true one. Each is a KITTI file, a TUM file, "
        "or FILE.npz:KEY with poses T_w_c of shape (N, 4, 4).",
        EXAMPLES,
    )
    parser.add_argument("estimate", metavar="EST")
    parser.add_argument("truth", metavar="GT")
    parser.add_argument(
        "--align",
        choices=ALIGNMENTS,
        default="none",
        help="move the estimate to the truth first (default: none, as in the paper)",
    )
    parser.add_argument(
        "--covariance",
        metavar="FILE.npz:KEY",
        help="covariances of the frame-to-frame motion, (N-1, 6, 6) or (N-1, 3, 3) of the "
        "rotation; adds NLL and NEES",
    )
    parser.add_argument(
        "--max-time-difference",
        type=number(least=0.0),
        default=0.01,
        metavar="S",
        help="pair the poses of two TUM files within this time (default: %(default)s s)",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Read, pair, evaluate, print."""
    from hydranet_ros.evaluation.record import evaluate
    from hydranet_ros.evaluation.tables import trajectory_table
    from hydranet_ros.geometry.trajectory import read_covariances, read_trajectory

    estimate, truth = read_trajectory(options.estimate), read_trajectory(options.truth)
    covariances = None
    if options.covariance is not None:
        if len(estimate) < 2:
            raise HydraNetError(f"{estimate.name}: has a single pose: no motion to compare")
        covariances = read_covariances(options.covariance, len(estimate) - 1)
    errors = evaluate(estimate, truth, options.align, covariances, options.max_time_difference)
    figures = errors.as_dict()
    print(json.dumps(figures, indent=2) if options.json else trajectory_table(figures))
