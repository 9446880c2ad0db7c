"""The path of each head: sums of its vectors before rotation, by bins of position.

Bins are {0}, {1, 2, 3}, then at most 16 a ring. With the rotation R_t, the mean vector at position t is R_t applied to
the mean of the bin that holds t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.base import (
    Arrays,
    Batch,
    FactSum,
    LayerFacts,
    Meta,
    Recorder,
    Request,
    Sum,
    checked,
    unrotated,
)
from qkscope.sums.rotation import Rotation

Array = NDArray[np.float64]

# The first tokens of a document, where attention sinks are: they have bins of their own.
SINK = 4
# Bins of position in each ring after them.
BINS = 16


@dataclass(frozen=True)
class Path:
    """Bin sums of H heads: bin b holds the positions edges[b] <= t < edges[b + 1].

    edges (B + 1,) int64 · n (B,) int64 tokens · total (H, B, d) float64, the sum of u over the bin's tokens
    """

    edges: NDArray[np.int64]
    n: NDArray[np.int64]
    total: Array

    def merge(self, other: Path) -> Path:
        """Both sets of tokens together; the bins must be the same."""
        return replace(self, n=self.n + other.n, total=self.total + other.total)

    def without(self, part: Path) -> Path:
        """The tokens that are not in `part`, whose tokens are all among these."""
        n = self.n - part.n
        return replace(self, n=n, total=np.where(n[:, None] > 0, self.total - part.total, 0.0))

    def select(self, rows: NDArray[np.int64]) -> Path:
        """The heads at `rows`."""
        return replace(self, total=self.total[rows])

    def window(self, width: int, start: int = 0) -> Path:
        """Only the bins of the positions start <= t < width; both must be edges."""
        first, last = np.searchsorted(self.edges, [start, width])
        return Path(self.edges[first : last + 1], self.n[first:last], self.total[:, first:last])

    @property
    def mean(self) -> Array:
        """mu_b (H, B, d); NaN in a bin without tokens."""
        n = np.where(self.n, self.n, np.nan).astype(self.total.dtype)
        with np.errstate(invalid="ignore"):
            return self.total / n[None, :, None]

    @property
    def filled(self) -> Path:
        """The same, with 0 as the mean of a bin without tokens."""
        return replace(self, n=np.maximum(self.n, 1))

    def at(self, rotation: Rotation, t: NDArray[np.int64]) -> Array:
        """m(t) = R_t mu_b(t) for heads of one rotation: t (T,) within the edges -> (H, T, d)."""
        return rotation.rotate(self.means_at(t), np.asarray(t, dtype=np.float64))

    def means_at(self, t: NDArray[np.int64]) -> Array:
        """mu_b(t), not rotated: t (T,) within the edges -> (H, T, d)."""
        return self.mean[:, np.searchsorted(self.edges, t, side="right") - 1]


def bin_edges(windows: Sequence[int]) -> NDArray[np.int64]:
    """Edges of the bins of position: {0}, {1, 2, 3}, then at most 16 in each ring, which end at `windows`.

    Bins of a ring are equally wide: eta^2 then differs by at most 0.01 from one bin a position (SmolLM2-135M, 512
    tokens; the demo's last checkpoint, 1024), where bins that double in width are off by up to 0.06.
    """
    edges = {0, 1, SINK, *windows}
    for start, stop in pairwise((SINK, *windows)):
        if stop > start:
            edges |= {round(edge) for edge in np.linspace(max(start, SINK), stop, BINS + 1)}
    return np.array(sorted(edge for edge in edges if edge <= windows[-1]), dtype=np.int64)


class Bins:
    """Which tokens of a pass lie in which bin: sums over each bin are one product with that 0/1 matrix.

    positions (tokens,), or (documents, tokens) with -1 where a document is padded. n (bins,) int64 tokens.
    """

    def __init__(self, edges: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        bins = np.searchsorted(edges, positions, side="right") - 1
        member = bins[..., None, :] == np.arange(len(edges) - 1)[:, None]  # (..., bins, tokens)
        self.n = member.sum(axis=-1).reshape(-1, len(edges) - 1).sum(axis=0)
        self._member: Any = member.astype(np.float64)

    def sums(self, x: Any) -> Array:
        """Sums over each bin in float64, NaN where a value is not finite.

        x (heads, tokens, dim), or (documents, heads, tokens, dim) -> (heads, bins, dim). torch tensors are multiplied
        in float32 on their own device (float64 for float64 tensors), document by document.
        """
        if isinstance(x, np.ndarray):
            x, self._member = x.astype(np.float64), np.asarray(self._member, dtype=np.float64)
        else:
            import torch

            work = torch.float64 if x.dtype == torch.float64 else torch.float32
            x = x.to(work)
            self._member = torch.as_tensor(self._member, device=x.device, dtype=work)
        product = (self._member[:, None] if x.ndim == 4 else self._member) @ x
        total = np.asarray(product if isinstance(product, np.ndarray) else product.cpu(), dtype=np.float64)
        total = total.sum(axis=0) if total.ndim == 4 else total
        return np.where(np.isfinite(total), total, np.nan)


@dataclass
class PathSum(Sum):
    """Bin sums of all query heads and of all key heads."""

    name = "path"

    q: Path
    k: Path

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        return _Recorder(request)

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


class _Recorder(Recorder):
    """Adds the vectors of each pass to the bins of each (kind, layer)."""

    def __init__(self, request: Request) -> None:
        self._edges = bin_edges(request.windows)
        self._rows = {kind: request.rows(kind) for kind in ("q", "k")}
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
            self._totals[kind][self._rows[kind][index]] += unrotated(x, before, self._bins.sums)

    def done(self) -> PathSum:
        """Totals are rounded to float32, so that a unit in memory equals the same unit read from its files."""
        q, k = (
            Path(self._edges, self._n, self._totals[kind].astype(np.float32).astype(np.float64))
            for kind in ("q", "k")
        )
        return PathSum(q, k)
