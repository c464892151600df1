"""Cubic splines through places and rotations: continuous accelerations between known stamps.

Places. The second derivatives m_k at the knots hold the slopes s_k = (x_k+1 - x_k) / h_k together,

    h_k-1 m_k-1 + 2 (h_k-1 + h_k) m_k + h_k m_k+1 = 6 (s_k - s_k-1),

and are linear in between. At both ends the third derivative is continuous too: "not a knot".

Rotations. C(t) = C_k Exp(phi(t)) with phi cubic from 0 to phi_k = Log(C_k^T C_k+1), so that the
rate in the turning axes is w = Jr(phi) phi', with Jr(phi) = Jl(-phi). The rates w_k at the knots
are continuous; for continuous accelerations, with J_k = Jr(phi_k),

    2/h_k-1 J_k-1 w_k-1 + 4 (1/h_k-1 + 1/h_k) w_k + 2/h_k J_k^-1 w_k+1
        = 6 (phi_k-1 / h_k-1^2 + phi_k / h_k^2) - n(phi_k-1, J_k-1^-1 w_k),

n(phi, phi') what w' has beside Jr(phi) phi''. The first rate and the last are the means over their
intervals. (The equations of SciPy's RotationSpline.)
"""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

_MOST_ROUNDS, _TOLERANCE = 10, 1e-9  # of the rates, which n makes nonlinear
_SERIES_BELOW = 1e-2  # rad: below it the closed forms of n lose digits


def accelerations(seconds: Array, places: Array, times: Array) -> Array:
    """Second derivatives (M, 3) at `times` of the spline through places (N, 3), N >= 2."""
    h = _steps(seconds)
    slopes = np.diff(places, axis=0) / h[:, None]
    if len(h) < 3:  # a line, or a parabola
        bend = 2.0 * (slopes[-1] - slopes[0]) / h.sum() if len(h) == 2 else np.zeros(3)
        return np.tile(bend, (len(times), 1))
    below, middle, above = h[:-1].copy(), 2.0 * (h[:-1] + h[1:]), h[1:].copy()
    # m_0 = m_1 + (m_1 - m_2) h_0 / h_1, and so at the other end.
    first, last = h[0] / h[1], h[-1] / h[-2]
    middle[0], above[0] = middle[0] + h[0] * (1.0 + first), above[0] - h[0] * first
    middle[-1], below[-1] = middle[-1] + h[-1] * (1.0 + last), below[-1] - h[-1] * last
    eye = np.eye(3)
    m = Tridiagonal(*(part[:, None, None] * eye for part in (below, middle, above))).solve(
        6.0 * np.diff(slopes, axis=0)
    )
    ends = m[0] + (m[0] - m[1]) * first, m[-1] + (m[-1] - m[-2]) * last
    m = np.concatenate([ends[0][None], m, ends[1][None]])
    return np.stack([np.interp(times, seconds, column) for column in m.T], axis=1)


def turning(seconds: Array, C: Array, times: Array) -> tuple[Array, Array]:
    """Rotations (M, 3, 3) and rates (M, 3) in their axes, of the spline through C (N, 3, 3)."""
    h = _steps(seconds)
    phi = lie.so3_log(lie.so3_inverse(C[:-1]) @ C[1:])
    begin, end = _rates(h, phi)
    slope = _apply(lie.so3_left_jacobian_inverse(-phi), end)
    h = h[:, None]
    cubic = (h * (begin + slope) - 2.0 * phi) / h**3
    square = (3.0 * phi - h * (2.0 * begin + slope)) / h**2
    k = np.clip(np.searchsorted(seconds, times, side="right") - 1, 0, len(h) - 1)
    t = (times - seconds[k])[:, None]
    at = t * (begin[k] + t * (square[k] + t * cubic[k]))
    moving = begin[k] + t * (2.0 * square[k] + 3.0 * t * cubic[k])
    return C[k] @ lie.so3_exp(at), _apply(lie.so3_left_jacobian(-at), moving)


def _rates(h: Array, phi: Array) -> tuple[Array, Array]:
    """The rates (N - 1, 3) at the beginning and at the end of each interval."""
    rates = phi / h[:, None]
    first, ends = rates[0].copy(), rates.copy()
    if len(h) == 1:
        return rates, ends
    J, inverse = lie.so3_left_jacobian(-phi), lie.so3_left_jacobian_inverse(-phi)
    size = h[:, None, None]
    diagonal = 4.0 * (1.0 / size[:-1] + 1.0 / size[1:]) * np.eye(3)
    equations = Tridiagonal(2.0 * J[:-1] / size[:-1], diagonal, 2.0 * inverse[1:] / size[1:])
    known = 6.0 * (phi[:-1] / h[:-1, None] ** 2 + phi[1:] / h[1:, None] ** 2)
    known[0] -= 2.0 / h[0] * J[0] @ first
    known[-1] -= 2.0 / h[-1] * inverse[-1] @ ends[-1]
    for _ in range(_MOST_ROUNDS):
        moving = _apply(inverse[:-1], ends[:-1])
        new = equations.solve(known - _beside(phi[:-1], moving))
        change = np.abs(new - ends[:-1])
        ends[:-1] = new
        if (change < _TOLERANCE * (1.0 + np.abs(new))).all():
            break
    return np.concatenate([first[None], ends[:-1]]), ends


def _beside(phi: Array, moving: Array) -> Array:
    """N(phi, phi'), from w = phi' - a phi x phi' + b phi x (phi x phi') with a, b as in Jr."""
    theta = np.linalg.norm(phi, axis=1)[:, None]
    small = theta < _SERIES_BELOW
    x = np.where(small, 1.0, theta)
    u = theta * theta
    # -a' / theta, b' / theta and b.
    p = np.where(small, 1 / 12 - u / 180, (2.0 - 2.0 * np.cos(x) - x * np.sin(x)) / x**4)
    q = np.where(small, -1 / 60 + u / 1260, (3.0 * np.sin(x) - 2.0 * x - x * np.cos(x)) / x**5)
    b = np.where(small, 1 / 6 - u / 120 + u * u / 5040, (x - np.sin(x)) / x**3)
    cross = np.cross(phi, moving)
    along = (phi * moving).sum(axis=1)[:, None]
    return along * (p * cross + q * np.cross(phi, cross)) + b * np.cross(moving, cross)


class Tridiagonal:
    """Equations A_k x_k-1 + D_k x_k + B_k x_k+1 = y_k, blocks (N, 3, 3); A_0 and B_N-1 unused."""

    def __init__(self, below: Array, diagonal: Array, above: Array) -> None:
        self._below = below
        self._inverse, self._gain = np.empty_like(diagonal), np.empty_like(diagonal)
        for k, D in enumerate(diagonal):
            left = D - below[k] @ self._gain[k - 1] if k else D
            self._inverse[k] = np.linalg.inv(left)
            self._gain[k] = self._inverse[k] @ above[k]

    def solve(self, right: Array) -> Array:
        """The x (N, 3) for y (N, 3)."""
        x = np.empty_like(right)
        for k, y in enumerate(right):
            x[k] = self._inverse[k] @ (y - self._below[k] @ x[k - 1] if k else y)
        for k in range(len(x) - 2, -1, -1):
            x[k] -= self._gain[k] @ x[k + 1]
        return x


def _steps(seconds: Array) -> Array:
    h = np.diff(seconds)
    if not len(h) or not (h > 0.0).all():
        raise ValueError("a spline takes 2 or more knots whose stamps increase")
    return h


def _apply(matrix: Array, vector: Array) -> Array:
    """(M, 3, 3) times (M, 3)."""
    return (matrix @ vector[:, :, None])[:, :, 0]
