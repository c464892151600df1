"""`hydranet fuse FILE.npz`: fuse recorded visual odometry with recorded rotations."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydranet_ros import __version__
from hydranet_ros.datasets.recording import VARIANTS, Recording, read_recording
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.output import progress, write_run
from hydranet_ros.geometry import metrics
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import chain

EXAMPLES = """\
examples:
  hydranet fuse kitti_00.npz
  hydranet fuse kitti_00.npz --mode paper --json
  hydranet fuse kitti_00.npz --variant blur --out out/00
  hydranet fuse kitti_00.npz --drop-vo 50:10,150:10
"""

COLUMNS = ("ate_m", "ate_deg", "seg_pct", "seg_deg_per_100m")
HEADER = ("", "ATE m", "ATE deg", "seg %", "seg deg/100 m")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "fuse",
        help="fuse recorded visual odometry and rotations",
        description=(
            "Fuse a recording of visual odometry and network rotations, and compare both with "
            "the ground truth. Mode 'window' is the sliding window that runs in the fusion node; "
            "mode 'paper' relaxes each pair of poses alone, as the paper did."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recording", metavar="FILE.npz")
    parser.add_argument("--mode", choices=("window", "paper"), default="window")
    parser.add_argument(
        "--variant", choices=VARIANTS, default="", help="which of the recorded sources to use"
    )
    parser.add_argument(
        "--vo-only", action="store_true", help="leave the rotations out: VO and the motion prior"
    )
    parser.add_argument(
        "--drop-vo",
        metavar="START:LEN,...",
        default="",
        help="take VO away for LEN steps from step START on (step i ends at frame i + 1)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the trajectories there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Read, fuse, evaluate, write, print."""
    recording = read_recording(options.recording, options.variant)
    if recording.C_hn is None and not options.vo_only:
        raise HydraNetError(f"{options.recording}: has no rotations to fuse: use --vo-only")
    without_vo = dropped(options.drop_vo, len(recording.Sigma_vo))
    if options.mode == "paper":
        if options.vo_only or without_vo.any():
            raise HydraNetError("--mode paper needs both sources at every step: use --mode window")
        fused, covariances, rejected, config = _paper(recording)
    else:
        fused, covariances, rejected, config = _window(recording, without_vo, options.vo_only)
    figures: dict[str, Any] = {}
    if recording.T_w_c_gt is not None:
        vo = metrics.evaluate(recording.T_w_c_vo, recording.T_w_c_gt, recording.Sigma_vo)
        ours = metrics.evaluate(fused, recording.T_w_c_gt, covariances)
        figures = {"vo": vo.as_dict(), "fused": ours.as_dict()}
    figures["rejected"] = rejected
    if options.out is not None:
        settings = {
            "version": __version__,
            "recording": Path(options.recording).name,
            "mode": options.mode,
            "variant": options.variant,
            "vo_only": options.vo_only,
            "drop_vo": options.drop_vo,
            options.mode: config,
        }
        trajectories = {"vo": recording.T_w_c_vo, "fused": fused}
        write_run(options.out, trajectories, recording.stamps_ns, figures, settings)
    print(json.dumps(figures, indent=2) if options.json else table(figures, options.out))


def dropped(text: str, steps: int) -> NDArray[np.bool_]:
    """Which steps `START:LEN,...` names."""
    flags = np.zeros(steps, dtype=bool)
    for part in filter(None, text.split(",")):
        start, _, length = part.partition(":")
        if not (start.strip().isdecimal() and length.strip().isdecimal()):
            raise HydraNetError(f"--drop-vo: '{part}' is not START:LEN, two whole numbers")
        if int(start) + int(length) > steps:
            raise HydraNetError(f"--drop-vo: '{part}' goes beyond the {steps} steps recorded")
        flags[int(start) : int(start) + int(length)] = True
    return flags


Fused = tuple[Array, Array, int, dict[str, Any]]


def _paper(recording: Recording) -> Fused:
    """The trajectory, the covariances of its steps, the steps that kept VO, the settings."""
    from hydranet_ros.fusion.pairwise import MAX_DETERMINANT, pair_covariances, relax_pairs

    assert recording.C_hn is not None
    assert recording.Sigma_hn is not None
    measured = recording.T_vo, recording.Sigma_vo, recording.C_hn, recording.Sigma_hn
    fused = chain(relax_pairs(*measured), recording.T_w_c_vo[0])
    kept = int((np.linalg.det(recording.Sigma_hn) > MAX_DETERMINANT).sum())
    covariances = pair_covariances(recording.Sigma_vo, recording.Sigma_hn)
    return fused, covariances, kept, {"max_determinant": MAX_DETERMINANT, "unit_jacobians": True}


def _window(recording: Recording, without_vo: NDArray[np.bool_], vo_only: bool) -> Fused:
    from hydranet_ros.fusion.sliding_window import SlidingWindowFusion

    fusion = SlidingWindowFusion(T_w_c=recording.T_w_c_vo[0])
    poses, covariances, rejected = [recording.T_w_c_vo[0]], [], 0
    steps = recording.steps(without_vo, with_rotations=not vo_only)
    for stamp, measured in progress(steps, len(recording.Sigma_vo), "fuse"):
        if measured:
            state = fusion.update(*measured)
        elif fusion.started:
            state = fusion.coast(stamp)
        else:
            raise HydraNetError("--drop-vo: the first step needs VO or a rotation to start from")
        poses.append(state.T_w_c)
        assert state.Sigma_2_1 is not None
        covariances.append(state.Sigma_2_1)
        rejected += len(state.rejected)
    return np.array(poses), np.array(covariances), rejected, asdict(fusion.config)


def table(figures: dict[str, Any], out: Path | None) -> str:
    """The paper's four columns, VO and fused."""
    lines = []
    if "vo" in figures:
        rows: list[tuple[str, ...]] = [HEADER]
        for name in ("vo", "fused"):
            values = [figures[name][key] for key in COLUMNS]
            rows.append((name, *("-" if value is None else f"{value:.2f}" for value in values)))
        lines += ["".join(f"{cell:>15}" for cell in row) for row in rows]
    else:
        lines.append("no ground truth in the recording: nothing to compare with")
    lines.append(f"rejected: {figures['rejected']}")
    if out is not None:
        lines.append(f"written to {out}")
    return "\n".join(lines)
