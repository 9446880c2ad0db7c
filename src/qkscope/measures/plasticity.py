"""Attention plasticity: how undetermined a query's preference between two keys is, given only the query's position.

Queries are modelled as a line in position plus noise, q_t ~ N(alpha + beta t, H D H): beta = C / T and
alpha = mean - beta mean_t, H the Householder reflection that sends beta / |beta| to s1 e1, D the diagonal of the
reflected residual scatter H (M - C C' / T) H over n - 1. For two keys of one document in a bucket, delta = k1 - k2:

    z = mu_b . delta / sqrt(sum_j D_j (H delta)_j^2),   PP = 4 Phi(z) (1 - Phi(z))

with mu_b the line at the mean position of the queries of bucket b. PP is 1 where both keys are as likely to win and
0 where one always does. A cell (b, c) is the mean PP over the pairs of keys in bucket c < b of one document; a
head's value is the plain mean over its cells. s1 is the sign of the first component of the mean of the buckets'
key means.

In a study, queries enter by their moments, and keys by the sample that a unit stores (`sums.keys`). A document's mean
over pairs in a bucket is estimated from its sampled keys, and counts as its pairs do. The error of sampling has two
parts. With h = the mean over cells of PP as a kernel of two keys, U its mean over the sampled pairs of a document and
bucket, and U_i the same without key i of the m sampled out of n,

    keys        sum of weight^2 (1 - m/n) (m-1)/m sum_i (U_i - U)^2       over documents and buckets
    documents   (1 - D/N) D/(D-1) sum_d e_d^2                             e_d what document d adds to the head's value

for D documents sampled of N. It bounds the distance to the value of all pairs of all documents; the jackknife's error
is that over documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from qkscope.errors import StoreError
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.keys import KeySample, bucket_size
from qkscope.sums.moments import Moments
from qkscope.sums.unit import Unit

if TYPE_CHECKING:
    from qkscope.measures.cell import Cell, HeadBlock

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
        return reflected * np.sqrt(self.noise)


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


def means_of_cells(cells: Array) -> Array:
    """NAMES (4,) of PP (B, B) by query and key bucket, NaN where undefined.

    The mean of all cells, of the first and of the last fifth of the query buckets that have any, and their difference.
    """
    rows = np.flatnonzero(np.isfinite(cells).any(axis=1))
    count = max(1, round(FIFTH * len(rows)))
    overall, first, last = (
        _row_means(each.ravel()) for each in (cells, cells[rows[:count]], cells[rows[-count:]])
    )
    return np.array([overall, first, last, first - last])


def plasticity(line: QueryLine, by_bucket: Iterable[tuple[Array, Index]]) -> Array:
    """PP (B, B) by query and key bucket over all pairs of keys; NaN where undefined.

    `by_bucket` has the keys (n, d) of each bucket, document after document, and how many each document has.
    """
    buckets = len(line.mu)
    total, pairs = np.zeros((buckets, buckets)), np.zeros(buckets)
    for c, (keys, sizes) in enumerate(by_bucket):
        if len(keys):
            total[c + 1 :, c], pairs[c] = bucket_cells(line, np.asarray(keys, np.float64), sizes, c + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cells = np.where(pairs > 0, total / pairs, np.nan)
    cells[np.triu_indices(buckets)] = np.nan  # a query sees only earlier buckets
    cells[np.isnan(line.mu).any(axis=1)] = np.nan
    return cells


@dataclass(frozen=True)
class SampledKeys:
    """The sampled keys of all units: vectors (D, B, m, K, d), and for each document its group, pairs, tokens (D, B).

    `share` (D,) is the share of its group's documents that are sampled.
    """

    vectors: NDArray[np.float32]
    group: NDArray[np.int64]
    pairs: Array
    tokens: Array
    share: Array


@lru_cache(maxsize=1)
def _sampled_keys(cell: Cell) -> SampledKeys:
    samples = [_sample(unit, cell.width) for unit in cell.units]
    share = [len(s.lengths) / unit.documents for s, unit in zip(samples, cell.units, strict=True)]
    counts = [len(sample.lengths) for sample in samples]
    return SampledKeys(
        np.concatenate([sample.vectors for sample in samples]),
        np.repeat(np.arange(len(cell.units)), counts),
        np.concatenate([sample.pairs() for sample in samples]),
        np.concatenate([sample.tokens() for sample in samples]).astype(np.float64),
        np.repeat(share, counts),
    )


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """Plasticity of each head in every sample, its cells and sampling error over all documents."""
    sampled = _sampled_keys(block.cell)
    positions = _bucket_positions(block.cell.units, block.width, block.samples)
    buckets, count = sampled.vectors.shape[1], len(block)
    values = np.full((block.samples, len(NAMES), count), np.nan)
    cells, error = np.full((count, buckets, buckets), np.nan), np.full(count, np.nan)
    for row in range(count):
        key = row * len(block.rows.keys) // count
        mine = sampled.vectors[:, :, :, block.rows.keys[key]].astype(np.float64)  # (D, B, m, d)
        for s, (q, k) in enumerate(block.moments):
            if q.bad[row] or k.bad[key] or q.n[row] < 2 or q.T[row] <= 0:
                continue
            line = _line(q, row, k.mean_x[key], positions[s])
            there = np.flatnonzero(sampled.group != s - 1)
            found = _Head.of(line, mine[there], sampled, there)
            values[s, :, row] = means_of_cells(found.cells())
            if s == 0:
                cells[row], error[row] = found.cells(), found.sampling_error()
    names = (variable.name for variable in GROUP.variables)
    return dict(zip(names, [*values.transpose(1, 0, 2), error, cells], strict=True))


GROUP = MeasureGroup(
    name="plasticity",
    needs=("moments", "keys"),
    compute=compute,
    optional=True,
    variables=(
        Variable("plasticity", "plasticity", "",
                 "how undetermined a query's preference between two keys is at its position: 0 determined, 1 not"),
        Variable("plasticity_first", "plasticity, early queries", "", "the same over the first fifth of the queries",
                 detail=True),
        Variable("plasticity_last", "plasticity, late queries", "", "the same over the last fifth of the queries",
                 detail=True),
        Variable("plasticity_drop", "plasticity, first minus last fifth", "",
                 "plasticity of the first fifth of the queries minus that of the last fifth"),
        Variable("plasticity_sampling_se", "sampling error", "", "error from using a sample of keys", sampled=False,
                 detail=True),
        Variable("plasticity_map", "plasticity by bucket", "", "plasticity by bucket of query and key",
                 ("query_bucket", "key_bucket"), sampled=False),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _Head:
    """One head's openness: PP (N, D, pairs) of the N cells, of key bucket `key` (N,) and a later `query` bucket.

    weights, count (sampled keys), tokens, known (D, B) of documents and key buckets · share (D,)
    """

    pp: Array
    key: NDArray[np.int64]
    query: NDArray[np.int64]
    weights: Array
    count: Array
    tokens: Array
    share: Array
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, line: QueryLine, mine: Array, sampled: SampledKeys, there: NDArray[np.int64]) -> _Head:
        key, query = np.triu_indices(mine.shape[1], 1)
        pp = openness_of_cells(line, mine, key, query)
        known = np.zeros(mine.shape[:2], dtype=bool)
        cell, document = np.nonzero(np.isfinite(pp).any(axis=2))
        known[document, key[cell]] = True
        weights = np.where(known, sampled.pairs[there] / sampled.share[there, None], 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            weights = weights / weights.sum(axis=0)
        count = np.isfinite(mine[..., 0]).sum(axis=2).astype(np.float64)
        return cls(pp, key, query, weights, count, sampled.tokens[there], sampled.share[there], known)

    def cells(self) -> Array:
        """(B, B) by query and key bucket; NaN where no document has a pair or no query."""
        found = np.full((self.known.shape[1],) * 2, np.nan)
        known = self.known[:, self.key].T  # (N, D)
        mean = np.where(known, self.weights[:, self.key].T * _row_means(self.pp), 0.0).sum(axis=1)
        found[self.query, self.key] = np.where(known.any(axis=1), mean, np.nan)
        return found

    def sampling_error(self) -> float:
        """The standard error of the head's value that comes from sampling some keys of some documents."""
        cells = max(1, int(np.isfinite(self.cells()).sum()))
        variance, added = 0.0, np.zeros(len(self.weights))
        for c in np.unique(self.key):
            here = self.known[:, c]
            if not here.any():
                continue
            pp = self.pp[self.key == c][:, here]
            kernel = np.where(
                np.isfinite(pp).any(axis=0), np.nansum(pp, axis=0) / cells, np.nan
            )  # (D, pairs)
            weight, m, n = self.weights[here, c], self.count[here, c], self.tokens[here, c]
            own = _row_means(kernel)
            variance += float(weight**2 @ (np.maximum(1 - m / n, 0.0) * _key_variance(kernel, own, m)))
            added[here] += weight * (own - weight @ own)
        count = len(added)
        between = float(((1 - self.share) * added**2).sum()) * count / max(count - 1, 1)
        return float(np.sqrt(variance + between))


def _key_variance(kernel: Array, mean: Array, m: Array) -> Array:
    """Jackknife variance of the mean over pairs, leaving each key out: kernel (D, pairs), mean, m (D,) -> (D,)."""
    slots = round((1 + (1 + 8 * kernel.shape[1]) ** 0.5) / 2)
    i, j = np.triu_indices(slots, 1)
    has = (np.arange(slots)[:, None] == i) | (np.arange(slots)[:, None] == j)  # (slots, pairs)
    known = np.isfinite(kernel)
    present, left = (
        known @ has.T,
        known.astype(np.float64) @ ~has.T,
    )  # (D, slots): any with the key, pairs without it
    with np.errstate(invalid="ignore", divide="ignore"):
        without = np.where(known, kernel, 0.0) @ ~has.T / left
    # Two sampled keys make one pair: without either there is none, and all of its spread is unknown.
    spread = np.where(present & (left > 0), (without - mean[:, None]) ** 2, 0.0).sum(axis=1)
    return np.where(m > 2, (m - 1) / np.maximum(m, 1) * spread, mean * (1 - mean))


def _line(q: Moments, row: int, key_mean: Array, positions: Array) -> QueryLine:
    """The line through the queries of head `row`.

    The mean of all keys stands in for the mean of the buckets' means: they are equal if documents fill the window.
    """
    sums = (int(q.n[row]), q.mean_x[row], float(q.mean_t[row]), q.M[row], q.C[row], float(q.T[row]))
    return query_line(*sums, positions, key_mean[None])


def _bucket_positions(units: Sequence[Unit], width: int, samples: int) -> list[Array]:
    """Mean position of the tokens of each bucket, over all units and without each; NaN in an empty one."""
    counts = np.stack([unit.counts(width) for unit in units])
    bucket = np.arange(width) // bucket_size(width)
    found = []
    for s in range(samples):
        n = counts[[g for g in range(len(units)) if g != s - 1]].sum(axis=0)
        with np.errstate(invalid="ignore"):
            found.append(np.bincount(bucket, n * np.arange(width)) / np.bincount(bucket, n))
    return found


def _sample(unit: Unit, width: int) -> KeySample:
    for sample in unit.keys:
        if sample.window == width:
            return sample
    raise StoreError(
        f"a unit has no stored keys over {width} tokens, which plasticity needs; delete its file to measure it again"
    )


def _row_means(values: Array) -> Array:
    """Over the last axis, of the numbers that are there; NaN where there is none."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=-1) / known.sum(axis=-1))
