"""Small symmetric systems inside compiled loops."""

from __future__ import annotations

import math

import numba

from hydranet_ros.geometry.lie import Array


@numba.njit(cache=True, error_model="numpy", nogil=True)
def solve_in_place(A: Array, b: Array) -> None:
    """Put A^-1 b into b, for a symmetric positive definite A given by its lower half.

    A holds its Cholesky factor afterwards.
    """
    n = len(b)
    for i in range(n):
        for j in range(i + 1):
            total = A[i, j]
            for k in range(j):
                total -= A[i, k] * A[j, k]
            A[i, j] = math.sqrt(total) if i == j else total / A[j, j]
        total = b[i]
        for k in range(i):
            total -= A[i, k] * b[k]
        b[i] = total / A[i, i]
    for i in range(n - 1, -1, -1):
        total = b[i]
        for k in range(i + 1, n):
            total -= A[k, i] * b[k]
        b[i] = total / A[i, i]
