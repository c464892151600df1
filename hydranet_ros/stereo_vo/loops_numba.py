"""The inner loops of `motion`, `front_end`, `calibration`, compiled by numba where installed.

The same numbers in double precision, point by point, without arrays in between.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.loops_numba import solve_in_place

Lens = tuple[float, float, float, float, float]  # fx, fy, cx, cy, fx times the baseline

_fast = numba.njit(cache=True, error_model="numpy", nogil=True)


# --- three-point samples -------------------------------------------------------------------------


@_fast
def fit_samples(
    points: Array,
    measured: Array,
    guess: Array,
    samples: NDArray[np.int64],
    iterations: int,
    lens: Lens,
    damping: float,
    max_step: float,
    nearest: float,
) -> Array:
    """A motion for each sample, by Gauss-Newton: `fit_samples` of `motion`, and its constants."""
    poses = np.zeros((len(samples), 4, 4))
    A, step, J = np.empty((6, 6)), np.empty(6), np.empty((3, 6))
    p, e = np.empty(3), np.empty(3)
    for k in range(len(samples)):
        pose = poses[k]
        pose[:] = guess
        for _ in range(iterations):
            A[:], step[:] = 0.0, 0.0
            for row in range(6):
                A[row, row] = damping
            for i in samples[k]:
                _moved(pose, points[i], nearest, p)
                _left_over(p, measured[i], lens, e)
                _derivatives(p, lens, J)
                for row in range(6):
                    for part in range(3):
                        step[row] += J[part, row] * e[part]
                        for column in range(row + 1):
                            A[row, column] += J[part, row] * J[part, column]
            solve_in_place(A, step)
            for row in range(6):
                step[row] = min(max(step[row], -max_step), max_step)
            _turn(step, pose)
    return poses


@_fast
def costs(
    points: Array, measured: Array, poses: Array, limit: float, lens: Lens, nearest: float
) -> Array:
    """(h,) squared errors, each no larger than that of `limit` pixels, summed over the points."""
    found = np.zeros(len(poses))
    p, e = np.empty(3), np.empty(3)
    for k in range(len(poses)):
        total = 0.0
        for i in range(len(points)):
            _moved(poses[k], points[i], nearest, p)
            _left_over(p, measured[i], lens, e)
            total += min(e[0] * e[0] + e[1] * e[1] + e[2] * e[2], limit * limit)
        found[k] = total
    return found


@_fast
def _moved(pose: Array, point: Array, nearest: float, out: Array) -> None:
    for i in range(3):
        out[i] = pose[i, 3]
        for j in range(3):
            out[i] += pose[i, j] * point[j]
    out[2] = max(out[2], nearest)


@_fast
def _left_over(p: Array, measured: Array, lens: Lens, out: Array) -> None:
    fx, fy, cx, cy, depth = lens
    inverse = 1.0 / p[2]
    u = fx * p[0] * inverse + cx
    out[0] = measured[0] - u
    out[1] = measured[1] - (fy * p[1] * inverse + cy)
    out[2] = measured[2] - (u - depth * inverse)


@_fast
def _derivatives(p: Array, lens: Lens, J: Array) -> None:
    """Put d pi / d p [I, -hat(p)] into J."""
    fx, fy, _, _, depth = lens
    inverse = 1.0 / p[2]
    J[0, 0], J[0, 1], J[0, 2] = fx * inverse, 0.0, -fx * p[0] * inverse * inverse
    J[1, 0], J[1, 1], J[1, 2] = 0.0, fy * inverse, -fy * p[1] * inverse * inverse
    J[2, 0], J[2, 1], J[2, 2] = J[0, 0], 0.0, J[0, 2] + depth * inverse * inverse
    for i in range(3):
        J[i, 3] = J[i, 2] * p[1] - J[i, 1] * p[2]
        J[i, 4] = J[i, 0] * p[2] - J[i, 2] * p[0]
        J[i, 5] = J[i, 1] * p[0] - J[i, 0] * p[1]


@_fast
def _turn(xi: Array, pose: Array) -> None:
    """Put Exp(xi) pose into pose: with x = hat(phi), C = 1 + a x + b x^2, J = 1 + b x + c x^2."""
    x, y, z = xi[3], xi[4], xi[5]
    square = x * x + y * y + z * z
    angle = math.sqrt(square)
    if angle < 1e-3:
        a, b = 1.0 - square / 6.0, 0.5 - square / 24.0
        c = 1.0 / 6.0 - square / 120.0
    else:
        a, b = math.sin(angle) / angle, 2.0 * (math.sin(0.5 * angle) / angle) ** 2
        c = (1.0 - a) / square
    for column in range(4):
        u, v, w = pose[0, column], pose[1, column], pose[2, column]
        i, j, k = y * w - z * v, z * u - x * w, x * v - y * u
        pose[0, column] = u + a * i + b * (y * k - z * j)
        pose[1, column] = v + a * j + b * (z * i - x * k)
        pose[2, column] = w + a * k + b * (x * j - y * i)
    u, v, w = xi[0], xi[1], xi[2]
    i, j, k = y * w - z * v, z * u - x * w, x * v - y * u
    pose[0, 3] += u + b * i + c * (y * k - z * j)
    pose[1, 3] += v + b * j + c * (z * i - x * k)
    pose[2, 3] += w + b * k + c * (x * j - y * i)


# --- features ------------------------------------------------------------------------------------


@_fast
def nearest_disparity(pixels: Array, known: Array, disparities: Array) -> Array:
    """For (n, 2) pixels, the disparity of the nearest of (m, 2) known ones."""
    found = np.empty(len(pixels))
    for i in range(len(pixels)):
        best, least = 0, math.inf
        for j in range(len(known)):
            x, y = pixels[i, 0] - known[j, 0], pixels[i, 1] - known[j, 1]
            square = x * x + y * y
            if square < least:
                best, least = j, square
        found[i] = disparities[best]
    return found


# --- what a calibration leaves -------------------------------------------------------------------


@_fast
def field(pixels: Array, lens: Lens, held: float) -> Array:
    """(n, 2, 11): `_field` of `calibration`."""
    fx, fy, cx, cy, _ = lens
    out = np.empty((len(pixels), 2, 11))
    for i in range(len(pixels)):
        x, y = (pixels[i, 0] - cx) / fx, (pixels[i, 1] - cy) / fy
        xx, xy, yy = x * x, x * y, y * y
        r2 = xx + yy
        radial = r2 - held, r2 * r2 - held * held, r2 * r2 * r2 - held * held * held
        right, down = out[i, 0], out[i, 1]
        right[0], right[1], right[2], right[3], right[4], right[5] = 1.0, 0.0, -y, x, xx, xy
        down[0], down[1], down[2], down[3], down[4], down[5] = 0.0, 1.0, x, y, xy, yy
        right[6], right[7] = 3.0 * xx + yy, 2.0 * xy
        down[6], down[7] = 2.0 * xy, xx + 3.0 * yy
        for k in range(3):
            right[8 + k], down[8 + k] = x * radial[k], y * radial[k]
        for k in range(11):
            right[k] *= fx
            down[k] *= fy
    return out
