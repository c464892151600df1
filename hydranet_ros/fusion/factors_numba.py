"""The edges of `factors` and the steps of the window, compiled by numba where it is installed.

The same numbers in double precision, edge by edge, without arrays in between: at the few edges of
a window NumPy's time goes with the number of its calls. Compiled once and kept in a cache; the
first call of all takes some seconds.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import (
    AD4_SERIES,
    COT_SERIES,
    COT_SERIES_BELOW,
    SERIES_BELOW,
    SIN3_SERIES,
    Array,
)

Index = NDArray[np.intp]

_fast = numba.njit(cache=True, error_model="numpy", nogil=True)


@_fast
def _series(coefficients: Array, x: float) -> float:
    """sum_k c_k x^k."""
    total = 0.0
    for k in range(len(coefficients) - 1, -1, -1):
        total = total * x + coefficients[k]
    return total


@_fast
def _times(A: Array, B: Array, out: Array) -> None:
    """A B, of 3 x 3."""
    for i in range(3):
        for j in range(3):
            out[i, j] = A[i, 0] * B[0, j] + A[i, 1] * B[1, j] + A[i, 2] * B[2, j]


@_fast
def _times_transposed(A: Array, B: Array, out: Array) -> None:
    """A B^T, of 3 x 3."""
    for i in range(3):
        for j in range(3):
            out[i, j] = A[i, 0] * B[j, 0] + A[i, 1] * B[j, 1] + A[i, 2] * B[j, 2]


@_fast
def _fill(identity: float, hat: float, square: float, phi: Array, out: Array) -> None:
    """The sum of identity I, hat phi^ and square (phi^)^2."""
    x, y, z = phi[0], phi[1], phi[2]
    diagonal = identity - square * (x * x + y * y + z * z)
    for i in range(3):
        for j in range(3):
            out[i, j] = square * phi[i] * phi[j]
        out[i, i] += diagonal
    out[2, 1] += hat * x
    out[1, 2] -= hat * x
    out[0, 2] += hat * y
    out[2, 0] -= hat * y
    out[1, 0] += hat * z
    out[0, 1] -= hat * z


@_fast
def _exp(phi: Array, out: Array) -> float:
    """Exp(phi), as `lie.so3_exp` has it; (1 - cos(theta)) / theta^2."""
    theta = math.sqrt(phi[0] * phi[0] + phi[1] * phi[1] + phi[2] * phi[2])
    sine = half = 1.0
    if theta > 0.0:
        sine, half = math.sin(theta) / theta, math.sin(0.5 * theta) / (0.5 * theta)
    versine = 0.5 * half * half
    _fill(1.0, sine, versine, phi, out)
    return versine


@_fast
def _log(C: Array, phi: Array) -> None:
    """Log(C), by the quaternion whose row of 4 q q^T has the largest diagonal element."""
    w, x, y, z = (
        1.0 + C[0, 0] + C[1, 1] + C[2, 2],
        C[2, 1] - C[1, 2],
        C[0, 2] - C[2, 0],
        C[1, 0] - C[0, 1],
    )
    if w <= 1.0:  # 120 deg and more
        if C[0, 0] >= C[1, 1] and C[0, 0] >= C[2, 2]:
            w, x, y, z = (
                x,
                1.0 + C[0, 0] - C[1, 1] - C[2, 2],
                C[1, 0] + C[0, 1],
                C[0, 2] + C[2, 0],
            )
        elif C[1, 1] >= C[2, 2]:
            w, x, y, z = (
                y,
                C[1, 0] + C[0, 1],
                1.0 + C[1, 1] - C[0, 0] - C[2, 2],
                C[2, 1] + C[1, 2],
            )
        else:
            w, x, y, z = (
                z,
                C[0, 2] + C[2, 0],
                C[2, 1] + C[1, 2],
                1.0 + C[2, 2] - C[0, 0] - C[1, 1],
            )
        if w < 0.0:
            w, x, y, z = -w, -x, -y, -z
    norm = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 / w if norm < 1e-9 * w else 2.0 * math.atan2(norm, w) / norm
    phi[0], phi[1], phi[2] = scale * x, scale * y, scale * z


@_fast
def _jacobian(phi: Array, versine: float, scale: float, out: Array) -> None:
    """Jl(phi) times a scale."""
    u = phi[0] * phi[0] + phi[1] * phi[1] + phi[2] * phi[2]
    theta = math.sqrt(u)
    defect = _series(SIN3_SERIES, u) if u < SERIES_BELOW else (1.0 - math.sin(theta) / theta) / u
    _fill(scale, scale * versine, scale * defect, phi, out)


@_fast
def _inverse_jacobian(phi: Array, out: Array) -> tuple[float, float]:
    """Jl(phi)^-1; e and d of `_corner`."""
    u = phi[0] * phi[0] + phi[1] * phi[1] + phi[2] * phi[2]
    if u < COT_SERIES_BELOW:
        e, d = _series(COT_SERIES, u), _series(AD4_SERIES, u)
    else:
        half = 0.5 * math.sqrt(u)
        sine = math.sin(half)
        cot = math.cos(half) / sine
        e = (1.0 - half * cot) / u
        slope = (cot - half / (sine * sine)) / (8.0 * half)
        d = (slope * u + 1.0 - half * cot) / (u * u)
    _fill(1.0, -0.5, e, phi, out)
    return e, d


@_fast
def _corner(rho: Array, phi: Array, e: float, d: float, out: Array) -> None:
    """K(xi) of `lie.inverse_corner`, with a^ b^ = b a' - (a' b) I."""
    s = phi[0] * rho[0] + phi[1] * rho[1] + phi[2] * rho[2]
    u = phi[0] * phi[0] + phi[1] * phi[1] + phi[2] * phi[2]
    _fill(-2.0 * s * (e - d * u), -0.5, 0.0, rho, out)
    for i in range(3):
        v = e * rho[i] - d * s * phi[i]
        for j in range(3):
            out[i, j] += v * phi[j]
            out[j, i] += v * phi[j]


@_fast
def linearise_edges(
    C: Array,
    r: Array,
    b: Array,
    first: Index,
    second: Index,
    count: int,
    C_meas: Array,
    r_meas: Array,
    dt: Array,
    with_bias: bool,
    xi: Array,
    along_poses: Array,
    phi: Array,
    along_turns: Array,
) -> None:
    """Residuals and Jacobians of `count` pose edges, then of rotation edges, into zeros."""
    scratch = np.empty((9, 3, 3))
    C_b_a, C_e, C_beta, left = scratch[0], scratch[1], scratch[2], scratch[3]
    corner, work, product = scratch[4], scratch[5], scratch[6]
    turn, rho, beta = scratch[7, 0], scratch[7, 1], scratch[7, 2]
    r_b_a, off = scratch[8, 0], scratch[8, 1]
    versine = 0.5
    for k in range(len(first)):
        biased = with_bias and k >= count
        _times_transposed(C[second[k]], C[first[k]], C_b_a)
        _times_transposed(C_b_a, C_meas[k], C_e)
        if biased:
            for i in range(3):
                beta[i] = b[second[k], i] * dt[k - count]
            versine = _exp(beta, C_beta)
            _times(C_beta, C_e, work)
        _log(work if biased else C_e, turn)
        e, d = _inverse_jacobian(turn, left)
        if k < count:
            for i in range(3):
                r_b_a[i] = r[second[k], i]
                for j in range(3):
                    r_b_a[i] -= C_b_a[i, j] * r[first[k], j]
            for i in range(3):
                off[i] = r_b_a[i]
                for j in range(3):
                    off[i] -= C_e[i, j] * r_meas[k, j]
            for i in range(3):
                rho[i] = left[i, 0] * off[0] + left[i, 1] * off[1] + left[i, 2] * off[2]
            # -Jl^-1 Ad(T_b_a), whose corner is -(Jl^-1 r_b_a^ + K) C_b_a.
            _corner(rho, turn, e, d, corner)
            _fill(0.0, 1.0, 0.0, r_b_a, work)
            _times(left, work, product)
            for i in range(3):
                xi[k, i], xi[k, 3 + i] = rho[i], turn[i]
                for j in range(3):
                    product[i, j] += corner[i, j]
            _times(product, C_b_a, work)
            _times(left, C_b_a, product)
            J = along_poses[k]
            for i in range(3):
                for j in range(3):
                    J[i, j] = J[3 + i, 3 + j] = -product[i, j]
                    J[i, 3 + j] = -work[i, j]
                    J[i, 6 + j] = J[3 + i, 9 + j] = left[i, j]
                    J[i, 9 + j] = corner[i, j]
            continue
        J = along_turns[k - count]
        if biased:
            _jacobian(beta, versine, dt[k - count], work)
            _times(left, work, product)
            for i in range(3):
                for j in range(3):
                    J[i, 6 + j] = product[i, j]
            _times(left, C_beta, work)
        along = work if biased else left
        _times(along, C_b_a, product)
        for i in range(3):
            phi[k - count, i] = turn[i]
            for j in range(3):
                J[i, j], J[i, 3 + j] = -product[i, j], along[i, j]


@_fast
def moved(C: Array, r: Array, step: Array) -> tuple[Array, Array]:
    """C <- Exp(phi) C and r <- Exp(phi) r + rho, for steps (N, 6 or more)."""
    C_new, r_new, turn = np.empty_like(C), np.empty_like(r), np.empty((3, 3))
    for k in range(len(C)):
        _exp(step[k, 3:6], turn)
        _times(turn, C[k], C_new[k])
        x, y, z = r[k, 0], r[k, 1], r[k, 2]
        for i in range(3):
            r_new[k, i] = turn[i, 0] * x + turn[i, 1] * y + turn[i, 2] * z + step[k, i]
    return C_new, r_new
