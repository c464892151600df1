"""`bundle_sums`, compiled by numba where it is installed.

The same numbers in double precision, point by point, without arrays in between.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import Array
from hydranet_ros.gyro.bundle_sums import Sums

_fast = numba.njit(cache=True, error_model="numpy", nogil=True)


@_fast
def sums(
    bearings: Array,
    rho: Array,
    C: Array,
    t: Array,
    z: Array,
    seen: NDArray[np.bool_],
    sigma: Array,
    kernel: float,
    nearest: float,
) -> Sums:
    """Sum over points (n, 3) of views C (K, 3, 3), t (K, 3), where they are seen z (K, n, 2)."""
    K, n = len(C), len(rho)
    H, moments, cross = np.zeros((K, 6, 6)), np.zeros((K, 6, n)), np.zeros((K, 6, n))
    depth_H, depth_g, weights = np.zeros(n), np.zeros(n), np.zeros((K, n))
    tight = 1.0 / (kernel * kernel)
    squares = cost = 0.0
    a, b = np.empty(6), np.empty(6)
    for k in range(K):
        R, T, known = C[k], t[k], 1.0 / (sigma[k] * sigma[k])
        for i in range(n):
            if not seen[k, i]:
                continue
            p, q, o = bearings[i, 0], bearings[i, 1], bearings[i, 2]
            x = R[0, 0] * p + R[0, 1] * q + R[0, 2] * o
            y = R[1, 0] * p + R[1, 1] * q + R[1, 2] * o
            w = R[2, 0] * p + R[2, 1] * q + R[2, 2] * o
            inverse = 1.0 / max(w + T[2] * rho[i], nearest)
            hx, hy = (x + T[0] * rho[i]) * inverse, (y + T[1] * rho[i]) * inverse
            u, v = z[k, i, 0] - hx, z[k, i, 1] - hy
            square = u * u + v * v
            weight = 1.0 / (1.0 + square * tight)
            weights[k, i] = weight
            squares += weight * square
            cost += math.log1p(square * tight)
            information = weight * known
            # d h / d (phi, t), as `bundle_sums` derives it: rows x and y.
            a[0], b[0] = -inverse * hx * y, -inverse * (w + hy * y)
            a[1], b[1] = inverse * (w + hx * x), inverse * hy * x
            a[2], b[2] = -inverse * y, inverse * x
            a[3], b[3] = inverse * rho[i], 0.0
            a[4], b[4] = 0.0, inverse * rho[i]
            a[5], b[5] = -inverse * rho[i] * hx, -inverse * rho[i] * hy
            c, d = inverse * (T[0] - hx * T[2]), inverse * (T[1] - hy * T[2])
            depth_H[i] += information * (c * c + d * d)
            depth_g[i] += information * (c * u + d * v)
            for row in range(6):
                e, f = information * a[row], information * b[row]
                moments[k, row, i] = e * u + f * v
                cross[k, row, i] = e * c + f * d
                for column in range(row + 1):
                    H[k, row, column] += e * a[column] + f * b[column]
        for row in range(6):
            for column in range(row):
                H[k, column, row] = H[k, row, column]
    return Sums(H, moments, cross, depth_H, depth_g, weights, squares, cost)
