"""Plasticity from a sample of the keys: queries enter by their moments, keys by what a unit keeps of them.

A document's mean over pairs in a bucket is estimated from the keys that are kept of it, and counts as its pairs do.
The error of sampling has two parts. With h = the mean over cells of PP as a kernel of two keys, U its mean over the
kept pairs of a document and bucket, and U_i the same without key i of the m kept out of n,

    keys        sum of weight^2 (1 - m/n) (m-1)/m sum_i (U_i - U)^2       over documents and buckets
    documents   (1 - D/N) D/(D-1) sum_d e_d^2                             e_d what document d adds to the head's value

for D documents kept of N. It tells how far all pairs of all documents may be; other documents may be further, and that
is the jackknife's error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
from qkscope.measures.plasticity import NAMES, Plasticity, QueryLine, openness_of_cells, query_line
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.keys import KeySample, bucket_size
from qkscope.sums.moments import Moments
from qkscope.sums.unit import Unit

if TYPE_CHECKING:
    from qkscope.measures.cell import Cell, HeadBlock

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Kept:
    """The kept keys of all units: vectors (D, B, m, K, d), and for each document its group, pairs, tokens (D, B).

    `share` (D,) is the share of its group's documents that are kept.
    """

    vectors: NDArray[np.float32]
    group: NDArray[np.int64]
    pairs: Array
    tokens: Array
    share: Array

    @classmethod
    def of(cls, units: Sequence[Unit], width: int) -> Kept:
        samples = [_sample(unit, width) for unit in units]
        share = [len(s.lengths) / unit.documents for s, unit in zip(samples, units, strict=True)]
        counts = [len(sample.lengths) for sample in samples]
        return cls(
            np.concatenate([sample.vectors for sample in samples]),
            np.repeat(np.arange(len(units)), counts),
            np.concatenate([sample.pairs() for sample in samples]),
            np.concatenate([sample.tokens() for sample in samples]).astype(np.float64),
            np.repeat(share, counts),
        )


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """Plasticity of each head in every sample, its cells and sampling error over all documents."""
    kept = _kept(block.cell)
    places = _bucket_places(block.cell.units, block.width, block.samples)
    buckets, count = kept.vectors.shape[1], len(block)
    values = np.full((block.samples, len(NAMES), count), np.nan)
    cells, error = np.full((count, buckets, buckets), np.nan), np.full(count, np.nan)
    for row in range(count):
        key = row * len(block.rows.keys) // count
        mine = kept.vectors[:, :, :, block.rows.keys[key]].astype(np.float64)  # (D, B, m, d)
        for s, (q, k) in enumerate(block.moments):
            if q.bad[row] or k.bad[key] or q.n[row] < 2 or q.T[row] <= 0:
                continue
            line = _line(q, row, k.mean_x[key], places[s])
            there = np.flatnonzero(kept.group != s - 1)
            found = _Head.of(line, mine[there], kept, there)
            values[s, :, row] = Plasticity(found.cells()).numbers
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


@lru_cache(maxsize=1)
def _kept(cell: Cell) -> Kept:
    return Kept.of(cell.units, cell.width)


@dataclass(frozen=True)
class _Head:
    """One head's openness: PP (N, D, pairs) of the N cells, of key bucket `key` (N,) and a later `query` bucket.

    weights, kept, tokens, known (D, B) of documents and key buckets · share (D,)
    """

    pp: Array
    key: NDArray[np.int64]
    query: NDArray[np.int64]
    weights: Array
    kept: Array
    tokens: Array
    share: Array
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, line: QueryLine, mine: Array, kept: Kept, there: NDArray[np.int64]) -> _Head:
        key, query = np.triu_indices(mine.shape[1], 1)
        pp = openness_of_cells(line, mine, key, query)
        known = np.zeros(mine.shape[:2], dtype=bool)
        cell, document = np.nonzero(np.isfinite(pp).any(axis=2))
        known[document, key[cell]] = True
        weights = np.where(known, kept.pairs[there] / kept.share[there, None], 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            weights = weights / weights.sum(axis=0)
        count = np.isfinite(mine[..., 0]).sum(axis=2).astype(np.float64)
        return cls(pp, key, query, weights, count, kept.tokens[there], kept.share[there], known)

    def cells(self) -> Array:
        """(B, B) by query and key bucket; NaN where no document has a pair or no query stands."""
        found = np.full((self.known.shape[1],) * 2, np.nan)
        known = self.known[:, self.key].T  # (N, D)
        mean = np.where(known, self.weights[:, self.key].T * _mean(self.pp), 0.0).sum(axis=1)
        found[self.query, self.key] = np.where(known.any(axis=1), mean, np.nan)
        return found

    def sampling_error(self) -> float:
        """The standard error of the head's value that comes from keeping some keys of some documents."""
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
            weight, m, n = self.weights[here, c], self.kept[here, c], self.tokens[here, c]
            own = _mean(kernel)
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
    # Two kept keys make one pair: without either there is none, and all of its spread is unknown.
    spread = np.where(present & (left > 0), (without - mean[:, None]) ** 2, 0.0).sum(axis=1)
    return np.asarray(np.where(m > 2, (m - 1) / np.maximum(m, 1) * spread, mean * (1 - mean)))


def _line(q: Moments, row: int, key_mean: Array, places: Array) -> QueryLine:
    """Uses the mean of all keys as the mean of the buckets' means; they are equal if documents fill the window."""
    sums = (int(q.n[row]), q.mean_x[row], float(q.mean_t[row]), q.M[row], q.C[row], float(q.T[row]))
    return query_line(*sums, places, key_mean[None])


def _bucket_places(units: Sequence[Unit], width: int, samples: int) -> list[Array]:
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


def _mean(values: Array) -> Array:
    """Over the last axis, of the numbers that are there; NaN where there is none."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=-1) / known.sum(axis=-1))
