"""Plasticity of one head from all pairs of its stored keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.pca import whole_and_without
from qkscope.measures.plasticity import NAMES, Plasticity, QueryLine, plasticity, query_line
from qkscope.measures.reservoir import GROUP
from qkscope.sums.moments import Moments
from qkscope.vectors.parquet import Rows

Array = NDArray[np.float64]


def exact_plasticity(
    queries: Rows, keys: Rows, groups: Sequence[tuple[Moments, Moments]], documents: int
) -> dict[str, Array]:
    """Plasticity of one head from all pairs of its stored keys, as variables of a cell of one head.

    Documents are dealt into `documents` groups. NaN where a file has no buckets.
    """
    shape = (1 + len(groups) if len(groups) > 1 else 1, len(NAMES))
    values, cells = np.full(shape, np.nan), np.full((1, 1), np.nan)
    if queries.bucket is not None and keys.bucket is not None:
        rows = _Placed.of(queries, keys, queries.bucket, keys.bucket, documents)
        values, cells = _exact(rows, [q for q, _ in groups])
    names = [variable.name for variable in GROUP.variables]
    return dict(zip(names, [*values.T[:, :, None], np.zeros(1), cells[None]], strict=True))


@dataclass(frozen=True)
class _Placed:
    """A head's rows: where the queries stand, and the keys by document and bucket; groups of documents of both."""

    position: NDArray[np.int64]
    query_bucket: NDArray[np.int64]
    query_group: NDArray[np.int64]
    vector: NDArray[Any]
    key_bucket: NDArray[np.int64]
    key_group: NDArray[np.int64]
    document: NDArray[np.int64]

    @classmethod
    def of(
        cls, q: Rows, k: Rows, q_bucket: NDArray[np.int64], k_bucket: NDArray[np.int64], documents: int
    ) -> _Placed:
        groups = q.example % documents, k.example % documents
        return cls(q.position, q_bucket, groups[0], k.vector, k_bucket, groups[1], k.example)

    @property
    def groups(self) -> list[int]:
        return sorted({*self.query_group.tolist(), *self.key_group.tolist()})

    @property
    def buckets(self) -> int:
        return int(max(self.query_bucket.max(), self.key_bucket.max())) + 1

    def by_bucket(self, buckets: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """For each bucket its keys, document after document, and how many each document has."""
        order = np.lexsort([self.document, self.key_bucket])
        document = self.document[order]
        for start, stop in pairwise(np.searchsorted(self.key_bucket[order], np.arange(buckets + 1))):
            yield self.vector[order[start:stop]], np.unique(document[start:stop], return_counts=True)[1]

    def without(self, group: int) -> _Placed:
        q, k = self.query_group != group, self.key_group != group
        queries = self.position[q], self.query_bucket[q], self.query_group[q]
        return _Placed(*queries, self.vector[k], self.key_bucket[k], self.key_group[k], self.document[k])


def _exact(rows: _Placed, sums: Sequence[Moments]) -> tuple[Array, Array]:
    """Over all documents and without each group of them: values (1 + G, 4), and cells (B, B) of all."""
    left = [rows, *(rows.without(group) for group in rows.groups)] if len(sums) > 1 else [rows]
    pairs = zip(whole_and_without(sums), left, strict=True)
    found = [_of_sample(moments, part, rows.buckets) for moments, part in pairs]
    return np.stack([each.numbers for each in found]), found[0].cells


def _of_sample(moments: Moments, rows: _Placed, buckets: int) -> Plasticity:
    """NaN where queries do not vary in position, or some vectors are broken."""
    broken = bool(moments.bad[0]) or not np.isfinite(rows.vector).all()
    if broken or moments.n[0] < 2 or moments.T[0] <= 0 or not len(rows.vector):
        return Plasticity(np.full((buckets, buckets), np.nan))
    line = _line(moments, rows, buckets)
    return plasticity(line, rows.by_bucket(buckets))


def _line(moments: Moments, rows: _Placed, buckets: int) -> QueryLine:
    n = np.bincount(rows.query_bucket, minlength=buckets)
    with np.errstate(invalid="ignore"):
        places = np.bincount(rows.query_bucket, rows.position, minlength=buckets) / n
    means = np.stack(
        [rows.vector[rows.key_bucket == c].mean(axis=0, dtype=np.float64) for c in np.unique(rows.key_bucket)]
    )
    one = moments.mean_x[0], float(moments.mean_t[0]), moments.M[0], moments.C[0], float(moments.T[0])
    return query_line(int(moments.n[0]), *one, places, means)
