"""Attention on one document of random tokens, repeated once: what a head does where nothing but repetition helps.

The document of each group is the first token of its first document, then a random order of distinct tokens of its
documents, twice. For each query i of the second copy, with its first copy L tokens before: the mass on the token right
after the first copy, i - L + 1 (Olsson et al.'s induction score), and on the first copy itself, i - L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.attention_rows import products
from qkscope.sums.base import Arrays, Batch, FactSum, LayerFacts, Meta, Recorder, Request, Sum, checked

if TYPE_CHECKING:
    from qkscope.corpus import Document

Array = NDArray[np.float64]

# Tokens that are repeated, at most; fewer in a short window or where documents have fewer kinds of tokens.
REPEATED = 128


@dataclass
class RepeatSum(Sum):
    """n queries · total (2, H): their mass on the token after the first copy, and on the first copy.

    NaN for heads that were not measured. The same for every window.
    """

    name = "repeats"

    n: int
    total: Array

    @classmethod
    def own_documents(cls, documents: Sequence[Document], longest: int) -> list[Document]:
        known = [document for document in documents if len(document.tokens)]
        if not known:
            return []
        tokens = np.unique(np.concatenate([document.tokens[:longest] for document in known]))
        length = min(REPEATED, (longest - 1) // 2, len(tokens))
        first = min(known, key=lambda document: document.index)
        order = np.random.default_rng([0, first.index]).permutation(tokens)[:length]
        ids = np.concatenate([first.tokens[:1], order, order])
        return [replace(first, name="repeated random tokens", tokens=ids)] if length > 1 else []

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        return _Recorder(request)

    def merge(self, other: Self) -> Self:
        return replace(self, n=self.n + other.n, total=self.total + other.total)

    def window(self, width: int) -> Self:
        return self

    @property
    def mean(self) -> Array:
        """(2, H); NaN without queries."""
        return self.total / (self.n or np.nan)

    def to_arrays(self) -> tuple[Arrays, Meta]:
        return {"n": np.array([self.n], dtype=np.int64), "total": self.total}, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        n = checked(arrays, "n", "i", 1)
        return cls(int(n[0]), checked(arrays, "total", "f", 2, len(facts.heads)))


class _Recorder(Recorder):
    def __init__(self, request: Request) -> None:
        self._rows, self._reads = request.rows("q"), request.reads()
        self._sum = RepeatSum(0, np.zeros((2, len(request.heads))))
        self._length = 0

    def begin(self, batch: Batch) -> None:
        self._length = (batch.lengths[0] - 1) // 2
        self._sum.n += self._length

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        import torch

        rows = self._rows[index]
        if facts.softmax is None or not self._length:
            self._sum.total[:, rows] = np.nan
            return
        t = torch.arange(1 + self._length, q.shape[2], device=q.device)
        keys = torch.arange(q.shape[2], device=q.device)
        scores = products(q[:1, :, t].float(), k[:1].float(), self._reads[index]).mul_(facts.scale)
        e, _, total, _ = facts.softmax.weights(scores, t[None], keys)
        for i, first in enumerate((t - self._length + 1, t - self._length)):
            mass = e[0].gather(2, first[None, :, None].expand(len(e[0]), -1, 1))[..., 0].double() / total[0]
            self._sum.total[i, rows] += mass.sum(dim=1).cpu().numpy()

    def done(self) -> RepeatSum:
        return self._sum
