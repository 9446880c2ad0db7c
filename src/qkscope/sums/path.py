"""The path of each head: sums of its vectors before rotation, by bins of position (`qkscope.path`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.path import Bins, Path, bin_edges
from qkscope.sums.base import Arrays, Batch, LayerFacts, Meta, Request, Sum, Unrotated, checked
from qkscope.sums.facts import FactSum


@dataclass
class PathSum(Sum):
    """Bin sums of all query heads and of all key heads."""

    name = "path"

    q: Path
    k: Path

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Sum:
        return _Accumulating(request)

    def merge(self, other: Self) -> Self:
        return replace(self, q=self.q.merge(other.q), k=self.k.merge(other.k))

    def window(self, width: int) -> Self:
        return replace(self, q=self.q.window(width), k=self.k.window(width))

    def to_arrays(self) -> tuple[Arrays, Meta]:
        arrays: dict[str, NDArray[Any]] = {}
        for kind, path in (("q", self.q), ("k", self.k)):
            arrays |= {f"{kind}.path.edges": path.edges, f"{kind}.path.n": path.n}
            arrays[f"{kind}.path.total"] = path.total.astype(np.float32)
        return arrays, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        q = _path(arrays, "q.path", len(facts.heads), facts.windows)
        return cls(q, _path(arrays, "k.path", len(facts.heads.keys), facts.windows))


def _path(arrays: Arrays, name: str, heads: int, windows: tuple[int, ...]) -> Path:
    expected = bin_edges(windows)
    edges = checked(arrays, f"{name}.edges", "i", len(expected))
    if not np.array_equal(edges, expected):
        raise ValueError(f"{name}.edges are not the bins of the windows {list(windows)}")
    n = checked(arrays, f"{name}.n", "i", len(expected) - 1)
    total = checked(arrays, f"{name}.total", "f", heads, len(expected) - 1, None)
    return Path(edges, n, total.astype(np.float64))


class _Accumulating(Sum):
    """Adds the vectors of each pass to the bins of each (kind, layer)."""

    def __init__(self, request: Request) -> None:
        self._edges, self._rows = (
            bin_edges(request.windows),
            {kind: request.rows(kind) for kind in ("q", "k")},
        )
        self._n = np.zeros(len(self._edges) - 1, dtype=np.int64)
        self._totals = {
            kind: np.zeros((sum(map(len, rows.values())), len(self._n), request.dim))
            for kind, rows in self._rows.items()
        }
        self._bins: Bins

    def begin(self, batch: Batch) -> None:
        t = np.arange(max(batch.lengths))
        self._bins = Bins(self._edges, np.where(t < np.array(batch.lengths)[:, None], t, -1))
        self._n += self._bins.n

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        for kind, x, before in (("q", q, facts.before_q), ("k", k, facts.before_k)):
            self._totals[kind][self._rows[kind][index]] += self._sums(x, before)

    def _sums(self, x: Any, before: Unrotated | None) -> NDArray[np.float64]:
        """Bin sums of the vectors before rotation, or of x where there is none. (heads, bins, dim)"""
        if before is None:
            return self._bins.sums(x)
        sums = self._bins.sums(before.vectors)
        if np.array_equal(before.dims, np.arange(x.shape[3])):
            return sums
        # Some dimensions are not rotated, or come out in another order.
        total = self._bins.sums(x)
        total[..., before.dims] = sums
        return total

    def done(self) -> PathSum:
        """Totals are rounded to float32, so that a unit in memory equals the same unit read from its files."""
        q, k = (
            Path(self._edges, self._n, self._totals[kind].astype(np.float32).astype(np.float64))
            for kind in ("q", "k")
        )
        return PathSum(q, k)
