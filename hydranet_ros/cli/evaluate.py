"""`hydranet evaluate EST GT`: how far a trajectory is from the true one."""

from __future__ import annotations

import argparse
import json

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import metrics
from hydranet_ros.geometry.trajectory import associate, read_covariances, read_trajectory

EXAMPLES = """\
examples:
  hydranet evaluate fused.txt poses/00.txt
  hydranet evaluate fused.tum ground_truth.tum --align SE3
  hydranet evaluate kitti_00.npz:T_w_c_vo kitti_00.npz:T_w_c_gt_oxts \\
    --covariance kitti_00.npz:Sigma_21_vo --json
"""

LABELS = {
    "ate_m": ("m-ATE translation", "m"),
    "ate_deg": ("m-ATE rotation", "deg"),
    "seg_pct": ("segments, paper", "%"),
    "seg_deg_per_100m": ("segments, paper", "deg/100 m"),
    "devkit_pct": ("segments, KITTI devkit", "%"),
    "devkit_deg_per_100m": ("segments, KITTI devkit", "deg/100 m"),
    "f2f_deg": ("frame to frame", "deg"),
    "nll": ("negative log likelihood", ""),
    "nees": ("NEES", ""),
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "evaluate",
        help="compare a trajectory with the ground truth",
        description=(
            "Compare an estimated trajectory with the true one. Each is a KITTI file, a TUM file, "
            "or FILE.npz:KEY with poses T_w_c of shape (N, 4, 4)."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("estimate", metavar="EST")
    parser.add_argument("truth", metavar="GT")
    parser.add_argument(
        "--align",
        choices=metrics.ALIGNMENTS,
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
        type=float,
        default=0.01,
        metavar="S",
        help="pair the poses of two TUM files within this time (default: %(default)s s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Read, pair, evaluate, print."""
    estimate, truth = read_trajectory(options.estimate), read_trajectory(options.truth)
    paired, truth = associate(estimate, truth, options.max_time_difference)
    covariances = None
    if options.covariance is not None:
        if len(paired) != len(estimate):
            raise HydraNetError(
                f"{options.covariance}: covariances need every pose of {estimate.name} to have a "
                f"partner in {truth.name}; {len(estimate) - len(paired)} have none"
            )
        covariances = read_covariances(options.covariance, len(estimate) - 1)
    errors = metrics.evaluate(paired.T_w_c, truth.T_w_c, covariances, options.align)
    figures = errors.as_dict()
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def table(figures: dict[str, float | None]) -> str:
    """One figure per line, with its unit."""
    rows = []
    for key, value in figures.items():
        label, unit = LABELS[key]
        shown = "path shorter than 100 m" if value is None else f"{value:.4g} {unit}"
        rows.append(f"{label:<26}{shown}")
    return "\n".join(rows)
