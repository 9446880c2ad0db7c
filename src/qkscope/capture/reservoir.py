"""Keys kept as they are computed: a small sample of every bucket of a few documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.capture.consumers import Batch
from qkscope.heads import HeadIndex
from qkscope.key_sample import KeySample, KeySampling

if TYPE_CHECKING:
    from qkscope.corpus import Document


class KeyReservoir:
    """Fills one `KeySample` a window: the shortest and the longest, which tables are made of."""

    def __init__(
        self,
        heads: HeadIndex,
        dim: int,
        windows: Sequence[int],
        documents: Sequence[Document],
        how: KeySampling,
    ) -> None:
        longest = max(windows)
        lengths = {d.index: min(len(d.tokens), longest) for d in documents if len(d.tokens)}
        self._chosen = how.choose(list(lengths))
        self._rows = {int(i): np.flatnonzero(heads.keys[:, 0] == i) for i in np.unique(heads.keys[:, 0])}
        self._numbers = {layer: heads.keys[rows, 1].tolist() for layer, rows in self._rows.items()}
        self._where: dict[int, list[NDArray[np.int64]]] = {}
        self._samples: list[KeySample] = []
        for window in sorted({min(windows), longest}):
            where = [how.positions(i, lengths[i], window) for i in self._chosen]
            shape = (len(where), *(where[0].shape if where else (0, 0)), len(heads.keys), dim)
            kept = np.array([lengths[i] for i in self._chosen], dtype=np.int64)
            self._samples.append(KeySample(window, kept, np.full(shape, np.nan, dtype=np.float32)))
            for i, positions in zip(self._chosen, where, strict=True):
                self._where.setdefault(i, []).append(positions)
        self._present: list[tuple[int, int]] = []

    def begin(self, batch: Batch) -> None:
        """Note which documents of the pass are kept: (row of the pass, place in the sample)."""
        numbers = [document.index for document in batch.documents]
        self._present = [(numbers.index(i), at) for at, i in enumerate(self._chosen) if i in numbers]

    def __call__(self, layer: int, q: Any, k: Any) -> None:
        for row, at in self._present if layer in self._rows else ():
            for sample, where in zip(self._samples, self._where[self._chosen[at]], strict=True):
                bucket, slot = np.nonzero(where >= 0)
                found = k[row][self._numbers[layer]][:, where[bucket, slot]].float().cpu().numpy()
                for key, vectors in zip(self._rows[layer], found, strict=True):
                    sample.vectors[at, bucket, slot, key] = vectors

    def samples(self) -> tuple[KeySample, ...]:
        """What was kept of every window."""
        return tuple(self._samples)
