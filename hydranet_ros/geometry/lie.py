"""SO(3) and SE(3) in NumPy: float64, batched over leading axes.

The vocabulary of the whole package:

- `T_b_a` takes coordinates in a to coordinates in b: `p_b = T_b_a @ p_a`, `T_c_a = T_c_b @ T_b_a`.
  `C_b_a` is its rotation. Frames: 1 and 2 the previous and current camera, w the world, c the left
  optical frame.
- Perturbations are on the left: `T = Exp(xi) @ T_mean`. The error of an estimate is
  `Log(T_est @ inv(T_ref))`, with `xi = (rho, phi)`: translation first, rotation last.
- Quaternions are w x y z with w >= 0; x y z w only in messages and TUM files.
- Times are `stamp_ns: int`. SI units and radians; anything else carries a suffix.

Functions take and return plain arrays: (..., 3) rotation vectors, (..., 6) twists, (..., 4) unit
quaternions, (..., 3, 3) rotations and (..., 4, 4) poses.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]  # of float64; NumPy's own signatures are too loose to say so

# Below this squared angle the closed forms of the Jacobian coefficients cancel; their Taylor
# series with the terms below is exact to rounding there.
SERIES_BELOW = 1.0
_TERMS = range(9)
SIN3_SERIES = np.array([(-1) ** k / factorial(2 * k + 3) for k in _TERMS])
_COS4_SERIES = np.array([(-1) ** k / factorial(2 * k + 4) for k in _TERMS])
_MIX5_SERIES = np.array([(-1) ** k * (k + 1) / factorial(2 * k + 5) for k in _TERMS])
# |B_2n| / (2n)! of the cotangent series; it converges slowly, so its threshold is lower.
COT_SERIES_BELOW = 0.25
_BERNOULLI = [1 / 6, 1 / 30, 1 / 42, 1 / 30, 5 / 66, 691 / 2730, 7 / 6]
COT_SERIES = np.array([b / factorial(2 * n) for n, b in enumerate(_BERNOULLI, start=1)])
AD4_SERIES = np.append((COT_SERIES * (1 - np.arange(1, 8)))[1:], 0.0)  # -d/du of it
_INVERSE_SERIES = np.stack([COT_SERIES, AD4_SERIES], axis=1)
_POWERS = np.arange(len(_TERMS))

# Linear maps as matrices, because one product is faster than many assignments:
# vector (3) -> hat (9), and rotation (9) -> 4 q q^T - I (16) with q = w x y z.
_HAT = -np.array(
    [
        [[0, 0, 0], [0, 0, 1], [0, -1, 0]],
        [[0, 0, -1], [0, 0, 0], [1, 0, 0]],
        [[0, 1, 0], [-1, 0, 0], [0, 0, 0]],
    ],
    dtype=np.float64,
).reshape(3, 9)


def _four_outer() -> Array:
    d = np.diag([1.0, 1.0, 1.0])
    sign = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    out = np.zeros((3, 3, 4, 4))
    for i in range(4):
        out[..., i, i] = d * sign[i]
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        out[j, i, 0, k + 1] = out[j, i, k + 1, 0] = 1.0
        out[i, j, 0, k + 1] = out[i, j, k + 1, 0] = -1.0
        for a, b in ((i, j), (j, i)):
            out[a, b, i + 1, j + 1] = out[a, b, j + 1, i + 1] = 1.0
    return out.reshape(9, 16)


_FOUR_OUTER = _four_outer()
_FIRST = np.array([1.0, 0.0, 0.0, 0.0])
_I3, _I6 = np.eye(3), np.eye(6)


def _series(coefficients: Array, x: Array) -> Array:
    """sum_k c_k x^k."""
    return x[..., None] ** _POWERS[: len(coefficients)] @ coefficients


def _by_angle(
    theta2: Array, below: float, coefficients: Array, closed: Callable[[Array], Array]
) -> Array:
    """Evaluate the series for small squared angles and `closed(theta2)` for the others."""
    small = theta2 < below
    if small.all():
        return _series(coefficients, theta2)
    return np.where(
        small,
        _series(coefficients, np.where(small, theta2, 0.0)),
        closed(np.where(small, 1.0, theta2)),
    )


def _sin_over(theta: Array) -> Array:
    """sin(theta) / theta for theta >= 0; the least positive number stands in for 0."""
    positive = np.maximum(theta, np.finfo(np.float64).tiny)
    return np.sin(positive) / positive


def _versine_over(theta: Array) -> Array:
    """(1 - cos(theta)) / theta^2, as a half-angle sine so that nothing cancels."""
    return 0.5 * _sin_over(0.5 * theta) ** 2


def _sine_defect(theta2: Array) -> Array:
    """(theta - sin(theta)) / theta^3."""
    return _by_angle(
        theta2, SERIES_BELOW, SIN3_SERIES, lambda t2: (1.0 - _sin_over(np.sqrt(t2))) / t2
    )


def _dot(a: Array, b: Array) -> Array:
    """The inner product of the last axes."""
    return np.einsum("...i,...i->...", a, b)


def _apply(matrix: Array, vector: Array) -> Array:
    """Matrix times vector, batched."""
    return (matrix @ vector[..., None])[..., 0]


def _scale(coefficient: Array, matrix: Array) -> Array:
    return coefficient[..., None, None] * matrix


def hat(vector: ArrayLike) -> Array:
    """a^, a matrix: (..., 3) -> so(3), a^ b = a x b; (..., 6) -> se(3), [[phi^, rho], [0, 0]]."""
    v = np.asarray(vector, dtype=np.float64)
    if v.shape[-1:] == (6,):
        out = np.zeros((*v.shape[:-1], 4, 4))
        out[..., :3, :3] = hat(v[..., 3:])
        out[..., :3, 3] = v[..., :3]
        return out
    if v.shape[-1:] != (3,):
        raise ValueError(f"hat takes vectors of 3 or 6 elements, got shape {v.shape}")
    return (v @ _HAT).reshape(*v.shape[:-1], 3, 3)


# --- SO(3) ---------------------------------------------------------------------------------------


def so3_exp(phi: ArrayLike) -> Array:
    """Exp(phi) = I + sin(theta)/theta hat(phi) + (1 - cos(theta))/theta^2 hat(phi)^2."""
    phi = np.asarray(phi, dtype=np.float64)
    theta = np.sqrt(_dot(phi, phi))
    k = hat(phi)
    return _I3 + _scale(_sin_over(theta), k) + _scale(_versine_over(theta), k @ k)


def so3_log(rotation: ArrayLike) -> Array:
    """Log(R), the rotation vector of at most pi: the inverse of `so3_exp`."""
    rotation = np.asarray(rotation, dtype=np.float64)
    # (1 + trace) (1, ...) is the quaternion times 4 w, and Log does not mind the factor.
    q = rotation.reshape(*rotation.shape[:-2], 9) @ _FOUR_OUTER[:, :4] + _FIRST
    if (q[..., 0] > 1.0).all():  # below 120 deg w is large enough to divide by
        return _log_of_scaled(q[..., :1], q[..., 1:])
    return quaternion_log(quaternion_from_matrix(rotation))


def so3_inverse(rotation: ArrayLike) -> Array:
    """R^-1 = R^T."""
    return np.swapaxes(np.asarray(rotation, dtype=np.float64), -1, -2)


def so3_adjoint(rotation: ArrayLike) -> Array:
    """Ad(R) = R, so that R Exp(phi) R^-1 = Exp(Ad(R) phi)."""
    return np.asarray(rotation, dtype=np.float64)


def so3_left_jacobian(phi: ArrayLike) -> Array:
    """J(phi) with Exp(phi + d) = Exp(J(phi) d) Exp(phi) to first order in d."""
    phi = np.asarray(phi, dtype=np.float64)
    theta2 = _dot(phi, phi)
    k = hat(phi)
    versine, defect = _versine_over(np.sqrt(theta2)), _sine_defect(theta2)
    return _I3 + _scale(versine, k) + _scale(defect, k @ k)


def so3_left_jacobian_inverse(phi: ArrayLike) -> Array:
    """J(phi)^-1 = I - hat(phi)/2 + (1 - (theta/2) cot(theta/2))/theta^2 hat(phi)^2.

    Singular at theta = 2 pi; `so3_log` never returns more than pi.
    """
    phi = np.asarray(phi, dtype=np.float64)
    k = hat(phi)
    return _I3 - 0.5 * k + _scale(inverse_coefficients(phi)[0], k @ k)


def inverse_coefficients(phi: Array) -> tuple[Array, Array]:
    """The coefficients e and d of the inverse left Jacobians of SO(3) and SE(3).

    With u = theta^2 and a = theta/2, e = (1 - a cot a)/u and
    d = -de/du = (1 - a cot a)/u^2 + (cot a - a / sin^2 a)/(8 a u).
    """
    u = _dot(phi, phi)
    small = u < COT_SERIES_BELOW
    every = bool(small.all())
    powers = (u if every else np.where(small, u, 0.0))[..., None] ** _POWERS[: len(COT_SERIES)]
    series = powers @ _INVERSE_SERIES
    e, d = series[..., 0], series[..., 1]
    if every:
        return e, d
    u = np.where(small, 1.0, u)
    half = 0.5 * np.sqrt(u)
    cot = np.cos(half) / np.sin(half)
    slope = (cot - half / np.sin(half) ** 2) / (8.0 * half)
    defect = (1.0 - half * cot) / u
    return np.where(small, e, defect), np.where(small, d, (slope + defect) / u)


def project_to_so3(matrix: ArrayLike) -> Array:
    """The rotation nearest to a matrix: argmin_R |R - M|_F, by the polar decomposition."""
    u, _, vt = np.linalg.svd(np.asarray(matrix, dtype=np.float64))
    sign = np.ones(u.shape[:-1])
    sign[..., -1] = np.sign(np.linalg.det(u) * np.linalg.det(vt))
    nearest: Array = (u * sign[..., None, :]) @ vt
    return nearest


# --- quaternions ---------------------------------------------------------------------------------


def quaternion_positive(quaternion: ArrayLike) -> Array:
    """Of the two quaternions of a rotation, the one with w >= 0."""
    q = np.asarray(quaternion, dtype=np.float64)
    return np.where(q[..., :1] < 0.0, -q, q)


def quaternion_from_matrix(rotation: ArrayLike) -> Array:
    """(..., 3, 3) -> (..., 4), w x y z with w >= 0.

    4 q q^T is linear in the rotation. Its row with the largest diagonal element is q up to
    scale, and never close to zero: right at every angle, pi included.
    """
    r = np.asarray(rotation, dtype=np.float64)
    rows = (r.reshape(*r.shape[:-2], 9) @ _FOUR_OUTER).reshape(*r.shape[:-2], 4, 4) + np.eye(4)
    if (rows[..., 0, 0] > 1.0).all():  # below 120 deg the first row will do
        q = rows[..., 0, :]
    else:
        best = np.argmax(np.diagonal(rows, axis1=-2, axis2=-1), axis=-1)
        q = np.take_along_axis(rows, best[..., None, None], axis=-2)[..., 0, :]
    return quaternion_positive(q / np.linalg.norm(q, axis=-1, keepdims=True))


def quaternion_to_matrix(quaternion: ArrayLike) -> Array:
    """(..., 4) unit quaternion -> (..., 3, 3): R = I + 2 w hat(v) + 2 hat(v)^2."""
    q = np.asarray(quaternion, dtype=np.float64)
    k = hat(q[..., 1:])
    return _I3 + _scale(2.0 * q[..., 0], k) + 2.0 * k @ k


def quaternion_multiply(a: ArrayLike, b: ArrayLike) -> Array:
    """The Hamilton product a (x) b, so that R(a (x) b) = R(a) R(b)."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    w = aw * bw - np.sum(av * bv, axis=-1, keepdims=True)
    return np.concatenate([w, aw * bv + bw * av + np.cross(av, bv)], axis=-1)


def quaternion_exp(phi: ArrayLike) -> Array:
    """Exp(phi) = (cos(theta/2), sin(theta/2) phi/theta), with w >= 0."""
    phi = np.asarray(phi, dtype=np.float64)
    half = 0.5 * np.linalg.norm(phi, axis=-1, keepdims=True)
    return quaternion_positive(
        np.concatenate([np.cos(half), 0.5 * _sin_over(half) * phi], axis=-1)
    )


def quaternion_log(quaternion: ArrayLike) -> Array:
    """Log(q) = 2 atan2(|v|, w) v/|v| with w >= 0: exact at 0, and right at and next to pi."""
    q = quaternion_positive(quaternion)
    return _log_of_scaled(q[..., :1], q[..., 1:])


def _log_of_scaled(w: Array, v: Array) -> Array:
    """Log of a quaternion of any length with w >= 0: 2 atan(|v| / w) v/|v|."""
    norm = np.sqrt(_dot(v, v))[..., None]
    if norm.size and norm.min() > 1e-100:
        return 2.0 * np.arctan2(norm, w) / norm * v
    # For a ratio below 1e-9 atan(x)/x is 1 to rounding, and |v| itself may have underflowed.
    small = norm < 1e-9 * w
    divisor = np.where(small, 1.0, norm)
    return np.where(small, 2.0 / np.where(small, w, 1.0), 2.0 * np.arctan2(norm, w) / divisor) * v


# --- SE(3) ---------------------------------------------------------------------------------------


def se3_from(rotation: ArrayLike, translation: ArrayLike) -> Array:
    """[[C, r], [0, 1]] from (..., 3, 3) and (..., 3)."""
    c, r = np.asarray(rotation, dtype=np.float64), np.asarray(translation, dtype=np.float64)
    if c.ndim == 2 and r.ndim == 1:  # by far the most frequent: no batch to find out about
        out = np.zeros((4, 4))
        out[:3, :3], out[:3, 3], out[3, 3] = c, r, 1.0
        return out
    batch = np.broadcast_shapes(c.shape[:-2], r.shape[:-1])
    out = np.zeros((*batch, 4, 4))
    out[..., :3, :3], out[..., :3, 3], out[..., 3, 3] = c, r, 1.0
    return out


def se3_exp(xi: ArrayLike) -> Array:
    """Exp(xi) = [[Exp(phi), J(phi) rho], [0, 1]]."""
    xi = np.asarray(xi, dtype=np.float64)
    phi = xi[..., 3:]
    k = hat(phi)
    k2 = k @ k
    theta2 = _dot(phi, phi)
    theta = np.sqrt(theta2)
    versine = _versine_over(theta)
    rotation = _I3 + _scale(_sin_over(theta), k) + _scale(versine, k2)
    jacobian = _I3 + _scale(versine, k) + _scale(_sine_defect(theta2), k2)
    return se3_from(rotation, _apply(jacobian, xi[..., :3]))


def se3_log(pose: ArrayLike) -> Array:
    """Log(T) = (J(phi)^-1 r, phi): the inverse of `se3_exp`."""
    pose = np.asarray(pose, dtype=np.float64)
    phi = so3_log(pose[..., :3, :3])
    rho = _apply(so3_left_jacobian_inverse(phi), pose[..., :3, 3])
    return np.concatenate([rho, phi], axis=-1)


def se3_inverse(pose: ArrayLike) -> Array:
    """T^-1 = [[C^T, -C^T r], [0, 1]]."""
    pose = np.asarray(pose, dtype=np.float64)
    c_inv = so3_inverse(pose[..., :3, :3])
    return se3_from(c_inv, -(c_inv @ pose[..., :3, 3, None])[..., 0])


def se3_adjoint(pose: ArrayLike) -> Array:
    """Ad(T) = [[C, hat(r) C], [0, C]], so that T Exp(xi) T^-1 = Exp(Ad(T) xi)."""
    pose = np.asarray(pose, dtype=np.float64)
    return se3_adjoint_of(pose[..., :3, :3], pose[..., :3, 3])


def se3_adjoint_of(rotation: Array, translation: Array) -> Array:
    """Ad(T) of a pose given as C and r."""
    return _block_upper(rotation, hat(translation) @ rotation)


def se3_left_jacobian(xi: ArrayLike) -> Array:
    """J(xi) = [[J(phi), Q(xi)], [0, J(phi)]]: Exp(xi + d) = Exp(J(xi) d) Exp(xi), first order."""
    xi = np.asarray(xi, dtype=np.float64)
    return _block_upper(so3_left_jacobian(xi[..., 3:]), _q_matrix(xi))


def se3_left_jacobian_inverse(xi: ArrayLike) -> Array:
    """J(xi)^-1 = [[J(phi)^-1, K], [0, J(phi)^-1]]; singular where the SO(3) one is."""
    xi = np.asarray(xi, dtype=np.float64)
    rho, phi = xi[..., :3], xi[..., 3:]
    e, d = inverse_coefficients(phi)
    k = hat(phi)
    return _block_upper(_I3 - 0.5 * k + _scale(e, k @ k), inverse_corner(rho, phi, e, d))


def inverse_corner(rho: Array, phi: Array, e: Array, d: Array) -> Array:
    """K = v^ phi^ + phi^ v^ - rho^/2 with v = e rho - d (phi' rho) phi, the corner of J(xi)^-1.

    e and d are `inverse_coefficients`. The sum over Bernoulli numbers B_n ad^n / n!, ad = ad(xi),
    ends with -ad/2 + (e + d theta^2) ad^2 + d ad^4, because (ad^2 + theta^2)^2 ad = 0.
    """
    v = e[..., None] * rho - (d * _dot(phi, rho))[..., None] * phi
    product = hat(v) @ hat(phi)
    return product + np.swapaxes(product, -1, -2) - 0.5 * hat(rho)


def se3_ad(xi: ArrayLike) -> Array:
    """ad(xi) = [[hat(phi), hat(rho)], [0, hat(phi)]], so that Ad(Exp(xi)) = exp(ad(xi))."""
    xi = np.asarray(xi, dtype=np.float64)
    return _block_upper(hat(xi[..., 3:]), hat(xi[..., :3]))


def _block_upper(diagonal: Array, corner: Array) -> Array:
    """[[D, B], [0, D]]."""
    out = np.zeros((*diagonal.shape[:-2], 6, 6))
    out[..., :3, :3] = out[..., 3:, 3:] = diagonal
    out[..., :3, 3:] = corner
    return out


def _q_matrix(xi: Array) -> Array:
    """Q(xi), the coupling of translation and rotation in the SE(3) left Jacobian.

    With p = hat(phi), r = hat(rho): r/2 + a (pr + rp + prp) + b (ppr + rpp - 3 prp)
    + c (prpp + pprp), a = (theta - sin)/theta^3, b = (theta^2 + 2 cos - 2)/(2 theta^4),
    c = (2 theta - 3 sin + theta cos)/(2 theta^5).
    """
    r, p = hat(xi[..., :3]), hat(xi[..., 3:])
    theta2 = _dot(xi[..., 3:], xi[..., 3:])

    def closed_b(t2: Array) -> Array:
        return (0.5 - _versine_over(np.sqrt(t2))) / t2

    def closed_c(t2: Array) -> Array:
        t = np.sqrt(t2)
        value: Array = (2.0 * t - 3.0 * np.sin(t) + t * np.cos(t)) / (2.0 * t2 * t2 * t)
        return value

    a = _sine_defect(theta2)
    b = _by_angle(theta2, SERIES_BELOW, _COS4_SERIES, closed_b)
    c = _by_angle(theta2, SERIES_BELOW, _MIX5_SERIES, closed_c)
    pr, rp = p @ r, r @ p
    prp = pr @ p
    return (
        0.5 * r
        + _scale(a, pr + rp + prp)
        + _scale(b, p @ pr + rp @ p - 3.0 * prp)
        + _scale(c, prp @ p + p @ prp)
    )


# --- distances, means, spread --------------------------------------------------------------------


def angular_distance(a: ArrayLike, b: ArrayLike) -> Array:
    """d_ang = |Log(R_a R_b^T)| = theta."""
    distance: Array = np.linalg.norm(so3_log(np.asarray(a) @ so3_inverse(b)), axis=-1)
    return distance


def chordal_distance(a: ArrayLike, b: ArrayLike) -> Array:
    """d_chord = |R_a - R_b|_F = 2 sqrt(2) sin(theta/2)."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    distance: Array = np.linalg.norm(a - b, axis=(-2, -1))
    return distance


def quaternionic_distance(a: ArrayLike, b: ArrayLike) -> Array:
    """d_quat = min(|q_a - q_b|, |q_a + q_b|) = 2 sin(theta/4)."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    distance: Array = np.minimum(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))
    return distance


def karcher_mean(rotations: ArrayLike, tolerance: float = 1e-12, iterations: int = 100) -> Array:
    """argmin_R sum d_ang(R_i, R)^2 over the axis before the matrix: (..., n, 3, 3) -> (..., 3, 3).

    Gradient steps R <- Exp(mean_i Log(R_i R^T)) R from the chordal mean, until the largest step of
    the batch is below `tolerance`; unique where the rotations lie within pi/2 of it.
    """
    rotations = np.asarray(rotations, dtype=np.float64)
    mean = chordal_mean(rotations)
    for _ in range(iterations):
        step = so3_log(rotations @ so3_inverse(mean)[..., None, :, :]).mean(axis=-2)
        mean = so3_exp(step) @ mean
        if np.max(np.abs(step), initial=0.0) < tolerance:
            break
    return mean


def chordal_mean(rotations: ArrayLike) -> Array:
    """argmin_R sum d_chord(R_i, R)^2: the projection of the sum, (..., n, 3, 3) -> (..., 3, 3)."""
    rotations = np.asarray(rotations, dtype=np.float64)
    if rotations.shape[-3] == 0:
        raise ValueError("a mean takes at least 1 rotation, got 0")
    return project_to_so3(np.sum(rotations, axis=-3))


def quaternion_mean(quaternions: ArrayLike) -> Array:
    """argmin_q sum d_quat(q_i, q)^2 = normalised sum, (..., n, 4) -> (..., 4).

    Signs are aligned with the first quaternion, which is right as long as every rotation is
    within pi/2 of the mean: two such rotations are less than pi apart.
    """
    q = np.asarray(quaternions, dtype=np.float64)
    if q.shape[-2] == 0:
        raise ValueError("a mean takes at least 1 quaternion, got 0")
    along = np.sum(q * q[..., :1, :], axis=-1, keepdims=True)
    total = np.sum(np.where(along < 0.0, -q, q), axis=-2)
    return quaternion_positive(total / np.linalg.norm(total, axis=-1, keepdims=True))


def sample_covariance(rotations: ArrayLike, mean: ArrayLike) -> Array:
    """sum_i phi_i phi_i^T / (n - 1), phi_i = Log(R_i R_mean^T): (..., n, 3, 3) -> (..., 3, 3)."""
    rotations, mean = np.asarray(rotations, dtype=np.float64), np.asarray(mean)
    phi = so3_log(rotations @ so3_inverse(mean)[..., None, :, :])
    count = phi.shape[-2]
    if count < 2:
        raise ValueError(f"a sample covariance takes at least 2 rotations, got {count}")
    covariance: Array = np.swapaxes(phi, -1, -2) @ phi / (count - 1)
    return covariance
