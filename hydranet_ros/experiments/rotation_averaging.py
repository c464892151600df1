"""Three metrics on rotations and their means side by side: the paper's appendix A.

    hydranet experiment rotation-averaging --check     a few seconds

Expected: the metrics are theta, 2 sin(theta / 4) and 2 sqrt(2) sin(theta / 2) to rounding; the
three means are equally accurate to 1 % up to a scatter of 20 deg; the quaternion mean is the true
minimum for every set that lies within 90 deg of a centre, and not for all sets beyond; in a batch
it is the fastest of the three.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from hydranet_ros.experiments.outcome import Outcome, Row, grid
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, dump, setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPECTED = {
    "metric_defect": (0.0, 1e-12),
    "accuracy_ratio.quaternion.20_deg": (0.99, 1.01),
    "accuracy_ratio.chordal.20_deg": (0.99, 1.01),
    "right_share.aligned.85_deg": (1.0, 1.0),
    "right_share.aligned.135_deg": (0.0, 0.9),
    "right_share.unaligned.85_deg": (0.0, 0.9),
    "cost_excess.quaternion": (-1e-12, 1e-12),
}
SCATTER_DEG = 1.0, 5.0, 10.0, 20.0, 40.0, 60.0
RADIUS_DEG = tuple(range(15, 181, 10))
FEW = 8  # rotations in a set whose true mean is found by trying all signs


@dataclass(frozen=True)
class RotationAveragingSettings(Configuration):
    """How many sets of how many rotations."""

    seed: int = setting(0, "seed of the rotations")
    sets: int = setting(4000, "sets of rotations", 1)
    rotations: int = setting(25, "rotations in a set", 1)

    def quick(self) -> RotationAveragingSettings:
        """Fewer sets."""
        return replace(self, sets=1000)


def run(settings: RotationAveragingSettings, quick: bool = False) -> Outcome:
    """Compare the metrics, the means and the signs."""
    settings = settings.quick() if quick else settings
    rng = np.random.default_rng(settings.seed)
    accuracy = [_accuracy(rng, settings, scatter) for scatter in SCATTER_DEG]
    domain = [_domain(rng, settings, radius) for radius in RADIUS_DEG]
    timing = _timing(rng, settings)
    figures = {"metric_defect": metric_defect(rng), "cost_excess.quaternion": _excess(rng)}
    for row in accuracy:
        for name in ("quaternion", "chordal"):
            ratio = float(row[name]) / float(row["karcher"])
            figures[f"accuracy_ratio.{name}.{row['scatter_deg']:g}_deg"] = ratio
    for row in domain:
        for name in ("aligned", "unaligned"):
            figures[f"right_share.{name}.{row['radius_deg']:g}_deg"] = row[name]
    return Outcome(
        figures,
        _report(accuracy, domain, timing),
        {"quick": quick, **dump(settings)},
        EXPECTED,
        {"accuracy": list[Row](accuracy), "domain": list[Row](domain)},
        {"accuracy": lambda: _plot_accuracy(accuracy), "domain": lambda: _plot_domain(domain)},
        timing,
    )


def metric_defect(rng: np.random.Generator) -> float:
    """How far the three metrics are from their formulas in the angle, at most."""
    theta = rng.uniform(0.0, np.pi, 1000)
    axis = rng.normal(size=(1000, 3))
    phi = axis / np.linalg.norm(axis, axis=1, keepdims=True) * theta[:, None]
    q_b = _random_quaternions(rng, 1000)
    q_a = lie.quaternion_multiply(lie.quaternion_exp(phi), q_b)
    R_a, R_b = lie.quaternion_to_matrix(q_a), lie.quaternion_to_matrix(q_b)
    defects = (
        lie.angular_distance(R_a, R_b) - theta,
        lie.quaternionic_distance(q_a, q_b) - 2.0 * np.sin(theta / 4.0),
        lie.chordal_distance(R_a, R_b) - 2.0 * np.sqrt(2.0) * np.sin(theta / 2.0),
    )
    return float(np.max(np.abs(defects)))


# --- accuracy and speed --------------------------------------------------------------------------


def _means(quaternions: Array) -> dict[str, Callable[[], Array]]:
    """The three means of sets (..., n, 4), as rotations (..., 3, 3)."""
    rotations = lie.quaternion_to_matrix(quaternions)
    return {
        "quaternion": lambda: lie.quaternion_to_matrix(lie.quaternion_mean(quaternions)),
        "chordal": lambda: lie.chordal_mean(rotations),
        "karcher": lambda: lie.karcher_mean(rotations),
    }


def _accuracy(
    rng: np.random.Generator, settings: RotationAveragingSettings, scatter_deg: float
) -> dict[str, float]:
    """Mean error of each mean, in deg, over sets scattered about random rotations."""
    centre = _random_quaternions(rng, settings.sets)
    sigma = np.radians(scatter_deg) / np.sqrt(3.0)  # the root mean square angle is scatter_deg
    noise = lie.quaternion_exp(sigma * rng.normal(size=(settings.sets, settings.rotations, 3)))
    quaternions = lie.quaternion_multiply(noise, centre[:, None])
    truth = lie.quaternion_to_matrix(centre)
    found = {"scatter_deg": scatter_deg}
    for name, mean in _means(quaternions).items():
        found[name] = float(np.degrees(lie.angular_distance(mean(), truth)).mean())
    return found


def _timing(rng: np.random.Generator, settings: RotationAveragingSettings) -> dict[str, float]:
    """Microseconds of one mean, alone and in a batch: the best of five."""
    timing = {}
    for label, sets in (("alone", 1), ("batch", settings.sets)):
        noise = lie.quaternion_exp(0.1 * rng.normal(size=(sets, settings.rotations, 3)))
        for name, mean in _means(noise).items():
            timing[f"{label}_us.{name}"] = 1e6 * min(_seconds(mean) for _ in range(5)) / sets
    return timing


def _seconds(call: Callable[[], Array]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --- where the quaternion mean is the minimum ----------------------------------------------------


def true_mean(quaternions: Array) -> Array:
    """argmin_q sum d_quat(q_i, q)^2 of few quaternions (..., n, 4), by trying all signs.

    d_quat^2 = 2 - 2 |q . q_i|, so the minimum is along the longest of the sums of +-q_i.
    """
    count = quaternions.shape[-2]
    signs = np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=count - 1)])
    sums = signs @ quaternions  # (..., 2^(n-1), 4)
    lengths = np.linalg.norm(sums, axis=-1)
    best = np.argmax(lengths, axis=-1)[..., None, None]
    longest = np.take_along_axis(sums, best, axis=-2)[..., 0, :]
    return lie.quaternion_positive(longest / np.linalg.norm(longest, axis=-1, keepdims=True))


def _domain(
    rng: np.random.Generator, settings: RotationAveragingSettings, radius_deg: float
) -> dict[str, float]:
    """How often the normalised sum is the minimum, for sets within a radius of a centre."""
    centre = _random_quaternions(rng, settings.sets)
    axes = rng.normal(size=(settings.sets, FEW, 3))
    axes /= np.linalg.norm(axes, axis=-1, keepdims=True)
    angles = np.radians(radius_deg) * rng.uniform(size=(settings.sets, FEW, 1)) ** (1.0 / 3.0)
    q = lie.quaternion_multiply(lie.quaternion_exp(angles * axes), centre[:, None])
    q = lie.quaternion_positive(q)
    truth = true_mean(q)
    total = q.sum(axis=1)
    unaligned = total / np.linalg.norm(total, axis=1, keepdims=True)
    return {
        "radius_deg": float(radius_deg),
        "aligned": _equal_share(lie.quaternion_mean(q), truth),
        "unaligned": _equal_share(unaligned, truth),
    }


def _equal_share(a: Array, b: Array) -> float:
    return float(np.mean(lie.quaternionic_distance(a, b) < 1e-9))


def _excess(rng: np.random.Generator) -> float:
    """Cost of the quaternion mean over the least cost nearby, for sets within 90 deg."""
    noise = lie.quaternion_exp(0.3 * rng.normal(size=(200, FEW, 3)))
    mean = lie.quaternion_mean(noise)

    def cost(q: Array) -> Array:
        return np.sum(lie.quaternionic_distance(noise, q[:, None]) ** 2, axis=1)

    steps = lie.quaternion_exp(1e-3 * rng.normal(size=(20, 200, 3)))
    least = np.min([cost(lie.quaternion_multiply(step, mean)) for step in steps], axis=0)
    return float(np.max(np.maximum(cost(mean) - least, 0.0)))


def _random_quaternions(rng: np.random.Generator, count: int) -> Array:
    q = rng.normal(size=(count, 4))
    return lie.quaternion_positive(q / np.linalg.norm(q, axis=1, keepdims=True))


# --- output --------------------------------------------------------------------------------------


def _report(
    accuracy: list[dict[str, float]], domain: list[dict[str, float]], timing: dict[str, float]
) -> str:
    names = ("quaternion", "chordal", "karcher")
    lines = [f"{'mean error, deg':<26}" + "".join(f"{name:>12}" for name in names)]
    for row in accuracy:
        label = f"scatter {row['scatter_deg']:g} deg"
        lines.append(f"{label:<26}" + "".join(f"{row[name]:>12.4f}" for name in names))
    for label, text in (("alone", "one mean, us"), ("batch", "one mean of a batch, us")):
        values = "".join(f"{timing[f'{label}_us.{name}']:>12.2f}" for name in names)
        lines.append(f"{text:<26}{values}")
    lines.append(
        "share of sets whose normalised sum is the minimum (signs aligned / w >= 0 only):"
    )
    lines += [
        f"  within {row['radius_deg']:g} deg: {row['aligned']:.3f} / {row['unaligned']:.3f}"
        for row in domain
    ]
    return "\n".join(lines)


def _plot_accuracy(rows: list[dict[str, float]]) -> Figure:
    figure, ((axes,),) = grid(1, 1, 5.0, 3.5)
    for name in ("quaternion", "chordal", "karcher"):
        axes.loglog([r["scatter_deg"] for r in rows], [r[name] for r in rows], "o-", label=name)
    axes.set_xlabel("scatter of the rotations, deg")
    axes.set_ylabel("mean error of the mean, deg")
    axes.legend()
    return figure


def _plot_domain(rows: list[dict[str, float]]) -> Figure:
    figure, ((axes,),) = grid(1, 1, 5.0, 3.5)
    for name, label in (("aligned", "signs aligned"), ("unaligned", "w >= 0 only")):
        axes.plot([r["radius_deg"] for r in rows], [r[name] for r in rows], "o-", label=label)
    axes.axvline(90.0, color="black", linewidth=0.8)
    axes.set_xlabel("all rotations within this angle of a centre, deg")
    axes.set_ylabel("share of sets with the right mean")
    axes.legend()
    return figure
