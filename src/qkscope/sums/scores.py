"""Scores of a few queries of each ring with all keys before them, summed by ring and distance.

The predicted distance curve is compared with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.base import (
    Arrays,
    Batch,
    FactSum,
    LayerFacts,
    Meta,
    Recorder,
    Request,
    Sum,
    checked,
    ring_count,
    rings,
)
from qkscope.sums.path import SINK

Array = NDArray[np.float64]

# Every distance up to NEAR, then this many an octave.
NEAR, PER_OCTAVE = 32, 16
# Documents of a unit whose scores are measured, and queries of each of their rings.
DOCUMENTS, QUERIES = 2, 16
GOLDEN = (5**0.5 - 1) / 2


def distances(window: int) -> NDArray[np.int64]:
    """Distances at which the curve is drawn: each up to 32, then sixteen an octave, all of which have a pair."""
    longest = window - 1 - SINK
    octaves = np.arange(1, 1 + PER_OCTAVE * 32) / PER_OCTAVE
    far = np.unique(np.rint(NEAR * 2.0**octaves).astype(np.int64))
    every = np.concatenate([np.arange(1, NEAR + 1), far])
    return every[every <= longest]


def one_per_stratum(
    start: int, stop: int, count: int, shift: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A position from each of `count` equal strata of start <= t < stop, and the count + 1 edges of the strata.

    Positions step through their strata by the golden ratio, from the step `shift` on: they are spread evenly and never
    in phase with a rotary pair.
    """
    edges = np.linspace(start, stop, count + 1).astype(np.int64)
    share = ((np.arange(count) + shift) * GOLDEN) % 1.0
    return edges[:-1] + (share * np.diff(edges)).astype(np.int64), edges


def queries(start: int, stop: int) -> NDArray[np.int64]:
    """The positions of a ring whose scores are measured, at most QUERIES of those that have a key from 4 on."""
    first = max(start, SINK + 1)
    return one_per_stratum(first, stop, min(QUERIES, max(0, stop - first)))[0]


@dataclass
class ScoreSum(Sum):
    """Sums of q.k, without the score's scale, by ring and distance; ring i ends at windows[i].

    lags (D,) distances · n (R, D) pairs · total (R, H, D) float64
    """

    name = "scores"

    windows: tuple[int, ...]
    lags: NDArray[np.int64]
    n: NDArray[np.int64]
    total: Array

    def curve(self, width: int) -> Array:
        """Mean q.k at each of the lags over the first `width` tokens. (H, D); NaN at a distance without a pair.

        Rings count by the pairs that they have at a distance, not by those that were measured.
        """
        rings = [ring for ring, edge in enumerate(self.windows) if edge <= width]
        starts, stops = np.array([0, *self.windows])[rings], np.array(self.windows)[rings]
        pairs = np.maximum(stops[:, None] - np.maximum(starts[:, None], SINK + self.lags), 0)  # (R, D)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.total[rings] / self.n[rings][:, None]
        weight = np.where(self.n[rings] > 0, pairs, 0)[:, None]
        total = np.where(weight > 0, weight * means, 0.0).sum(axis=0)
        whole = weight.sum(axis=0)
        return np.asarray(total / np.where(whole > 0, whole, np.nan))

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        return _Recorder(request)

    def merge(self, other: Self) -> Self:
        return replace(self, n=self.n + other.n, total=self.total + other.total)

    def window(self, width: int) -> Self:
        """Its rings: a curve weights them by the pairs that they have, so they are not added up."""
        last = ring_count(self.windows, width)
        return replace(self, windows=self.windows[:last], n=self.n[:last], total=self.total[:last])

    def to_arrays(self) -> tuple[Arrays, Meta]:
        total = self.total.astype(np.float32)
        return {"scores.lags": self.lags, "scores.n": self.n, "scores.total": total}, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        lags = checked(arrays, "scores.lags", "i", None)
        if not np.array_equal(lags, distances(facts.windows[-1])):
            raise ValueError(f"scores.lags are not the distances of a window of {facts.windows[-1]} tokens")
        n = checked(arrays, "scores.n", "i", len(facts.windows), len(lags))
        total = checked(arrays, "scores.total", "f", len(facts.windows), len(facts.heads), len(lags))
        return cls(facts.windows, lags, n, total.astype(np.float64))


class _Recorder(Recorder):
    """Scores of the first documents of a unit, by number."""

    def __init__(self, request: Request) -> None:
        self._chosen = sorted(request.documents)[:DOCUMENTS]
        self._rows, self._reads = request.rows("q"), request.reads()
        windows, lags = request.windows, distances(request.windows[-1])
        n = np.zeros((len(windows), len(lags)), dtype=np.int64)
        self._sum = ScoreSum(windows, lags, n, np.zeros((len(windows), len(request.heads), len(lags))))
        self._present: list[tuple[int, int, NDArray[np.int64], NDArray[np.bool_]]] = []

    def begin(self, batch: Batch) -> None:
        """The queries of the pass: (row, ring, positions, which distances each has)."""
        self._present = []
        for row, (document, length) in enumerate(zip(batch.documents, batch.lengths, strict=True)):
            if document.index not in self._chosen:
                continue
            for ring, (start, stop) in enumerate(rings(length, self._sum.windows)):
                t = queries(start, stop)
                there = t[:, None] - self._sum.lags >= SINK
                self._sum.n[ring] += there.sum(axis=0)
                self._present.append((row, ring, t, there))

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        import torch

        rows, reads = self._rows[index], self._reads[index]
        for row, ring, t, there in self._present:
            back = np.maximum(t[:, None] - self._sum.lags, 0).ravel()
            at, before = (torch.as_tensor(each, device=q.device) for each in (t, back))
            for number in np.unique(reads).tolist():
                reading = np.flatnonzero(reads == number)
                heads = torch.as_tensor(reading, device=q.device)
                found = self._products(q[row], heads, k[row, number], at, before)
                self._sum.total[ring, rows[reading]] += np.where(there, found, 0.0).sum(axis=1)

    def _products(self, q: Any, heads: Any, k: Any, at: Any, before: Any) -> NDArray[np.float64]:
        """q (all heads, tokens, dim) of `heads` times k (tokens, dim) at each distance before. (heads, t, lags)"""
        # Gathered first, so that only what is scored is copied, and converted where the model runs in half precision.
        queries_at = q[heads[:, None], at].float().transpose(0, 1)  # (t, heads, dim)
        keys = k.index_select(0, before).float().view(len(at), len(self._sum.lags), k.shape[-1])
        return np.asarray((queries_at @ keys.transpose(1, 2)).transpose(0, 1).cpu(), dtype=np.float64)

    def done(self) -> ScoreSum:
        """Totals are rounded to float32, so that a unit in memory equals the same unit read from its files."""
        return replace(self._sum, total=self._sum.total.astype(np.float32).astype(np.float64))
