"""Positions at which paths are evaluated, and products of two vectors there without rotating any.

A short window is evaluated at every position, a long one at a fixed sample of strata (`Grid`). With a, b in pairs
(a0, a1), (b0, b1) and f a pair's frequency,

    a . R_t b = sum over pairs of scale ((a0 b0 + a1 b1) cos ft - (a0 b1 - a1 b0) sin ft) + the rest of a.b

so that products at many positions are one matrix product of what depends on the vectors (`terms`) with what depends on
the turn (`waves`). With a pair as the complex number a0 + i a1, the brackets are the real and the imaginary part of
conj(a) b.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import by_key
from qkscope.sums.path import SINK
from qkscope.sums.rotation import Rotation
from qkscope.sums.scores import one_per_stratum

Array = NDArray[np.float64]
T = TypeVar("T")


def as_left_out(rotation: Rotation, x: T) -> T:
    """Arrays, or a tuple or dataclass of them, in single precision where the rotation turns anything.

    It takes half the time. Left-out samples give standard errors, of which it changes the fourth digit. Without a
    rotation few positions are evaluated, and double precision costs nothing.
    """
    return x if not len(rotation.pairs) else in_single(x)


def in_single(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.dtype.char in "dD":
        return x.astype({"d": np.float32, "D": np.complex64}[x.dtype.char])
    if isinstance(x, tuple):
        parts = [in_single(each) for each in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if is_dataclass(x) and not isinstance(x, (type, Rotation)):
        return replace(x, **{f.name: in_single(getattr(x, f.name)) for f in fields(x)})
    return x


class Pairs(NamedTuple):
    """Vectors (..., d) before rotation: their pairs (..., P) complex, and what does not rotate (..., d - 2P)."""

    turning: NDArray[np.complex128]
    still: Array

    @classmethod
    def of(cls, rotation: Rotation, x: Array) -> Pairs:
        return cls(rotation.paired(x), x[..., rotation.still])

    def at(self, index: Any) -> Pairs:
        """The vectors at `index` of the leading axes."""
        return Pairs(self.turning[index], self.still[index])

    def by_key(self, keys: int) -> Pairs:
        """A block's queries (H, ...) by the key that they read. (K, H / K, ...)"""
        return Pairs(by_key(self.turning, keys), by_key(self.still, keys))


def terms(a: Pairs, b: Pairs) -> Array:
    """What the waves are multiplied with: vectors (..., d) before rotation -> (..., 2P + 1)."""
    shape = np.broadcast_shapes(a.turning.shape, b.turning.shape)
    found = np.empty((*shape[:-1], 2 * shape[-1] + 1), dtype=np.result_type(a.still, b.still))
    np.multiply(a.turning.conj(), b.turning, out=found[..., :-1].view(np.result_type(found, np.complex64)))
    found[..., -1] = np.einsum("...d,...d->...", a.still, b.still) if a.still.shape[-1] else 0.0
    return found


def waves(rotation: Rotation, t: NDArray[Any], rotated: int = 1) -> Array:
    """(T, 2P + 1) at t (T,). `rotated` says how many of a, b are, and so how often a rotation's scale counts.

    With both rotated, to positions i and j, t is j - i.
    """
    angle = np.asarray(t, dtype=np.float64)[:, None] * rotation.frequency
    found = np.empty((len(angle), 2 * len(rotation.frequency) + 1))
    found[:, :-1:2], found[:, 1::2] = np.cos(angle), -np.sin(angle)
    found[:, :-1] *= rotation.scale**rotated
    found[:, -1] = 1.0
    return found


@dataclass(frozen=True)
class Grid:
    """S positions, each standing for the stratum edges[s] <= t < edges[s + 1] and the tokens in it.

    t (S,) int64 · edges (S + 1,) int64 · tokens (S,) float64
    """

    t: NDArray[np.int64]
    edges: NDArray[np.int64]
    tokens: Array

    @classmethod
    def of(cls, counts: Array, t: NDArray[np.int64], edges: NDArray[np.int64]) -> Grid:
        """counts (T,) are the tokens at each position."""
        below = np.concatenate([[0.0], np.cumsum(counts)])
        return cls(t, edges, below[edges[1:]] - below[edges[:-1]])

    @property
    def width(self) -> NDArray[np.int64]:
        """How many positions each represents. (S,)"""
        return np.diff(self.edges)

    @property
    def exact(self) -> bool:
        """Every position represents itself alone."""
        return bool((self.width == 1).all())


def whole_grid(counts: Array, most: int) -> Grid:
    """The first four positions, each for itself, and at most `most` of the others."""
    early = np.arange(min(SINK, len(counts)))
    if len(counts) <= SINK:
        return Grid(early, np.arange(len(counts) + 1), counts)
    late = sampled_grid(counts, SINK, most)
    tokens = np.concatenate([counts[early], late.tokens])
    return Grid(np.concatenate([early, late.t]), np.concatenate([early, late.edges]), tokens)


def sampled_grid(counts: Array, start: int, most: int) -> Grid:
    """At most `most` of the positions from `start` on; counts (T,) are the tokens at each position."""
    return Grid.of(counts, *one_per_stratum(start, len(counts), max(1, min(most, len(counts) - start))))


def binned_grid(counts: Array, start: int, edges: NDArray[np.int64]) -> Grid:
    """One position for each bin from `start` on, which must be an edge."""
    edges = edges[edges >= start]
    return Grid.of(counts, edges[:-1], edges)
