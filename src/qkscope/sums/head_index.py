"""Which heads are measured, which key head each query head reads, and how deep it lies."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkscope.errors import StudyError

DEPTH_BINS = 10


def sample_heads(
    layers: Sequence[int], n_q_heads: int | Sequence[int], count: int | None, seed: int = 0
) -> list[tuple[int, int]]:
    """(layer, head) of `count` query heads drawn without replacement, or of all in order where count is None.

    `n_q_heads` is one number, or that of each layer of the model.

    `random.Random(seed).sample` over all heads, layer by layer: the published rule, so 36 layers of 16 heads with
    count 300 and seed 0 give the published sample.
    """
    each = {layer: n_q_heads if isinstance(n_q_heads, int) else n_q_heads[layer] for layer in layers}
    every = [(layer, head) for layer in layers for head in range(each[layer])]
    if count is None:
        return every
    if not 0 < count <= len(every):
        fewest, most = min(each.values(), default=0), max(each.values(), default=0)
        heads = str(most) if fewest == most else f"{fewest} to {most}"
        raise StudyError(
            f"a sample of {count} heads was requested, but {len(layers)} full-attention layers of {heads} "
            f"query heads have {len(every)} in total: request 1 to {len(every)}, or all"
        )
    return random.Random(seed).sample(every, count)


@dataclass(frozen=True)
class HeadIndex:
    """The H measured query heads and the K key heads they use.

    layer, head, kv_head  (H,) int64
    rope                  (H,) int8: 1 RoPE layer, 0 NoPE layer, -1 unknown
    keys                  (K, 2) int64: the distinct (layer, kv_head), sorted
    kv_row                (H,) int64: row of each query head's key head in `keys`
    """

    layer: NDArray[np.int64]
    head: NDArray[np.int64]
    kv_head: NDArray[np.int64]
    rope: NDArray[np.int8]
    keys: NDArray[np.int64]
    kv_row: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        pairs: Iterable[tuple[int, int]],
        gqa_ratio: int | Sequence[int],
        rope: Mapping[int, bool | None] | None = None,
    ) -> HeadIndex:
        """Heads as (layer, head), in layer order; query head h reads key head h // gqa_ratio (one, or each layer's)."""
        table = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        layer, head = table[:, 0], table[:, 1]
        kv_head = head // (gqa_ratio if isinstance(gqa_ratio, int) else np.array(gqa_ratio)[layer])
        keys, kv_row = np.unique(np.stack([layer, kv_head], axis=1), axis=0, return_inverse=True)
        return cls(layer, head, kv_head, _flags(layer, rope or {}), keys, kv_row.reshape(-1).astype(np.int64))

    def with_rope(self, rope: Mapping[int, bool | None]) -> HeadIndex:
        """The same heads, with what is known now of their layers' rotation."""
        return replace(self, rope=_flags(self.layer, rope))

    def rows(self, kind: str) -> dict[int, NDArray[np.int64]]:
        """By layer: the rows of its query heads (kind q), or of its key heads in `keys` (kind k)."""
        layers = self.layer if kind == "q" else self.keys[:, 0]
        return {int(layer): np.flatnonzero(layers == layer) for layer in np.unique(layers)}

    def numbers(self, kind: str) -> dict[int, list[int]]:
        """By layer: the numbers of its query heads (kind q) or of its key heads (kind k)."""
        numbers = self.head if kind == "q" else self.keys[:, 1]
        return {layer: numbers[rows].tolist() for layer, rows in self.rows(kind).items()}

    def __len__(self) -> int:
        return len(self.layer)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(layer, head) of each head."""
        return list(zip(self.layer.tolist(), self.head.tolist(), strict=True))

    def to_meta(self) -> dict[str, Any]:
        """As plain lists, for a file's description."""
        return {name: getattr(self, name).tolist() for name in ("layer", "head", "kv_head", "rope")}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> HeadIndex:
        layer, head, kv_head = (np.array(meta[name], dtype=np.int64) for name in ("layer", "head", "kv_head"))
        keys, kv_row = np.unique(np.stack([layer, kv_head], axis=1), axis=0, return_inverse=True)
        rope = np.array(meta["rope"], dtype=np.int8)
        return cls(layer, head, kv_head, rope, keys, kv_row.reshape(-1).astype(np.int64))


def _flags(layer: NDArray[np.int64], rope: Mapping[int, bool | None]) -> NDArray[np.int8]:
    numbers = {None: -1, False: 0, True: 1}
    return np.array([numbers[rope.get(int(i))] for i in layer], dtype=np.int8)


def depth(layer: ArrayLike, num_layers: ArrayLike) -> NDArray[np.float64]:
    """layer / (num_layers - 1): 0 the first layer, 1 the last. A model of one layer has depth 0."""
    last = np.maximum(np.asarray(num_layers, dtype=float) - 1, 1)
    return np.asarray(np.asarray(layer, dtype=float) / last)


def depth_bin(depth: ArrayLike) -> NDArray[np.int64]:
    """min(9, floor(10 * depth)), with 10 * depth exact for layer / (num_layers - 1) that is a whole tenth."""
    scaled = np.round(np.asarray(depth, dtype=float) * DEPTH_BINS, 9)
    return np.minimum(DEPTH_BINS - 1, np.floor(scaled)).astype(np.int64)
