"""Moments of queries and keys in every ring, and of the first tokens, where attention sinks are.

Merging the first rings gives the moments of any shorter window. The first four tokens of a document are part of the
rings and have moments of their own, so that they can be taken out again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.moments import Accumulator, Moments, merge_all
from qkscope.path import SINK
from qkscope.scatter import pack_scatter, unpack_scatter
from qkscope.sums.base import Arrays, Batch, LayerFacts, Meta, Request, Sum, checked, ring_count
from qkscope.sums.facts import FactSum


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
    def start(cls, request: Request, **parameters: Any) -> Sum:
        return _Accumulating(request)

    def merge(self, other: Self) -> Self:
        return replace(
            self,
            q=tuple(a.merge(b) for a, b in zip(self.q, other.q, strict=True)),
            k=tuple(a.merge(b) for a, b in zip(self.k, other.k, strict=True)),
            sink_q=self.sink_q.merge(other.sink_q),
            sink_k=self.sink_k.merge(other.sink_k),
        )

    def window(self, width: int) -> Self:
        last = ring_count(self.windows, width)
        return replace(self, windows=(width,), q=(merge_all(self.q[:last]),), k=(merge_all(self.k[:last]),))

    def to_arrays(self) -> tuple[Arrays, Meta]:
        """M as `scatter` stores it."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, moments, sink in (("q", self.q, self.sink_q), ("k", self.k, self.sink_k)):
            for part, each in [*enumerate(moments), ("sink", sink)]:
                arrays |= {f"{kind}.{part}.{f.name}": getattr(each, f.name) for f in fields(each)}
                arrays |= pack_scatter(f"{kind}.{part}.M", each.M)
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
    values = {f.name: arrays[f"{name}.{f.name}"] for f in fields(Moments)}
    return Moments(**values | {"M": unpack_scatter(arrays, f"{name}.M")})


class _Accumulating(Sum):
    """Adds the vectors of each pass to the moments of each (kind, layer) and ring."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._sums: dict[tuple[str, int, int | str], Accumulator] = {}
        self._parts: list[_Part] = []

    def begin(self, batch: Batch) -> None:
        """Which tokens of the pass belong to which ring, and to the first four."""
        longest = self._request.windows[-1]
        first = [(row, 0, min(length, SINK, longest)) for row, length in enumerate(batch.lengths)]
        self._parts = [_Part(ring, spans) for ring, spans in self._request.spans(batch).items()]
        self._parts.append(_Part("sink", first))

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        for kind, x in (("q", q), ("k", k)):
            for part in self._parts:
                sums = self._sums.setdefault((kind, index, part.name), Accumulator())
                tokens = _tokens(x, part.spans)
                # Products of a few tokens are done before torch has begun with them.
                few = part.name == "sink"
                sums.update(np.asarray(tokens.cpu().double()) if few else tokens, part.positions)

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


class _Part:
    """Tokens of a pass that are summed together: (row, start, stop) of each document, and their positions."""

    def __init__(self, name: int | str, spans: list[tuple[int, int, int]]) -> None:
        self.name, self.spans = name, spans
        self.positions = np.concatenate(
            [np.arange(start, stop, dtype=np.float64) for _, start, stop in spans]
        )


def _tokens(x: Any, spans: list[tuple[int, int, int]]) -> Any:
    """x (batch, heads, tokens, dim) -> (heads, all tokens of the spans, dim); a single span is a view."""
    if len(spans) == 1:
        row, start, stop = spans[0]
        return x[row, :, start:stop]
    joined = x.new_empty((x.shape[1], sum(stop - start for _, start, stop in spans), x.shape[3]))
    at = 0
    for row, start, stop in spans:
        joined[:, at : at + stop - start] = x[row, :, start:stop]
        at += stop - start
    return joined
