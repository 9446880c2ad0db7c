"""A few keys of every stretch of a few documents: what measures of pairs of keys need, of one size whatever is read.

A window is cut into sixteen buckets. Of each bucket of each chosen document, a sample of its keys is kept. Which
documents and which positions follows from the seed, the document's number and the window alone: the same keys on every
machine, in every checkpoint, whatever the order in which documents are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Buckets of a window.
BUCKETS = 16


def bucket_size(window: int) -> int:
    """Positions in a bucket: a position's bucket is `position // bucket_size(window)`."""
    return max(1, window // BUCKETS)


@dataclass(frozen=True)
class KeySampling:
    """How much is kept: so many keys of a bucket, of so many documents of a group."""

    keys: int = 8
    documents: int = 4
    seed: int = 0

    def choose(self, documents: Sequence[int]) -> tuple[int, ...]:
        """Which of the documents, by number, are kept."""
        order = sorted(documents, key=lambda i: (np.random.default_rng([self.seed, i]).random(), i))
        return tuple(sorted(order[: self.documents]))

    def positions(self, document: int, length: int, window: int) -> NDArray[np.int64]:
        """(buckets, keys) positions kept of a document, -1 where a bucket has fewer tokens."""
        size = bucket_size(window)
        starts = np.arange(0, window, size)
        order = np.tile(np.arange(size), (len(starts), 1))
        order = np.random.default_rng([self.seed, document, window]).permuted(order, axis=1) + starts[:, None]
        late = order >= min(length, window)
        first = np.argsort(late, axis=1, kind="stable")[:, : self.keys]
        kept = np.take_along_axis(np.where(late, -1, order), first, axis=1)
        return np.pad(kept, [(0, 0), (0, self.keys - kept.shape[1])], constant_values=-1)


@dataclass(frozen=True)
class KeySample:
    """Keys of D documents over one window: vectors (D, buckets, keys, K, d) float32, NaN where there is none.

    lengths (D,) int64: tokens of each document, of which those before `window` count.
    """

    window: int
    lengths: NDArray[np.int64]
    vectors: NDArray[np.float32]

    def pairs(self) -> NDArray[np.float64]:
        """Pairs of keys that each document has in each bucket, kept or not. (D, buckets)"""
        n = self.tokens()
        return np.asarray(n * (n - 1) / 2, dtype=np.float64)

    def tokens(self) -> NDArray[np.int64]:
        """Tokens that each document has in each bucket. (D, buckets)"""
        size = bucket_size(self.window)
        starts = np.arange(0, self.window, size)
        stops = np.minimum(starts + size, self.window)
        return np.asarray(np.clip(self.lengths[:, None], starts, stops) - starts)
