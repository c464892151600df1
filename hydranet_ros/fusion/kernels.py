"""Robust kernels: how much a residual may cost once it is larger than noise explains.

A kernel rho acts on the squared whitened residual s. Iterative reweighting multiplies the
information of a factor with rho'(s).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry.lie import Array


@dataclass(frozen=True)
class Kernel:
    """`none`: s; `huber`: s, then 2 k sqrt(s) - k^2 beyond k; `cauchy`: k^2 log(1 + s / k^2)."""

    name: str
    sigma: float

    def cost_and_weight(self, squared: Array) -> tuple[Array, Array | None]:
        """rho(s) and rho'(s); None for a weight of 1 everywhere."""
        k2 = self.sigma**2
        if self.name == "none" or (self.name == "huber" and squared.max(initial=0.0) <= k2):
            return squared, None
        if self.name == "cauchy":
            return k2 * np.log1p(squared / k2), 1.0 / (1.0 + squared / k2)
        weight = np.sqrt(k2 / np.maximum(squared, k2))
        far = 2.0 * self.sigma * np.sqrt(squared) - k2
        return np.where(squared <= k2, squared, far), weight
