"""The largest score of each head over all visible pairs of the first tokens of two documents.

Scores are scale q.k, with ALiBi's bias -slope (i - j) where there is one and before a soft cap. They are computed in
blocks of queries with all keys before them, so memory does not grow with their square.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.attention_rows import SCORES, products
from qkscope.sums.base import (
    Arrays,
    Batch,
    FactSum,
    LayerFacts,
    Meta,
    Recorder,
    Request,
    Softmax,
    Sum,
    checked,
    ring_count,
    rings,
)

Array = NDArray[np.float64]

# The documents of a study with these numbers, and how many of their tokens are read.
DOCUMENTS, TOKENS = (0, 1), 4096


@dataclass
class LogitSum(Sum):
    """By ring of the query's position: the largest score, where it is, and the largest norms.

    logit, q_norm, k_norm (R, H); -inf where no pair was seen, NaN for heads that were not measured. k_norm is of the
    keys in the ring, q_norm includes the scale · where (R, H, 3) number of the document, positions of query and key
    """

    name = "logits"

    windows: tuple[int, ...]
    logit: Array
    where: NDArray[np.int64]
    q_norm: Array
    k_norm: Array

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        return _Recorder(request)

    def merge(self, other: Self) -> Self:
        # np.maximum keeps NaN; of equal scores the earlier document's.
        earlier = other.where[..., 0] < self.where[..., 0]
        larger = (other.logit > self.logit) | ((other.logit == self.logit) & earlier)
        return replace(
            self,
            logit=np.maximum(self.logit, other.logit),
            where=np.where(larger[..., None], other.where, self.where),
            q_norm=np.maximum(self.q_norm, other.q_norm),
            k_norm=np.maximum(self.k_norm, other.k_norm),
        )

    def window(self, width: int) -> Self:
        """All rings of the window as one."""
        last = ring_count(self.windows, width)
        at = self.logit[:last].argmax(axis=0)[None]
        return replace(
            self,
            windows=(width,),
            logit=self.logit[:last].max(axis=0, keepdims=True),
            where=np.take_along_axis(self.where[:last], at[..., None], axis=0),
            q_norm=self.q_norm[:last].max(axis=0, keepdims=True),
            k_norm=self.k_norm[:last].max(axis=0, keepdims=True),
        )

    def to_arrays(self) -> tuple[Arrays, Meta]:
        return {name: getattr(self, name) for name in ("logit", "where", "q_norm", "k_norm")}, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        shape = len(facts.windows), len(facts.heads)
        logit, q_norm, k_norm = (checked(arrays, name, "f", *shape) for name in ("logit", "q_norm", "k_norm"))
        return cls(facts.windows, logit, checked(arrays, "where", "i", *shape, 3), q_norm, k_norm)


class _Recorder(Recorder):
    def __init__(self, request: Request) -> None:
        self._rows = request.rows("q")
        self._reads = request.reads()
        shape = len(request.windows), len(request.heads)
        logit, q_norm, k_norm = (np.full(shape, -np.inf) for _ in range(3))
        where = np.full((*shape, 3), -1, dtype=np.int64)
        self._sum = LogitSum(request.windows, logit, where, q_norm, k_norm)
        self._present: list[tuple[int, int, int]] = []

    def begin(self, batch: Batch) -> None:
        """(row of the pass, number, tokens) of the documents that are looked at."""
        pairs = zip(batch.documents, batch.lengths, strict=True)
        self._present = [
            (row, document.index, min(length, TOKENS))
            for row, (document, length) in enumerate(pairs)
            if document.index in DOCUMENTS
        ]

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        if facts.softmax is None:
            for each in (self._sum.logit, self._sum.q_norm, self._sum.k_norm):
                each[:, self._rows[index]] = np.nan
            return
        softmax = replace(facts.softmax, softcap=None)
        for row, document, tokens in self._present:
            for ring, (start, stop) in enumerate(rings(tokens, self._sum.windows)):
                span = slice(start, stop)
                self._add(index, ring, document, span, q[row].float(), k[row].float(), facts.scale, softmax)

    def _add(
        self,
        index: int,
        ring: int,
        document: int,
        span: slice,
        q: Any,
        k: Any,
        scale: float,
        softmax: Softmax,
    ) -> None:
        """The queries of one ring of a document."""
        import torch

        rows, reads = self._rows[index], self._reads[index]
        norms = (
            abs(scale) * q[:, span].norm(dim=-1).amax(dim=1),
            k[:, span].norm(dim=-1).amax(dim=1)[torch.as_tensor(reads, device=k.device)],
        )
        total = self._sum
        for largest, found in zip((total.q_norm, total.k_norm), norms, strict=True):
            largest[ring, rows] = np.maximum(largest[ring, rows], found.double().cpu().numpy())
        block = max(1, SCORES // (len(q) * span.stop))
        for start in range(span.start, span.stop, block):
            stop = min(span.stop, start + block)
            back = torch.arange(start, stop, device=q.device)[:, None] - torch.arange(stop, device=q.device)
            scores = products(q[None, :, start:stop], k[None, :, :stop], reads)[0].mul_(scale)
            softmax.bias(scores, back)
            scores.masked_fill_(softmax.hidden(back), -torch.inf)
            largest, at = (x.cpu().numpy() for x in scores.flatten(1).max(dim=1))
            query, key = np.divmod(at, stop)
            before = total.logit[ring, rows]
            # NaN scores win and stay.
            larger = ~(largest <= before) & ~np.isnan(before)
            total.logit[ring, rows] = np.where(larger, largest, before)
            found_at = np.stack([np.full_like(query, document), query + start, key], axis=1)
            total.where[ring, rows] = np.where(larger[:, None], found_at, total.where[ring, rows])

    def done(self) -> LogitSum:
        return self._sum
