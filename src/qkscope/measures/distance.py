"""The mean score by distance: b(D) = mean over i - j = D of scale m_q(i).m_k(j), with j from 4 on.

R_i u . R_j w depends on i and j by i - j alone, so that scores between two bins of the paths are a function of D.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from qkscope.lags import PER_OCTAVE, LagScores, distances
from qkscope.measures.waves import terms, waves
from qkscope.moments import Unit
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation

Array = NDArray[np.float64]


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


def pairs_by_bin(edges: NDArray[np.int64], counts: Array, lags: NDArray[np.int64]) -> Array:
    """How many (query, key) pairs at each distance lie in bins (b, c): counts (T,) tokens -> (D, B, B)."""
    before = np.concatenate([[0.0], np.cumsum(counts)])
    moved = np.maximum(edges, SINK) + lags[:, None]  # where the query of a key at an edge stands: (D, B + 1)
    start = np.maximum(edges[:-1, None], moved[:, None, :-1])
    stop = np.maximum(np.minimum(edges[1:, None], moved[:, None, 1:]), start)
    last = len(counts)
    return np.asarray(before[np.minimum(stop, last)] - before[np.minimum(start, last)])


def distance_curve(
    q: Path, k: Path, rotation: Rotation, scale: float, lags: NDArray[np.int64], pairs: Array
) -> Array:
    """b(D) of each head at `lags`, whose `pairs_by_bin` are (D, B, B). (H, D); NaN at a distance without a pair."""
    queries, keys = q.filled.mean, k.filled.mean
    curve = np.empty((len(queries), len(lags)))
    # An octave at a time: its distances lie between the same few bins.
    for at in (slice(i, i + PER_OCTAVE) for i in range(0, len(lags), PER_OCTAVE)):
        b, c = np.nonzero(pairs[at].any(axis=0))
        summed = pairs[at, b, c] @ terms(rotation, queries[:, b], keys[:, c])  # (H, D, 2P + 1)
        curve[:, at] = np.einsum("hdp,dp->hd", summed, waves(rotation, -lags[at], rotated=2))
    total = pairs.sum(axis=(1, 2))
    return np.asarray(scale * curve / np.where(total > 0, total, np.nan))
