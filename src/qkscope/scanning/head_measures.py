"""One head's vectors on disk -> the optional measures: rotation model, each kind alone, and plasticity of all pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.optional import ROTATION, Measured, rotation_samples
from qkscope.measures.pca import whole_and_without
from qkscope.measures.per_kind import NAMES as PER_KIND
from qkscope.measures.per_kind import per_kind_samples
from qkscope.measures.plasticity import NAMES, Plasticity, QueryLine, plasticity, query_line
from qkscope.moments import Moments
from qkscope.vectors.files import Rows, read_rows


def head_measures(
    queries: Path,
    keys: Rows,
    groups: Sequence[tuple[Moments, Moments]],
    documents: int,
    measures: Sequence[str],
) -> tuple[int, dict[str, Measured]]:
    """(window, each of `measures` by name) of one query head, whose moments by group of documents are `groups`.

    The window ends at the last position of either file, and the scale of scores is 1 / sqrt(dim). Documents are dealt
    into `documents` groups. Files without buckets have no plasticity.
    """
    found = read_rows(queries, vectors=False)
    window = int(max(found.position.max(), keys.position.max())) + 1
    scale = np.array([groups[0][0].M.shape[1] ** -0.5])
    measured = {}
    if "rotation" in measures:
        measured["rotation"] = Measured(ROTATION, rotation_samples(list(groups), window, scale))
    if "per_kind" in measures:
        measured["per_kind"] = Measured(PER_KIND, per_kind_samples(groups))
    if "plasticity" in measures and found.bucket is not None and keys.bucket is not None:
        sums = [q for q, _ in groups]
        measured["plasticity"] = _exact(_Placed.of(found, keys, found.bucket, keys.bucket, documents), sums)
    return window, measured


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


def _exact(rows: _Placed, sums: Sequence[Moments]) -> Measured:
    """All pairs of keys of one document and bucket, over all documents and without each group of them."""
    left = [rows, *(rows.without(group) for group in rows.groups)] if len(sums) > 1 else [rows]
    pairs = zip(whole_and_without(sums), left, strict=True)
    found = [_of_sample(moments, part, rows.buckets) for moments, part in pairs]
    values = np.stack([each.numbers for each in found])[:, :, None]
    return Measured(NAMES, values, {"sampling_se": np.zeros(1)}, found[0].cells[None])


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
