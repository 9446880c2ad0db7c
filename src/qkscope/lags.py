"""Scores by the distance between query and key, measured on a few queries: what the predicted curve is held against.

Of each ring of a few documents, some queries are scored against all keys before them. The sums are kept by ring and
distance, so that any window's curve can be made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkscope.path import SINK

Array = NDArray[np.float64]

# Every distance up to NEAR, then this many an octave.
NEAR, PER_OCTAVE = 32, 16
# Documents of a unit whose scores are measured, and queries of each of their rings.
DOCUMENTS, QUERIES = 2, 16
# A sample of positions steps through its strata by the golden ratio: even, and in tune with no rotary wavelength.
GOLDEN = (5**0.5 - 1) / 2


def distances(window: int) -> NDArray[np.int64]:
    """Distances at which the curve is drawn: each up to 32, then sixteen an octave, all of which have a pair."""
    longest = window - 1 - SINK
    octaves = np.arange(1, 1 + PER_OCTAVE * 32) / PER_OCTAVE
    far = np.unique(np.rint(NEAR * 2.0**octaves).astype(np.int64))
    every = np.concatenate([np.arange(1, NEAR + 1), far])
    return np.asarray(every[every <= longest])


def queries(start: int, stop: int) -> NDArray[np.int64]:
    """The positions of a ring whose scores are measured, at most QUERIES of those that have a key from 4 on."""
    first = max(start, SINK + 1)
    strata = min(QUERIES, max(0, stop - first))
    edges = np.linspace(first, stop, strata + 1).astype(np.int64)
    return np.asarray(edges[:-1] + ((np.arange(strata) * GOLDEN) % 1.0 * np.diff(edges)).astype(np.int64))


@dataclass(frozen=True)
class LagScores:
    """Sums of q.k, without the score's scale: lags (D,) · n (R, D) pairs by ring · total (R, H, D) float64."""

    lags: NDArray[np.int64]
    n: NDArray[np.int64]
    total: Array

    def curve(self, windows: Sequence[int], width: int) -> Array:
        """Mean q.k at each of the lags over the first `width` tokens. (H, D); NaN at a distance without a pair.

        Rings count by the pairs that they have at a distance, not by those that were measured.
        """
        rings = [ring for ring, edge in enumerate(windows) if edge <= width]
        starts, stops = np.array([0, *windows])[rings], np.array(windows)[rings]
        pairs = np.maximum(stops[:, None] - np.maximum(starts[:, None], SINK + self.lags), 0)  # (R, D)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.total[rings] / self.n[rings][:, None]
        weight = np.where(self.n[rings] > 0, pairs, 0)[:, None]
        total = np.where(weight > 0, weight * means, 0.0).sum(axis=0)
        whole = weight.sum(axis=0)
        return np.asarray(total / np.where(whole > 0, whole, np.nan))

    def merge(self, other: LagScores) -> LagScores:
        """Both sets of queries together."""
        return LagScores(self.lags, self.n + other.n, self.total + other.total)
