"""What views and points add to the normal equations of `bundle`, and the derivatives in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.lie import Array

STEP = 6  # numbers of a view: rotation, translation


class Sums(NamedTuple):
    """What views and points add to the normal equations."""

    H: Array  # (views, 6, 6)
    moments: Array  # (views, 6, n)
    cross: Array  # (views, 6, n)
    depth_H: Array  # (n,)
    depth_g: Array
    weights: Array  # (views, n)
    squares: float
    cost: float


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
    ray = C @ bearings.T  # (views, 3, n)
    X = ray + t[:, :, None] * rho
    inverse = 1.0 / np.maximum(X[:, 2], nearest)
    h = X[:, :2] * inverse[:, None]
    r = np.swapaxes(z, 1, 2) - h  # (views, 2, n)
    square = (r * r).sum(axis=1)
    weights = seen / (1.0 + square / kernel**2)
    root = np.sqrt(weights) / sigma[:, None]
    a = inverse * root
    r *= root[:, None]
    J = _derivatives(a, h, ray, rho)  # (views, 6, 2, n)
    J_rho = a[:, None] * (t[:, :2, None] - h * t[:, 2:, None])  # (views, 2, n)
    flat = J.reshape(len(C), STEP, -1)
    return Sums(
        H=flat @ np.swapaxes(flat, 1, 2),
        moments=(J * r[:, None]).sum(axis=2),
        cross=(J * J_rho[:, None]).sum(axis=2),
        depth_H=(J_rho * J_rho).sum(axis=(0, 1)),
        depth_g=(J_rho * r).sum(axis=(0, 1)),
        weights=weights,
        squares=float((weights * square).sum()),
        cost=float((seen * np.log1p(square / kernel**2)).sum()),
    )


def _derivatives(a: Array, h: Array, ray: Array, rho: Array) -> Array:
    """(views, 6, 2, n): d h / d (phi, t) times the root weight; a (views, n), the others with xyz.

    h = pi(X), X = Exp(phi) ray + rho t: d X = -ray^ d phi + rho d t.
    """
    x, y, z = ray[:, 0], ray[:, 1], ray[:, 2]
    hx, hy, ar = h[:, 0], h[:, 1], a * rho
    J = np.zeros((len(a), STEP, 2, a.shape[1]))
    J[:, 0, 0], J[:, 0, 1] = -a * hx * y, -a * (z + hy * y)
    J[:, 1, 0], J[:, 1, 1] = a * (z + hx * x), a * hy * x
    J[:, 2, 0], J[:, 2, 1] = -a * y, a * x
    J[:, 3, 0] = J[:, 4, 1] = ar
    J[:, 5, 0], J[:, 5, 1] = -ar * hx, -ar * hy
    return J
