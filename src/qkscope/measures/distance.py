"""Scores by the distance D = i - j between query i and key j, with j from 4 on.

`distance_curve` is the mean of m_q(i).m_k(j) at a distance. R_i u . R_j w depends on i and j by i - j alone, so scores
between two bins of the paths are a function of D. Keys are taken about their mean, as in `anatomy`. Taking out each
query's own mean over its keys, which the softmax ignores, leaves what position adds to the score of a key at that
distance:

    b(D) = mean over i - j = D of scale (m_q(i).m_k(j) - mean over 4 <= j' < i of m_q(i).m_k(j'))

and b is averaged over third octaves of D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import per_query
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.measures.waves import Grid, Pairs, terms, waves
from qkscope.sums.path import SINK
from qkscope.sums.rotation import Rotation
from qkscope.sums.scores import PER_OCTAVE, ScoreSum, distances
from qkscope.sums.unit import Unit

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock
    from qkscope.measures.samples import SampleSums

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def measured_curve(units: Sequence[Unit], width: int) -> Array:
    """The mean score at each distance of a window as measured on a few queries, in logits. (H, D)

    NaN where no unit has measured scores or the score's scale is not known.
    """
    heads, lags = units[0].heads, distances(width)
    found = [unit.scores for unit in units if unit.scores is not None]
    if len(found) < len(units):
        return np.full((len(heads), len(lags)), np.nan)
    curve = reduce(ScoreSum.merge, found).curve(width)[:, : len(lags)]
    scale = np.array([units[0].scales.get(int(layer), np.nan) for layer in heads.layer])
    return scale[:, None] * curve


@dataclass(frozen=True)
class BinPairs:
    """Which bins of position the (query, key) pairs at each distance lie in; the same whatever the documents.

    lags (D,) · query, key (N,) the pairs of bins that have any
    octaves   some distances, whose pairs lie between the same few bins: which lags, which of the N, and the positions
              (d, n) of the first query and past the last
    """

    lags: NDArray[np.int64]
    query: NDArray[np.int64]
    key: NDArray[np.int64]
    octaves: tuple[tuple[slice, slice, Index, Index], ...]

    @classmethod
    def of(cls, edges: NDArray[np.int64], lags: NDArray[np.int64]) -> BinPairs:
        """Bins with `edges` (B + 1,); keys from position 4 on."""
        # The position of the query of a key at an edge. (D, B + 1)
        moved = np.maximum(edges, SINK) + lags[:, None]
        start = np.maximum(edges[:-1, None], moved[:, None, :-1])  # (D, B, B)
        stop = np.minimum(edges[1:, None], moved[:, None, 1:])
        some = start < stop
        query, key = np.nonzero(some.any(axis=0))
        # By the first distance at which they have a pair, so that those of an octave are neighbours.
        order = np.argsort(some[:, query, key].argmax(axis=0), kind="stable")
        query, key = query[order], key[order]
        octaves = []
        for at in (slice(i, i + PER_OCTAVE) for i in range(0, len(lags), PER_OCTAVE)):
            here = np.flatnonzero(some[at, query, key].any(axis=0))
            which = slice(here[0], here[-1] + 1)
            first, past = (each[at, query[which], key[which]] for each in (start, np.maximum(start, stop)))
            octaves.append((at, which, np.minimum(first, edges[-1]), np.minimum(past, edges[-1])))
        return cls(lags, query, key, tuple(octaves))

    @cached_property
    def third_octaves(self) -> Array:
        return third_octaves(self.lags)

    def counted(self, counts: Array) -> list[Array]:
        """Number of pairs, from the number of tokens at each position, counts (T,): (d, n) by octave."""
        before = np.concatenate([[0.0], np.cumsum(counts)])
        return [before[stop] - before[start] for _, _, start, stop in self.octaves]


def distance_curve(q: Pairs, k: Pairs, pairs: BinPairs, counted: Sequence[Array], wave: Array) -> Array:
    """The mean of m_q(i).m_k(j) at the lags of `pairs`, without the score's scale. (H, D); NaN without a pair.

    q (H, B), k (K, B) are means by bin; `counted` the pairs there are; wave (D, 2P + 1) the `mean_waves` at
    the lags.
    """
    queries = q.at((slice(None), pairs.query)).by_key(len(k.still))
    keys = k.at((slice(None), None, pairs.key))
    products = terms(queries, keys).reshape(len(q.still), len(pairs.query), -1)  # (H, N, 2P + 1)
    curve = np.empty((len(products), len(pairs.lags)))
    for (at, which, _, _), count in zip(pairs.octaves, counted, strict=True):
        summed = count.astype(products.dtype, copy=False) @ products[:, which]  # (H, d, 2P + 1)
        total = count.sum(axis=1)
        summed /= np.where(total > 0, total, np.nan)[:, None]
        curve[:, at] = np.einsum("hdp,dp->hd", summed, wave[at])
    return curve


def cells(lags: Index) -> list[tuple[int, int]]:
    """(first, past the last) of the distances that each of `lags` represents: those nearer to it than to another."""
    ends = np.concatenate([lags[:1], (lags[:-1] + lags[1:]) // 2 + 1, lags[-1:] + 1])
    return [(int(a), int(b)) for a, b in pairwise(ends)]


def mean_waves(rotation: Rotation, lags: Index) -> Array:
    """`waves` at minus the lags, averaged over the distances of each one's cell. (D, 2P + 1)

    Sampled at single distances, fast rotations would look like slow ones.
    """
    start, past = np.array(cells(lags)).T[:, :, None]
    found, half = waves(rotation, -(start + past - 1)[:, 0] / 2, rotated=2), rotation.frequency / 2
    # The mean of exp(i f D) over n distances is its value in their middle times sin(n f / 2) / (n sin(f / 2)).
    with np.errstate(invalid="ignore"):
        mean = np.sin((past - start) * half) / ((past - start) * np.sin(half))
    found[:, :-1] *= np.repeat(np.where(half == 0, 1.0, mean), 2, axis=1)
    return found


def third_octaves(lags: Index) -> Array:
    """Weights (D, D) that turn a curve at `lags` into means over all distances within a third of an octave of each.

    Pairs that turn once in a few tokens average out over such an interval as soon as it is longer than their turn.
    """
    start, stop = np.array(cells(lags)).T
    low = np.ceil(lags * 2.0 ** (-1 / 3))[:, None]
    past = np.floor(lags * 2.0 ** (1 / 3))[:, None] + 1
    shared = np.clip(np.minimum(past, stop) - np.maximum(low, start), 0, None)
    return np.asarray(shared / shared.sum(axis=1, keepdims=True))


def queries_beyond(lags: Index, counts: Array, queries: Grid) -> Array:
    """Shares of queries among those with a key at each distance, from position 4 on. (D, 1 + I)

    counts (T,) tokens at each position; the first column is the query at position 5, then come those of `queries`.
    """
    below = np.concatenate([[0.0], np.cumsum(counts)])
    edges = np.concatenate([[SINK + 1], queries.edges])
    first = np.clip(np.maximum(edges[:-1], SINK + lags[:, None]), None, edges[1:])  # (D, 1 + I)
    tokens = below[edges[1:]] - below[first]
    total = tokens.sum(axis=1)
    return np.asarray(tokens / np.where(total > 0, total, np.nan)[:, None])


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """The position bias that the paths predict, with errors, and the mean score measured on a few queries."""
    measured = measured_curve(block.cell.units, block.width)[block.rows.queries]
    curves = np.stack([_bias(sums) for sums in block.sums])
    return {"distance_score": curves, "distance_score_measured": measured}


def _bias(sums: SampleSums) -> Array:
    """b(D) in logits. (H, D); NaN where the rotation is not known or no query has two keys."""
    at, rotation, lags = sums.at, sums.table.rotation, sums.at.lags.lags
    if not sums.table.known or sums.anatomy is None:
        return np.full((len(sums.v), len(lags)), np.nan)
    paths = sums.q.path.filled, sums.key_path.filled
    q, k = (Pairs.of(rotation, path.mean) for path in paths)
    curve = distance_curve(q, k, at.lags, at.counted, sums.table.lags)
    # The query at position 5 has one key, the one at 4.
    query, key = (p.at(rotation, np.array([t]))[:, 0] for p, t in zip(paths, (SINK + 1, SINK), strict=True))
    only = np.einsum("hd,hd->h", query, per_query(key, len(query)))
    means = np.concatenate([only[:, None], sums.anatomy.query_mean], axis=1)
    curve -= means @ at.beyond.T
    # Averages over the distances that the curve has; NaN at those it has not.
    known, weights = np.isfinite(curve), at.lags.third_octaves
    total = np.where(known, np.where(known, curve, 0.0) @ weights.T, np.nan)
    return sums.scale[:, None] * (total / np.where(known, known @ weights.T, 1.0))


GROUP = MeasureGroup(
    name="distance",
    needs=("moments", "path"),
    uses=("scores",),
    compute=compute,
    version=2,
    variables=(
        Variable("distance_score", "position bias by distance", "logits",
                 "what position alone adds to the score of a key at a distance", ("distance",)),
        Variable("distance_score_measured", "measured score by distance", "logits",
                 "mean score at a distance, measured on a few queries", ("distance",), sampled=False),
    ),
)  # fmt: skip
