"""The chi-square distribution of whole degrees of freedom n, in closed form.

With h = x / 2 its tail Q(x) = P(chi2_n > x) is a finite sum,

    n even   Q = e^-h sum h^k / k!,                         k = 0, 1 ... n/2 - 1
    n odd    Q = erfc(sqrt(h)) + e^-h sum h^k / Gamma(k + 1),   k = 1/2, 3/2 ... n/2 - 1

of positive terms, so that small tails are as exact as large ones. Its slope is

    Q' = -e^-h h^(n/2 - 1) / (2 Gamma(n/2)).
"""

from __future__ import annotations

import math

# Beyond it every tail is below the smallest number.
_FARTHEST = 1e4
# Below it digits of a tail are lost.
_SMALLEST = 1e-290
# Newton steps meet a quantile to rounding within ten, next to 0 within some dozens.
_MOST_STEPS = 200


def tail(degrees: int, value: float) -> float:
    """Q(x) = P(chi2 > x)."""
    h = 0.5 * min(max(value, 0.0), _FARTHEST)
    k = 0.5 * (degrees % 2)
    term = math.exp(-h)
    total = 0.0
    if degrees % 2:
        total, term = math.erfc(math.sqrt(h)), term * math.sqrt(h) / math.gamma(1.5)
    while k < 0.5 * degrees - 0.5:
        total += term
        k += 1.0
        term *= h / k
    return min(total, 1.0)


def log_tail(degrees: int, value: float) -> float:
    """Log Q(x), also where Q is below the smallest number: there by its leading term."""
    chance = tail(degrees, value)
    if chance > _SMALLEST:
        return math.log(chance)
    return _leading(degrees, value)


def quantile(degrees: int, chance: float) -> float:
    """The x with Q(x) = `chance`: infinity for 0, and 0 for 1.

    By Newton steps on log Q, which is concave for n >= 2, from the mean; halving where a step
    leaves the bounds that are known.
    """
    if not 0.0 < chance < 1.0:
        return 0.0 if chance >= 1.0 else math.inf
    low, high, x = 0.0, math.inf, float(degrees)
    for _ in range(_MOST_STEPS):
        reached = log_tail(degrees, x)
        off = reached - math.log(chance)
        low, high = (x, high) if off > 0.0 else (low, x)
        new = x + 2.0 * off * math.exp(reached - _leading(degrees, x))
        if not low <= new <= high:
            new = 0.5 * (low + high)
        if abs(new - x) <= 1e-15 * x:
            break
        x = new
    return x


def _leading(degrees: int, value: float) -> float:
    """The logarithm of -2 Q', which is that of Q far out."""
    half = 0.5 * degrees
    return (half - 1.0) * math.log(0.5 * value) - 0.5 * value - math.lgamma(half)
