"""`hydranet fuse FILE.npz`: fuse recorded odometry with recorded rotations."""

from __future__ import annotations

import argparse
import json
from collections import deque
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydranet_ros import __version__
from hydranet_ros.cli.arguments import (
    add_command,
    add_imu,
    add_json,
    add_out,
    add_settings,
    chosen_settings,
    dumped,
)
from hydranet_ros.errors import HydraNetError, printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.datasets.recording import Recording
    from hydranet_ros.evaluation.record import Interval
    from hydranet_ros.fusion.config import FusionConfig
    from hydranet_ros.fusion.imu import ImuSample
    from hydranet_ros.geometry.lie import Array

    Calibration = dict[str, dict[str, float]]
    Fused = tuple[Array, dict[Interval, Array], int, Calibration | None]
    """The trajectory, the covariances of its motions, how many measurements were rejected, and the
    errors of scale that were found."""

EXAMPLES = """\
  hydranet fuse kitti_00.npz
  hydranet fuse kitti_00.npz --mode paper --json
  hydranet fuse kitti_00.npz --variant blur --out out/00
  hydranet fuse kitti_00.npz --odometry wheels --set wheels.floor_m=0.01
  hydranet fuse kitti_00.npz --drop-vo 50:10,150:10
"""
# Those of datasets.recording, which loads NumPy.
VARIANTS = ("", "blur", "nc")
ROWS = {"vo": "vo", "fused": "fused"}
COLUMNS = {
    "ate_m": "ATE m",
    "ate_deg": "ATE deg",
    "seg_pct": "seg %",
    "seg_deg_per_100m": "seg deg/100 m",
}


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "fuse",
        run,
        "fuse recorded odometry and rotations",
        "Fuse a recording of odometry and network rotations, and compare both with the ground "
        "truth. Mode 'window' is the sliding window that runs in the fusion node; mode 'paper' "
        "relaxes each pair of poses alone, as the paper did.",
        EXAMPLES,
    )
    parser.add_argument("recording", metavar="FILE.npz")
    parser.add_argument("--mode", choices=("window", "paper"), default="window")
    parser.add_argument(
        "--odometry",
        choices=("own", "visual", "wheels"),
        help="whose odometry was recorded, which says how far it is believed (default: visual)",
    )
    parser.add_argument(
        "--rotation",
        choices=("gyro", "hydranet"),
        help="whose rotations were recorded: our gyro's, or those of the paper's network "
        "(default: as the file's rotation_source says, else by the size of their covariances)",
    )
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
    add_imu(parser)
    add_settings(parser)
    add_out(parser, "write the trajectories and the calibration there")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Read, fuse, evaluate, write, print."""
    from hydranet_ros.fusion.config import FusionConfig

    chosen = {"odometry": options.odometry, "rotation": options.rotation}
    config = chosen_settings(options, FusionConfig(), chosen)
    if dumped(options, config):
        return
    from hydranet_ros.datasets.recording import read_recording

    recording = read_recording(options.recording, options.variant)
    if recording.C_hn is None and not options.vo_only:
        raise HydraNetError(f"{options.recording}: has no rotations to fuse: use --vo-only")
    if config.rotation == "auto":
        config = replace(config, rotation=recording.rotation_source)
    without_vo = dropped(options.drop_vo, len(recording.Sigma_vo))
    if options.mode == "paper":
        if options.vo_only or without_vo.any():
            raise HydraNetError("--mode paper needs both sources at every step: use --mode window")
        fused = _paper(recording)
    else:
        samples = _imu(options, recording)
        fused = _window(recording, config, without_vo, options.vo_only, samples)
    figures = _figures(recording, fused)
    if options.out is not None:
        _write(options, config, recording, fused[0], figures)
    print(json.dumps(figures, indent=2) if options.json else _text(figures, options.out))


def dropped(text: str, steps: int) -> NDArray[np.bool_]:
    """Which steps `START:LEN,...` names."""
    import numpy as np

    flags = np.zeros(steps, dtype=bool)
    for part in filter(None, text.split(",")):
        start, _, length = part.partition(":")
        if not (start.strip().isdecimal() and length.strip().isdecimal()):
            raise HydraNetError(f"--drop-vo: '{part}' is not START:LEN, two whole numbers")
        if int(start) + int(length) > steps:
            raise HydraNetError(f"--drop-vo: '{part}' goes beyond the {steps} steps recorded")
        flags[int(start) : int(start) + int(length)] = True
    return flags


def _paper(recording: Recording) -> Fused:
    """Pair by pair; rejected are the rotations of steps that kept VO."""
    import numpy as np

    from hydranet_ros.fusion.pairwise import MAX_DETERMINANT, pair_covariances, relax_pairs
    from hydranet_ros.geometry.odometer import chain

    assert recording.C_hn is not None
    assert recording.Sigma_hn is not None
    measured = recording.T_vo, recording.Sigma_vo, recording.C_hn, recording.Sigma_hn
    fused = chain(relax_pairs(*measured), recording.T_w_c_vo[0])
    kept = int((np.linalg.det(recording.Sigma_hn) > MAX_DETERMINANT).sum())
    covariances = pair_covariances(recording.Sigma_vo, recording.Sigma_hn)
    return fused, _by_interval(recording, covariances), kept, None


def _imu(options: argparse.Namespace, recording: Recording) -> deque[ImuSample]:
    """The samples of --imu, in the axes of the camera, which looks forward from the base."""
    if options.imu is None:
        return deque()
    from hydranet_ros.datasets.imu import euroc_mount, read_imu, refuse_elsewhere
    from hydranet_ros.geometry.camera import T_BASE_OPTICAL
    from hydranet_ros.simulation.imu import SimulatedImuConfig, simulate_imu

    if options.imu != "simulated":
        mount = euroc_mount(options.imu)
        C_c_i = T_BASE_OPTICAL[:3, :3].T if mount is None else mount
        samples = read_imu(options.imu, C_c_i)
        refuse_elsewhere(options.imu, samples, recording.stamps_ns)
        return deque(samples)
    truth = recording.T_w_c_gt
    if truth is None:
        raise HydraNetError(
            f"{options.recording}: has no true poses to simulate an IMU from: use --imu FILE"
        )
    up_w = -truth[0, :3, 1]  # up, in the axes of a camera that looks forward
    return deque(simulate_imu(truth, recording.stamps_ns, SimulatedImuConfig(), up_w))


def _window(
    recording: Recording,
    config: FusionConfig,
    without_vo: NDArray[np.bool_],
    vo_only: bool,
    samples: deque[ImuSample],
) -> Fused:
    """As the fusion node does it, step by step."""
    import numpy as np

    from hydranet_ros.evaluation.output import progress
    from hydranet_ros.evaluation.run import FusedPath
    from hydranet_ros.fusion.error_models import hold_to_ground
    from hydranet_ros.fusion.fusion import Fusion
    from hydranet_ros.geometry.estimates import RelativePose
    from hydranet_ros.pipeline import feed_imu

    start = recording.T_w_c_vo[0]
    unusable: list[str] = []  # what cannot be fused at all is left out, and counted
    fusion = Fusion(config, start, warn=lambda _, reason: unusable.append(reason))
    path = FusedPath(fusion, start)
    path.add(int(recording.stamps_ns[0]), ())
    steps = recording.steps(without_vo, with_rotations=not vo_only)
    held = config.planar and config.odometry == "wheels"
    for stamp, measured in progress(steps, len(recording.Sigma_vo), "fuse"):
        if held:  # the camera looks forward: up is -y
            measured = [
                hold_to_ground(each, -np.eye(3)[1]) if isinstance(each, RelativePose) else each
                for each in measured
            ]
        feed_imu(fusion, samples, stamp)
        path.add(stamp, fusion.add(*measured) + fusion.passed(stamp))
    rejected = path.rejected + len(unusable)
    return np.array(path.T_w_c), path.covariances, rejected, path.calibration


def _by_interval(recording: Recording, covariances: Array) -> dict[Interval, Array]:
    stamps = recording.stamps_ns.tolist()
    return dict(zip(pairwise(stamps), covariances, strict=True))


def _figures(recording: Recording, fused: Fused) -> dict[str, Any]:
    from hydranet_ros.evaluation.record import evaluate
    from hydranet_ros.geometry.trajectory import Trajectory

    T_w_c, covariances, rejected, calibration = fused
    figures: dict[str, Any] = {}
    if recording.T_w_c_gt is not None:
        vo, ours, truth = (
            Trajectory(T, recording.stamps_ns, name)
            for T, name in ((recording.T_w_c_vo, "vo"), (T_w_c, "fused"), (recording.T_w_c_gt, ""))
        )
        figures["vo"] = evaluate(vo, truth, "none", recording.Sigma_vo).as_dict()
        figures["fused"] = evaluate(ours, truth, "none", covariances).as_dict()
    figures["rejected"] = rejected
    if calibration is not None:
        figures["calibration"] = calibration
    return figures


def _write(
    options: argparse.Namespace,
    config: FusionConfig,
    recording: Recording,
    fused: Array,
    figures: dict[str, Any],
) -> None:
    """Trajectories, figures, and the settings: the paper's mode has none."""
    from hydranet_ros.evaluation.output import ResultsFolder
    from hydranet_ros.evaluation.tables import robot_calibration
    from hydranet_ros.settings import to_yaml

    about = {
        "hydranet_ros": __version__,
        "recording": Path(options.recording).name,
        "mode": options.mode,
        "variant": options.variant,
        "vo_only": options.vo_only,
        "drop_vo": options.drop_vo,
    }
    comment = "\n".join(f"{name}: {value}" for name, value in about.items())
    if options.mode == "paper":
        comment += "\nthe settings below are those of mode window, and were not used"
    with ResultsFolder(options.out).whole() as folder:
        for name, T_w_c in (("vo", recording.T_w_c_vo), ("fused", fused)):
            folder.trajectory(name, T_w_c, recording.stamps_ns)
        if "calibration" in figures:
            folder.text("robot_calibration.yaml", robot_calibration(figures["calibration"]))
        folder.json("metrics.json", figures)
        folder.text("config.yaml", to_yaml(config, comment))


def _text(figures: dict[str, Any], out: Path | None) -> str:
    """The paper's four columns, VO and fused."""
    from hydranet_ros.evaluation.tables import calibration_line, comparison_table

    lines = ["no ground truth in the recording: nothing to compare with"]
    if "vo" in figures:
        lines = [comparison_table(figures, ROWS, COLUMNS)]
    lines.append(f"rejected: {figures['rejected']}")
    for name, found in figures.get("calibration", {}).items():
        lines.append(calibration_line(name, found))
    if out is not None:
        lines.append(f"written to {printable(str(out))}")
    return "\n".join(lines)
