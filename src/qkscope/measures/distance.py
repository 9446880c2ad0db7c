"""The mean score by distance: b(D) = mean over i - j = D of scale m_q(i).m_k(j), with j from 4 on.

R_i u . R_j w depends on i and j by i - j alone, so that scores between two bins of the paths are a function of D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.lags import PER_OCTAVE, LagScores, distances
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.measures.waves import Pairs, terms
from qkscope.path import SINK
from qkscope.unit import Unit

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

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
    curve = reduce(LagScores.merge, found).curve(units[0].windows, width)[:, : len(lags)]
    scale = np.array([units[0].scales.get(int(layer), np.nan) for layer in heads.layer])
    return np.asarray(scale[:, None] * curve)


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
        moved = (
            np.maximum(edges, SINK) + lags[:, None]
        )  # where the query of a key at an edge stands: (D, B + 1)
        start = np.maximum(edges[:-1, None], moved[:, None, :-1])  # (D, B, B)
        stop = np.minimum(edges[1:, None], moved[:, None, 1:])
        some = start < stop
        query, key = np.nonzero(some.any(axis=0))
        # By the first distance at which they have a pair, so that those of an octave stand together.
        order = np.argsort(some[:, query, key].argmax(axis=0), kind="stable")
        query, key = query[order], key[order]
        octaves = []
        for at in (slice(i, i + PER_OCTAVE) for i in range(0, len(lags), PER_OCTAVE)):
            here = np.flatnonzero(some[at, query, key].any(axis=0))
            which = slice(here[0], here[-1] + 1)
            first, past = (each[at, query[which], key[which]] for each in (start, np.maximum(start, stop)))
            octaves.append((at, which, np.minimum(first, edges[-1]), np.minimum(past, edges[-1])))
        return cls(lags, query, key, tuple(octaves))

    def counted(self, counts: Array) -> list[Array]:
        """How many pairs there are where counts (T,) tokens stand at each position: (d, n) by octave."""
        before = np.concatenate([[0.0], np.cumsum(counts)])
        return [before[stop] - before[start] for _, _, start, stop in self.octaves]


def distance_curve(q: Pairs, k: Pairs, pairs: BinPairs, counted: Sequence[Array], wave: Array) -> Array:
    """b(D) of each head at the lags of `pairs`, without the score's scale. (H, D); NaN at a distance without a pair.

    q (H, B), k (K, B) are means by bin; `counted` the pairs there are; wave (D, 2P + 1) the `waves` at minus the lags.
    """
    queries = q.at((slice(None), pairs.query)).by_key(len(k.still))
    keys = k.at((slice(None), None, pairs.key))
    products = terms(queries, keys).reshape(len(q.still), len(pairs.query), -1)  # (H, N, 2P + 1)
    curve = np.empty((len(products), len(pairs.lags)))
    for (at, which, _, _), count in zip(pairs.octaves, counted, strict=True):
        summed = count @ products[:, which]  # (H, d, 2P + 1)
        total = count.sum(axis=1)
        summed /= np.where(total > 0, total, np.nan)[:, None]
        curve[:, at] = np.einsum("hdp,dp->hd", summed, wave[at])
    return curve


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """The curve that the paths predict, with errors, and the one measured on a few queries."""
    lags = block.cell.positions[0].lags
    curve = np.full((block.samples, len(block), len(lags.lags)), np.nan)
    if block.table.known:
        for s, sums in enumerate(block.sums):
            q, k = (Pairs.of(sums.table.rotation, kind.path.filled.mean) for kind in (sums.q, sums.k))
            found = distance_curve(q, k, lags, sums.at.counted, sums.table.lags)
            curve[s] = sums.scale[:, None] * found
    measured = measured_curve(block.cell.units, block.width)[block.rows.queries]
    return {"distance_score": curve, "distance_score_measured": measured}


GROUP = MeasureGroup(
    name="distance",
    needs=("moments", "path", "scores"),
    compute=compute,
    variables=(
        Variable("distance_score", "score by distance", "logits",
                 "mean score that mean queries and keys predict at a distance", ("distance",)),
        Variable("distance_score_measured", "measured score by distance", "logits",
                 "mean score at a distance, measured on a few queries", ("distance",), sampled=False),
    ),
)  # fmt: skip
