"""Plots of frame-to-frame rotations: their errors, and whether their covariances are right."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import chi2, norm

from hydranet_ros.report.record import RotationErrors, RunRecord
from hydranet_ros.report.style import AXES, BAND, colour, figure

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
        axes.plot(x, norm.pdf(x), color="#222222", linewidth=1.2)
        degrees = np.rad2deg(errors.phi[:, i])
        axes.set_title(f"mean {degrees.mean():.4f}, std {degrees.std():.4f} deg", fontsize=9)
        axes.set_xlabel(f"{AXES[i]} error / sigma")
    return plot


def calibration(record: RunRecord) -> Figure | None:
    """Quantiles of the NEES, and how often the truth is in an ellipsoid that should hold it."""
    sources = {n: e for n, e in record.rotations.items() if len(e.phi) >= FEWEST}
    if not sources:
        return None
    plot, (quantiles, shares) = figure(4.0, columns=2)
    levels = np.linspace(0.0, 1.0, 101)
    top = float(chi2.ppf(0.999, 3))
    for name, errors in sources.items():
        nees = np.sort(errors.nees)
        expected = chi2.ppf((np.arange(len(nees)) + 0.5) / len(nees), 3)
        label = f"{name}: mean {nees.mean():.2f}"
        quantiles.plot(expected, nees, ".", markersize=3, color=colour(name), label=label)
        observed = np.searchsorted(nees, chi2.ppf(levels, 3), side="right") / len(nees)
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


def doubts(record: RunRecord, name: str) -> Figure | None:
    """Standard deviations over time, and how much of them is doubt of the model."""
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
