"""The plots of a report: one look, fixed colours, the same bytes for the same run."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hydranet_ros.evaluation.record import RotationErrors, RunRecord
from hydranet_ros.geometry import chi_square, lie
from hydranet_ros.geometry.lie import Array

TRUTH, BAND = "#777777", "#c9d8ec"
COLOURS = {
    "ground truth": TRUTH,
    "vo": "#d1701f",
    "odometry": "#d1701f",
    "visual": "#d1701f",
    "wheels": "#d1701f",
    "fused": "#1f5fbf",
    "hydranet": "#2f8f4e",
    "rotation": "#2f8f4e",
}
SPARE = ("#8a3fbf", "#b0305c", "#4a7a8c", "#7a6a1f")
AXES = ("x", "y", "z")
WIDTH_IN, DPI = 6.4, 150  # at the width of a phone letters are still 9 px high


def colour(name: str) -> str:
    """Of a source, the same in every plot."""
    return COLOURS.get(name, SPARE[sum(name.encode()) % len(SPARE)])


def figure(height_in: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure that needs no display, and its axes row by row."""
    made = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False).ravel().tolist()
    for each in axes:
        each.grid(True, color="#e3e3e3", linewidth=0.6)
        each.set_axisbelow(True)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return made, axes


def chi2_quantile(share: Array | float, degrees_of_freedom: int) -> Array:
    """Below which a share of a chi-square distribution lies: all of it below infinity."""
    beyond = 1.0 - np.asarray(share)
    found = [chi_square.quantile(degrees_of_freedom, each) for each in beyond.ravel().tolist()]
    return np.array(found).reshape(beyond.shape)


# --- where it went -------------------------------------------------------------------------------


def top_down(record: RunRecord) -> Figure | None:
    """The trajectories from above: right and forward of the first camera."""
    if not record.trajectories:
        return None
    plot, (axes,) = figure(6.0)
    for name, T in record.from_start().items():
        truth = name == "ground truth"
        axes.plot(
            T[:, 0, 3],
            T[:, 2, 3],
            color=colour(name),
            linewidth=2.6 if truth else 1.5,
            alpha=0.45 if truth else 1.0,
            label=name,
            zorder=1 if truth else 2,
        )
    axes.plot(0.0, 0.0, "o", color="#222222", markersize=5)
    axes.annotate("start", (0.0, 0.0), textcoords="offset points", xytext=(6, 4))
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("right (m)")
    axes.set_ylabel("forward (m)")
    axes.legend(frameon=False)
    return plot


def pose_errors(record: RunRecord) -> Figure | None:
    """How far each trajectory is from the true one, over the distance driven."""
    paths = record.from_start()
    truth = paths.pop("ground truth", None)
    if truth is None or len(truth) < 2 or not paths:
        return None
    steps = np.linalg.norm(np.diff(truth[:, :3, 3], axis=0), axis=1)
    distance = np.concatenate([[0.0], np.cumsum(steps)])
    plot, (position, angle) = figure(4.8, rows=2)
    for name, T in paths.items():
        error = lie.se3_inverse(T) @ truth
        metres = np.linalg.norm(error[:, :3, 3], axis=1)
        degrees = np.rad2deg(np.linalg.norm(lie.so3_log(error[:, :3, :3]), axis=1))
        position.plot(distance, metres, color=colour(name), label=name)
        angle.plot(distance, degrees, color=colour(name), label=name)
    position.set_ylabel("position error (m)")
    angle.set_ylabel("rotation error (deg)")
    angle.set_xlabel("distance (m)")
    position.legend(frameon=False)
    return plot


# --- frame-to-frame rotations: errors, and whether their covariances are right -------------------

BINS = 41
# With fewer errors a histogram or a quantile says nothing.
FEWEST = 3


def errors_with_bounds(record: RunRecord, name: str) -> Figure | None:
    """Errors of one source about each axis within plus and minus three standard deviations."""
    errors = record.rotations[name]
    if not len(errors.phi):
        return None
    t, degrees = record.seconds(errors.stamps_ns), np.rad2deg(errors.phi)
    bound = 3.0 * np.rad2deg(errors.sigmas)
    plot, rows = figure(6.0, rows=3)
    for i, axes in enumerate(rows):
        axes.fill_between(t, -bound[:, i], bound[:, i], color=BAND, linewidth=0.0)
        axes.plot(t, degrees[:, i], color=colour(name), linewidth=0.9)
        inside = float(np.mean(np.abs(degrees[:, i]) <= bound[:, i]))
        axes.set_title(f"{100.0 * inside:.1f} % within 3 sigma", fontsize=9, loc="right")
        axes.set_ylabel(f"{AXES[i]} (deg)")
        axes.set_ylim(*_limits(degrees[:, i], bound[:, i]))
    rows[-1].set_xlabel("time (s)")
    return plot


def histograms(record: RunRecord, name: str) -> Figure | None:
    """Errors over their own standard deviations, against the normal distribution."""
    errors = record.rotations[name]
    if len(errors.phi) < FEWEST:
        return None
    plot, columns = figure(3.2, columns=3)
    x = np.linspace(-5.0, 5.0, 201)
    edges = np.linspace(-5.0, 5.0, BINS).tolist()
    for i, axes in enumerate(columns):
        scaled = errors.phi[:, i] / errors.sigmas[:, i]
        axes.hist(np.clip(scaled, -5.0, 5.0), edges, density=True, color=colour(name), alpha=0.6)
        axes.plot(x, np.exp(-0.5 * x**2) / np.sqrt(2.0 * np.pi), color="#222222", linewidth=1.2)
        degrees = np.rad2deg(errors.phi[:, i])
        axes.set_title(
            f"mean {degrees.mean():.4f} deg\nstd {degrees.std():.4f} deg", fontsize=9, loc="left"
        )
        axes.set_xlabel(f"{AXES[i]} error / sigma")
    return plot


def calibration(record: RunRecord) -> Figure | None:
    """Quantiles of the NEES, and how often the truth is in an ellipsoid that should hold it."""
    sources = {n: e for n, e in record.rotations.items() if len(e.phi) >= FEWEST}
    if not sources:
        return None
    plot, (quantiles, shares) = figure(4.0, columns=2)
    levels = np.linspace(0.0, 1.0, 101)
    top = float(chi2_quantile(0.999, 3))
    for name, errors in sources.items():
        nees = np.sort(errors.nees)
        expected = chi2_quantile((np.arange(len(nees)) + 0.5) / len(nees), 3)
        label = f"{name}: mean {nees.mean():.2f}"
        quantiles.plot(expected, nees, ".", markersize=3, color=colour(name), label=label)
        observed = np.searchsorted(nees, chi2_quantile(levels, 3), side="right") / len(nees)
        shares.plot(levels, observed, color=colour(name))
    quantiles.plot([0.0, top], [0.0, top], color="#222222", linewidth=1.0)
    shares.plot([0.0, 1.0], [0.0, 1.0], color="#222222", linewidth=1.0)
    quantiles.set_ylim(0.0, 2.0 * top)
    quantiles.set_xlabel("chi-square quantile, 3 degrees of freedom")
    quantiles.set_ylabel("NEES")
    quantiles.legend(frameon=False)
    shares.set_xlabel("share that should be inside")
    shares.set_ylabel("share that is")
    return plot


def uncertainty(record: RunRecord, name: str) -> Figure | None:
    """Standard deviations over time: the whole, its aleatoric and its epistemic part."""
    errors = record.rotations[name]
    if errors.epistemic is None or not len(errors.phi):
        return None
    t = record.seconds(errors.stamps_ns)
    plot, (axes,) = figure(2.8)
    for label, part, shade in (
        ("whole", errors.Sigma, colour(name)),
        ("aleatoric", errors.Sigma - errors.epistemic, "#888888"),
        ("epistemic", errors.epistemic, "#b0305c"),
    ):
        axes.plot(t, _mean_sigma(part), color=shade, linewidth=1.0, label=label)
    axes.set_ylabel("sigma (deg)")
    axes.set_xlabel("time (s)")
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False, ncols=3)
    return plot


def summary(errors: RotationErrors) -> dict[str, float]:
    """The figures behind the plots."""
    if not len(errors.phi):
        return {}
    return {
        "mean error (deg)": float(np.rad2deg(np.linalg.norm(errors.phi, axis=1)).mean()),
        "mean sigma (deg)": float(_mean_sigma(errors.Sigma).mean()),
        "NEES": float(errors.nees.mean()),
    }


def _mean_sigma(covariances: np.ndarray) -> np.ndarray:
    """(M,) root of the mean variance about the axes, in degrees."""
    return np.rad2deg(np.sqrt(np.maximum(np.trace(covariances, axis1=1, axis2=2), 0.0) / 3.0))


def _limits(values: np.ndarray, bound: np.ndarray) -> tuple[float, float]:
    """Show every error, and the usual bounds; one huge bound must not flatten the rest."""
    most = max(float(np.abs(values).max()), 2.0 * float(np.median(bound)), 1e-9)
    return -1.1 * most, 1.1 * most


# --- how the run went: consistency of the fusion, and time ---------------------------------------

LEVEL = 0.95
# Offsets below this are rounding.
LEAST_OFFSET_PX = 1e-3


def consistency(record: RunRecord) -> Figure | None:
    """NIS of each source over time, with the bound below which 95 % should be."""
    sources = {name: each for name, each in record.consistency.items() if len(each.nis)}
    if not sources:
        return None
    plot, rows = figure(1.0 + 2.2 * len(sources), rows=len(sources))
    for axes, (name, each) in zip(rows, sources.items(), strict=True):
        dof = each.degrees_of_freedom
        bound = float(chi2_quantile(LEVEL, dof))
        below = float(np.mean(each.nis <= bound))
        axes.plot(record.seconds(each.stamps_ns), each.nis, ".", color=colour(name), markersize=3)
        axes.axhline(bound, color="#222222", linewidth=1.0)
        axes.axhline(dof, color="#222222", linewidth=0.8, linestyle=":")
        axes.set_ylim(0.0, max(2.0 * bound, float(np.percentile(each.nis, 98))))
        axes.set_ylabel(f"NIS of {name}")
        title = f"mean {each.nis.mean():.2f} of {dof}, {100.0 * below:.1f} % below the 95 % bound"
        axes.set_title(title, fontsize=9, loc="right")
    rows[-1].set_xlabel("time (s)")
    return plot


def self_calibration(record: RunRecord) -> Figure | None:
    """The offsets over both images: arrows with a key, and their lengths as shades."""
    field = record.offsets
    if field is None or not len(field.pixels):
        return None
    sides = {"left": field.offsets[:, :2], "right": field.offsets[:, 2:]}
    lengths = {name: np.linalg.norm(each, axis=1) for name, each in sides.items()}
    most = max(float(each.max()) for each in lengths.values())
    if most < LEAST_OFFSET_PX:
        return None
    u, v = field.pixels.T
    width, height = float(np.ptp(u)) + 1.0, float(np.ptp(v)) + 1.0
    stacked = width > 1.6 * height  # wide images one above the other
    rows, columns = (2, 1) if stacked else (1, 2)
    each_in = WIDTH_IN * 0.8 / columns * height / width
    plot, panels = figure(rows * (each_in + 1.1), rows, columns)
    # The longest arrow reaches as far as the next two.
    step = width / len(np.unique(u))
    shown = None
    for axes, (name, offsets) in zip(panels, sides.items(), strict=True):
        axes.set_xlim(u.min() - 2.0 * step, u.max() + 2.0 * step)
        axes.set_ylim(v.max() + step, v.min() - step)  # v points down
        axes.set_aspect("equal")
        axes.add_patch(
            Rectangle((u.min(), v.min()), width, height, fill=False, edgecolor="#999999")
        )
        shown = axes.quiver(
            u, v, offsets[:, 0], offsets[:, 1], lengths[name],
            angles="xy", scale_units="xy", scale=most / (2.0 * step), cmap="viridis",
            clim=(0.0, most), width=0.003,
        )  # fmt: skip
        key = float(f"{0.5 * most:.1g}")
        axes.quiverkey(shown, 0.88, 1.05, key, f"{key:g} px", labelpos="E", coordinates="axes")
        axes.set_title(
            f"{name} image: up to {lengths[name].max():.2f} px", fontsize=10, loc="left"
        )
        axes.set_xlabel("u (px)")
        axes.set_ylabel("v (px)")
    assert shown is not None
    plot.colorbar(shown, ax=panels, label="offset (px)", shrink=0.8)
    return plot


def timing(record: RunRecord) -> Figure | None:
    """Latencies frame by frame, and their distribution."""
    known = {name: values for name, values in record.latencies_ms.items() if len(values)}
    if not known:
        return None
    plot, (over_time, shares) = figure(3.4, columns=2)
    for name, values in known.items():
        p50, p95 = np.percentile(values, [50, 95])
        label = f"{name}: p50 {p50:.0f}, p95 {p95:.0f} ms"
        over_time.plot(values, color=colour(name), linewidth=0.8)
        share = (np.arange(len(values)) + 1.0) / len(values)
        shares.plot(np.sort(values), share, color=colour(name), label=label)
    over_time.set_xlabel("frame")
    over_time.set_ylabel("latency (ms)")
    over_time.set_ylim(bottom=0.0)
    shares.set_xlabel("latency (ms)")
    shares.set_ylabel("share of frames")
    shares.set_xlim(left=0.0)
    over_time.set_ylim(top=1.35 * over_time.get_ylim()[1])
    over_time.legend(*shares.get_legend_handles_labels(), frameon=False, fontsize=8)
    return plot
