"""The figures of a run as tables to read."""

from __future__ import annotations

from typing import Any

import numpy as np

from hydranet_ros.cli.evaluate import table
from hydranet_ros.geometry import metrics
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array

_GROUPS = 4
_WITHIN = {1: 68.3, 2: 95.4, 3: 99.7}  # per cent of a normal distribution


def figures_table(figures: dict[str, Any]) -> str:
    """Trajectories, then rotations."""
    lines = []
    for name in ("vo", "fused"):
        if name in figures:
            lines += [f"{name}:", table(figures[name])]
    if "rotation" in figures:
        lines.append("rotation:")
        for name, value in figures["rotation"].items():
            numbers = value if isinstance(value, (tuple, list)) else [value]
            text = " ".join("-" if each is None else f"{each:.4f}" for each in numbers)
            lines.append(f"{name:>20} {text}")
    return "\n".join(lines)


def calibration_table(rotations: list[RelativeRotation], truth: Array) -> str:
    """Show how often errors are within sigma, and how they grow with it."""
    phi = metrics.rotation_errors(np.array([each.C_2_1 for each in rotations]), truth)
    Sigma = np.array([each.Sigma_2_1 for each in rotations])
    sigma = np.sqrt(np.diagonal(Sigma, axis1=1, axis2=2))
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
