"""Moments of queries and keys: counts, means, scatter and covariance with position, exact and mergeable.

For H heads over n tokens with vectors x and positions t: `mean_x`, `mean_t`, `M = sum (x-mx)(x-mx)^T`,
`C = sum (x-mx)(t-mt)`, `T = sum (t-mt)^2`, merged by Chan's update. `MomentSum` has them for every ring of a unit, and
for the first four tokens of each document, which can be taken out again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
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
    ring_count,
)
from qkscope.sums.path import SINK
from qkscope.sums.scatter import PackedScatter, pack_scatter

Array = NDArray[np.float64]

# Tokens per matrix product. Bounds the float32 rounding of a sum, and keeps what is made on the way in the cache.
CHUNK = 1024
# Tokens whose mean is subtracted first, and how many of them the size of vectors is estimated from.
FIRST, SAMPLED = 4096, 64
# Components from here on, and what is not finite, make a vector bad: a chunk of their squares would overflow.
LARGEST = {"float64": 1e150, "float32": 1e17}
# Where a head's components all stay below, float32 loses digits of their squares: its products take float64.
SMALLEST = 1e-15


@dataclass(frozen=True)
class Moments:
    """Moments of H heads with vectors of dimension d; float64 except for the counts.

    n (H,) int64 · mean_x (H, d) · mean_t (H,) · M (H, d, d) · C (H, d) · T (H,)
    bad (H,) int64: number of vectors with a non-finite component; a head with any is `unmeasured`.
    """

    n: NDArray[np.int64]
    mean_x: Array
    mean_t: Array
    M: Array
    C: Array
    T: Array
    bad: NDArray[np.int64]

    @classmethod
    def empty(cls, heads: int, dim: int) -> Moments:
        """Moments of no tokens at all: merging them changes nothing."""
        none = np.zeros(heads, dtype=np.int64)
        x, t = np.zeros((heads, dim)), np.zeros(heads)
        return cls(none, x, t, np.zeros((heads, dim, dim)), x.copy(), t.copy(), none.copy())

    @classmethod
    def concat(cls, parts: Sequence[Moments]) -> Moments:
        """The heads of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    @property
    def trace(self) -> Array:
        """Summed squared distances from the mean, tr M. (H,)"""
        return np.asarray(np.trace(self.M, axis1=1, axis2=2))

    def select(self, rows: Any) -> Moments:
        """The heads at `rows` (an index array or a slice)."""
        return Moments(*(getattr(self, f.name)[rows] for f in fields(self)))

    def put(self, rows: Any, part: Moments) -> None:
        """Set the heads at `rows`."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(part, f.name)

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of tokens together (Chan's update), head by head.

        With dx, dt the differences of the means and w = n_a n_b / (n_a + n_b):
        M = M_a + M_b + w dx dx^T,  C = C_a + C_b + w dx dt,  T = T_a + T_b + w dt^2.
        """
        n = self.n + other.n
        share = other.n / np.maximum(n, 1)
        weight = self.n * share
        dx, dt = other.mean_x - self.mean_x, other.mean_t - self.mean_t
        M = dx[:, :, None] * (weight[:, None] * dx)[:, None, :]
        M += self.M
        M += other.M
        return Moments(
            n=n,
            mean_x=self.mean_x + share[:, None] * dx,
            mean_t=self.mean_t + share * dt,
            M=M,
            C=self.C + other.C + (weight * dt)[:, None] * dx,
            T=self.T + other.T + weight * dt**2,
            bad=self.bad + other.bad,
        )

    def without(self, part: Moments) -> Moments:
        """The moments of the tokens that are not in `part`, whose tokens are all among these: `merge` undone."""
        n = self.n - part.n
        some, share = n > 0, part.n / np.maximum(n, 1)
        mean_x = np.where(some[:, None], self.mean_x + share[:, None] * (self.mean_x - part.mean_x), 0.0)
        mean_t = np.where(some, self.mean_t + share * (self.mean_t - part.mean_t), 0.0)
        weight = part.n * n / np.maximum(self.n, 1)
        dx, dt = part.mean_x - mean_x, part.mean_t - mean_t
        M = dx[:, :, None] * (weight[:, None] * dx)[:, None, :]
        M += part.M
        np.subtract(self.M, M, out=M)
        M[~some] = 0.0
        return Moments(
            n=n,
            mean_x=mean_x,
            mean_t=mean_t,
            M=M,
            C=np.where(some[:, None], self.C - part.C - (weight * dt)[:, None] * dx, 0.0),
            T=np.where(some, self.T - part.T - weight * dt**2, 0.0),
            bad=self.bad - part.bad,
        )


def merge_all(parts: Sequence[Moments]) -> Moments:
    """All parts merged, from the first to the last: the order fixes the last bits."""
    return reduce(Moments.merge, parts)


class Accumulator:
    """Streaming moments of a batch of heads: call `update` with vectors and positions, then `moments()`.

    Vectors may be numpy arrays or torch tensors. They are shifted by a per-head constant (the mean of the first
    batch) before the products; without the shift, a mean far from zero would cost the precision of the variance.
    Sums are float64. numpy products run in float64; torch products run in float32 on the tensor's own device
    (float64 for float64 tensors and for vectors whose squares underflow in float32), never in half precision.
    """

    def __init__(self) -> None:
        self._sums: _Sums | None = None

    def update(self, vectors: Any, positions: Any) -> None:
        """Add tokens: vectors (heads, tokens, dim), positions (tokens,)."""
        if vectors.shape[1] == 0:
            return
        if self._sums is None:
            kind = _NumpySums if isinstance(vectors, np.ndarray) else _TorchSums
            self._sums = kind(vectors, positions)
        for start in range(0, vectors.shape[1], CHUNK):
            stop = start + CHUNK
            self._sums.add(vectors[:, start:stop], positions[start:stop])

    def moments(self) -> Moments:
        """The moments of all tokens added so far."""
        if self._sums is None:
            raise StoreError("no tokens were added, so the moments are undefined; give at least one token")
        return self._sums.moments()


class _Sums(ABC):
    """Sums of y = x - shift and s = t - origin: n, sum y, sum y y^T, sum y s, sum s, sum s^2."""

    shift: Any
    origin: float
    bad: Any
    n = 0
    s = ss = 0.0
    y: Any = None
    yy: Any = None
    ys: Any = None

    @abstractmethod
    def add(self, x: Any, t: Any) -> None:
        """Add tokens: vectors x (heads, tokens, dim) at positions t (tokens,)."""

    def sum_up(self, s: Array, y: Any, yy: Any, ys: Any) -> None:
        """Add what some tokens give. The first are the sums so far: zeros to add them to would take as long."""
        if self.n:
            self.y += y
            self.yy += yy
            self.ys += ys
        else:
            self.y, self.yy, self.ys = (x.double() if hasattr(x, "double") else x for x in (y, yy, ys))
        self.n += len(s)
        self.s += float(s.sum())
        self.ss += float((s**2).sum())

    def moments(self) -> Moments:
        """Central moments out of the shifted sums, in float64."""
        y, yy, ys = _on_host(self.y), _on_host(self.yy), _on_host(self.ys)
        heads, n = len(y), self.n
        mean_y, mean_s = y / n, self.s / n
        root = y / np.sqrt(n)
        # A product with itself comes out symmetric, or nearly: files and eigenvectors read one triangle.
        M = root[:, :, None] * root[:, None, :]
        np.subtract(yy, M, out=M)
        return Moments(
            n=np.full(heads, n, dtype=np.int64),
            mean_x=_on_host(self.shift) + mean_y,
            mean_t=np.full(heads, self.origin + mean_s),
            M=M,
            C=ys - y * mean_s,
            T=np.full(heads, self.ss - self.s * mean_s),
            bad=_on_host(self.bad).astype(np.int64),
        )


def _on_host(array: Any) -> Array:
    """An array or tensor as a numpy array in float64."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array, dtype=np.float64)


class _NumpySums(_Sums):
    def __init__(self, x: NDArray[Any], t: Any) -> None:
        self.bad = np.zeros(len(x), dtype=np.int64)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = x[:, :FIRST].mean(axis=1, dtype=np.float64)
        self.shift = np.where(np.isfinite(mean), mean, 0.0)
        self.origin = float(_on_host(t).mean())

    def add(self, x: NDArray[Any], t: Any) -> None:
        s = _on_host(t) - self.origin
        y = x.astype(np.float64)
        y -= self.shift[:, None, :]
        with np.errstate(over="ignore", invalid="ignore"):
            products = y.transpose(0, 2, 1) @ y
        # By Cauchy and Schwarz, no product is larger than the squares.
        if not np.isfinite(np.diagonal(products, axis1=1, axis2=2)).all():
            usable = np.asarray((np.abs(y) < LARGEST["float64"]).all(axis=2))
            self.bad += (~usable).sum(axis=1)
            y = np.where(usable[:, :, None], y, 0.0)
            products = y.transpose(0, 2, 1) @ y
        self.sum_up(s, y.sum(axis=1), products, y.transpose(0, 2, 1) @ s)


class _TorchSums(_Sums):
    def __init__(self, x: Any, t: Any) -> None:
        import torch

        # Sums stay where the vectors are, unless that device has no float64.
        self.device = torch.device("cpu") if x.device.type == "mps" else x.device
        self.work = torch.float64 if x.dtype == torch.float64 else torch.float32
        mean = x[:, :FIRST].to(self.work).mean(dim=1)
        self.shift = torch.where(torch.isfinite(mean), mean, torch.zeros_like(mean))
        self.products_on = x.device
        # Some tokens are enough: where only others are large, float64 is merely slower.
        some = x[:, : FIRST : max(1, min(x.shape[1], FIRST) // SAMPLED)].to(self.work)
        spread = (some - self.shift[:, None, :]).abs().amax(dim=(1, 2))
        if bool(((spread > 0) & (spread < SMALLEST)).any()):
            self.work, self.products_on = torch.float64, self.device
            self.shift = self.shift.to(self.products_on, self.work)
        self.origin = float(_on_host(t).mean())
        self.bad = torch.zeros(len(x), dtype=torch.int64, device=self.device)

    def add(self, x: Any, t: Any) -> None:
        import torch

        s = _on_host(t) - self.origin
        y = x.to(self.products_on, self.work) - self.shift[:, None, :]
        products = torch.bmm(y.transpose(1, 2), y)
        if not bool(torch.isfinite(products.diagonal(dim1=1, dim2=2)).all()):
            largest = LARGEST["float64" if self.work == torch.float64 else "float32"]
            usable = (y.abs() < largest).all(dim=2)
            self.bad += (~usable).sum(dim=1).to(self.device)
            y = torch.where(usable[:, :, None], y, torch.zeros_like(y))
            products = torch.bmm(y.transpose(1, 2), y)
        ys = torch.matmul(y.transpose(1, 2), torch.as_tensor(s, dtype=self.work, device=y.device))
        self.sum_up(s, *(each.to(self.device) for each in (y.sum(dim=1), products, ys)))


@dataclass
class MomentSum(Sum):
    """Moments by ring, and of the first four tokens; rows of q follow `heads`, rows of k `heads.keys`.

    q[i], k[i]      moments of ring i, which ends at windows[i]
    sink_q, sink_k  moments of each document's first four tokens
    """

    name = "moments"

    windows: tuple[int, ...]
    q: tuple[Moments, ...]
    k: tuple[Moments, ...]
    sink_q: Moments
    sink_k: Moments

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        return _Recorder(request)

    def merge(self, other: Self) -> Self:
        q, k = (tuple(map(Moments.merge, *rings)) for rings in ((self.q, other.q), (self.k, other.k)))
        sink_q, sink_k = self.sink_q.merge(other.sink_q), self.sink_k.merge(other.sink_k)
        return replace(self, q=q, k=k, sink_q=sink_q, sink_k=sink_k)

    def window(self, width: int) -> Self:
        last = ring_count(self.windows, width)
        return replace(self, windows=(width,), q=(merge_all(self.q[:last]),), k=(merge_all(self.k[:last]),))

    def to_arrays(self) -> tuple[Arrays, Meta]:
        """M as `scatter` stores it."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, moments, sink in (("q", self.q, self.sink_q), ("k", self.k, self.sink_k)):
            for part, each in [*enumerate(moments), ("sink", sink)]:
                arrays |= {f"{kind}.{part}.{f.name}": getattr(each, f.name) for f in fields(each)}
                arrays |= pack_scatter(f"{kind}.{part}.M", np.asarray(each.M))
        return arrays, {}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        dim = arrays["q.sink.mean_x"].shape[-1]
        rings = range(len(facts.windows))
        q, k = (
            [_moments(arrays, f"{kind}.{part}", count, dim) for part in (*rings, "sink")]
            for kind, count in (("q", len(facts.heads)), ("k", len(facts.heads.keys)))
        )
        return cls(facts.windows, tuple(q[:-1]), tuple(k[:-1]), q[-1], k[-1])


def _moments(arrays: Arrays, name: str, heads: int, dim: int) -> Moments:
    for part in ("n", "bad"):
        checked(arrays, f"{name}.{part}", "i", heads)
    for part in ("mean_t", "T", "M.step"):
        checked(arrays, f"{name}.{part}", "f", heads)
    for part in ("mean_x", "C", "M.diagonal"):
        checked(arrays, f"{name}.{part}", "f", heads, dim)
    checked(arrays, f"{name}.M", "i", heads, dim * (dim - 1) // 2)
    values: dict[str, Any] = {f.name: arrays[f"{name}.{f.name}"] for f in fields(Moments)}
    return Moments(**values | {"M": PackedScatter.of(arrays, f"{name}.M")})


class _Recorder(Recorder):
    """Adds the vectors of each pass to the moments of each (kind, layer) and ring."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._sums: dict[tuple[str, int, int | str], Accumulator] = {}
        # Tokens of the pass that are summed together: (row, start, stop) of each document, and their positions.
        self._parts: dict[int | str, tuple[list[tuple[int, int, int]], Array]] = {}

    def begin(self, batch: Batch) -> None:
        """Which tokens of the pass belong to which ring, and to the first four."""
        longest = self._request.windows[-1]
        first = [(row, 0, min(length, SINK, longest)) for row, length in enumerate(batch.lengths)]
        parts: list[tuple[int | str, list[tuple[int, int, int]]]]
        parts = [*self._request.spans(batch).items(), ("sink", first)]
        self._parts = {
            part: (spans, np.concatenate([np.arange(*ends, dtype=np.float64) for _, *ends in spans]))
            for part, spans in parts
        }

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        for kind, x in (("q", q), ("k", k)):
            for part, (spans, positions) in self._parts.items():
                sums = self._sums.setdefault((kind, index, part), Accumulator())
                tokens = _tokens(x, spans)
                # For a few tokens, numpy is faster.
                sums.update(np.asarray(tokens.cpu().double()) if part == "sink" else tokens, positions)

    def done(self) -> MomentSum:
        windows = self._request.windows
        q, k = ([self._moments(kind, part) for part in (*range(len(windows)), "sink")] for kind in ("q", "k"))
        return MomentSum(windows, tuple(q[:-1]), tuple(k[:-1]), q[-1], k[-1])

    def _moments(self, kind: str, name: int | str) -> Moments:
        """All heads, in the order of their rows."""
        layers = self._request.rows(kind)
        total = Moments.empty(sum(map(len, layers.values())), self._request.dim)
        for layer, rows in layers.items():
            if sums := self._sums.pop((kind, layer, name), None):
                total.put(rows, sums.moments())
        return total


def _tokens(x: Any, spans: list[tuple[int, int, int]]) -> Any:
    """x (batch, heads, tokens, dim) -> (heads, all tokens of the spans, dim); a single span is a view."""
    if len(spans) == 1:
        row, start, stop = spans[0]
        return x[row, :, start:stop]
    import torch

    return torch.cat([x[row, :, start:stop] for row, start, stop in spans], dim=1)
