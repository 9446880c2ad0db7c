"""What decides where a head looks: the variance of its scores over keys, in four parts.

For query i and key 4 <= j < i the score is s = scale q_i.k_j. With m(t) the mean vector at position t and Sigma the
covariance about it, over tokens from position 4 on, the variance of q_i.k_j over the keys of a query has four parts:

    position            mean_i Var_j(m_q(i).m_k(j))           key position alone
    key                 mean_i m_q(i)^T Sigma_k m_q(i)        key content, independent of the query
    match               tr(Sigma_q Sigma_k)                   content match of query and key
    query x position    mean_i tr(Sigma_q Cov_j m_k(j))       query-dependent position

A mean over i counts each query token once; a variance over j counts each position below i once. Keys are compared
within a document: what all keys of a document have in common is the same for each of them and decides nothing, so the
covariance of documents' mean keys is taken out of Sigma_k.

For the same reason keys are taken about their mean kbar over all tokens from position 4 on, which the softmax ignores:
a path bin holds the mean of R_t^-1 (k - kbar), and m_k(t) = kbar + R_t mu_b. A path of the keys themselves would spread
a vector common to all keys over the bins, where it looks like position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import by_key, per_query
from qkscope.measures.position import Phase
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.measures.waves import Grid, Pairs, binned_grid, sampled_grid, terms, waves
from qkscope.sums.moments import Moments
from qkscope.sums.path import SINK, Path
from qkscope.sums.rotation import Rotation

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# The first query with two keys that count.
FIRST_QUERY = SINK + 2
# Positions evaluated in a window: as keys and for covariances, and as queries of a row of scores.
KEYS, QUERIES = 512, 128
# In longer windows, the keys just before a query are all evaluated: many heads look there and nowhere else.
CLOSE = 64
# Number of blocks that queries are taken in, each with the keys before its last: half of all keys come after a query.
BLOCKS = 4


@dataclass(frozen=True)
class Anatomy:
    """The four parts of the variance of q.k (H,), and `sink`: the head start of the first token. Not yet scaled.

    query_mean (H, I) is the mean of m_q(i).m_k(j) over the keys of each query of the layout.
    """

    position: Array
    key: Array
    match: Array
    query_position: Array
    sink: Array
    query_mean: Array

    @property
    def total(self) -> Array:
        return self.position + self.key + self.match + self.query_position

    @property
    def shares(self) -> dict[str, Array]:
        """Each part over their sum; NaN where scores do not vary."""
        total = np.where(self.total > 0, self.total, np.nan)
        names = ("position", "key", "match", "query_position")
        return {name: np.asarray(getattr(self, name) / total) for name in names}

    @property
    def score_sd(self) -> Array:
        """The standard deviation of q.k over the keys of a query."""
        return np.sqrt(np.maximum(self.total, 0.0))


@dataclass(frozen=True)
class Layout:
    """Which positions represent all, and with which weights: the same for every head of a window.

    grid                   positions of tokens from 4 on, for covariances and as keys
    queries                positions of queries
    query_weight (I,)      share of each query among all
    seen (I, S)            share of each key among those of a query; rows sum to 1
    far (I, S), close (I, C)  the same, with the closest C keys of each query apart; C may be 0
    """

    counts: Array
    grid: Grid
    queries: Grid
    query_weight: Array
    seen: Array
    far: Array
    close: Array

    @classmethod
    def of(cls, counts: Array, bins: Index | None = None, keys: int = KEYS, queries: int = QUERIES) -> Layout:
        """counts (T,): number of tokens at each position.

        `bins` are edges between which nothing changes, where that is so: one position then represents its bin.
        """
        # Two positions have keys' neighbours but no two keys: they are no queries, and represent themselves.
        edges = None if bins is None else np.union1d(bins, FIRST_QUERY)
        grid = sampled_grid(counts, SINK, keys) if edges is None else binned_grid(counts, SINK, edges)
        query_grid = sampled_grid(counts, FIRST_QUERY, queries)
        i, query_weight = query_grid.t[:, None], query_grid.tokens / query_grid.tokens.sum()
        reach = 0 if grid.exact or bins is not None else CLOSE
        total = (i - SINK).astype(np.float64)
        near = ((i - np.arange(1, reach + 1)) >= SINK) / total
        seen, far = (np.clip(i - back - grid.edges[:-1], 0, grid.width) / total for back in (0, reach))
        return cls(counts, grid, query_grid, query_weight, seen, far, near)


class GridTurns(NamedTuple):
    """Positions (S,) in ascending order: the paths' bins that hold them, and scale exp(i t frequency). (S, P)"""

    bins: Index
    turn: NDArray[np.complex128]

    def of(self, means: Pairs, weight: Array | None = None) -> Array:
        """R_t mu_b(t), times `weight` (S,), from the means by bin (H, B): (H, S, d), in the order of `Pairs`."""
        turn = self.turn if weight is None else self.turn * weight[:, None]
        still = means.still[:, self.bins]
        found = np.empty((*still.shape[:2], 2 * turn.shape[1] + still.shape[2]), dtype=still.dtype)
        turning = found[:, :, : 2 * turn.shape[1]].view(turn.dtype)
        starts = np.flatnonzero(np.diff(self.bins, prepend=-1))
        for start, stop in pairwise([*starts, len(self.bins)]):
            mean = means.turning[:, self.bins[start], None]
            np.multiply(mean, turn[start:stop], out=turning[:, start:stop])
        found[:, :, 2 * turn.shape[1] :] = still if weight is None else still * weight[:, None]
        return found


@dataclass(frozen=True)
class RotatedLayout:
    """What a rotation does at the positions of a layout, once for all heads of a sample of documents.

    grid, queries       the turns to their positions
    near (C, 2P + 1)      waves at minus the distances of the closest keys
    bins (2, N)           pairs of bins, of a query and of a key close to it
    score (I, C)          index of each query with each of its closest keys among the (N, C) scores
    """

    rotation: Rotation
    layout: Layout
    grid: GridTurns
    queries: GridTurns
    near: Array
    bins: Index
    score: Index

    @classmethod
    def of(cls, rotation: Rotation, layout: Layout, edges: Index) -> RotatedLayout:
        """For paths whose bins have `edges`."""
        i, lags = layout.queries.t[:, None], np.arange(1, layout.close.shape[1] + 1)
        b, c = np.searchsorted(edges, [i + 0 * lags, np.maximum(i - lags, 0)], "right") - 1
        pairs, which = np.unique(b * len(edges) + c, return_inverse=True)

        def turns(at: Grid) -> GridTurns:
            turn = rotation.scale * np.exp(1j * at.t[:, None] * rotation.frequency)
            return GridTurns(np.searchsorted(edges, at.t, "right") - 1, turn)

        return cls(
            rotation,
            layout,
            turns(layout.grid),
            turns(layout.queries),
            near=waves(rotation, -lags, rotated=2),
            bins=np.stack(np.divmod(pairs, len(edges))),
            score=which.reshape(b.shape) * len(lags) + lags - 1,
        )


def path_about(path: Path, mean: Array, rotation: Rotation, phase: Phase) -> Path:
    """The path of x - mean: U_b - sum over the tokens of b of R_t^-1 mean, with mean (H, d).

    phase (B, P) are `bin_phases` of the number of tokens at each position.
    """
    total = path.total.copy()
    total[:, :, rotation.still] -= path.n[:, None] * mean[:, None, rotation.still]
    # A pair as a complex number: R_t^-1 divides by scale exp(i t frequency).
    turned = rotation.paired(mean)[:, None] * phase.conj() / rotation.scale
    first, second = rotation.pairs.T
    total[:, :, first] -= turned.real
    total[:, :, second] -= turned.imag
    return replace(path, total=total)


def anatomy(
    q: Path, k: Path, late_q: Moments, late_k: Moments, rotated: RotatedLayout, between_k: Array | float = 0.0
) -> Anatomy:
    """The parts of H heads of one rotation; `late_q`, `late_k` are the moments of tokens from position 4 on.

    k is the path of keys about `late_k.mean_x` (see `path_about`). k and late_k have K rows, those of a block's keys.
    between_k (K, d, d) is the covariance of documents' mean keys.
    """
    q, k, layout, rotation = q.filled, k.filled, rotated.layout, rotated.rotation
    pairs_q, pairs_k = Pairs.of(rotation, q.mean), Pairs.of(rotation, k.mean)
    root = np.sqrt(layout.grid.tokens)
    # Mean vectors and their squares have their dimensions in the order of `Pairs`.
    order = np.concatenate([rotation.pairs.reshape(-1), rotation.still])
    m_k = rotated.grid.of(pairs_k)
    mean_key = layout.seen @ m_k  # (K, I, d)
    scatter = _gram(m_k, layout.query_weight @ layout.seen) - _gram(mean_key, layout.query_weight)
    n_k = np.maximum(late_k.n, 1)[:, None, None]
    sigma_k = (late_k.M / n_k - between_k)[:, order[:, None], order]
    sigma_k -= _gram(m_k, layout.grid.tokens) / n_k
    of_keys = np.stack([sigma_k, scatter])
    # Sigma_q = (M_q - square_q) / n + mean mean^T, and only its traces with these two are needed.
    m_q = rotated.grid.of(pairs_q, root)
    early = int(np.searchsorted(layout.grid.t, FIRST_QUERY))
    squares = _traces(of_keys, m_q.transpose(0, 2, 1) @ m_q)
    mean_q, n_q = late_q.mean_x[:, None, order], np.maximum(late_q.n, 1)
    back = np.argsort(order)
    traces = _traces(of_keys[:, :, back[:, None], back], late_q.M)
    match, query_position = (traces - squares) / n_q + _forms(of_keys, mean_q)
    content = squares[0] - _forms(of_keys[:1], m_q[:, :early])[0]
    position, mean = _position(pairs_q, pairs_k, m_k, rotated)
    return Anatomy(
        position=position,
        # Estimated from few groups, the covariance of documents' means may exceed the whole.
        key=np.maximum(content / layout.grid.tokens[early:].sum(), 0.0),
        match=np.maximum(match, 0.0),
        query_position=query_position,
        sink=_first_key(q, k, late_q, rotation, layout.counts) - mean @ layout.query_weight,
        query_mean=mean,
    )


def _position(q: Pairs, k: Pairs, m_k: Array, rotated: RotatedLayout) -> tuple[Array, Array]:
    """Over j, of m_q(i).m_k(j): mean_i of its variance (H,), and the mean of each query (H, I)."""
    layout = rotated.layout
    i, reach = layout.queries.t, layout.close.shape[1]
    m_q = by_key(rotated.queries.of(q), len(m_k))  # (K, H / K, I, d)
    mean = np.einsum("krid,kid->kri", m_q, layout.far @ m_k)
    square = np.zeros_like(mean)
    for some in np.array_split(np.arange(len(i)), BLOCKS):
        last = np.searchsorted(layout.grid.edges, i[some].max(initial=0))
        scores = m_q[:, :, some].reshape(len(m_k), -1, m_k.shape[2]) @ m_k[:, :last].transpose(0, 2, 1)
        np.square(scores, out=scores)
        square[:, :, some] = np.einsum(
            "kris,is->kri", scores.reshape(*mean.shape[:2], len(some), last), layout.far[some, :last]
        )
    if reach:
        close = _close_scores(q, k, rotated)
        mean += np.einsum("kric,ic->kri", close, layout.close)
        square += np.einsum("kric,ic->kri", close**2, layout.close)
    return ((square - mean**2) @ layout.query_weight).reshape(-1), mean.reshape(-1, len(i))


def _close_scores(q: Pairs, k: Pairs, rotated: RotatedLayout) -> Array:
    """m_q(i).m_k(i - D) of the closest keys, each pair of bins once. (K, H / K, I, C)"""
    query, key = rotated.bins
    queries = q.at((slice(None), query)).by_key(len(k.still))
    found = terms(queries, k.at((slice(None), None, key))) @ rotated.near.T
    return found.reshape(*found.shape[:2], -1)[:, :, rotated.score]


def _first_key(q: Path, k: Path, late_q: Moments, rotation: Rotation, counts: Array) -> Array:
    """mean_i m_q(i).m_k(0), from the mean of all late queries less the few that have no two keys. (H,)"""
    early = np.arange(SINK, FIRST_QUERY)
    before = counts[early] @ q.at(rotation, early)
    total = late_q.n[:, None] * late_q.mean_x - before
    first = per_query(k.at(rotation, np.zeros(1, dtype=np.int64))[:, 0], len(total))
    return np.asarray(np.einsum("hd,hd->h", total, first) / counts[FIRST_QUERY:].sum())


def _gram(x: Array, weight: Array) -> Array:
    """sum_s weight_s x_s x_s^T: x (H, S, d), weight (S,) at least 0 -> (H, d, d)."""
    # The product of a matrix with itself takes half the work, and BLAS sees that it is one.
    y = x * np.sqrt(weight)[:, None]
    return y.transpose(0, 2, 1) @ y


def _traces(of_keys: Array, of_queries: Array) -> Array:
    """tr(a b) of symmetric matrices, a (N, K, d, d) of keys and b (H, d, d) of queries. (N, H)"""
    count, keys = of_keys.shape[:2]
    queries = of_queries.reshape(keys, len(of_queries) // keys, -1)
    a = of_keys.astype(of_queries.dtype, copy=False).reshape(count, keys, -1, 1)
    return np.asarray(queries @ a, dtype=np.float64).reshape(count, -1)


def _forms(of_keys: Array, x: Array) -> Array:
    """sum_s x_s^T a x_s of symmetric matrices a (N, K, d, d) of keys, x (H, S, d) of queries. (N, H)"""
    rows = by_key(x, of_keys.shape[1]).astype(np.float64)  # (K, H / K, S, d)
    found = ((rows @ of_keys[:, :, None]) * rows).sum(axis=(-2, -1))
    return np.asarray(found.reshape(len(of_keys), -1))


SHARES = ("share_position", "share_key", "share_match", "share_query_position")


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """Shares of score variance, its size and the sink, in every sample."""
    names, shape = (*SHARES, "score_sd", "sink"), (block.samples, len(block))
    found = {name: np.full(shape, np.nan) for name in names}
    for i, sums in enumerate(block.sums):
        if parts := sums.anatomy:
            for name, share in parts.shares.items():
                found[f"share_{name}"][i] = share
            found["score_sd"][i], found["sink"][i] = sums.scale * parts.score_sd, sums.scale * parts.sink
    return found | {"share_positional": found["share_position"] + found["share_query_position"]}


GROUP = MeasureGroup(
    name="scores",
    needs=("moments", "path"),
    compute=compute,
    version=2,
    variables=(
        Variable("share_positional", "position share", "share",
                 "share of the variance of scores over keys that position explains, alone or together with the query"),
        Variable("share_position", "share of key position", "share",
                 "share of score variance explained by key position alone"),
        Variable("share_key", "share of key content", "share",
                 "share of score variance explained by key content, independent of the query"),
        Variable("share_match", "share of content match", "share",
                 "share of score variance explained by how query and key content fit together"),
        Variable("share_query_position", "share of query-dependent position", "share",
                 "share of score variance explained by key position in a way that depends on the query"),
        Variable("score_sd", "standard deviation of scores", "logits",
                 "standard deviation of scores over the keys of a query"),
        Variable("sink", "sink", "logits", "mean score of the first token above the mean of the keys from token 4 on"),
    ),
)  # fmt: skip
