"""The sums and solutions of `normal_equations`, compiled by numba where it is installed.

Plain loops: numba reaches LAPACK by SciPy only, which is not needed for some hundred unknowns.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import Array

Index = NDArray[np.intp]

_NONE, _HUBER, _CAUCHY = range(3)  # of `KERNELS`

_fast = numba.njit(cache=True, error_model="numpy", nogil=True)


@_fast
def _robust(kernel: int, k: float, squared: float) -> tuple[float, float]:
    """rho(s) and rho'(s), as `Kernel.cost_and_weight` has them."""
    if kernel == _CAUCHY:
        return k * k * math.log1p(squared / (k * k)), 1.0 / (1.0 + squared / (k * k))
    if kernel == _HUBER and squared > k * k:
        return 2.0 * k * math.sqrt(squared) - k * k, k / math.sqrt(squared)
    return squared, 1.0


@_fast
def add_factors(
    residual: Array,
    jacobian: Array,
    information: Array,
    kernel: int,
    k: float,
    columns: Index,
    band: Array,
    slope: Array,
) -> tuple[Array, Array, float]:
    """Add the factors of a block to H and g; J' W J, J' W e of each, and their cost."""
    count, size, width = jacobian.shape
    hessian, gradient = np.empty((count, width, width)), np.empty((count, width))
    pull, weighted = np.empty(size), np.empty((size, width))
    cost = 0.0
    for m in range(count):
        squared = 0.0
        for i in range(size):
            pull[i] = 0.0
            for j in range(size):
                pull[i] += information[m, i, j] * residual[m, j]
            squared += pull[i] * residual[m, i]
        whole, weight = _robust(kernel, k, squared)
        cost += 0.5 * whole
        for i in range(size):
            for a in range(width):
                weighted[i, a] = 0.0
            for j in range(size):
                share = weight * information[m, i, j]
                for a in range(width):
                    weighted[i, a] += share * jacobian[m, j, a]
        H, g = hessian[m], gradient[m]
        for a in range(width):
            row = columns[m, a]
            g[a] = 0.0
            for b in range(a + 1):
                H[a, b] = 0.0
            for i in range(size):
                along = jacobian[m, i, a]
                g[a] += weight * pull[i] * along
                for b in range(a + 1):
                    H[a, b] += along * weighted[i, b]
            slope[row] += g[a]
            for b in range(a + 1):
                H[b, a] = H[a, b]
                band[columns[m, b], row - columns[m, b]] += H[a, b]
    return hessian, gradient, cost


@_fast
def add_prior(hessian: Array, gradient: Array, band: Array, slope: Array) -> None:
    """Add a dense prior over the first unknowns to H and g."""
    for i in range(len(gradient)):
        slope[i] += gradient[i]
        for j in range(i + 1):
            band[j, i - j] += hessian[i, j]


@_fast
def solve_band(band: Array, right: Array) -> tuple[Array, Array, bool]:
    """Cholesky's L in a band like that of H, H^-1 y, and whether H is positive."""
    n, below = band.shape
    L, x = band.copy(), right.copy()
    for j in range(n):
        if not L[j, 0] > 0.0:
            return L, x, False
        reach = min(below, n - j)
        scale = 1.0 / math.sqrt(L[j, 0])
        for i in range(reach):
            L[j, i] *= scale
        x[j] *= scale
        for k in range(1, reach):
            factor = L[j, k]
            x[j + k] -= factor * x[j]
            for i in range(k, reach):
                L[j + k, i - k] -= factor * L[j, i]
    for j in range(n - 1, -1, -1):
        for k in range(1, min(below, n - j)):
            x[j] -= L[j, k] * x[j + k]
        x[j] /= L[j, 0]
    return L, x, True


@_fast
def last_inverse(L: Array, size: int) -> Array:
    """The last rows and columns of H^-1 = L^-T L^-1: the end of L is enough."""
    n, below = L.shape
    start = n - size
    inverse, found = np.zeros((size, size)), np.zeros((size, size))
    for j in range(size):
        inverse[j, j] = 1.0 / L[start + j, 0]
        for i in range(j + 1, size):
            total = 0.0
            for k in range(max(j, i - below + 1), i):
                total += L[start + k, i - k] * inverse[k, j]
            inverse[i, j] = -total / L[start + i, 0]
    for i in range(size):
        for j in range(i + 1):
            for k in range(i, size):
                found[i, j] += inverse[k, i] * inverse[k, j]
            found[j, i] = found[i, j]
    return found


@_fast
def solve_positive(matrix: Array, right: Array) -> tuple[Array, bool]:
    """H^-1 Y for a small dense H, and whether H is positive."""
    n, many = right.shape
    left, x = matrix.copy(), right.copy()
    for j in range(n):
        if not left[j, j] > 0.0:
            return x, False
        for i in range(j + 1, n):
            factor = left[i, j] / left[j, j]
            for k in range(j + 1, i + 1):
                left[i, k] -= factor * left[k, j]
            for c in range(many):
                x[i, c] -= factor * x[j, c]
    for j in range(n - 1, -1, -1):
        for c in range(many):
            for i in range(j + 1, n):
                x[j, c] -= left[i, j] * x[i, c]
            x[j, c] /= left[j, j]
    return x, True
