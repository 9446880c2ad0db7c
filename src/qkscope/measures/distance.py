"""Scores by the distance D = i - j between query i and key j, with j from 4 on.

`distance_curve` is the mean of m_q(i).m_k(j) at a distance. R_i u . R_j w depends on i and j by i - j alone, so scores
between two bins of the paths are a function of D. `position_bias` takes out each query's mean over its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from qkscope.lags import PER_OCTAVE, LagScores, distances
from qkscope.measures.waves import Pairs, terms
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation
from qkscope.unit import Unit

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


def position_bias(q: Path, k: Path, mean_key: Array, rotation: Rotation) -> Array:
    """What position alone adds to the score of a key D tokens back, relative to the other keys of the same query.

    b(D) = mean over i - j = D of m_q(i).m_k(j) minus query i's mean over its keys 4 <= j < i, without the score's
    scale. q and k are paths of one row each over the same positions 0 to T, mean_key (d,) the mean key. Returns
    (T - 4,) for D = 0, 1, ...; entry 0, the query itself, is NaN.

    The softmax ignores a query's mean score, and with it any vector that all keys share. So key paths are taken about
    the mean key: bin means of the plain path would smear the rotation of that vector into the curve.
    """
    width = int(q.edges[-1])
    t = np.arange(width)
    of_bin = np.searchsorted(q.edges, t, side="right") - 1
    tokens = (q.n / np.diff(q.edges))[of_bin]  # queries at each position
    shared = rotation.derotate(np.broadcast_to(mean_key, (width, len(mean_key))), t.astype(np.float64))
    starts = k.edges[:-1].astype(np.int64)
    shared_mean = np.add.reduceat(shared, starts, axis=0) / np.diff(k.edges)[:, None]
    about = replace(k, n=np.maximum(k.n, 1), total=k.total - (k.n[:, None] * shared_mean)[None])
    m_q, m_k = q.filled.at(rotation, t)[0], about.at(rotation, t)[0]  # (T, d)
    m_k[:SINK] = 0.0

    # Sums over i of tokens_i m_q(i).m_k(i - D) for every D at once: a correlation, dimension by dimension.
    size = 2 * width
    spectrum = np.zeros(size // 2 + 1, dtype=np.complex128)
    for x, y in zip((tokens[:, None] * m_q).T, m_k.T, strict=True):
        spectrum += np.fft.rfft(x, size) * np.fft.rfft(y, size).conj()
    total = np.fft.irfft(spectrum, size)[: width - SINK]

    keys = np.maximum(t - SINK, 1)[:, None]
    mean_before = np.concatenate([np.zeros((1, m_k.shape[1])), np.cumsum(m_k, axis=0)[:-1]]) / keys
    query_mean = tokens * np.einsum("td,td->t", m_q, mean_before)
    # A query at i has a key at distance D, from position 4 on, if i >= D + 4.
    asking, means = (np.cumsum(each[::-1])[::-1][SINK:] for each in (tokens, query_mean))
    bias = (total - means) / np.where(asking > 0, asking, np.nan)
    bias[0] = np.nan
    return np.asarray(bias)


def octave_means(
    curve: Array, reach: float = 1 / 3, per_octave: int = 8
) -> tuple[Index, Index, Index, Array]:
    """A curve over D = 0, 1, ..., as means over all distances within `reach` octaves of a few: (at, from, to, mean).

    Averaged over an interval that grows with the distance, fast rotations cancel instead of being sampled.
    """
    longest = len(curve) - 1
    octaves = np.arange(int(per_octave * np.log2(max(longest, 1))) + 1) / per_octave
    at = np.unique(np.append(np.rint(2.0**octaves).astype(np.int64), longest))
    at = at[at >= 1]
    start = np.ceil(at * 2.0**-reach).astype(np.int64)
    stop = np.minimum(np.floor(at * 2.0**reach).astype(np.int64), longest)
    below = np.concatenate([[0.0, 0.0], np.cumsum(curve[1:])])  # below[d] sums distances 1 to d - 1
    return at, start, stop, (below[stop + 1] - below[start]) / (stop + 1 - start)
