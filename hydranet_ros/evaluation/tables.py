"""The figures of a run as tables to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hydranet_ros.evaluation.record import RotationErrors

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
_GROUPS = 4
_WITHIN = {1: 68.3, 2: 95.4, 3: 99.7}  # per cent of a normal distribution


def trajectory_table(figures: Mapping[str, float | None]) -> str:
    """One figure of a trajectory per line, with its unit."""
    rows = []
    for key, value in figures.items():
        label, unit = LABELS[key]
        shown = "path shorter than 100 m" if value is None else f"{value:.4g} {unit}"
        rows.append(f"{label:<26}{shown}")
    return "\n".join(rows)


def figures_table(figures: Mapping[str, Any]) -> str:
    """Trajectories, then rotations."""
    lines = []
    for name in ("vo", "visual", "wheels", "fused"):
        if name in figures:
            lines += [f"{name}:", trajectory_table(figures[name])]
    for name, found in figures.get("calibration", {}).items():
        lines.append(calibration_line(name, found))
    if "rotation" in figures:
        lines.append("rotation:")
        for name, value in figures["rotation"].items():
            numbers = value if isinstance(value, (tuple, list)) else [value]
            text = " ".join("-" if each is None else f"{each:.4f}" for each in numbers)
            lines.append(f"{name:>20} {text}")
    if figures.get("rotation_over"):
        lines.append(blocks_table(figures["rotation_over"]))
    return "\n".join(lines)


# Columns of the table of a run: (key of a trajectory, key of the rotations, header).
RUN_COLUMNS = (
    ("ate_m", None, "ATE m"),
    ("ate_deg", None, "ATE deg"),
    ("devkit_pct", None, "segments %"),
    ("devkit_deg_per_100m", None, "deg/100 m"),
    ("f2f_deg", "mean_deg", "step deg"),
    ("nees", "nees", "NEES"),
)


def run_table(figures: Mapping[str, Any]) -> str:
    """The figures of a run in at most six lines: a row for each estimate, and what was found."""
    rows = [("", *(header for _, _, header in RUN_COLUMNS))]
    for name in ("vo", "visual", "wheels", "fused"):
        if name in figures:
            known = [figures[name].get(key) for key, _, _ in RUN_COLUMNS]
            rows.append((name, *(_short(each) for each in known)))
    turned = figures.get("rotation")
    if turned is not None:
        known = [None if key is None else turned.get(key) for _, key, _ in RUN_COLUMNS]
        rows.append(("gyro", *(_short(each) for each in known)))
    lines = ["".join([f"{row[0]:<8}", *(f"{cell:>11}" for cell in row[1:])]) for row in rows]
    over = figures.get("rotation_over") or {}
    told = [
        f"{n} {each['mean_deg']:.3f} deg (NEES {each['nees']:.1f})" for n, each in over.items()
    ]
    if told:
        lines.append(f"gyro over frames: {', '.join(told)}")
    found = [calibration_line(name, each) for name, each in figures.get("calibration", {}).items()]
    return "\n".join([*lines, *(["; ".join(found)] if found else [])])


def _short(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


def calibration_line(name: str, found: Mapping[str, float]) -> str:
    """An error of scale or a bias that was found, with its sigma."""
    if "scale_error" not in found:
        return f"{name}: {found['deg_s']:+.3f} deg/s +- {found['sigma']:.3f} deg/s"
    share, sigma = 100.0 * found["scale_error"], 100.0 * found["sigma"]
    return f"scale of {name}: {share:+.2f} % +- {sigma:.2f} %"


# What to do with each in the configuration of a robot.
REMEDIES = {
    "gyro": ("focal_length_factor", "multiply fx and fy of the camera by it"),
    "yaw": ("track_factor", "multiply the track of the wheels by it"),
    "distance": ("radius_factor", "divide the radius of the wheels, or the way per count, by it"),
}


def robot_calibration(calibration: Mapping[str, Mapping[str, float]]) -> str:
    """A file (YAML) of what was found, as a user puts it into the configuration of a robot."""
    lines = ["# Found by the fusion. sigma is one standard deviation; wait until it is small."]
    for name, found in calibration.items():
        if "scale_error" in found:
            key, remedy = REMEDIES[name]
            value = f"{1.0 + found['scale_error']:.5f}"
        else:
            key, remedy = name.replace(" ", "_") + "_deg_s", "subtract it from the rate"
            value = f"{found['deg_s']:.4f}"
        sigma = f"{found['sigma']:.5f}"
        lines += [f"{key}:  # {remedy}", f"  value: {value}", f"  sigma: {sigma}"]
    return "\n".join(lines) + "\n"


def blocks_table(blocks: Mapping[str, Mapping[str, Any]]) -> str:
    """Rotations chained over blocks of frames: a line per length."""
    lines = ["rotation over frames:", "  frames blocks  mean deg     NEES   bias deg/frame x y z"]
    for frames, each in blocks.items():
        bias = " ".join(f"{value:8.4f}" for value in each["bias_deg"])
        numbers = f"{each['mean_deg']:9.4f} {each['nees']:8.2f}"
        lines.append(f"{frames:>8} {each['blocks']:>6} {numbers}   {bias}")
    return "\n".join(lines)


def comparison_table(
    figures: Mapping[str, Any],
    rows: Mapping[str, str],
    columns: Mapping[str, str],
    width: int = 15,
    digits: int = 2,
) -> str:
    """A row for each estimate, a column for each figure, with the labels given."""
    table: list[tuple[str, ...]] = [("", *columns.values())]
    for name, label in rows.items():
        values = [figures[name].get(key) for key in columns]
        cells = ["-" if value is None else f"{value:.{digits}f}" for value in values]
        table.append((label, *cells))
    return "\n".join("".join(f"{cell:>{width}}" for cell in row) for row in table)


def calibration_table(errors: RotationErrors) -> str:
    """Show how often errors are within sigma, and how they grow with it."""
    phi, sigma = errors.phi, errors.sigmas
    lines = ["calibration:", "              within   x %    y %    z %   expected"]
    for times, expected in _WITHIN.items():
        share = 100.0 * (np.abs(phi) <= times * sigma).mean(axis=0)
        cells = " ".join(f"{each:6.1f}" for each in share)
        lines.append(f"{times:>13} sigma {cells} {expected:8.1f}")
    size = np.sqrt((sigma**2).sum(axis=1))
    lines.append("  frames by sigma: said deg  found deg")
    groups = min(_GROUPS, len(size))
    for part in np.array_split(np.argsort(size, kind="stable"), groups):
        said = np.degrees(np.sqrt((size[part] ** 2).mean()))
        found = np.degrees(np.sqrt((phi[part] ** 2).sum(axis=1).mean()))
        lines.append(f"{len(part):>16} {said:10.4f} {found:10.4f}")
    return "\n".join(lines)
