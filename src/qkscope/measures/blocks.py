"""Heads in blocks whose matrices fit into a core's cache, each with the key heads that its queries read.

Of the heads of a block, query i reads key i // (queries / keys): where several queries read one key, what is done with
the keys alone is done once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.head_index import HeadIndex

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Block:
    """Rows of query heads (H,) and of the key heads (K,) that they read; H is a multiple of K."""

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]


def blocks(heads: HeadIndex, size: int, kinds: Sequence[int] | None = None) -> list[Block]:
    """All heads, at most `size` queries a block or those of one key. kinds (H,): a block's heads are of one kind."""
    readers = np.bincount(heads.kv_row)[heads.kv_row]
    alike = np.stack([np.zeros_like(readers) if kinds is None else np.array(kinds), readers], axis=1)
    found = []
    for label in np.unique(alike, axis=0):
        rows = np.flatnonzero((alike == label).all(axis=1))
        rows = rows[np.argsort(heads.kv_row[rows], kind="stable")]
        read = rows.reshape(-1, label[1])  # (keys, readers of each)
        for some in np.array_split(read, -(-len(read) // max(1, size // label[1]))):
            found.append(Block(some.reshape(-1), heads.kv_row[some[:, 0]]))
    return found


def per_query(of_keys: NDArray[Number], queries: int) -> NDArray[Number]:
    """Numbers of the keys (K, ...) of a block, for each of its queries. (H, ...)"""
    return np.repeat(of_keys, queries // len(of_keys), axis=0)


def by_key(of_queries: NDArray[Number], keys: int) -> NDArray[Number]:
    """Numbers of the queries (H, ...) of a block, by the key that they read: a view (K, H / K, ...)."""
    return of_queries.reshape(keys, len(of_queries) // keys, *of_queries.shape[1:])


def forms(M: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """x.M.x with the matrices (K, d, d) of the queries, or of the keys they read, and vectors x (H, m, d). (H, m)"""
    rows = by_key(x, len(M))
    return np.asarray(((rows @ M[:, None]) * rows).sum(axis=-1).reshape(x.shape[:2]))
