"""Scores of a few queries with all keys before them, as they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.capture.consumers import Batch
from qkscope.heads import HeadIndex
from qkscope.lags import DOCUMENTS, LagScores, distances, queries
from qkscope.moments import rings
from qkscope.path import SINK

if TYPE_CHECKING:
    from qkscope.corpus import Document


class ScoreSums:
    """Fills `LagScores` from the first documents of a unit, by number."""

    def __init__(self, heads: HeadIndex, windows: Sequence[int], documents: Sequence[Document]) -> None:
        self._windows = tuple(windows)
        self._chosen = sorted(document.index for document in documents)[:DOCUMENTS]
        self._rows = {int(layer): np.flatnonzero(heads.layer == layer) for layer in np.unique(heads.layer)}
        self._heads = heads
        self._lags = distances(self._windows[-1])
        self._n = np.zeros((len(self._windows), len(self._lags)), dtype=np.int64)
        self._total = np.zeros((len(self._windows), len(heads), len(self._lags)))
        self._present: list[tuple[int, int, NDArray[np.int64], NDArray[np.bool_]]] = []

    def begin(self, batch: Batch) -> None:
        """Note the queries of the pass: (row, ring, positions, which distances each has)."""
        self._present = []
        for row, (document, length) in enumerate(zip(batch.documents, batch.lengths, strict=True)):
            if document.index not in self._chosen:
                continue
            for ring, (start, stop) in enumerate(rings(length, self._windows)):
                t = queries(start, stop)
                there = t[:, None] - self._lags >= SINK
                self._n[ring] += there.sum(axis=0)
                self._present.append((row, ring, t, there))

    def __call__(self, layer: int, q: Any, k: Any) -> None:
        for key in np.unique(self._heads.kv_head[self._rows[layer]]) if layer in self._rows else ():
            rows = self._rows[layer][self._heads.kv_head[self._rows[layer]] == key]
            heads = self._heads.head[rows].tolist()
            for row, ring, t, there in self._present:
                asked = q[row, heads][:, t].float()  # (heads, queries, dim)
                scores = asked @ k[row, int(key)].float().T  # (heads, queries, tokens)
                back = np.maximum(t[:, None] - self._lags, 0)
                found = scores[:, np.arange(len(t))[:, None], back].double().cpu().numpy()
                self._total[ring, rows] += np.where(there, found, 0.0).sum(axis=1)

    def scores(self) -> LagScores:
        """The sums so far, as a unit's file keeps them."""
        return LagScores(self._lags, self._n, self._total.astype(np.float32).astype(np.float64))
