"""Loss: nats per token, by ring and by position of the predicted token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.base import Arrays, Batch, FactSum, Meta, Recorder, Request, Sum, checked, ring_count

Array = NDArray[np.float64]

# Bins of position in each octave.
PER_OCTAVE = 4
# Logits in memory at a time.
LOGITS = 1 << 24


def position_bins(window: int) -> NDArray[np.int64]:
    """The first position of each bin below `window`: 1, 2, ..., 8, 10, 12, 14, 16, 20, ...: four an octave."""
    octaves = 2 ** np.arange(2, 42, dtype=np.int64)
    starts = octaves[:, None] + np.arange(PER_OCTAVE) * (octaves // PER_OCTAVE)[:, None]
    every = np.concatenate([[1, 2, 3], starts.reshape(-1)])
    return every[every < window]


def token_nats(head: Any, hidden: Any, targets: Any) -> Array:
    """-log p of each target: hidden (tokens, size), targets (tokens,) token ids, both torch -> (tokens,)."""
    from torch.nn.functional import cross_entropy

    found, at = [np.zeros(0)], 0
    rows = 16  # until the vocabulary's size is known
    while at < len(targets):
        logits = head(hidden[at : at + rows])
        nats = cross_entropy(logits, targets[at : at + rows].to(logits.device), reduction="none")
        found.append(nats.double().cpu().numpy())
        at, rows = at + rows, max(1, LOGITS // logits.shape[1])
    return np.concatenate(found)


@dataclass
class LossSum(Sum):
    """Sums of -log p(token t | tokens before it), t from 1 on.

    n (R, B) predicted tokens by ring and bin of `position_bins` · total (R, B) nats
    """

    name = "loss"
    wants_head = True

    windows: tuple[int, ...]
    n: NDArray[np.int64]
    total: Array

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        """`every`: predict every k-th token only (default: `LanguageHead.every`)."""
        shape = len(request.windows), len(position_bins(request.windows[-1]))
        empty = cls(request.windows, np.zeros(shape, dtype=np.int64), np.zeros(shape))
        return _Recorder(empty, request.head, parameters.get("every") or request.head.every)

    def merge(self, other: Self) -> Self:
        return replace(self, n=self.n + other.n, total=self.total + other.total)

    def window(self, width: int) -> Self:
        last, bins = ring_count(self.windows, width), len(position_bins(width))
        n, total = (each[:last, :bins].sum(axis=0, keepdims=True) for each in (self.n, self.total))
        return replace(self, windows=(width,), n=n, total=total)

    @property
    def mean(self) -> float:
        """Nats per token; NaN without tokens."""
        n = int(self.n.sum())
        return float(self.total.sum() / n) if n else float("nan")

    @property
    def by_position(self) -> Array:
        """Nats per token by bin of position (B,); NaN in a bin without tokens."""
        n, total = self.n.sum(axis=0), self.total.sum(axis=0)
        return np.asarray(total / np.where(n, n, np.nan))

    def to_arrays(self) -> tuple[Arrays, Meta]:
        return {"loss.n": self.n, "loss.total": self.total}, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        shape = len(facts.windows), len(position_bins(facts.windows[-1]))
        n = checked(arrays, "loss.n", "i", *shape)
        if (n < 0).any():
            raise ValueError("loss.n has a negative number of tokens")
        return cls(facts.windows, n, checked(arrays, "loss.total", "f", *shape))


class _Recorder(Recorder):
    """Predicts the tokens of each pass from its last hidden states."""

    def __init__(self, sums: LossSum, head: Any, every: int) -> None:
        self._sums, self._head, self._every = sums, head, every
        self._bins = position_bins(sums.windows[-1])
        self._batch: Batch

    def begin(self, batch: Batch) -> None:
        self._batch = batch

    def end(self, hidden: Any) -> None:
        import torch

        batch, sums = self._batch, self._sums
        # Every k-th token, with another offset in each document, so that every position is predicted in some of them.
        taken = [
            [t for t in range(1, length) if (t + document.index) % self._every == 0]
            for document, length in zip(batch.documents, batch.lengths, strict=True)
        ]
        row = np.repeat(np.arange(len(taken)), [len(each) for each in taken])
        t = np.array([each for some in taken for each in some], dtype=np.int64)
        if not len(t):
            return
        # The head is called equally often for all groups of documents of the same lengths: with FSDP every rank has to
        # call it as often as the others.
        most = sum(-(-(length - 1) // self._every) for length in batch.lengths)
        padded_row, padded_t = (np.pad(each, (0, most - len(t)), mode="edge") for each in (row, t))
        targets = torch.from_numpy(batch.ids()[padded_row, padded_t])
        vectors = hidden[torch.from_numpy(padded_row), torch.from_numpy(padded_t - 1)]
        nats = token_nats(self._head, vectors, targets)[: len(t)]
        ring = np.searchsorted(sums.windows, t, side="right")
        cell = ring, np.searchsorted(self._bins, t, side="right") - 1
        np.add.at(sums.n, cell, 1)
        np.add.at(sums.total, cell, nats)

    def done(self) -> LossSum:
        return self._sums
