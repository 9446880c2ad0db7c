"""How a head's vectors follow position beyond Pearson's r: along an axis, as any function, along any axis.

    r_const = v.C_const / sqrt(v.M.v * T),  C_const = sum_t n_t (R_t mu)(t - mean t),  r = r_const + r_rest
    eta^2   = sum_t n_t (v.(m(t) - mean m))^2 / v.M.v
    R^2     = C^T M^-1 C / T

mu is the mean of all vectors before rotation, m(t) the mean vector at position t.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.grid import Grid
from qkscope.measures.waves import terms
from qkscope.moments import Moments
from qkscope.path import Path
from qkscope.rotation import Rotation

Array = NDArray[np.float64]

Phase = NDArray[np.complex128]

# Positions whose angles are in memory at a time.
CHUNK = 4096
# Directions with less than this share of the mean variance are rounding, and are not read.
RIDGE = 1e-9


def correlation(sums: Moments, v: Array) -> Array:
    """Pearson's r between the projection on v (H, d) and position. (H,)"""
    return _over_spread(np.einsum("hd,hd->h", v, sums.C), sums, v)


def constant_part(path: Path, rotation: Rotation, phase: Phase, sums: Moments, v: Array) -> Array:
    """r_const (H,): the correlation that rotating one constant vector, the mean of `path`, makes by itself.

    `phase` is `phases` of n_t (t - mean t); v (H, d).
    """
    with np.errstate(invalid="ignore"):
        mu = path.total.sum(axis=1) / path.n.sum()
    covariance = np.zeros_like(mu)  # what does not rotate is constant, and does not follow position
    (first, second), turn = rotation.pairs.T, rotation.scale * phase
    covariance[:, first] = mu[:, first] * turn.real - mu[:, second] * turn.imag
    covariance[:, second] = mu[:, first] * turn.imag + mu[:, second] * turn.real
    return _over_spread(np.einsum("hd,hd->h", v, covariance), sums, v)


def about_mean(counts: Array) -> Array:
    """n_t (t - mean t) of counts (..., T): the weights of a covariance with position; 0 where there are no tokens."""
    t = np.arange(counts.shape[-1], dtype=np.float64)
    mean = counts @ t / np.maximum(counts.sum(axis=-1), 1.0)
    return np.asarray(counts * (t - mean[..., None]))


def phases(rotation: Rotation, weight: Array) -> Phase:
    """sum_t weight_t exp(i t frequency) over t = 0, 1, ...: weight (..., T) -> (..., P)."""
    total = np.zeros((*weight.shape[:-1], len(rotation.frequency)), dtype=np.complex128)
    for start in range(0, weight.shape[-1], CHUNK):
        part = weight[..., start : start + CHUNK]
        angle = np.arange(start, start + part.shape[-1], dtype=np.float64)[:, None] * rotation.frequency
        total += part @ np.cos(angle) + 1j * (part @ np.sin(angle))
    return total


def projected_paths(groups: Sequence[Path], places: Grid, wave: Array, rotation: Rotation, v: Array) -> Array:
    """v.m_g(t) of each group at `places`, whose `waves` are (S, 2P + 1): v (H, d) -> (G, H, S)."""
    mean = np.stack([group.filled.mean for group in groups])  # (G, H, B, d)
    parts = terms(rotation, v[:, None], mean)
    starts = np.append(np.searchsorted(places.t, groups[0].edges[:-1]), len(places.t))
    found = np.empty((*parts.shape[:2], len(places.t)))
    for b, (i, j) in enumerate(pairwise(starts)):
        np.matmul(parts[:, :, b], wave[i:j].T, out=found[:, :, i:j])
    return found


def eta_squared(groups: Sequence[Path], places: Grid, projected: Array, sums: Moments, v: Array) -> Array:
    """The share of the projection's variance that is a function of position, at least 0. (H,)

    `projected` (G, H, S) are the groups' `projected_paths` on v (H, d) at `places`.
    Products run over pairs of different groups, so that what a mean has by chance does not add up. A bin that fewer
    than two groups reach counts as if position told nothing there; with fewer than two groups there is no answer.
    """
    bins = np.searchsorted(groups[0].edges, places.t, side="right") - 1
    n = np.stack([group.n for group in groups]).astype(np.float64)[:, bins]  # (G, S)
    pairs = n.sum(axis=0) ** 2 - (n**2).sum(axis=0)
    tokens = np.where(pairs > 0, places.tokens, 0.0)
    if not tokens.any():
        return np.full(len(v), np.nan)
    a = projected * n[:, None]
    squares = ((a.sum(axis=0) ** 2 - (a**2).sum(axis=0)) / np.where(pairs > 0, pairs, 1.0)) @ tokens
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    square_of_mean = _other_groups(np.add.reduceat(a * tokens, starts, axis=2), n[:, starts]) / tokens.sum()
    spread = np.einsum("hd,hde,he->h", v, sums.M, v)
    return np.asarray(np.maximum((squares - square_of_mean) / np.where(spread > 0, spread, np.nan), 0.0))


def _other_groups(y: Array, n: Array) -> Array:
    """sum over bins b, c of mean y_b.y_c over pairs of different groups: y (G, H, B) already times n (G, B) -> (H,)."""
    whole, tokens = y.sum(axis=0), n.sum(axis=0)
    products = whole[:, :, None] * whole[:, None, :] - np.einsum("ghb,ghc->hbc", y, y)
    pairs = tokens[:, None] * tokens - n.T @ n
    return np.asarray((products / np.where(pairs > 0, pairs, np.inf)).sum(axis=(1, 2)))


def linear_reading(sums: Moments) -> Array:
    """R (H,): the best linear reading of position from the whole vector, as a correlation.

    NaN with fewer than two tokens a dimension, where anything can be read from anything.
    """
    dim = sums.M.shape[1]
    ridge = np.maximum(RIDGE * np.trace(sums.M, axis1=1, axis2=2) / dim, np.finfo(float).tiny)
    solved = np.linalg.solve(sums.M + ridge[:, None, None] * np.eye(dim), sums.C[:, :, None])[:, :, 0]
    enough = (sums.n >= 2 * dim) & (sums.T > 0)
    squared = np.einsum("hd,hd->h", sums.C, solved) / np.where(enough, sums.T, np.nan)
    return np.asarray(np.sqrt(np.clip(squared, 0.0, 1.0)))


def _over_spread(covariance: Array, sums: Moments, v: Array) -> Array:
    spread = np.einsum("hd,hde,he->h", v, sums.M, v) * sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariance / np.sqrt(np.where(spread > 0, spread, np.nan)))
