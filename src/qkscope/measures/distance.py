"""The mean score by distance: b(D) = mean over i - j = D of scale m_q(i).m_k(j), with j from 4 on.

R_i u . R_j w depends on i and j by i - j alone, so that scores between two bins of the paths are a function of D.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from qkscope.lags import LagScores, distances
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


def lagged_scores(q: Path, k: Path, rotation: Rotation, lags: NDArray[np.int64]) -> Array:
    """m_q(i).m_k(i - D) for i in bin b and i - D in bin c: (H, D, B, B), whether or not there is such a pair."""
    start = rotation.rotate(np.nan_to_num(q.mean), np.zeros(len(q.n)))  # (H, B, d)
    keys = np.nan_to_num(k.mean)
    back = [rotation.rotate(keys, np.full(len(k.n), -float(lag))) for lag in lags]
    return np.stack([start @ turned.transpose(0, 2, 1) for turned in back], axis=1)


def pairs_by_bin(edges: NDArray[np.int64], counts: Array, lags: NDArray[np.int64]) -> Array:
    """How many (query, key) pairs at each distance lie in bins (b, c): counts (T,) tokens -> (D, B, B)."""
    size = len(edges) - 1
    bins = np.searchsorted(edges, np.arange(len(counts)), side="right") - 1
    table = np.zeros((len(lags), size * size))
    for row, lag in enumerate(lags):
        query = bins[SINK + lag :]
        key = bins[SINK : len(counts) - lag]
        table[row] = np.bincount(query * size + key, counts[SINK + lag :], minlength=size * size)
    return table.reshape(len(lags), size, size)


def distance_curve(
    q: Path, k: Path, rotation: Rotation, scale: float, lags: NDArray[np.int64], pairs: Array
) -> Array:
    """b(D) of each head at `lags`, whose `pairs_by_bin` are (D, B, B). (H, D); NaN at a distance without a pair."""
    scores = np.stack(
        [
            np.einsum("hbc,bc->h", lagged_scores(q, k, rotation, lags[i : i + 1])[:, 0], pairs[i])
            for i in range(len(lags))
        ],
        axis=1,
    )
    total = pairs.sum(axis=(1, 2))
    return np.asarray(scale * scores / np.where(total > 0, total, np.nan))
