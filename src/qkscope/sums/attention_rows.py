"""Attention rows: where sampled queries of each head look, summed by strata of position.

p_ij is the softmax over the visible keys j <= i of the model's own scores, with its scale, soft cap, learned sinks,
sliding window and ALiBi. Strata are octaves of position, cut at the ends of rings: positions 1 to 63 are taken whole,
of each further stratum 16 positions per document. A sampled query counts for the positions between its neighbours, so
that sums over a stratum estimate sums over all of its tokens, and windows are sums of strata.

The keys of a query are divided into: token 0; tokens 1 to 3; the query itself; and bins of distance 1, 2, 3-4, 5-8,
..., without tokens 0 to 3. Their masses and that of a learned sink add up to 1.

What position alone predicts: with u and w a document's mean query and mean key before rotation, over the tokens from 4
to the end of the stratum, the score at distance D is scale u.R_-D w. Its softmax over the visible keys j >= 4, phat, is
compared with p over the same keys, renormalised: the overlap is sum_j min(p_ij, phat_ij). Uniform attention to these
keys is compared in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
    Softmax,
    Sum,
    checked,
    ring_count,
    unrotated,
)
from qkscope.sums.path import SINK
from qkscope.sums.scores import one_per_stratum

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# Positions below WHOLE are all sampled; of every further stratum, QUERIES positions per document.
WHOLE, QUERIES = 64, 16
# Scores that are in memory at once, and the length of documents whose masks are kept for all layers of a pass.
SCORES, KEPT = 1 << 20, 4096
# Keys from 4 on that a query must see for its row to be compared with what position predicts.
COMPARED = 2
# Parts that keys are divided into, and overlapping ones, before the bins of distance.
PARTS = ("first", "early", "self", "previous", "duplicate", "induction")
# All that is summed for a query, before the bins of distance.
COLUMNS = (
    *PARTS,
    *("learned_sink", "entropy", "normalised_entropy", "copied", "followed", "q_norm", "k_norm"),
    *("by_position", "uniform", "compared"),
)


def strata_edges(windows: Sequence[int]) -> Index:
    """Edges of the strata of queries: 1, 64, 128, 256, ... and the ends of rings, up to the longest window."""
    longest = windows[-1]
    octaves = [WHOLE << i for i in range(max(longest, 1).bit_length())]
    return np.array(sorted({edge for edge in (1, *octaves, *windows) if edge <= longest} | {1}))


def distance_bins(longest: int) -> Index:
    """The last distance of each bin, 1, 2, 4, 8, ..., up to the one that holds longest - 1."""
    return np.array([1 << i for i in range(max(longest - 2, 0).bit_length() + 1)], dtype=np.int64)


def query_positions(start: int, stop: int, document: int) -> tuple[Index, Index]:
    """The queries of a document in the stratum start <= t < stop, and for how many positions each counts."""
    if start < WHOLE or stop - start <= QUERIES:
        return np.arange(start, stop), np.ones(stop - start, dtype=np.int64)
    t, edges = one_per_stratum(start, stop, QUERIES, shift=document)
    return t, np.diff(edges)


@dataclass
class AttentionSum(Sum):
    """Sums over the queries of each stratum, and what the softmax of each head is.

    windows    ends of the rings
    n          (T,) tokens of each of the `strata_edges`
    total      (T, H, columns) of COLUMNS, then of the bins of distance; NaN for heads that were not measured, and for
               `by_position` where the rotation is not known (`FactSum.unknown_rotations` says why)
    softcap, sink, slope, reach  (H,): of `Softmax`, NaN where a head has none; reach is the sliding window
    unmeasured by layer: why its attention was not measured
    """

    name = "attention"
    version = 3

    windows: tuple[int, ...]
    n: Index
    total: Array
    softmax: dict[str, Array]
    unmeasured: dict[int, str] = field(default_factory=dict)

    @property
    def edges(self) -> Index:
        return strata_edges(self.windows)

    @property
    def bins(self) -> Index:
        """The last distance of each bin."""
        return distance_bins(self.windows[-1])

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        return _Recorder(request)

    def merge(self, other: Self) -> Self:
        unmeasured = self.unmeasured | other.unmeasured
        return replace(self, n=self.n + other.n, total=self.total + other.total, unmeasured=unmeasured)

    def window(self, width: int) -> Self:
        windows = self.windows[: ring_count(self.windows, width)]
        strata, columns = len(strata_edges(windows)) - 1, len(COLUMNS) + len(distance_bins(width))
        return replace(self, windows=windows, n=self.n[:strata], total=self.total[:strata, :, :columns])

    def mean(self, name: str, first: int = 0, past: int | None = None) -> Array:
        """The mean of a column over the queries at positions first <= t < past, which must be edges. (H,)"""
        return self._means(COLUMNS.index(name), first, past)

    def distance(self, first: int = 0) -> Array:
        """Mean mass by bin of distance of the queries from position `first` on. (H, bins)"""
        return self._means(slice(len(COLUMNS), None), first, None)

    def ratio(self, name: str, counted: str) -> Array:
        """The mean of a column over the queries that the column `counted` counts. (H,)"""
        above, below = (self.total[:, :, COLUMNS.index(each)].sum(axis=0) for each in (name, counted))
        return np.asarray(above / np.where(below > 0, below, np.nan))

    def _means(self, column: int | slice, first: int, past: int | None) -> Array:
        starts = self.edges[:-1]
        some = (starts >= first) & (self.edges[1:] <= (past or self.windows[-1]))
        n = int(self.n[some].sum())
        return np.asarray(self.total[some][:, :, column].sum(axis=0) / (n or np.nan))

    def to_arrays(self) -> tuple[Arrays, Meta]:
        arrays = {"n": self.n, "total": self.total, **self.softmax}
        return arrays, {"columns": COLUMNS, "unmeasured": sorted(self.unmeasured.items())}

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        strata, heads = len(strata_edges(facts.windows)) - 1, len(facts.heads)
        columns = len(COLUMNS) + len(distance_bins(facts.windows[-1]))
        if tuple(meta["columns"]) != COLUMNS:
            raise ValueError(f"columns are {meta['columns']}, expected {list(COLUMNS)}")
        return cls(
            facts.windows,
            checked(arrays, "n", "i", strata),
            checked(arrays, "total", "f", strata, heads, columns),
            {name: checked(arrays, name, "f", heads) for name in _SOFTMAX},
            {int(layer): str(why) for layer, why in meta["unmeasured"]},
        )


_SOFTMAX = ("softcap", "sink", "slope", "reach")


@dataclass(frozen=True)
class _Rows:
    """The queries of one stratum in a pass: of B documents, n positions each, with keys before `stop`.

    stratum · rows (B,) of the pass · t, weight (B, n), weight 0 where a document has fewer · ids (B, stop) tokens
    """

    stratum: int
    stop: int
    rows: Index
    t: Index
    weight: Index
    ids: Index

    def split(self, each: int) -> list[_Rows]:
        """Parts of at most SCORES numbers, `each` per query and key: some documents, or some queries of one."""
        documents, queries = self.t.shape
        most = max(1, SCORES // (each * self.stop))
        step = max(1, most // queries)
        if step < documents:
            parts = [slice(i, i + step) for i in range(0, documents, step)]
            some = [
                replace(self, rows=self.rows[at], t=self.t[at], weight=self.weight[at], ids=self.ids[at])
                for at in parts
            ]
            return [part for rows in some for part in rows.split(each)]
        if documents == 1 and most < queries:
            parts = [slice(i, i + most) for i in range(0, queries, most)]
            return [replace(self, t=self.t[:, at], weight=self.weight[:, at]) for at in parts]
        return [self]


@dataclass(frozen=True)
class _Keys:
    """How keys relate to some queries, in layers with one sliding window; torch tensors on the model's device.

    rows (B,), t (B, n), keys (m,) · parts (B * n, m, P) 1 for keys in each of PARTS and of the bins of distance
    lags (B, n, m - 4) distances of the keys from 4 on, or m where the query does not see the key
    uniform (B, 1, n, 1) one over the number of keys from 4 on that it sees
    visible, duplicates, followers, late (B, n) numpy: how many visible keys, and how many of them are earlier copies of
    the query's token, tokens right after these, and keys from 4 on
    """

    rows: Any
    t: Any
    keys: Any
    parts: Any
    lags: Any
    uniform: Any
    visible: Index
    duplicates: Index
    followers: Index
    late: Index

    @classmethod
    def of(cls, some: _Rows, window: int | None, bins: Index, device: Any) -> _Keys:
        import torch

        rows, t, ids = (torch.as_tensor(each, device=device) for each in (some.rows, some.t, some.ids))
        keys = torch.arange(some.stop, device=device)
        back = t[..., None] - keys  # (B, n, m)
        seen = ~Softmax(window).hidden(back)
        early = (keys < SINK) & seen
        late = (keys >= SINK) & seen
        same = ids[:, None] == ids.gather(1, t)[..., None]
        duplicate = same & (back > 0) & seen
        follower = torch.nn.functional.pad(same[..., :-1], (1, 0)) & seen
        starts = torch.as_tensor(np.concatenate([[1], bins[:-1] + 1]), device=device)
        stops = torch.as_tensor(bins, device=device)
        binned = (back[..., None] >= starts) & (back[..., None] <= stops) & late[..., None]
        named = [early & (keys == 0), early & (keys > 0), late & (back == 0), seen & (back == 1)]
        parts = torch.cat([torch.stack([*named, duplicate, follower], dim=-1), binned], dim=-1)
        lags = back.masked_fill(~seen, some.stop)[..., SINK:]
        uniform = 1.0 / late.sum(dim=-1).clamp(min=1)[:, None, :, None].float()
        counts = [each.sum(dim=-1).cpu().numpy() for each in (seen, duplicate, follower, late)]
        return cls(rows, t, keys, parts.flatten(0, 1).float(), lags, uniform, *counts)


class _Recorder(Recorder):
    """Attends with the sampled queries of every pass."""

    def __init__(self, request: Request) -> None:
        self._rows, self._reads = request.rows("q"), request.reads()
        self._edges, self._bins = strata_edges(request.windows), distance_bins(request.windows[-1])
        heads, strata = len(request.heads), len(self._edges) - 1
        total = np.zeros((strata, heads, len(COLUMNS) + len(self._bins)))
        softmax = {name: np.full(heads, np.nan) for name in _SOFTMAX}
        self._sum = AttentionSum(request.windows, np.zeros(strata, dtype=np.int64), total, softmax)
        self._queries: list[_Rows] = []
        self._keys: dict[tuple[int | None, int], _Keys] = {}
        self._averages: Any = None

    def begin(self, batch: Batch) -> None:
        self._queries, self._keys = [], {}
        # (documents, 1, strata, tokens): means over the tokens from 4 to the end of each stratum.
        t, lengths = np.arange(max(batch.lengths)), np.array(batch.lengths)
        ends = np.minimum(self._edges[1:], lengths[:, None])[..., None]
        averages = ((t >= SINK) & (t < ends)) / np.maximum(ends - SINK, 1)
        self._averages = averages[:, None].astype(np.float32)
        for stratum, (start, stop) in enumerate(pairwise(self._edges.tolist())):
            rows = [row for row, length in enumerate(batch.lengths) if length > start]
            if not rows:
                continue
            stops = [min(stop, length) for length in batch.lengths]
            chosen = [query_positions(start, stops[row], batch.documents[row].index) for row in rows]
            most, last = max(len(t) for t, _ in chosen), max(stops)
            # A document with fewer queries repeats its first, which then counts for nothing.
            t = np.stack([np.append(t, np.full(most - len(t), start)) for t, _ in chosen])
            weight = np.stack([np.append(w, np.zeros(most - len(w), dtype=np.int64)) for _, w in chosen])
            self._sum.n[stratum] += int(weight.sum())
            some = _Rows(stratum, last, np.array(rows), t, weight, batch.ids()[rows][:, :last])
            self._queries += some.split(max(len(PARTS) + len(self._bins), *map(len, self._rows.values())))

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        softmax = facts.softmax
        if softmax is None:
            self._sum.unmeasured[index] = facts.no_softmax
            return
        for name, value in softmax.constants.items():
            self._sum.softmax[name][self._rows[index]] = value
        reads = self._reads[index]
        means = self._means(q, k, facts, reads)
        for number, some in enumerate(self._queries):
            keys = self._keys.get((softmax.window, number))
            if keys is None:
                keys = _Keys.of(some, softmax.window, self._bins, q.device)
                if some.stop <= KEPT:
                    self._keys[softmax.window, number] = keys
            u, w = (each[some.rows, :, some.stratum] for each in means)
            predicted = _by_position(facts, softmax, keys, u, w)
            found = _attend(q, k, facts.scale, softmax, some, keys, reads, predicted)
            self._sum.total[some.stratum, self._rows[index]] += found

    def _means(self, q: Any, k: Any, facts: LayerFacts, reads: Index) -> tuple[Array, Array]:
        """Mean queries and the mean keys that they read, before rotation: (documents, h, strata, d) each."""
        import torch

        self._averages = torch.as_tensor(self._averages, device=q.device)

        def average(x: Any) -> Array:
            return np.asarray((self._averages @ x.float()).cpu(), dtype=np.float64)

        found = [unrotated(x, before, average) for x, before in ((q, facts.before_q), (k, facts.before_k))]
        return found[0], found[1][:, reads]

    def done(self) -> AttentionSum:
        for layer in self._sum.unmeasured:
            self._sum.total[:, self._rows[layer]] = np.nan
        return self._sum


def _attend(
    q: Any, k: Any, scale: float, softmax: Softmax, some: _Rows, keys: _Keys, reads: Index, predicted: Any
) -> Array:
    """Sums of all columns over the queries. (h, columns)

    predicted (B, h, n, m - 4): what position alone predicts; None where the rotation is not known
    """
    import torch

    heads = q.shape[1]
    queries = q[keys.rows[:, None], :, keys.t].float().transpose(1, 2)  # (B, h, n, d)
    first, last = some.rows[0], some.rows[-1] + 1
    # A slice where it can be, because an index would copy all keys.
    read = k[first:last] if last - first == len(some.rows) else k[keys.rows]
    read = read[:, :, : some.stop].float()  # (B, key heads, m, d)
    scores = products(queries, read, reads).mul_(scale)
    e, log, total, sink = softmax.weights(scores, keys.t, keys.keys)
    masses = e.transpose(1, 2).flatten(0, 1) @ keys.parts  # (B * n, h, P)
    masses = masses.unflatten(0, tuple(keys.t.shape)).double() / total.transpose(1, 2)[..., None]
    # -sum p ln p with p = e / Z; the learned sink counts as one more key.
    lost = (e * log).sum(dim=-1) + torch.where(sink > 0, sink * sink.log(), sink)
    entropy = (total.log() - lost / total).transpose(1, 2).double()  # (B, n, h)
    # A softmax of its own: next to a strong sink, the weights of the other keys may vanish.
    late = log[..., SINK:].softmax(dim=-1)
    uniform = late.minimum(keys.uniform).sum(dim=-1).transpose(1, 2)
    overlap = uniform.new_full(uniform.shape, np.nan)
    if predicted is not None:
        overlap = late.minimum(predicted).sum(dim=-1).transpose(1, 2)
    own = k[keys.rows[:, None], :, keys.t].float().norm(dim=-1)[:, :, reads]
    learned = sink.transpose(1, 2) / total.transpose(1, 2)
    numbers = [learned, entropy, queries.norm(dim=-1).transpose(1, 2), own, overlap, uniform]
    learned, entropy, q_norm, k_norm, overlap, uniform = (each.double().cpu().numpy() for each in numbers)
    found = masses.cpu().numpy()
    outcomes = keys.visible + (softmax.sinks is not None)
    compared = (keys.late >= COMPARED)[..., None]
    shares = [each / keys.visible for each in (keys.duplicates, keys.followers)]
    columns = [
        *(found[..., i] for i in range(4)),
        *(found[..., 4 + i] - share[..., None] for i, share in enumerate(shares)),
        learned,
        entropy,
        entropy / np.log(np.maximum(outcomes, 2))[..., None],
        *(np.repeat((each > 0)[..., None], heads, axis=2) for each in (keys.duplicates, keys.followers)),
        q_norm,
        k_norm,
        *(each * compared for each in (overlap, uniform, np.ones_like(overlap))),
    ]
    every = np.concatenate([np.stack(columns, axis=-1), found[..., len(PARTS) :]], axis=-1)
    return np.asarray(np.einsum("bn,bnhc->hc", some.weight, every))


def _by_position(facts: LayerFacts, softmax: Softmax, keys: _Keys, u: Array, w: Array) -> Any:
    """What position alone predicts from mean queries and keys u, w (B, h, d): weights of the keys from 4 on.

    (B, h, n, m - 4), or what broadcasts to it; None where the rotation is not known.
    """
    import torch

    if facts.rotation is None:
        return None
    if not len(facts.rotation.pairs) and softmax.slopes is None:
        return keys.uniform
    device, count = keys.keys.device, len(keys.keys)
    curve = facts.scale * facts.rotation.products(u, w, count)[:, :, None]
    scores = torch.as_tensor(curve, dtype=torch.float32, device=device)  # (B, h, 1, distances)
    softmax.bias(scores, torch.arange(count, device=device))
    scores = torch.nn.functional.pad(scores[:, :, 0], (0, 1), value=-1e30)  # keys that are not seen, last
    lags = keys.lags.flatten(1)[:, None].expand(-1, u.shape[1], -1)
    return scores.gather(2, lags).unflatten(2, tuple(keys.lags.shape[1:])).softmax(dim=-1)


def products(queries: Any, keys: Any, reads: Index) -> Any:
    """q.k of queries (B, h, n, d) with keys (B, key heads, m, d): head i reads key head reads[i]. (B, h, n, m)"""
    batch, heads, n, dim = queries.shape
    each = heads // keys.shape[1]
    if np.array_equal(reads, np.arange(heads) // max(each, 1)):
        found = queries.reshape(batch, keys.shape[1], each * n, dim) @ keys.transpose(-1, -2)
        return found.view(batch, heads, n, -1)
    return queries @ keys[:, reads].transpose(-1, -2)
