"""Normal equations of a chain of states, in LAPACK's band storage.

An edge spans a few states only, so J' W J is banded: cell (i, j) of its lower half is kept at
[i - j, j]. All contributions are added by one `bincount`, whose cells are worked out once per
structure. The newest states come last, so that the end of the Cholesky factor is all that their
covariance needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpbtrf, dpbtrs, dtrtri

from hydranet_ros.fusion.factors import Columns, Index, Linear
from hydranet_ros.geometry.lie import Array


@cache
def _lower(size: int) -> tuple[Index, Index]:
    return np.tril_indices(size)


@cache
def _lower_flat(size: int) -> Index:
    i, j = np.tril_indices(size)
    return i * size + j


@cache
def _offsets(columns: Columns) -> tuple[Index, Index]:
    """For each column: which of the factor's states, and how far into that state."""
    which = np.repeat([part[0] for part in columns], 3)
    return which, np.concatenate([3 * part[1] + np.arange(3) for part in columns])


@dataclass(frozen=True, eq=False)
class Block:
    """Factors of one kind: the states (M, n) each touches, oldest first, and their weights."""

    states: Index
    columns: Columns
    information: Array
    kernel: Kernel | None = None

    def columns_of(self, dimension: int) -> Index:
        """(M, k): the columns of the Jacobians within the normal equations."""
        which, offset = _offsets(self.columns)
        return self.states[:, which] * dimension + offset

    def contribution(self, linear: Linear) -> tuple[Part, float]:
        """The normal equations of the factors, and their cost."""
        residual, jacobian = linear
        weighted = self.information @ jacobian
        pull = (self.information @ residual[:, :, None])[:, :, 0]
        squared = np.einsum("mi,mi->m", residual, pull)
        if self.kernel is not None:
            squared, weight = self.kernel.cost_and_weight(squared)
            if weight is not None:
                weighted = weight[:, None, None] * weighted
        weighted = np.swapaxes(weighted, -1, -2)
        gradient = (weighted @ residual[:, :, None])[:, :, 0]
        return Part(weighted @ jacobian, gradient), 0.5 * float(squared.sum())


class Part(NamedTuple):
    """J' W J (M, k, k) and J' W e (M, k) of the factors of one block."""

    hessian: Array
    gradient: Array


class Quadratic:
    """c + g' d + d' H d / 2 about some states, H in band storage."""

    def __init__(self, band: Array, gradient: Array, cost: float, parts: list[Part]) -> None:
        self.band, self.gradient, self.cost, self.parts = band, gradient, cost, parts
        self._factor: Array | None = None

    def step(self, damping: float) -> Array | None:
        """-H^-1 g, with the diagonal of H grown by `damping`; None if H is not positive."""
        band = self.band
        if damping:
            band = band.copy()
            band[0] *= 1.0 + damping
        factor, failed = dpbtrf(band, lower=1)
        if failed:
            return None
        if not damping:
            self._factor = factor
        return -dpbtrs(factor, self.gradient, lower=1)[0]

    def last_covariance(self, size: int) -> Array:
        """The last `size` rows and columns of H^-1 = L^-T L^-1: the end of L is enough."""
        factor, failed = (
            (self._factor, 0) if self._factor is not None else dpbtrf(self.band, lower=1)
        )
        if failed:
            raise ValueError("the window is not observable: its information is singular")
        below, n = factor.shape
        i, j = _lower(size)
        inside = i - j < below
        i, j = i[inside], j[inside]
        lower = np.zeros((size, size))
        lower[i, j] = factor[i - j, j + n - size]
        inverse = dtrtri(lower, lower=1)[0]
        return inverse.T @ inverse


class Layout:
    """Where the contributions of each block go; made once, filled at every step."""

    def __init__(self, blocks: Sequence[Block], count: int, dimension: int, covered: int) -> None:
        self.blocks, self.size = blocks, count * dimension
        self._shape = count, dimension, covered
        self._prior = _lower(covered * dimension)
        spans = [int((b.states[:, -1] - b.states[:, 0]).max(initial=0)) for b in blocks]
        self._below = (max([covered - 1, *spans]) + 1) * dimension
        cells, rows = [], []
        for block in blocks:
            columns = block.columns_of(dimension)
            i, j = _lower(columns.shape[1])
            later = columns[:, j]
            cells.append(((columns[:, i] - later) * self.size + later).ravel())
            rows.append(columns.ravel())
        cells.append((self._prior[0] - self._prior[1]) * self.size + self._prior[1])
        rows.append(np.arange(covered * dimension))
        self._cells, self._rows = np.concatenate(cells), np.concatenate(rows)

    def fill(
        self, linears: Sequence[Linear], hessian: Array, gradient: Array, cost: float
    ) -> Quadratic:
        """Add up the blocks and a dense prior over the first states."""
        values, parts = [], []
        for block, linear in zip(self.blocks, linears, strict=True):
            part, block_cost = block.contribution(linear)
            count, size, _ = part.hessian.shape
            flat = part.hessian.reshape(count, size * size)
            values.append(flat.take(_lower_flat(size), axis=1).ravel())
            parts.append(part)
            cost += block_cost
        values.append(hessian[self._prior])
        band = np.bincount(self._cells, np.concatenate(values), minlength=self._below * self.size)
        slopes = np.concatenate([*(part.gradient.ravel() for part in parts), gradient])
        total = np.bincount(self._rows, slopes, minlength=self.size)
        return Quadratic(band.reshape(self._below, self.size), total, cost, parts)

    def fits(self, blocks: Sequence[Block], count: int, dimension: int, covered: int) -> bool:
        """Whether these blocks would have the same layout."""
        return (
            self._shape == (count, dimension, covered)
            and len(blocks) == len(self.blocks)
            and all(
                new.columns == old.columns and np.array_equal(new.states, old.states)
                for new, old in zip(blocks, self.blocks, strict=True)
            )
        )


# --- robust kernels ------------------------------------------------------------------------------
# A kernel rho(s) says what a squared whitened residual s costs once it is larger than noise
# explains. Iterative reweighting multiplies the information of a factor with rho'(s).


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
