"""A small sample of the keys of every bucket of positions in a few documents, for the measure `plasticity`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.base import Arrays, Batch, FactSum, LayerFacts, Meta, Recorder, Request, Sum, checked

# Buckets of a window.
BUCKETS = 16


def bucket_size(window: int) -> int:
    """Positions in a bucket: a position's bucket is `position // bucket_size(window)`."""
    return max(1, window // BUCKETS)


@dataclass(frozen=True)
class KeySampling:
    """Sample size: keys per bucket of positions, and documents per group."""

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

    def join(self, other: KeySample) -> KeySample:
        """The documents of both, over the same window."""
        lengths = np.concatenate([self.lengths, other.lengths])
        return replace(self, lengths=lengths, vectors=np.concatenate([self.vectors, other.vectors]))

    def pairs(self) -> NDArray[np.float64]:
        """Pairs of keys that each document has in each bucket, kept or not. (D, buckets)"""
        n = self.tokens()
        return np.asarray(n * (n - 1) / 2, dtype=np.float64)

    def tokens(self) -> NDArray[np.int64]:
        """Tokens that each document has in each bucket. (D, buckets)"""
        size = bucket_size(self.window)
        starts = np.arange(0, self.window, size)
        stops = np.minimum(starts + size, self.window)
        return np.clip(self.lengths[:, None], starts, stops) - starts


@dataclass
class KeySum(Sum):
    """One sample over the shortest window and one over the longest. Its parameters are those of `KeySampling`."""

    name = "keys"

    samples: tuple[KeySample, ...]

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        return _Recorder(request, KeySampling(**parameters))

    def merge(self, other: Self) -> Self:
        return replace(self, samples=tuple(map(KeySample.join, self.samples, other.samples)))

    def window(self, width: int) -> Self:
        return replace(self, samples=tuple(each for each in self.samples if each.window == width))

    def to_arrays(self) -> tuple[Arrays, Meta]:
        return {
            f"keys.{each.window}.{name}": getattr(each, name)
            for each in self.samples
            for name in ("lengths", "vectors")
        }, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        found = []
        for window in _sampled(facts.windows):
            lengths = checked(arrays, f"keys.{window}.lengths", "i", None)
            buckets = len(range(0, window, bucket_size(window)))
            shape = len(lengths), buckets, None, len(facts.heads.keys), None
            found.append(KeySample(window, lengths, checked(arrays, f"keys.{window}.vectors", "f", *shape)))
        return cls(tuple(found))


def _sampled(windows: tuple[int, ...]) -> list[int]:
    """The windows that tables are made of."""
    return sorted({windows[0], windows[-1]})


class _Recorder(Recorder):
    """Copies the chosen keys of each pass into the samples."""

    def __init__(self, request: Request, how: KeySampling) -> None:
        lengths = {number: length for number, length in request.documents.items() if length}
        self._chosen = how.choose(list(lengths))
        self._rows = request.rows("k")
        self._where: dict[int, list[NDArray[np.int64]]] = {}
        self._samples: list[KeySample] = []
        for window in _sampled(request.windows):
            where = [how.positions(i, lengths[i], window) for i in self._chosen]
            shape = (len(where), *(where[0].shape if where else (0, 0)), len(request.heads.keys), request.dim)
            kept = np.array([lengths[i] for i in self._chosen], dtype=np.int64)
            self._samples.append(KeySample(window, kept, np.full(shape, np.nan, dtype=np.float32)))
            for i, positions in zip(self._chosen, where, strict=True):
                self._where.setdefault(i, []).append(positions)
        self._present: list[tuple[int, int]] = []

    def begin(self, batch: Batch) -> None:
        """Which documents of the pass are sampled: (row of the pass, place in the sample)."""
        numbers = [document.index for document in batch.documents]
        self._present = [(numbers.index(i), at) for at, i in enumerate(self._chosen) if i in numbers]

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        for row, at in self._present:
            for sample, where in zip(self._samples, self._where[self._chosen[at]], strict=True):
                bucket, slot = np.nonzero(where >= 0)
                found = k[row][:, where[bucket, slot]].float().cpu().numpy()
                for key, vectors in zip(self._rows[index], found, strict=True):
                    sample.vectors[at, bucket, slot, key] = vectors

    def done(self) -> KeySum:
        return KeySum(tuple(self._samples))
