"""Unit quaternions in torch: `geometry.lie` batched over leading axes and differentiable.

Quaternions are w x y z, (..., 4); rotation vectors are (..., 3). Values and gradients are finite
for every rotation, the identity and exactly zero vectors included: wherever a closed form divides
by an angle, a series is used below a threshold, and the branch that is not taken is evaluated at a
harmless place, because a gradient of 0 times infinity would be NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Below this squared (tangent of the) half angle five terms of each series are exact in float64.
_SERIES_BELOW = 1e-3
_COS = (1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320)
_SINC = (1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880)
_ATAN = (1.0, -1.0 / 3, 1.0 / 5, -1.0 / 7, 1.0 / 9)


def _series(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """sum_k c_k x^k, by Horner's rule."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def positive(q: Tensor) -> Tensor:
    """Of the two quaternions of a rotation, the one with w >= 0."""
    return torch.where(q[..., :1] < 0.0, -q, q)


def normalise(q: Tensor) -> Tensor:
    """Unit length: q / |q|; the zero vector stays zero, with a finite gradient."""
    square = (q * q).sum(dim=-1, keepdim=True)
    return q * square.clamp_min(torch.finfo(q.dtype).tiny).rsqrt()


def conjugate(q: Tensor) -> Tensor:
    """(w, -v), which is q^-1 for a unit quaternion."""
    return torch.cat([q[..., :1], -q[..., 1:]], dim=-1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The Hamilton product a (x) b, so that R(a (x) b) = R(a) R(b)."""
    aw, ax, ay, az = a.unbind(dim=-1)
    bw, bx, by, bz = b.unbind(dim=-1)
    return torch.stack(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ],
        dim=-1,
    )


def exp(phi: Tensor) -> Tensor:
    """Exp(phi) = (cos(theta/2), sin(theta/2) phi/theta), with w >= 0."""
    half2 = 0.25 * (phi * phi).sum(dim=-1, keepdim=True)
    small = half2 < _SERIES_BELOW
    near, far = torch.where(small, half2, 0.0), torch.where(small, 1.0, half2).sqrt()
    w = torch.where(small, _series(_COS, near), torch.cos(far))
    sinc = torch.where(small, _series(_SINC, near), torch.sin(far) / far)
    return positive(torch.cat([w, 0.5 * sinc * phi], dim=-1))


def log(q: Tensor) -> Tensor:
    """Log(q) = 2 atan2(|v|, w) v/|v| with w >= 0: at most pi, and right at and next to it."""
    q = positive(q)
    w, v = q[..., :1], q[..., 1:]
    square = (v * v).sum(dim=-1, keepdim=True)
    small = square < _SERIES_BELOW * w * w
    near_w = torch.where(small, w, 1.0)
    near = torch.where(small, square, 0.0) / (near_w * near_w)
    far = torch.where(small, 1.0, square)
    far = far.clamp_min(torch.finfo(q.dtype).tiny).sqrt()  # 0 only for the zero quaternion
    factor = torch.where(small, _series(_ATAN, near) / near_w, torch.atan2(far, w) / far)
    return 2.0 * factor * v


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Log(a (x) b^-1): the left error of a about b, (..., 3)."""
    return log(multiply(a, conjugate(b)))


def to_matrix(q: Tensor) -> Tensor:
    """(..., 4) unit quaternion -> (..., 3, 3) rotation."""
    w, x, y, z = q.unbind(dim=-1)
    rows = [
        1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y),
        2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x),
        2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, dim=-1).reshape(*q.shape[:-1], 3, 3)


def from_matrix(rotation: Tensor) -> Tensor:
    """(..., 3, 3) -> (..., 4) with w >= 0.

    4 q q^T is linear in the rotation, and its row with the largest diagonal element is q up to a
    scale that is never close to zero: right at every angle, pi included.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (
        row.unbind(dim=-1) for row in rotation.unbind(dim=-2)
    )
    elements = [
        1.0 + xx + yy + zz, zy - yz, xz - zx, yx - xy,
        zy - yz, 1.0 + xx - yy - zz, xy + yx, xz + zx,
        xz - zx, xy + yx, 1.0 - xx + yy - zz, yz + zy,
        yx - xy, xz + zx, yz + zy, 1.0 - xx - yy + zz,
    ]  # fmt: skip
    outer = torch.stack(elements, dim=-1).reshape(*rotation.shape[:-2], 4, 4)
    best = outer.diagonal(dim1=-2, dim2=-1).argmax(dim=-1)
    index = best[..., None, None].expand(*best.shape, 1, 4)
    return positive(normalise(outer.gather(-2, index).squeeze(-2)))


def mean(q: Tensor) -> Tensor:
    """The normalised sum, argmin_q sum d_quat(q_i, q)^2: (..., n, 4) -> (..., 4).

    Signs are aligned with the first, which is right while every rotation is within pi/2 of the
    mean: two such rotations are less than pi apart.
    """
    if q.shape[-2] == 0:
        raise ValueError("a mean takes at least 1 quaternion, got 0")
    along = (q * q[..., :1, :]).sum(dim=-1, keepdim=True)
    return positive(normalise(torch.where(along < 0.0, -q, q).sum(dim=-2)))
