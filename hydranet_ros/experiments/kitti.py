"""Rotations and their fusion with stereo VO on KITTI: the paper's section 4.3.

    hydranet experiment kitti --recordings DIR --check     both tables from the recorded outputs
    hydranet experiment kitti --recordings DIR --quick     without the sliding window
    hydranet experiment kitti --dataset DIR --test 00      train as the paper did, leaving 00 out

Expected of the recordings kitti_00, _02 and _05, to every digit the paper printed (translation m /
rotation deg / segments % / deg per 100 m):

    VO      27.91 6.25 1.96 0.81    64.67 8.45 1.47 0.56    23.72 8.10 1.79 0.79
    paper    9.86 2.83 1.34 0.63    50.19 6.51 1.47 0.63     9.85 3.23 1.38 0.60

and of the network 0.199 deg / -16.84, 0.138 / -18.44 and 0.109 / -19.31. The ground truth is OXTS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hydranet_ros.datasets.recording import Recording, read_recording
from hydranet_ros.errors import FileError
from hydranet_ros.evaluation.output import progress
from hydranet_ros.experiments.outcome import AXES, Expected, Outcome, Row, error_bands, grid
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.pairwise import relax_pairs
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import chain
from hydranet_ros.geometry.trajectory import read_npz_array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEQUENCES = ("00", "02", "05")
COLUMNS = {
    "ate_m": "ATE m",
    "ate_deg": "ATE deg",
    "seg_pct": "seg %",
    "seg_deg_per_100m": "deg/100m",
}
PUBLISHED_FUSION = {
    "00": {"vo": (27.91, 6.25, 1.96, 0.81), "paper": (9.86, 2.83, 1.34, 0.63)},
    "02": {"vo": (64.67, 8.45, 1.47, 0.56), "paper": (50.19, 6.51, 1.47, 0.63)},
    "05": {"vo": (23.72, 8.10, 1.79, 0.79), "paper": (9.85, 3.23, 1.38, 0.60)},
}
PUBLISHED_NETWORK = {"00": (0.199, -16.84), "02": (0.138, -18.44), "05": (0.109, -19.31)}
SHOWN_DEG = 1.0  # errors that plots have room for
DOWNSAMPLING = 5  # of the regression plots, as in the paper: 10 Hz to 2 Hz


@dataclass(frozen=True, eq=False)
class RecordedDrive:
    """A recorded sequence: the network's errors, and the trajectories that came of it."""

    recording: Recording
    errors: Array  # (N - 1, 3), Log(C_21_hn C_21_gt^T)
    trajectories: dict[str, Array]

    @property
    def truth(self) -> Array:
        """T_w_c (N, 4, 4)."""
        assert self.recording.T_w_c_gt is not None
        return self.recording.T_w_c_gt

    @property
    def Sigma(self) -> Array:
        """Of the rotations, (N - 1, 3, 3)."""
        assert self.recording.Sigma_hn is not None
        return self.recording.Sigma_hn


def expected(quick: bool = False) -> Expected:
    """The paper's digits, half a unit of the last one either way; the window no worse than VO."""
    ranges: dict[str, tuple[float, float]] = {}
    for sequence, rows in PUBLISHED_FUSION.items():
        for name, values in rows.items():
            for key, value in zip(COLUMNS, values, strict=True):
                ranges[f"{sequence}.{name}.{key}"] = (value - 0.00501, value + 0.00501)
    for sequence, (degrees, nll) in PUBLISHED_NETWORK.items():
        ranges[f"{sequence}.network.mean_deg"] = (degrees - 0.000501, degrees + 0.000501)
        ranges[f"{sequence}.network.nll"] = (nll - 0.00501, nll + 0.00501)
    for sequence in () if quick else SEQUENCES:
        for key, value in zip(COLUMNS, PUBLISHED_FUSION[sequence]["vo"], strict=True):
            ranges[f"{sequence}.window.{key}"] = (0.0, value)
    return ranges


def run(recordings: Path, quick: bool = False) -> Outcome:
    """Fuse the recorded sequences and evaluate."""
    drives = {name: read_drive(recordings / f"kitti_{name}.npz", quick) for name in SEQUENCES}
    figures: dict[str, float] = {}
    for name, drive in drives.items():
        figures |= {f"{name}.{key}": value for key, value in _figures(drive).items()}
    return Outcome(
        figures,
        _report(drives, figures),
        {"quick": quick, "ground_truth": "oxts", "sequences": list(SEQUENCES)},
        expected(quick),
        {"network": _network_rows(figures), "fusion": _fusion_rows(drives, figures)},
        {
            "histograms": lambda: _plot_histograms(drives),
            **{f"trajectory_{n}": partial(_plot_trajectory, d) for n, d in drives.items()},
            **{f"regression_{n}": partial(_plot_regression, d) for n, d in drives.items()},
        },
    )


def read_drive(path: Path, quick: bool) -> RecordedDrive:
    """Read a recording, and fuse it in the paper's way and, unless quick, in the window."""
    if not path.is_file():
        raise FileError(path, "is missing: name the folder of recordings with --recordings")
    recording = read_recording(path)
    if recording.C_hn is None or recording.Sigma_hn is None or recording.T_w_c_gt is None:
        raise FileError(path, "needs rotations of a network and the ground truth")
    C_gt = read_npz_array(f"{path}:C_21_gt")
    errors = lie.so3_log(recording.C_hn @ lie.so3_inverse(C_gt))
    measured = recording.T_vo, recording.Sigma_vo, recording.C_hn, recording.Sigma_hn
    trajectories = {
        "vo": recording.T_w_c_vo,
        "paper": chain(relax_pairs(*measured), recording.T_w_c_vo[0]),
    }
    if not quick:
        trajectories["window"] = _window(recording, path.stem)
    return RecordedDrive(recording, errors, trajectories)


def _window(recording: Recording, name: str) -> Array:
    config = FusionConfig(rotation=recording.rotation_source)
    fusion = SlidingWindowFusion(config, recording.T_w_c_vo[0])
    count = len(recording.Sigma_vo)
    steps = recording.steps(np.zeros(count, dtype=bool), with_rotations=True)
    poses = [recording.T_w_c_vo[0]]
    poses += [fusion.update(*measured).T_w_c for _, measured in progress(steps, count, name)]
    return np.array(poses)


def _figures(drive: RecordedDrive) -> dict[str, float]:
    nll, nees = metrics.mean_nll_and_nees(drive.errors, drive.Sigma)
    angles = np.degrees(np.linalg.norm(drive.errors, axis=1))
    figures = {"network.mean_deg": float(angles.mean()), "network.nll": nll, "network.nees": nees}
    for name, T_w_c in drive.trajectories.items():
        found = metrics.evaluate(T_w_c, drive.truth).as_dict()
        for key in COLUMNS:
            value = found[key]
            assert value is not None  # every recorded drive is longer than 800 m
            figures[f"{name}.{key}"] = value
    return figures


# --- output --------------------------------------------------------------------------------------


def _network_rows(figures: dict[str, float]) -> list[Row]:
    keys = ("mean_deg", "nll", "nees")
    return [
        {"sequence": name, **{key: figures[f"{name}.network.{key}"] for key in keys}}
        for name in SEQUENCES
    ]


def _fusion_rows(drives: dict[str, RecordedDrive], figures: dict[str, float]) -> list[Row]:
    return [
        {"sequence": name, "estimator": kind}
        | {key: figures[f"{name}.{kind}.{key}"] for key in COLUMNS}
        for name, drive in drives.items()
        for kind in drive.trajectories
    ]


def _report(drives: dict[str, RecordedDrive], figures: dict[str, float]) -> str:
    lines = [f"{'network':<16}{'mean error deg':>16}{'NLL':>10}"]
    for name in SEQUENCES:
        degrees, nll = (figures[f"{name}.network.{key}"] for key in ("mean_deg", "nll"))
        lines.append(f"{name:<16}{degrees:>16.3f}{nll:>10.2f}")
    lines.append(f"{'fusion':<16}" + "".join(f"{text:>10}" for text in COLUMNS.values()))
    for name, drive in drives.items():
        for kind in drive.trajectories:
            values = "".join(f"{figures[f'{name}.{kind}.{key}']:>10.2f}" for key in COLUMNS)
            lines.append(f"{name + ' ' + kind:<16}{values}")
    return "\n".join(lines)


def _plot_histograms(drives: dict[str, RecordedDrive]) -> Figure:
    figure, axes = grid(len(drives), 3, 3.0, 2.2)
    bins = np.linspace(-SHOWN_DEG, SHOWN_DEG, 81)
    for row, (name, drive) in zip(axes, drives.items(), strict=True):
        for i, each in enumerate(row):
            each.hist(np.degrees(drive.errors[:, i]), bins)
            each.set_title(f"{name}, about {AXES[i]}, deg", fontsize=8)
            each.set_yscale("log")
    return figure


def _plot_trajectory(drive: RecordedDrive) -> Figure:
    """From above, in the first camera's frame: the world's axes depend on the ground truth."""
    figure, ((axes,),) = grid(1, 1, 5.0, 5.0)
    T_c_w = lie.se3_inverse(drive.truth[0])
    for name, T_w_c in (("ground truth", drive.truth), *drive.trajectories.items()):
        style = {"color": "black"} if name == "ground truth" else {}
        x, _, z = (T_c_w @ T_w_c)[:, :3, 3].T
        axes.plot(x, z, linewidth=1.0, label=name, **style)
    axes.set_aspect("equal")
    axes.set_xlabel("x, m")
    axes.set_ylabel("z, m")
    axes.legend()
    return figure


def _plot_regression(drive: RecordedDrive) -> Figure:
    """Errors over the drive with 3 sigma: the covariance grows in turns."""
    part = slice(None, None, DOWNSAMPLING)
    sigma = np.degrees(np.sqrt(np.diagonal(drive.Sigma[part], axis1=1, axis2=2)))
    errors = np.degrees(drive.errors[part])
    frames = np.arange(len(drive.errors))[part].astype(np.float64)
    beyond = int((np.abs(errors) > SHOWN_DEG).any(axis=1).sum())
    label = f"frame ({beyond} of {len(errors)} have errors beyond {SHOWN_DEG:g} deg, not shown)"
    return error_bands(frames, errors, {"3 sigma": sigma}, label, SHOWN_DEG)
