"""Attention on a few short excerpts: of each head, the keys that late queries look at most.

An excerpt is the first 128 tokens of a document, for the documents of a study with the lowest numbers; its queries are
the last 64 of them. Of each query the 16 keys of largest weight are kept, with weights in half precision: rounding
moves a weight by at most 0.05% of itself (3e-8 below 6e-5). Weights are those of `AttentionSum`: the model's own scale,
soft cap, learned sinks, sliding window and ALiBi.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.defaults import MOST_EXAMPLES
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
)

Index = NDArray[np.int64]

# Tokens of an excerpt, how many of the last are queries, keys of each query; heads at most.
TOKENS, QUERIES, KEYS, HEADS = 128, 64, 16, 256
# Stands for no key, where a query sees fewer than KEYS, and for no token, past the end of a short document.
NO_KEY, NO_TOKEN = 255, -1
_BY_DOCUMENT = ("document", "tokens", "key", "weight", "sink")
_SOFTMAX = ("softcap", "slope", "reach")


def shown_heads(count: int) -> Index:
    """The rows of the heads whose attention is kept, of `count` heads: all, or HEADS of them evenly spaced."""
    return np.arange(count) if count <= HEADS else np.arange(HEADS) * count // HEADS


def first_query(tokens: int) -> int:
    """The position of the first query of an excerpt."""
    return max(0, tokens - QUERIES)


@dataclass
class ExampleSum(Sum):
    """The excerpts that are documents of the unit, E of them, by their number; the same for every window.

    document  (E,)                their numbers
    tokens    (E, TOKENS)         token ids
    key       (E, h, QUERIES, KEYS) uint8: positions of the keys with the largest weights, largest first
    weight    (E, h, QUERIES, KEYS) float16: NaN for heads that were not measured
    sink      (E, h, QUERIES)     float16: the weight of a learned sink
    softmax   softcap, slope and reach (h,), as in `AttentionSum`

    The h heads are `shown_heads`.
    """

    name = "examples"

    document: Index
    tokens: NDArray[np.int32]
    key: NDArray[np.uint8]
    weight: NDArray[np.float16]
    sink: NDArray[np.float16]
    softmax: dict[str, NDArray[np.float64]]

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        """`documents`: how many excerpts the study has."""
        return _Recorder(request, int(parameters["documents"]))

    def merge(self, other: Self) -> Self:
        order = np.argsort(np.concatenate([self.document, other.document]), kind="stable")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in _BY_DOCUMENT}
        both: dict[str, Any] = {name: np.concatenate(pair)[order] for name, pair in pairs.items()}
        return replace(self, **both)

    def window(self, width: int) -> Self:
        return self

    def select(self, rows: Index) -> Self:
        """The excerpts with some of the heads."""
        found = {name: getattr(self, name)[:, rows] for name in ("key", "weight", "sink")}
        return replace(self, **found, softmax={name: each[rows] for name, each in self.softmax.items()})

    @property
    def lengths(self) -> Index:
        """Number of tokens of each excerpt. (E,)"""
        return np.asarray((self.tokens != NO_TOKEN).sum(axis=1))

    def to_arrays(self) -> tuple[Arrays, Meta]:
        return {**{name: getattr(self, name) for name in _BY_DOCUMENT}, **self.softmax}, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        return cls.of_heads(arrays, len(shown_heads(len(facts.heads))))

    @classmethod
    def of_heads(cls, arrays: Arrays, heads: int) -> Self:
        """From the arrays of `to_arrays`, for this many heads."""
        document = checked(arrays, "document", "i", None)
        count = len(document)
        if count > MOST_EXAMPLES or (np.diff(document) <= 0).any():
            expected = f"at most {MOST_EXAMPLES} ascending numbers"
            raise ValueError(f"documents are {document[:20]}, expected {expected}")
        tokens = checked(arrays, "tokens", "i", count, TOKENS)
        there = tokens != NO_TOKEN
        if (tokens < NO_TOKEN).any() or (there[:, 1:] & ~there[:, :-1]).any():
            raise ValueError("tokens has a negative number, or a gap")
        key = checked(arrays, "key", "u", count, heads, QUERIES, KEYS)
        past = key >= there.sum(axis=1)[:, None, None, None]
        if (past & (key != NO_KEY)).any():
            raise ValueError("key has the position of a token that its excerpt lacks")
        weight = checked(arrays, "weight", "f", count, heads, QUERIES, KEYS)
        sink = checked(arrays, "sink", "f", count, heads, QUERIES)
        for name, values in (("weight", weight), ("sink", sink)):
            if ((values < 0) | (values > 1)).any():
                raise ValueError(f"{name} has a number that is not between 0 and 1")
        return cls(
            document,
            tokens.astype(np.int32),
            key.astype(np.uint8),
            weight.astype(np.float16),
            sink.astype(np.float16),
            {name: checked(arrays, name, "f", heads) for name in _SOFTMAX},
        )


class _Recorder(Recorder):
    def __init__(self, request: Request, documents: int) -> None:
        shown, reads = shown_heads(len(request.heads)), request.reads()
        self._documents = documents
        # By layer: which of its measured heads are shown, their rows among those shown, and the key heads they read.
        self._heads: dict[int, tuple[Index, Index, Index]] = {}
        for layer, rows in request.rows("q").items():
            here = np.flatnonzero(np.isin(rows, shown))
            self._heads[layer] = here, np.flatnonzero(np.isin(shown, rows)), reads[layer][here]
        self._softmax = {name: np.full(len(shown), np.nan) for name in _SOFTMAX}
        self._present: list[tuple[int, int]] = []
        self._found: dict[int, ExampleSum] = {}

    def begin(self, batch: Batch) -> None:
        """Room for the excerpts of the pass, and (row of the pass, number of the document) of each."""
        self._present = []
        for row, (document, length) in enumerate(zip(batch.documents, batch.lengths, strict=True)):
            if document.index < self._documents:
                tokens, n = np.full((1, TOKENS), NO_TOKEN, dtype=np.int32), min(length, TOKENS)
                tokens[0, :n] = document.tokens[:n]
                self._present.append((row, document.index))
                self._found[document.index] = self._blank(np.array([document.index]), tokens)

    def _blank(self, document: Index, tokens: NDArray[np.int32]) -> ExampleSum:
        """Excerpts whose attention is not known yet."""
        shape = len(document), len(self._softmax["reach"]), QUERIES
        return ExampleSum(
            document,
            tokens,
            np.full((*shape, KEYS), NO_KEY, dtype=np.uint8),
            np.full((*shape, KEYS), np.nan, dtype=np.float16),
            np.full(shape, np.nan, dtype=np.float16),
            self._softmax,
        )

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        local, rows, reads = self._heads[index]
        if facts.softmax is None or not len(rows):
            return
        softmax = facts.softmax.select(local.tolist())
        known = softmax.constants
        for name in _SOFTMAX:
            self._softmax[name][rows] = known[name]
        for row, document in self._present:
            found = self._found[document]
            n = int(found.lengths[0])
            queries, keys = q[row, local.tolist(), first_query(n) : n], k[row, reads.tolist(), :n]
            key, weight, sink = _largest(queries.float(), keys.float(), facts.scale, softmax)
            found.key[0, rows, : key.shape[1], : key.shape[2]] = key
            found.weight[0, rows] = 0
            found.weight[0, rows, : key.shape[1], : key.shape[2]] = weight
            found.sink[0, rows] = 0
            found.sink[0, rows, : key.shape[1]] = sink

    def done(self) -> ExampleSum:
        none = self._blank(np.zeros(0, dtype=np.int64), np.zeros((0, TOKENS), dtype=np.int32))
        return reduce(ExampleSum.merge, self._found.values(), none)


def _largest(q: Any, k: Any, scale: float, softmax: Softmax) -> tuple[Any, Any, Any]:
    """The keys of largest weight (h, n, KEYS or fewer), their weights, and the weights of the learned sinks (h, n).

    q (h, n, d) are the queries of the last n of m tokens, k (h, m, d) the keys of all. NO_KEY where the weight is 0.
    """
    import torch

    m = k.shape[1]
    t, keys = torch.arange(m - q.shape[1], m, device=q.device), torch.arange(m, device=q.device)
    e, _, total, sink = softmax.weights((q @ k.transpose(-1, -2)).mul_(scale), t, keys)
    weights = (e.double() / total[..., None]).cpu().numpy()
    # Of equal weights the earlier key's: the same on every device.
    key = np.argsort(-weights, axis=-1, kind="stable")[..., :KEYS]
    weight = np.take_along_axis(weights, key, axis=-1).astype(np.float16)
    learned = (sink.double() / total).cpu().numpy().astype(np.float16)
    return np.where(weight > 0, key, NO_KEY).astype(np.uint8), weight, learned
