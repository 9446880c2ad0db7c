"""How a head's vectors follow position beyond Pearson's r: along an axis, as any function, along any axis.

    r_const = v.C_const / sqrt(v.M.v * T),  C_const = sum_t n_t (R_t mu)(t - mean t),  r = r_const + r_rest
    eta^2   = sum_t n_t (v.(m(t) - mean m))^2 / v.M.v
    R^2     = C^T M^-1 C / T

mu is the mean of all vectors before rotation, m(t) the mean vector at position t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import by_key, per_query
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.measures.waves import Grid, Pairs, terms
from qkscope.sums.moments import Moments
from qkscope.sums.path import SINK, Path
from qkscope.sums.rotation import Rotation

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

Phase = NDArray[np.complex128]

# Positions whose angles are in memory at a time.
CHUNK = 4096
# Directions with less than this share of the mean variance are rounding, and are not read.
RIDGE = 1e-9


@dataclass(frozen=True)
class Along:
    """Moments of queries, or of the keys they read, along the queries' axes v (H, d)."""

    sums: Moments
    v: Array

    @cached_property
    def variance(self) -> Array:
        """v.M.v (H,); NaN where the projection does not vary."""
        along = by_key(self.v, len(self.sums.n))
        found = ((along @ self.sums.M) * along).sum(axis=2).reshape(-1)
        return np.where(found > 0, found, np.nan)

    def over_spread(self, covariance: Array) -> Array:
        """Covariances with position (H, ...) as correlations: over sqrt(v.M.v T)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.sqrt(self.variance * per_query(self.sums.T, len(self.v)))
            spread = np.where(spread > 0, spread, np.nan)
            return covariance / spread.reshape(-1, *[1] * (covariance.ndim - 1))


def correlation(along: Along) -> Array:
    """Pearson's r between the projection and position. (H,)"""
    return along.over_spread(np.einsum("hd,hd->h", along.v, per_query(along.sums.C, len(along.v))))


def constant_part(path: Path, rotation: Rotation, phase: Phase, along: Along) -> Array:
    """r_const (H,): the correlation that rotating one constant vector, the mean of `path`, produces alone.

    `phase` is `phases` of n_t (t - mean t).
    """
    with np.errstate(invalid="ignore"):
        mu = path.total.sum(axis=1) / path.n.sum()
    covariance = np.zeros_like(mu)  # what does not rotate is constant, and does not follow position
    (first, second), turn = rotation.pairs.T, rotation.scale * phase
    covariance[:, first] = mu[:, first] * turn.real - mu[:, second] * turn.imag
    covariance[:, second] = mu[:, first] * turn.imag + mu[:, second] * turn.real
    return along.over_spread(np.einsum("hd,hd->h", along.v, per_query(covariance, len(along.v))))


def about_mean(counts: Array) -> Array:
    """n_t (t - mean t) of counts (..., T): the weights of a covariance with position; 0 where there are no tokens."""
    t = np.arange(counts.shape[-1], dtype=np.float64)
    mean = counts @ t / np.maximum(counts.sum(axis=-1), 1.0)
    return np.asarray(counts * (t - mean[..., None]))


def phases(rotation: Rotation, weight: Array) -> Phase:
    """sum_t weight_t exp(i t frequency) over t = 0, 1, ...: weight (..., T) -> (..., P)."""
    edges = np.append(np.arange(0, weight.shape[-1], CHUNK), weight.shape[-1])
    return np.asarray(bin_phases(rotation, weight, edges).sum(axis=-2))


def bin_phases(rotation: Rotation, weight: Array, edges: NDArray[np.int64]) -> Phase:
    """The same, summed over each bin edges[b] <= t < edges[b + 1] alone. (..., B, P)"""
    found = np.zeros((*weight.shape[:-1], len(edges) - 1, len(rotation.frequency)), dtype=np.complex128)
    # Angles are relative to the start of a bin, so that one table of cosines and sines serves all bins.
    angle = np.arange(np.diff(edges).max(initial=0))[:, None] * rotation.frequency
    cos, sin = np.cos(angle), np.sin(angle)
    for b, (start, stop) in enumerate(pairwise(edges)):
        part, here = weight[..., start:stop], slice(stop - start)
        found[..., b, :] = part @ cos[here] + 1j * (part @ sin[here])
    return np.asarray(found * np.exp(1j * edges[:-1, None] * rotation.frequency))


def projected_paths(means: Pairs, edges: NDArray[np.int64], grid: Grid, wave: Array, v: Pairs) -> Array:
    """v.m_g(t) of each group at `grid`, whose `waves` are (S, 2P + 1). (G, H, S)

    `means` (G, K) by bin (B,) with `edges`, v (H,).
    """
    groups, keys = means.turning.shape[:2]
    axes = v.by_key(keys).at((slice(None), slice(None), None))
    parts = terms(axes, means.at((slice(None), slice(None), None)))  # (G, K, H / K, B, 2P + 1)
    parts = parts.reshape(groups * len(v.still), *parts.shape[-2:])
    starts = np.append(np.searchsorted(grid.t, edges[:-1]), len(grid.t))
    found = np.empty((len(parts), len(grid.t)), dtype=parts.dtype)
    for b, (i, j) in enumerate(pairwise(starts)):
        np.matmul(parts[:, b], wave[i:j].T, out=found[:, i:j])
    return found.reshape(groups, -1, len(grid.t))


def eta_squared(
    n: NDArray[np.int64], edges: NDArray[np.int64], grid: Grid, projected: Array, parts: Mapping[int, Along]
) -> list[Array]:
    """The share of the projection's variance that is a function of position, at least 0: (H,) for each of `parts`.

    n (G, B) tokens of each group by bin with `edges`, none where a group is left out; `projected` (G, H, S) the groups'
    `projected_paths` at `grid`. A part has the positions from one on, which begins a bin, and the moments there.
    Products run over pairs of different groups, so that what a mean has by chance does not add up. A bin that fewer
    than two groups reach counts as if position explained nothing there; with fewer than two groups there is no answer.
    """
    bins = np.searchsorted(edges, grid.t, side="right") - 1
    weight = n.astype(projected.dtype)[:, bins]  # (G, S)
    pairs = weight.sum(axis=0) ** 2 - (weight**2).sum(axis=0)
    tokens = np.where(pairs > 0, grid.tokens, 0.0)
    a = projected * weight[:, None]
    products = a.sum(axis=0) ** 2 - np.einsum("ghs,ghs->hs", a, a)
    weighted = tokens / np.where(pairs > 0, pairs, 1.0)
    firsts = np.flatnonzero(np.diff(bins, prepend=-1))
    a *= tokens
    binned, weight = np.add.reduceat(a, firsts, axis=2), weight[:, firsts]
    found = []
    for start, along in parts.items():
        s = int(np.searchsorted(grid.t, start))
        b, total = int(np.searchsorted(firsts, s)), tokens[s:].sum()
        squares = products[:, s:] @ weighted[s:]
        square_of_mean = _other_groups(binned[:, :, b:], weight[:, b:]) / (total or np.nan)
        found.append(np.maximum((squares - square_of_mean) / along.variance, 0.0))
    return found


def _other_groups(y: Array, n: Array) -> Array:
    """sum over bins b, c of mean y_b.y_c over pairs of different groups: y (G, H, B) already times n (G, B) -> (H,)."""
    whole, tokens = y.sum(axis=0), n.sum(axis=0)
    products = whole[:, :, None] * whole[:, None, :] - y.transpose(1, 2, 0) @ y.transpose(1, 0, 2)
    pairs = tokens[:, None] * tokens - n.T @ n
    return np.asarray((products / np.where(pairs > 0, pairs, np.inf)).sum(axis=(1, 2)))


def linear_reading(sums: Moments) -> Array:
    """R (H,): the best linear reading of position from the whole vector, as a correlation.

    NaN with fewer than two tokens a dimension, where anything can be read from anything.
    """
    from scipy.linalg import blas, lapack

    dim = sums.M.shape[1]
    M = sums.M.copy()
    M[:, np.arange(dim), np.arange(dim)] += np.maximum(RIDGE * sums.trace / dim, np.finfo(float).tiny)[
        :, None
    ]
    explained = np.empty(len(M))
    for i, (matrix, C) in enumerate(zip(M, sums.C, strict=True)):
        # With L L^T = M, C^T M^-1 C = |L^-1 C|^2.
        factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0)
        if failed:  # rounding has made M indefinite
            explained[i] = C @ np.linalg.solve(matrix, C)
        else:
            explained[i] = (blas.dtrsv(factor, C, lower=1) ** 2).sum()
    enough = (sums.n >= 2 * dim) & (sums.T > 0)
    squared = explained / np.where(enough, sums.T, np.nan)
    return np.sqrt(np.clip(squared, 0.0, 1.0))


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """Position beyond r, of all tokens and of those from position 4 on."""
    found: dict[str, list[Array]] = {}
    for sums in block.sums:
        v = Pairs.of(sums.table.rotation, sums.v.astype(sums.table.wave.dtype))
        for name, kind in (("q", sums.q), ("k", sums.k)):
            projected = projected_paths(kind.groups.means, sums.at.edges, sums.at.grid, sums.table.wave, v)
            parts = dict(zip((0, SINK), sums.along[name], strict=True))
            squares = eta_squared(kind.n, sums.at.edges, sums.at.grid, projected, parts)
            for (start, along), square, phase in zip(parts.items(), squares, sums.table.phase, strict=True):
                end = "_from4" if start else ""
                path = kind.path.window(block.width, start)
                constant = constant_part(path, sums.table.rotation, phase, along)
                values = {
                    f"eta_{name}{end}": np.sqrt(square),
                    f"r_{name}_const{end}": constant if sums.table.known else np.full(len(block), np.nan),
                    f"R_{name}{end}": linear_reading(along.sums),
                }
                if start:  # of all tokens, `pca` declares it
                    values[f"r_{name}{end}"] = correlation(along)
                for key, value in values.items():
                    found.setdefault(key, []).append(per_query(value, len(block)))
    return {name: np.stack(values) for name, values in found.items()}


def _variables() -> tuple[Variable, ...]:
    found = []
    for end, where in (("", ""), ("_from4", ", without the first four tokens")):
        for kind, who in (("q", "queries"), ("k", "keys")):
            declared = [
                Variable(f"r_{kind}_from4", f"r_{kind} from token 4", "",
                         f"correlation of {who} with position along PC0{where}", along_axis=True, detail=True),
                Variable(f"eta_{kind}{end}", f"eta_{kind}", "",
                         f"correlation ratio of {who} with position along PC0: any function of position{where}",
                         along_axis=True, detail=bool(end)),
                Variable(f"r_{kind}_const{end}", f"r_{kind} from rotating a constant vector", "",
                         f"part of r_{kind} that rotating the constant mean vector produces{where}",
                         along_axis=True, detail=bool(end)),
                Variable(f"R_{kind}{end}", f"R_{kind}", "",
                         f"best linear readout of position from the whole vector of {who}{where}", detail=bool(end)),
            ]  # fmt: skip
            found += declared if end else declared[1:]  # `pca` declares r of all tokens
    return tuple(found)


GROUP = MeasureGroup(name="position", needs=("moments", "path"), compute=compute, variables=_variables())
