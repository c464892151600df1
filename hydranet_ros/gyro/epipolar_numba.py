"""The inner loops of `epipolar_numpy`, compiled by numba where it is installed (extra `fast`).

The same sums in double precision, cell by cell, without arrays in between. Compiled once and kept
in a cache; the first call of all takes some seconds.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.loops_numba import solve_in_place
from hydranet_ros.gyro.search_settings import EPIPOLE

Field = NDArray[Any]

_FACTORS = 16  # of a product whose logarithm is taken: far from overflow
# Sums may be taken in any order, which vector registers need; nothing else is assumed of numbers.
_MATHS = {"reassoc", "contract", "arcp", "nsz"}
_fast = numba.njit(cache=True, fastmath=_MATHS, error_model="numpy", nogil=True)
# For what compiled functions call: of two compiled copies either may be taken, with its order of
# sums.
_exact = numba.njit(cache=True, error_model="numpy", nogil=True)


@_fast
def _placed(
    C: Field, t: Field, x_1: float, y_1: float, x_2: float, y_2: float
) -> tuple[float, float, float, float, float, float, float]:
    """Where C sees a cell, what is left of its flow, the direction d of its epipolar line."""
    behind = 1.0 / max(C[2, 0] * x_1 + C[2, 1] * y_1 + C[2, 2], 0.1)
    x = (C[0, 0] * x_1 + C[0, 1] * y_1 + C[0, 2]) * behind
    y = (C[1, 0] * x_1 + C[1, 1] * y_1 + C[1, 2]) * behind
    p, q = t[0] - x * t[2], t[1] - y * t[2]
    size = 1.0 / math.sqrt(p * p + q * q + EPIPOLE * EPIPOLE)
    return x, y, x_2 - x, y_2 - y, p * size, q * size, size


@_fast
def sums(
    points: Field, target: Field, spread: Field, weight: Field, C: Field, t: Field, scale: Field
) -> Field:
    """Sum over cells of w r r^T (many, 7, 7), r the derivatives and the residual of a cell."""
    found = np.empty((len(C), 7, 7))
    n = points.shape[1]
    for k in range(len(C)):
        C_k, t_k, t_z = C[k], t[k], t[k, 2]
        tight = 1.0 / (scale[k] * scale[k])
        s = np.zeros(28)
        s00 = s01 = s02 = s03 = s04 = s05 = s06 = 0.0
        s11 = s12 = s13 = s14 = s15 = s16 = 0.0
        s22 = s23 = s24 = s25 = s26 = s33 = s34 = s35 = s36 = 0.0
        s44 = s45 = s46 = s55 = s56 = s66 = 0.0
        for i in range(n):
            x, y, u, v, p, q, size = _placed(
                C_k, t_k, points[0, i], points[1, i], target[0, i], target[1, i]
            )
            across = u * q - v * p
            variance = (
                q * q * spread[0, i] - 2.0 * p * q * spread[1, i] + p * p * spread[2, i] + 1e-3
            )
            w = weight[i] / (variance + across * across * tight)
            a, b = p - t_z * u * size, q - t_z * v * size
            c = y * a - x * b
            r0, r1, r2 = -a - y * c, x * c - b, x * a + y * b
            r3, r4, r5 = -v * size, u * size, (v * x - u * y) * size
            w0, w1, w2, w3, w4, w5 = w * r0, w * r1, w * r2, w * r3, w * r4, w * r5
            s00 += w0 * r0
            s01 += w0 * r1
            s02 += w0 * r2
            s03 += w0 * r3
            s04 += w0 * r4
            s05 += w0 * r5
            s06 += w0 * across
            s11 += w1 * r1
            s12 += w1 * r2
            s13 += w1 * r3
            s14 += w1 * r4
            s15 += w1 * r5
            s16 += w1 * across
            s22 += w2 * r2
            s23 += w2 * r3
            s24 += w2 * r4
            s25 += w2 * r5
            s26 += w2 * across
            s33 += w3 * r3
            s34 += w3 * r4
            s35 += w3 * r5
            s36 += w3 * across
            s44 += w4 * r4
            s45 += w4 * r5
            s46 += w4 * across
            s55 += w5 * r5
            s56 += w5 * across
            s66 += w * across * across
        s[:7] = s00, s01, s02, s03, s04, s05, s06
        s[7:13] = s11, s12, s13, s14, s15, s16
        s[13:18] = s22, s23, s24, s25, s26
        s[18:22] = s33, s34, s35, s36
        s[22:28] = s44, s45, s46, s55, s56, s66
        place = 0
        for row in range(7):
            for column in range(row, 7):
                found[k, row, column] = found[k, column, row] = s[place]
                place += 1
    return found


@_exact
def _turned(phi: Field, C: Field, out: Field) -> None:
    """Put Exp(phi) C into out; phi is cut off at half a radian per axis."""
    x, y = min(max(phi[0], -0.5), 0.5), min(max(phi[1], -0.5), 0.5)
    z = min(max(phi[2], -0.5), 0.5)
    square = x * x + y * y + z * z
    sine = 1.0 + square * (-1.0 / 6.0 + square * (1.0 / 120.0 - square / 5040.0))
    cosine = 0.5 + square * (-1.0 / 24.0 + square * (1.0 / 720.0 - square / 40320.0))
    for j in range(3):
        a, b, c = C[0, j], C[1, j], C[2, j]
        u, v, w = y * c - z * b, z * a - x * c, x * b - y * a
        out[0, j] = a + sine * u + cosine * (y * w - z * v)
        out[1, j] = b + sine * v + cosine * (z * u - x * w)
        out[2, j] = c + sine * w + cosine * (x * v - y * u)


@_fast
def advance(
    equations: Field,
    C: Field,
    t: Field,
    least: float,
    damping: float,
    stiff: float,
    held: float,
) -> tuple[Field, Field]:
    """One step of Gauss-Newton of each motion, by `sums`: `step` of `epipolar_numpy`."""
    turned, moved = np.empty((len(C), 3, 3)), np.empty((len(C), 3))
    A, delta = np.empty((6, 6)), np.empty(6)
    for k in range(len(C)):
        size = 0.0
        for i in range(6):
            size += equations[k, i, i] / 6.0
        for i in range(6):
            delta[i] = -equations[k, i, 6]
            for j in range(6):
                A[i, j] = equations[k, i, j]
            A[i, i] += damping * size + least
        for i in range(3):
            for j in range(3):
                A[3 + i, 3 + j] += stiff * size * t[k, i] * t[k, j]
            A[3 + i, 3 + i] += held * size
        solve_in_place(A, delta)
        _turned(delta[:3], C[k], turned[k])
        length = 0.0
        for i in range(3):
            moved[k, i] = t[k, i] + delta[3 + i]
            length += moved[k, i] * moved[k, i]
        length = max(math.sqrt(length), 1e-12)
        for i in range(3):
            moved[k, i] /= length
    return turned, moved


@_fast
def costs(
    points: Field, target: Field, spread: Field, valid: Field, C: Field, t: Field, scale: float
) -> Field:
    """Sum over valid cells of log(1 + e^2 / (S scale^2)), (many,); valid is 0 or 1.

    A logarithm costs more than all the rest, so that of a product is taken. Its factors are below
    1e18: residuals below 1e3, scales above 1e-4, variances above 1e-3 and nearly always above 0.3.
    """
    found = np.empty(len(C))
    tight, n = 1.0 / (scale * scale), points.shape[1]
    for k in range(len(C)):
        C_k, t_k, total = C[k], t[k], 0.0
        for start in range(0, n, _FACTORS):
            product = 1.0
            for i in range(start, min(start + _FACTORS, n)):
                _, _, u, v, p, q, _ = _placed(
                    C_k, t_k, points[0, i], points[1, i], target[0, i], target[1, i]
                )
                across = u * q - v * p
                variance = (
                    q * q * spread[0, i] - 2.0 * p * q * spread[1, i] + p * p * spread[2, i] + 1e-3
                )
                product *= 1.0 + valid[i] * across * across * tight / variance
            total += math.log(product)
        found[k] = total
    return found


@_fast
def residuals(
    points: Field, target: Field, spread: Field, valid: Field, C: Field, t: Field
) -> tuple[Field, Field, Field, Field, Field, Field]:
    """What motions leave of the flow of cells (many, n): u, v, across, along, variance; depth."""
    many, n = len(C), points.shape[1]
    u, v, across, along, variance = np.empty((5, many, n))
    depth = np.empty(many)
    counted = 0.0
    for i in range(n):
        counted += valid[i]
    for k in range(many):
        C_k, t_k, total = C[k], t[k], 0.0
        for i in range(n):
            _, _, a, b, p, q, _ = _placed(
                C_k, t_k, points[0, i], points[1, i], target[0, i], target[1, i]
            )
            u[k, i], v[k, i] = a, b
            across[k, i], along[k, i] = a * q - b * p, a * p + b * q
            xx, xy, yy = spread[0, i], spread[1, i], spread[2, i]
            variance[k, i] = q * q * xx - 2.0 * p * q * xy + p * p * yy + 1e-3
            held = min(max(along[k, i], -0.3), 0.3)
            total += valid[i] * held * held
        depth[k] = math.sqrt(total / (counted + 1e-6) + 1e-12)
    return u, v, across, along, variance, depth


@_fast
def rotation_alone(
    points: Field, target: Field, valid: Field, scales: Field, each: float
) -> Field:
    """Robust rotation as if there were no parallax, (3, 3); `each` is information per weight."""
    C, turned = np.eye(3), np.empty((3, 3))
    A, delta = np.empty((3, 3)), np.empty(3)
    n = points.shape[1]
    for scale in scales:
        tight = 1.0 / (scale * scale)
        A[:], delta[:] = 0.0, 0.0
        total = 0.0
        for i in range(n):
            x_1, y_1 = points[0, i], points[1, i]
            behind = 1.0 / max(C[2, 0] * x_1 + C[2, 1] * y_1 + C[2, 2], 0.1)
            x = (C[0, 0] * x_1 + C[0, 1] * y_1 + C[0, 2]) * behind
            y = (C[1, 0] * x_1 + C[1, 1] * y_1 + C[1, 2]) * behind
            u, v = target[0, i] - x, target[1, i] - y
            w = valid[i] / (1.0 + (u * u + v * v) * tight)
            a, b, c = -x * y, 1.0 + x * x, -y
            d, e, f = -1.0 - y * y, x * y, x
            total += w
            A[0, 0] += w * (a * a + d * d)
            A[1, 0] += w * (b * a + e * d)
            A[1, 1] += w * (b * b + e * e)
            A[2, 0] += w * (c * a + f * d)
            A[2, 1] += w * (c * b + f * e)
            A[2, 2] += w * (c * c + f * f)
            delta[0] += w * (a * u + d * v)
            delta[1] += w * (b * u + e * v)
            delta[2] += w * (c * u + f * v)
        for i in range(3):
            A[i, i] += each * total + 1e-9
        solve_in_place(A, delta)
        _turned(delta, C, turned)
        C[:] = turned
    return C


# --- maps of cells -------------------------------------------------------------------------------


@_fast
def blocks(maps: Field, factor: int) -> Field:
    """Means over blocks of factor x factor cells: (c, rows, columns) -> (c, fewer, fewer)."""
    channels, rows, columns = maps.shape
    found = np.zeros((channels, rows // factor, columns // factor), dtype=np.float32)
    for c in range(channels):
        for r in range(rows // factor):
            to = found[c, r]
            for i in range(factor):
                line = maps[c, r * factor + i]
                for j in range(factor):
                    for column in range(len(to)):
                        to[column] += line[column * factor + j]
            to /= np.float32(factor * factor)
    return found


@_fast
def doubled(x: Field) -> Field:
    """Twice the rows and columns, bilinear between the middles of cells."""
    channels, rows, columns = x.shape
    found = np.empty((channels, 2 * rows, 2 * columns), dtype=np.float32)
    line = np.empty(columns, dtype=np.float32)
    near, far = np.float32(0.75), np.float32(0.25)
    for c in range(channels):
        for r in range(2 * rows):
            here = r // 2
            beside = max(here - 1, 0) if r % 2 == 0 else min(here + 1, rows - 1)
            for j in range(columns):
                line[j] = near * x[c, here, j] + far * x[c, beside, j]
            to = found[c, r]
            for j in range(columns):
                to[2 * j] = near * line[j] + far * line[max(j - 1, 0)]
                to[2 * j + 1] = near * line[j] + far * line[min(j + 1, columns - 1)]
    return found
