"""Attention plasticity: how open it still is which of two keys a query prefers, given only where the query stands.

Queries are modelled as a line in position plus noise, q_t ~ N(alpha + beta t, H D H): beta = C / T and
alpha = mean - beta mean_t, H the Householder reflection that sends beta / |beta| to s1 e1, D the diagonal of the
reflected residual scatter H (M - C C' / T) H over n - 1. For two keys of one document in a bucket, delta = k1 - k2:

    z = mu_b . delta / sqrt(sum_j D_j (H delta)_j^2),   PP = 4 Phi(z) (1 - Phi(z))

with mu_b the line at the mean position of the queries of bucket b. PP is 1 where both keys are as likely to win and
0 where one always does. A cell (b, c) is the mean PP over the pairs of keys in bucket c < b of one document; a
head's value is the plain mean over its cells. s1 is the sign of the first component of the mean of the buckets'
key means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

Array = NDArray[np.float64]
Index = NDArray[Any]

# Pairs of keys taken at once: keeps temporaries in tens of megabytes.
PAIRS = 65_536
# Cells of the first and of the last fifth of the query buckets, whose difference is `drop`.
FIFTH = 0.2
NAMES = ("plasticity", "first", "last", "drop")


@dataclass(frozen=True)
class QueryLine:
    """A head's queries as a line with noise: mu (B, d) at each bucket, and the noise's scale in reflected axes.

    `reflect` (d,) is the Householder vector w of H = I - 2 w w' (zeros: no reflection), `noise` (d,) is D.
    """

    mu: Array
    reflect: Array
    noise: Array

    def whiten(self, x: Array) -> Array:
        """sqrt(D) H x of rows x (..., d): distances between rows are the standard deviations of z."""
        reflected = x - 2.0 * (x @ self.reflect)[..., None] * self.reflect
        return np.asarray(reflected * np.sqrt(self.noise))


def query_line(
    n: int, mean: Array, mean_t: float, M: Array, C: Array, T: float, bucket_t: Array, key_means: Array
) -> QueryLine:
    """The line through a head's queries: moments of all of them, `bucket_t` (B,) their mean position by bucket.

    `key_means` (buckets, d) are the means of the keys of each bucket that has any.
    """
    beta = C / T
    mu = (mean - beta * mean_t) + bucket_t[:, None] * beta
    sign = 1.0 if key_means.mean(axis=0)[0] >= 0 else -1.0
    reflect = _householder(beta, sign)
    residual = M - np.outer(C, C) / T
    turned = residual - 2.0 * np.outer(reflect, reflect @ residual)
    turned = turned - 2.0 * np.outer(turned @ reflect, reflect)
    return QueryLine(mu, reflect, np.maximum(np.diag(turned) / (n - 1), 0.0))


def _householder(beta: Array, sign: float) -> Array:
    """w of the reflection that sends beta / |beta| to sign e1."""
    length = float(np.linalg.norm(beta))
    if length == 0.0:
        return np.zeros_like(beta)
    w = beta / length
    w[0] -= sign
    norm = float(np.linalg.norm(w))
    return w / norm if norm > 1e-14 else np.zeros_like(w)


def openness(line: QueryLine, keys: Array, first: int, pairs: tuple[Index, Index]) -> Array:
    """PP of `pairs` of keys (n, d) of one document for the query buckets from `first` on: (pairs, B - first)."""
    i, j = pairs
    white, scores = line.whiten(keys), keys @ line.mu[first:].T
    return _openness(scores[i] - scores[j], ((white[i] - white[j]) ** 2).sum(axis=1, keepdims=True))


def openness_of_cells(line: QueryLine, keys: Array, key: Index, query: Index) -> Array:
    """PP of all pairs of keys (D, B, n, d) of a bucket, for cells of buckets `key`, `query` (N,): (N, D, pairs)."""
    i, j = np.triu_indices(keys.shape[2], 1)
    white, scores = line.whiten(keys), keys @ line.mu.T
    apart, above = (x[:, :, i] - x[:, :, j] for x in (white, scores))  # (D, B, pairs, d or B)
    length = (apart**2).sum(axis=-1)
    return _openness(above[:, key, :, query], length[:, key].transpose(1, 0, 2))


def _openness(difference: Array, squared: Array) -> Array:
    """erfc(z) erfc(-z) of scores that differ by so much, between keys at a `squared` distance in standard deviations.

    NaN where a key is missing or both are equal: no query can prefer one.
    """
    z = difference / np.sqrt(2.0 * np.where(squared > 0, squared, np.nan))
    lower = erfc(np.abs(z))
    return np.asarray(lower * (2.0 - lower))


def bucket_cells(line: QueryLine, keys: Array, sizes: Index, first: int) -> tuple[Array, int]:
    """(sum of PP over all pairs of keys of one document, for each query bucket from `first` on; number of pairs).

    `keys` (n, d) are those of a bucket, document after document, `sizes` (documents,) how many each has.
    """
    total, pairs = np.zeros(len(line.mu) - first), 0
    ends = np.repeat(np.cumsum(sizes), sizes)
    later = ends - np.arange(1, len(keys) + 1)  # keys of the same document that come after each
    for rows in np.split(np.arange(len(keys)), np.flatnonzero(np.diff(np.cumsum(later) // PAIRS)) + 1):
        count = later[rows]
        i = np.repeat(rows, count)
        j = i + 1 + np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
        start, stop = rows[0], ends[rows[-1]]
        found = openness(line, keys[start:stop], first, (i - start, j - start))
        total += np.nansum(found, axis=0)
        pairs += int(np.isfinite(found).any(axis=1).sum())
    return total, pairs


@dataclass(frozen=True)
class Plasticity:
    """A head's plasticity: `cells` (B, B) by query and key bucket, NaN where undefined; and its means."""

    cells: Array

    @property
    def numbers(self) -> Array:
        """NAMES. (4,)"""
        return np.array([self.overall, self.first, self.last, self.drop])

    @property
    def overall(self) -> float:
        return _mean(self.cells)

    @property
    def first(self) -> float:
        """Over the first fifth of the query buckets that have cells."""
        return _mean(self.cells[self._edge()[0]])

    @property
    def last(self) -> float:
        """Over the last fifth."""
        return _mean(self.cells[self._edge()[1]])

    @property
    def drop(self) -> float:
        return self.first - self.last

    def _edge(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = np.flatnonzero(np.isfinite(self.cells).any(axis=1))
        count = max(1, round(FIFTH * len(rows)))
        return rows[:count], rows[-count:] if len(rows) else rows


def plasticity(line: QueryLine, by_bucket: Iterable[tuple[Array, Index]]) -> Plasticity:
    """All pairs: for each bucket its keys (n, d), document after document, and how many each document has."""
    buckets = len(line.mu)
    total, pairs = np.zeros((buckets, buckets)), np.zeros(buckets)
    for c, (keys, sizes) in enumerate(by_bucket):
        if len(keys):
            total[c + 1 :, c], pairs[c] = bucket_cells(line, np.asarray(keys, np.float64), sizes, c + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cells = np.where(pairs > 0, total / pairs, np.nan)
    cells[np.triu_indices(buckets)] = np.nan  # a query sees only earlier buckets
    cells[np.isnan(line.mu).any(axis=1)] = np.nan
    return Plasticity(cells)


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
