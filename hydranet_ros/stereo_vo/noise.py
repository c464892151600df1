"""How precise a track is: the covariance of its stereo reprojection error.

Tracking defines a feature in the previous left image and follows it to the current one with noise
sigma_t; each of the two stereo matches adds sigma_s to a right pixel. So, for (u, v, u_right),

    Sigma_1  = sigma_s1^2 E,                                    E = diag(0, 0, 1),
    Sigma_2  = sigma_t^2 (c c^T + diag(0, 1, 0)) + sigma_s2^2 E,    c = (1, 0, 1),
    Sigma_21 = rho sigma_s1 sigma_s2 E,

and with A = d y2 / d y1 through the point, the error of y2 against its prediction has covariance

    Sigma_2 + A Sigma_1 A^T - Sigma_21 A^T - A Sigma_21^T.

Both ends are noisy, the structure is marginalised out to first order, and no depth is believed
more than its disparity allows (depths taken as exact bias the translation). The term in rho is
there because a stereo match errs alike in successive frames: it is the same slanted surface in
front of the same background. Such errors do not show in the residuals but do bend the motion.

A window that changes between two images is matched less well. With w its side, a point that comes
nearer by a ratio z1/z2 moves the window's edge by |z1/z2 - 1| w/2 pixels, and a surface at 45
degrees to the view moves it by d w/(2 f) between left and right (d the disparity). The standard
deviation grows as sqrt(1 + (edge / edge_px)^2), with edge_px about half a pixel. (Of the motion of
a window's centre, instead of its texture's centroid, it would be a quarter: see front_end.py.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hydranet_ros.geometry.lie import Array

# rho, and how much larger stereo noise is along the row than across it (slanted surfaces shift
# along the row only): both measured on rendered streets, where the true disparities are known.
PERSISTENCE = 0.85
ROW_RATIO = 2.2


@dataclass(frozen=True)
class TrackNoise:
    """Standard deviations for an unchanged window, and what a change of the window adds."""

    tracking_px: float
    stereo_px: float
    edge_px: float
    window_px: float

    def with_rows(self, rows: Array, disparity: Array, focal_px: float) -> TrackNoise:
        """The same with the stereo noise that (n,) row errors show, if that is larger."""
        growth = self.stereo_variance(disparity, focal_px) / self.stereo_px**2
        scatter = 1.4826 * float(np.median(np.abs(rows - np.median(rows)) / np.sqrt(growth)))
        return replace(self, stereo_px=max(self.stereo_px, ROW_RATIO * scatter))

    def tracking_variance(self, depth_ratio: Array) -> Array:
        """sigma_t^2 of tracks whose depth changes by (n,) ratios z1/z2."""
        return self.tracking_px**2 * self._growth((depth_ratio - 1.0) * self.window_px / 2.0)

    def stereo_variance(self, disparity: Array, focal_px: float) -> Array:
        """sigma_s^2 of matches with (n,) disparities."""
        return self.stereo_px**2 * self._growth(disparity * self.window_px / (2.0 * focal_px))

    def _growth(self, edge: Array) -> Array:
        return 1.0 + (edge / self.edge_px) ** 2


def error_covariance(through: Array, tracking: Array, stereo_1: Array, stereo_2: Array) -> Array:
    """The covariance above, (n, 3, 3), from (n, 3, 3) A and (n,) variances."""
    column = through[:, :, 2]
    out = stereo_1[:, None, None] * column[:, :, None] * column[:, None, :]
    shared = (PERSISTENCE * np.sqrt(stereo_1 * stereo_2))[:, None] * column
    out[:, 2, :] -= shared
    out[:, :, 2] -= shared
    out[:, 0, 0] += tracking
    out[:, 1, 1] += tracking
    out[:, 0, 2] += tracking
    out[:, 2, 0] += tracking
    out[:, 2, 2] += tracking + stereo_2
    return out


def inverse_3x3(matrix: Array) -> Array:
    """Inverses of (n, 3, 3) symmetric matrices by cofactors; LAPACK costs ten times as much."""
    a, b, c = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 0, 2]
    d, e, f = matrix[:, 1, 1], matrix[:, 1, 2], matrix[:, 2, 2]
    aa, ab, ac = d * f - e * e, c * e - b * f, b * e - c * d
    out = np.stack(
        [aa, ab, ac, ab, a * f - c * c, b * c - a * e, ac, b * c - a * e, a * d - b * b]
    )
    return np.asarray((out / (a * aa + b * ab + c * ac)).T.reshape(-1, 3, 3))
