"""Queries, keys and positions -> moments: exact, mergeable, of one size whatever the number of tokens.

For one head and one kind (q or k), over all its tokens (vector x, position t):

    n,  mean of x,  mean of t,  M = sum (x-mx)(x-mx)^T,  C = sum (x-mx)(t-mt),  T = sum (t-mt)^2

Everything downstream is a function of these. Beside the true positions run circularly shifted copies of them (the
null), so t, C and T have 1 + shifts columns. Context windows are cut into rings, one set of moments each: merging the
first rings gives the moments of any shorter window. Knows nothing of models, files or text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
from qkscope.heads import HeadIndex

Array = NDArray[np.float64]

# Tokens per matrix product. Bounds the float32 rounding of a sum and the size of temporaries.
CHUNK = 4096


@dataclass(frozen=True)
class Moments:
    """Moments of H heads with vectors of dimension d and c columns of position, all float64 but the counts.

    n (H,) int64 · mean_x (H, d) · mean_t (H, c) · M (H, d, d) · C (H, d, c) · T (H, c)
    bad (H,) int64: vectors with a non-finite component. A head with any is `unmeasured`.
    """

    n: NDArray[np.int64]
    mean_x: Array
    mean_t: Array
    M: Array
    C: Array
    T: Array
    bad: NDArray[np.int64]

    @classmethod
    def empty(cls, heads: int, dim: int, columns: int) -> Moments:
        """Moments of no tokens at all: merging them changes nothing."""
        none = np.zeros(heads, dtype=np.int64)
        x, t = np.zeros((heads, dim)), np.zeros((heads, columns))
        return cls(
            none, x, t, np.zeros((heads, dim, dim)), np.zeros((heads, dim, columns)), t.copy(), none.copy()
        )

    @classmethod
    def concat(cls, parts: Sequence[Moments]) -> Moments:
        """The heads of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def select(self, rows: Any) -> Moments:
        """The heads at `rows` (an index array or a slice)."""
        return Moments(*(getattr(self, f.name)[rows] for f in fields(self)))

    def columns(self, columns: Any) -> Moments:
        """The same heads with only these columns of position."""
        return Moments(
            self.n,
            self.mean_x,
            self.mean_t[:, columns],
            self.M,
            self.C[:, :, columns],
            self.T[:, columns],
            self.bad,
        )

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of tokens together (Chan's update), head by head.

        With dx, dt the differences of the means and w = n_a n_b / (n_a + n_b):
        M = M_a + M_b + w dx dx^T,  C = C_a + C_b + w dx dt,  T = T_a + T_b + w dt^2.
        """
        n = self.n + other.n
        total = np.maximum(n, 1)
        share = (other.n / total)[:, None]
        weight = self.n * other.n / total
        dx, dt = other.mean_x - self.mean_x, other.mean_t - self.mean_t
        w = weight[:, None, None]
        return Moments(
            n=n,
            mean_x=self.mean_x + share * dx,
            mean_t=self.mean_t + share * dt,
            M=self.M + other.M + w * (dx[:, :, None] * dx[:, None, :]),
            C=self.C + other.C + w * (dx[:, :, None] * dt[:, None, :]),
            T=self.T + other.T + weight[:, None] * dt**2,
            bad=self.bad + other.bad,
        )


def merge_all(parts: Sequence[Moments]) -> Moments:
    """All parts merged, from the first to the last: the order fixes the last bits."""
    return reduce(Moments.merge, parts)


class Accumulator:
    """Sums over the tokens of one batch of heads, as they come.

    Vectors may be numpy arrays or torch tensors. They are shifted by a per-head constant (the mean of the first
    batch) before the products: without it, a mean far from zero eats the digits of the spread. Sums are kept in
    float64. numpy products run in float64; torch products run in float32 on the tensor's own device (float64 for
    float64 tensors), never in half precision.
    """

    def __init__(self) -> None:
        self._sums: _Sums | None = None

    def update(self, vectors: Any, positions: Any) -> None:
        """Add tokens: vectors (heads, tokens, dim), positions (tokens, columns) or (tokens,)."""
        if vectors.shape[1] == 0:
            return
        if self._sums is None:
            kind = _NumpySums if isinstance(vectors, np.ndarray) else _TorchSums
            self._sums = kind(vectors, positions)
        columns = positions.reshape(vectors.shape[1], -1)
        for start in range(0, vectors.shape[1], CHUNK):
            stop = start + CHUNK
            self._sums.add(vectors[:, start:stop], columns[start:stop])

    def moments(self) -> Moments:
        """The moments of all tokens added so far."""
        if self._sums is None:
            raise StoreError("no tokens were added, so there are no moments; give at least one token")
        return self._sums.moments()


class _Sums:
    """Sums of y = x - shift and s = t - origin: n, sum y, sum y y^T, sum y s, sum s, sum s^2."""

    n: int
    shift: Any
    origin: Array
    y: Any
    yy: Any
    ys: Any
    s: Array
    ss: Array
    bad: Any

    def add(self, x: Any, t: Any) -> None:
        raise TypeError(f"{type(self).__name__} does not add")

    def host(self, array: Any) -> Array:
        return np.asarray(array, dtype=np.float64)

    def moments(self) -> Moments:
        """Central moments out of the shifted sums, in float64."""
        y, yy, ys = self.host(self.y), self.host(self.yy), self.host(self.ys)
        heads, n = len(y), self.n
        mean_y, mean_s = y / n, self.s / n
        return Moments(
            n=np.full(heads, n, dtype=np.int64),
            mean_x=self.host(self.shift) + mean_y,
            mean_t=np.tile(self.origin + mean_s, (heads, 1)),
            M=(yy + yy.transpose(0, 2, 1)) / 2 - y[:, :, None] * y[:, None, :] / n,
            C=ys - y[:, :, None] * mean_s,
            T=np.tile(self.ss - self.s * mean_s, (heads, 1)),
            bad=self.host(self.bad).astype(np.int64),
        )


class _NumpySums(_Sums):
    def __init__(self, x: NDArray[Any], t: Any) -> None:
        heads, _, dim = x.shape
        t = np.asarray(t, dtype=np.float64).reshape(x.shape[1], -1)
        columns = t.shape[1]
        self.n, self.bad = 0, np.zeros(heads, dtype=np.int64)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = x[:, :CHUNK].mean(axis=1, dtype=np.float64)
        self.shift = np.where(np.isfinite(mean), mean, 0.0)
        self.origin = t.mean(axis=0)
        self.y, self.yy, self.ys = (
            np.zeros((heads, dim)),
            np.zeros((heads, dim, dim)),
            np.zeros((heads, dim, columns)),
        )
        self.s, self.ss = np.zeros(columns), np.zeros(columns)

    def add(self, x: NDArray[Any], t: Any) -> None:
        s = np.asarray(t, dtype=np.float64) - self.origin
        y = x.astype(np.float64)
        y -= self.shift[:, None, :]
        total = y.sum(axis=1)
        if not np.isfinite(total).all():
            finite = np.asarray(np.isfinite(y).all(axis=2))
            self.bad += (~finite).sum(axis=1)
            y = np.where(finite[:, :, None], y, 0.0)
            total = y.sum(axis=1)
        transposed = y.transpose(0, 2, 1)
        self.n += len(s)
        self.y += total
        self.yy += transposed @ y
        self.ys += transposed @ s
        self.s += s.sum(axis=0)
        self.ss += (s**2).sum(axis=0)


class _TorchSums(_Sums):
    def __init__(self, x: Any, t: Any) -> None:
        import torch

        heads, _, dim = x.shape
        t = self.host(t).reshape(x.shape[1], -1)
        self.n = 0
        # Sums stay where the vectors are, unless that device has no float64.
        self.device = torch.device("cpu") if x.device.type == "mps" else x.device
        self.work = torch.float64 if x.dtype == torch.float64 else torch.float32
        mean = x[:, :CHUNK].to(self.work).mean(dim=1)
        self.shift = torch.where(torch.isfinite(mean), mean, torch.zeros_like(mean))
        self.origin = t.mean(axis=0)
        self.bad = torch.zeros(heads, dtype=torch.int64, device=self.device)
        zeros = [
            torch.zeros(shape, dtype=torch.float64, device=self.device)
            for shape in ((heads, dim), (heads, dim, dim), (heads, dim, t.shape[1]))
        ]
        self.y, self.yy, self.ys = zeros
        self.s, self.ss = np.zeros(t.shape[1]), np.zeros(t.shape[1])

    def host(self, array: Any) -> Array:
        return np.asarray(array.cpu() if hasattr(array, "cpu") else array, dtype=np.float64)

    def add(self, x: Any, t: Any) -> None:
        import torch

        s = self.host(t) - self.origin
        y = x.to(self.work) - self.shift[:, None, :]
        total = y.sum(dim=1)
        if not bool(torch.isfinite(total).all()):
            finite = torch.isfinite(y).all(dim=2)
            self.bad += (~finite).sum(dim=1).to(self.device)
            y = torch.where(finite[:, :, None], y, torch.zeros_like(y))
            total = y.sum(dim=1)
        transposed = y.transpose(1, 2)
        columns = torch.as_tensor(s, dtype=self.work, device=y.device)
        self.n += len(s)
        self.y += total.to(self.device)
        self.yy += torch.bmm(transposed, y).to(self.device)
        self.ys += torch.matmul(transposed, columns).to(self.device)
        self.s += s.sum(axis=0)
        self.ss += (s**2).sum(axis=0)


def shift_fractions(document: int, shifts: int, seed: int) -> Array:
    """How far each null copy of a document's positions is rotated, as fractions of its length. (shifts,)"""
    return np.random.default_rng([seed, document & 0xFFFFFFFF]).random(shifts)


def ring_columns(
    length: int, windows: Sequence[int], document: int, shifts: int, seed: int
) -> list[tuple[int, int, Array]]:
    """Where a document's tokens belong and their columns of position, ring by ring.

    Rings end at the ascending `windows`. For each ring that the document reaches: (start, stop, columns), columns
    (stop - start, 1 + shifts * W) with W the number of windows that contain the ring: t itself, then for each of
    those windows `shifts` copies of t rotated within the document's first min(length, window) tokens.
    """
    fractions = shift_fractions(document, shifts, seed)
    rings = []
    for i, (start, edge) in enumerate(zip((0, *windows), windows, strict=False)):
        stop = min(length, edge)
        if start >= stop:
            break
        t = np.arange(start, stop, dtype=np.float64)
        blocks = [t[:, None]]
        for window in windows[i:]:
            seen = min(length, window)
            blocks.append((t[:, None] + np.floor(fractions * seen)) % seen)
        rings.append((start, stop, np.concatenate(blocks, axis=1)))
    return rings


@dataclass(frozen=True)
class Unit:
    """What one checkpoint's heads did on one group of documents: a unit of work, a file.

    q[i], k[i] are the moments of ring i, which ends at windows[i]; q's rows follow `heads`, k's follow `heads.keys`.
    `filled[i]` counts the documents that fill windows[i].
    """

    heads: HeadIndex
    windows: tuple[int, ...]
    shifts: int
    q: tuple[Moments, ...]
    k: tuple[Moments, ...]
    documents: int
    tokens: int
    filled: tuple[int, ...]

    def to_tensors(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and description for a file. M is symmetric: its upper triangle is kept."""
        tensors: dict[str, NDArray[Any]] = {}
        for kind, rings in (("q", self.q), ("k", self.k)):
            for i, moments in enumerate(rings):
                for field in fields(moments):
                    array = getattr(moments, field.name)
                    upper = np.triu_indices(array.shape[1]) if field.name == "M" else None
                    tensors[f"{kind}.{i}.{field.name}"] = (
                        array if upper is None else array[:, upper[0], upper[1]]
                    )
        names = ("windows", "shifts", "documents", "tokens", "filled")
        meta = {name: getattr(self, name) for name in names} | {"heads": self.heads.to_meta()}
        return tensors, meta

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Unit:
        """What `to_tensors` took apart."""
        rings: dict[str, list[Moments]] = {"q": [], "k": []}
        for kind, parts in rings.items():
            for i in range(len(meta["windows"])):
                values = {f.name: tensors[f"{kind}.{i}.{f.name}"] for f in fields(Moments)}
                values["M"] = _square(values["M"], values["mean_x"].shape[1])
                parts.append(Moments(**values))
        return cls(
            heads=HeadIndex.from_meta(meta["heads"]),
            windows=tuple(meta["windows"]),
            shifts=meta["shifts"],
            q=tuple(rings["q"]),
            k=tuple(rings["k"]),
            documents=meta["documents"],
            tokens=meta["tokens"],
            filled=tuple(meta["filled"]),
        )


def window(unit: Unit, width: int) -> tuple[Moments, Moments]:
    """(q, k) moments over each document's first `width` tokens, with the 1 + shifts columns of that window."""
    if width not in unit.windows:
        raise StoreError(f"no ring ends at a window of {width} tokens; the rings end at {list(unit.windows)}")
    last = unit.windows.index(width)

    def merged(rings: tuple[Moments, ...]) -> Moments:
        parts = []
        for i in range(last + 1):
            first = 1 + unit.shifts * (last - i)
            parts.append(rings[i].columns([0, *range(first, first + unit.shifts)]))
        return merge_all(parts)

    return merged(unit.q), merged(unit.k)


def _square(packed: NDArray[Any], dim: int) -> NDArray[Any]:
    """(H, d(d+1)/2) upper triangles -> (H, d, d)."""
    rows, columns = np.triu_indices(dim)
    full = np.empty((len(packed), dim, dim))
    full[:, rows, columns] = packed
    full[:, columns, rows] = packed
    return full
