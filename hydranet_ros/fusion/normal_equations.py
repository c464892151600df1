"""Normal equations of a chain of states, kept as a band, and their solution.

An edge spans a few states only, so H = J' W J is banded: cell (i, j) of its lower half is kept at
[j, i - j]. Where numba is installed its compiled loops add the factors and take Cholesky's factor
of the band. Without it all contributions are added by one `bincount`, whose cells are worked out
once per structure, and the band is eliminated in a few dense blocks (`Blocks`). The newest states
come last, so that the end of the factor is all that their covariance needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from hydranet_ros.errors import compiled_loops
from hydranet_ros.fusion.factors import Columns, Index, Linear
from hydranet_ros.geometry.lie import Array

compiled = compiled_loops("hydranet_ros.fusion.normal_equations_numba")
"""The inner loops; None where numba is not installed."""

_DENSE = 24  # unknowns of a dense block: with fewer the calls take longer than the work


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
    """c + g' d + d' H d / 2 about some states, H as a band."""

    def __init__(
        self, band: Array, gradient: Array, cost: float, parts: list[Part], dimension: int
    ) -> None:
        self.band, self.gradient, self.cost, self.parts = band, gradient, cost, parts
        self._dimension = dimension  # of a state
        self._factor: Cholesky | Blocks | None = None

    def step(self, damping: float) -> Array | None:
        """-H^-1 g, with the diagonal of H grown by `damping`; None if H is not positive."""
        band = self.band
        if damping:
            band = band.copy()
            band[:, 0] *= 1.0 + damping
        factor, solved = solve_band(band, self.gradient, self._dimension)
        if factor is None:
            return None
        if not damping:
            self._factor = factor
        return -solved

    def last_covariance(self, size: int) -> Array:
        """The last `size` rows and columns of H^-1."""
        if self._factor is None:
            self._factor, _ = solve_band(self.band, self.gradient, self._dimension)
        if self._factor is None:
            raise ValueError("the window is not observable: its information is singular")
        return self._factor.last_inverse(size)


class Layout:
    """Where the contributions of each block go; made once, filled at every step."""

    def __init__(self, blocks: Sequence[Block], count: int, dimension: int, covered: int) -> None:
        self.blocks, self.size = blocks, count * dimension
        self._shape = count, dimension, covered
        spans = [int((b.states[:, -1] - b.states[:, 0]).max(initial=0)) for b in blocks]
        self._below = (max([covered - 1, *spans]) + 1) * dimension
        self.columns = [block.columns_of(dimension) for block in blocks]

    @cached_property
    def _places(self) -> tuple[Index, Index]:
        """Cells of the band and rows of the gradient, of all blocks and of the prior."""
        _, dimension, covered = self._shape
        rows = [*self.columns, np.arange(covered * dimension)[None]]
        cells = []
        for columns in rows:
            i, j = _lower(columns.shape[1])
            later = columns[:, j]
            cells.append((later * self._below + columns[:, i] - later).ravel())
        return np.concatenate(cells), np.concatenate([each.ravel() for each in rows])

    def fill(
        self, linears: Sequence[Linear], hessian: Array, gradient: Array, cost: float
    ) -> Quadratic:
        """Add up the blocks and a dense prior over the first states."""
        if compiled is None:
            return self._fill(linears, hessian, gradient, cost)
        band, slope, parts = np.zeros((self.size, self._below)), np.zeros(self.size), []
        for block, linear, columns in zip(self.blocks, linears, self.columns, strict=True):
            kernel, sigma = NO_KERNEL if block.kernel is None else block.kernel.code
            given = (*linear, block.information)
            *part, block_cost = compiled.add_factors(
                *map(np.ascontiguousarray, given), kernel, sigma, columns, band, slope
            )
            parts.append(Part(*part))
            cost += block_cost
        compiled.add_prior(hessian, gradient, band, slope)
        return Quadratic(band, slope, cost, parts, self._shape[1])

    def _fill(
        self, linears: Sequence[Linear], hessian: Array, gradient: Array, cost: float
    ) -> Quadratic:
        values, parts = [], []
        for block, linear in zip(self.blocks, linears, strict=True):
            part, block_cost = block.contribution(linear)
            count, size, _ = part.hessian.shape
            flat = part.hessian.reshape(count, size * size)
            values.append(flat.take(_lower_flat(size), axis=1).ravel())
            parts.append(part)
            cost += block_cost
        values.append(hessian.ravel().take(_lower_flat(len(gradient))))
        cells, rows = self._places
        band = np.bincount(cells, np.concatenate(values), minlength=self._below * self.size)
        slopes = np.concatenate([*(part.gradient.ravel() for part in parts), gradient])
        total = np.bincount(rows, slopes, minlength=self.size)
        band = band.reshape(self.size, self._below)
        return Quadratic(band, total, cost, parts, self._shape[1])

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


# --- solving -------------------------------------------------------------------------------------


def solve_band(
    band: Array, right: Array, dimension: int
) -> tuple[Cholesky | Blocks | None, Array]:
    """The factor of H, a band of states, and H^-1 y; no factor if H is not positive."""
    if compiled is None:
        return Blocks.solve(band, right, dimension)
    factor, solved, positive = compiled.solve_band(band, right)
    return Cholesky(factor) if positive else None, solved


def solve_positive(matrix: Array, right: Array) -> Array:
    """H^-1 Y for a small dense H (n, n) and Y (n, k); LinAlgError if H is not positive."""
    if compiled is None:
        np.linalg.cholesky(matrix)  # which raises it
        return np.linalg.solve(matrix, right)
    given = (np.ascontiguousarray(each) for each in (matrix, right))
    solved, positive = compiled.solve_positive(*given)
    if not positive:
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return solved


@dataclass(frozen=True, eq=False)
class Cholesky:
    """L of H = L L^T, as a band."""

    lower: Array

    def last_inverse(self, size: int) -> Array:
        """The last `size` rows and columns of H^-1."""
        assert compiled is not None
        return compiled.last_inverse(self.lower, size)


@dataclass(frozen=True, eq=False)
class Blocks:
    """H eliminated from the oldest block on: what is left of each (K, m, m), and the gains (m, c).

    With D_k the blocks of the diagonal and B_k those below, S_k+1 = D_k+1 - B_k S_k^-1 B_k^T and
    W_k = S_k^-1 B_k^T, whose first c columns are not 0. H is scaled to a diagonal of ones, by
    `root` on both sides: metres, radians and scales differ by many digits.
    """

    left: Array
    gains: list[Array]
    newest: Array  # S_K^-1
    root: Array

    @classmethod
    def solve(cls, band: Array, right: Array, dimension: int) -> tuple[Blocks | None, Array]:
        """H eliminated, and H^-1 y; None if H is not positive."""
        n, below = band.shape
        if not (band[:, 0] > 0.0).all():
            return None, right
        root = 1.0 / np.sqrt(band[:, 0])
        later, inside, beside = _blocks_of(n, below, dimension)
        scaled = band * root[:, None] * root.take(later)
        cells = np.concatenate([scaled.ravel(), (0.0, 1.0)])
        left, wanted = cells.take(inside), cells.take(beside)
        count, m, _ = left.shape
        c, y = below - dimension, np.zeros((count, m))
        y.reshape(-1)[-n:] = root * right
        gains = []
        try:
            for k in range(count - 1):  # y is eliminated with H, as one more column
                wanted[k, :, c] = y[k]
                gain = np.linalg.solve(left[k], wanted[k])
                spread = wanted[k, -c:, :c].T @ gain[-c:]
                left[k + 1, :c, :c] -= spread[:, :c]
                y[k + 1, :c] -= spread[:, c]
                gains.append(gain)
            np.linalg.cholesky(left)
            newest = np.linalg.inv(left[-1])
        except np.linalg.LinAlgError:
            return None, right
        found = [newest @ y[-1]]
        for gain in reversed(gains):
            found.append(gain[:, c] - gain[:, :c] @ found[-1][:c])
        solved = np.concatenate(found[::-1])[-n:] * root
        return cls(left, [gain[:, :c] for gain in gains], newest, root), solved

    def last_inverse(self, size: int) -> Array:
        """The last `size` rows and columns P of H^-1, from the newest block backwards.

        A block before them has S_k^-1 + W_k P W_k^T, and beside P there is -W_k P.
        """
        found = self.newest
        for S, gain in zip(self.left[-2::-1], reversed(self.gains), strict=True):
            if len(found) >= size:
                break
            beside = -gain @ found[: gain.shape[1]]
            own = np.linalg.inv(S) - beside[:, : gain.shape[1]] @ gain.T
            found = np.block([[own, beside], [beside.T, found]])
        root = self.root[-size:]
        return root[:, None] * found[-size:, -size:] * root


@lru_cache(maxsize=8)
def _blocks_of(n: int, below: int, dimension: int) -> tuple[Index, Index, Index]:
    """The later unknown of each cell of a band, and the cells of its dense blocks.

    They are D_k (K, m, m), and the first columns of B_k^T (K, m, below - dimension + 1), one of
    them free. Unknowns that stand for themselves fill the first block up: after the band come a 0
    and a 1.
    """
    later = np.minimum(np.arange(n)[:, None] + np.arange(below), n - 1)
    states = n // dimension
    count = max(n // max(_DENSE, below - dimension), 1)
    m = -(-states // count) * dimension
    count = -(-n // m)
    first = (np.arange(count) * m + n - count * m)[:, None, None]
    i = first + np.arange(m + below - dimension + 1)[:, None]
    j = first + np.arange(m)
    apart, least = np.abs(i - j), np.minimum(i, j)
    cells = least * below + apart
    cells[(apart >= below) | (least < 0) | (i >= n)] = n * below
    cells[(least < 0) & (apart == 0)] = n * below + 1
    return later, cells[:, :m], np.swapaxes(cells[:, m:], 1, 2).copy()


# --- robust kernels ------------------------------------------------------------------------------
# A kernel rho(s) says what a squared whitened residual s costs once it is larger than noise
# explains. Iterative reweighting multiplies the information of a factor with rho'(s).

KERNELS = "none", "huber", "cauchy"
NO_KERNEL = 0, 1.0


@dataclass(frozen=True)
class Kernel:
    """`none`: s; `huber`: s, then 2 k sqrt(s) - k^2 beyond k; `cauchy`: k^2 log(1 + s / k^2)."""

    name: str
    sigma: float

    @property
    def code(self) -> tuple[int, float]:
        """As the compiled sums take it."""
        return KERNELS.index(self.name), self.sigma

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
