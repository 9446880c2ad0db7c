"""Scores of a few queries with all keys before them, as they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.capture.consumers import Batch
from qkscope.heads import HeadIndex
from qkscope.lags import DOCUMENTS, LagScores, distances, queries
from qkscope.path import SINK
from qkscope.unit import rings

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
        import torch

        if layer not in self._rows:
            return
        rows = self._rows[layer]
        for row, ring, t, there in self._present:
            back = np.maximum(t[:, None] - self._lags, 0).ravel()
            at, before = (torch.as_tensor(each, device=q.device) for each in (t, back))
            for key in np.unique(self._heads.kv_head[rows]):
                reading = rows[self._heads.kv_head[rows] == key]
                heads = torch.as_tensor(self._heads.head[reading], device=q.device)
                found = self._products(q[row], heads, k[row, int(key)], at, before)
                self._total[ring, reading] += np.where(there, found, 0.0).sum(axis=1)

    def _products(self, q: Any, heads: Any, k: Any, at: Any, before: Any) -> NDArray[np.float64]:
        """q (all heads, tokens, dim) of `heads` times k (tokens, dim) at each distance before. (heads, t, lags)"""
        # Gathered first, so that only what is scored is copied, and converted where the model runs in half precision.
        asked = q[heads[:, None], at].float().transpose(0, 1)  # (t, heads, dim)
        keys = k.index_select(0, before).float().view(len(at), len(self._lags), k.shape[-1])
        return np.asarray((asked @ keys.transpose(1, 2)).transpose(0, 1).cpu(), dtype=np.float64)

    def scores(self) -> LagScores:
        """The sums so far, as a unit's file keeps them."""
        return LagScores(self._lags, self._n, self._total.astype(np.float32).astype(np.float64))
