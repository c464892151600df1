"""What a run has shown: one sentence, and one table of alone, fused and times better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hydranet_ros.evaluation.record import RunRecord

Figures = Mapping[str, Mapping[str, float | None]]

# What odometry is called, and what a reader calls it.
ODOMETRIES = {"wheels": "wheels", "visual": "visual odometry", "vo": "stereo odometry"}
# By what a reader judges a run, and the words for a sentence.
COMPARED = {
    "ate_deg": ("orientation, mean error", "deg"),
    "ate_m": ("position, mean error", "m"),
    "seg_deg_per_100m": ("drift of rotation", "deg/100 m"),
    "seg_pct": ("drift of position", "%"),
    "f2f_deg": ("rotation, frame to frame", "deg"),
}
WORDS = {
    "ate_deg": "orientation is off by {} deg",
    "ate_m": "position is off by {} m",
    "seg_deg_per_100m": "rotation drifts by {} deg in 100 m",
    "seg_pct": "position drifts by {} %",
    "f2f_deg": "rotations are off by {} deg from frame to frame",
}
SAME = 0.03  # a share by which two figures may differ and count as the same


class Gain(NamedTuple):
    """One figure of the odometry alone and fused."""

    label: str
    unit: str
    alone: float
    fused: float

    @property
    def times(self) -> float:
        """How many times better fused is; below 1 it is worse."""
        return self.alone / self.fused if self.fused > 0.0 else float("inf")


def gains(figures: Figures) -> dict[str, Gain]:
    """What both the odometry and the fusion have a figure of, by its key."""
    name = odometry_of(figures)
    if name is None or "fused" not in figures:
        return {}
    alone, fused = figures[name], figures["fused"]
    found = {}
    for key, label in COMPARED.items():
        before, after = alone.get(key), fused.get(key)
        if before is not None and after is not None:
            found[key] = Gain(*label, before, after)
    return found


def odometry_of(figures: Figures) -> str | None:
    """The name of the odometry that was fused."""
    return next((name for name in ODOMETRIES if name in figures), None)


def conclusion(record: RunRecord) -> str:
    """The result in one sentence."""
    found = gains(record.figures)
    if found:
        key, gain = max(found.items(), key=lambda each: _telling(each[1].times))
        alone = ODOMETRIES[odometry_of(record.figures) or "vo"]
        told = WORDS[key].format(f"{gain.fused:.3g}")
        return f"Fused, {told}, with {alone} alone {gain.alone:.3g}: {judged(gain.times)}."
    for name, row in record.figures.items():
        for key in COMPARED:
            if (value := row.get(key)) is not None:
                return f"With {ODOMETRIES.get(name, name)}, {WORDS[key].format(f'{value:.3g}')}."
    for name, errors in record.rotations.items():
        if len(errors.phi):
            mean = np.rad2deg(np.linalg.norm(errors.phi, axis=1)).mean()
            return (
                f"Rotations of {name} are off by {mean:.3g} deg from frame to frame, and their "
                f"NEES is {errors.nees.mean():.2g} (ideal 3)."
            )
    return "The truth is not known here, so errors cannot be told: see the trajectories."


def judged(times: float) -> str:
    """How many times better, in words."""
    if times > 1.0 + SAME:
        return f"{times:.3g} times better"
    return "the same" if times > 1.0 - SAME else f"{1.0 / times:.3g} times worse"


def _telling(times: float) -> float:
    """How much a gain or a loss says; of two alike the loss is told."""
    return abs(float(np.log(max(times, 1e-9)))) + (1e-6 if times < 1.0 else 0.0)
