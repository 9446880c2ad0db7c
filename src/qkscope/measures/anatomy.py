"""What decides where a head looks: the variance of its scores over keys, in four parts.

For query i and key 4 <= j < i the score is s = scale q_i.k_j. With m(t) the mean vector at position t and Sigma the
covariance about it, over tokens from position 4 on, the variance of q_i.k_j over the keys of a query has four parts:

    position            mean_i Var_j(m_q(i).m_k(j))           where the key stands
    key                 mean_i m_q(i)^T Sigma_k m_q(i)        what the key is, whoever asks
    match               tr(Sigma_q Sigma_k)                   what the query asks and the key is
    query x position    mean_i tr(Sigma_q Cov_j m_k(j))       where, depending on what the query asks

A mean over i counts each query token once; a variance over j counts each position below i once. Keys are compared
within a document: what all keys of a document have in common is the same for each of them and decides nothing, so the
covariance of documents' mean keys is taken out of Sigma_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.grid import Grid, grid
from qkscope.measures.waves import terms, waves
from qkscope.moments import Moments
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation

Array = NDArray[np.float64]

# The first query with two keys that count.
FIRST_QUERY = SINK + 2
# Positions evaluated in a window: as keys and for covariances, and as queries of a row of scores.
KEYS, QUERIES = 512, 128
# In longer windows, the keys just before a query are all evaluated: many heads look there and nowhere else.
CLOSE = 64
# Queries are taken in so many blocks, each with the keys before its last: half of all keys come after a query.
BLOCKS = 4


@dataclass(frozen=True)
class Anatomy:
    """The four parts of the variance of q.k (H,), and `sink`: the head start of the first token. Not yet scaled."""

    position: Array
    key: Array
    match: Array
    query_position: Array
    sink: Array

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
        return np.asarray(np.sqrt(np.maximum(self.total, 0.0)))


@dataclass(frozen=True)
class Layout:
    """Which positions stand for all, and with which weights: the same for every head of a window.

    places                 positions of tokens from 4 on, for covariances and as keys
    queries                positions of queries
    asked (I,)             share of each query among all
    seen (I, S)            share of each key among those of a query; rows sum to 1
    far (I, S), close (I, C)   the same, with the closest C keys of each query apart; C may be 0
    """

    counts: Array
    places: Grid
    queries: Grid
    asked: Array
    seen: Array
    far: Array
    close: Array

    @classmethod
    def of(cls, counts: Array, keys: int = KEYS, queries: int = QUERIES) -> Layout:
        """counts (T,): how many tokens stand at each position."""
        places, asking = grid(counts, SINK, keys), grid(counts, FIRST_QUERY, queries)
        i = asking.t[:, None]
        reach = 0 if places.exact else CLOSE
        total = (i - SINK).astype(np.float64)
        near = ((i - np.arange(1, reach + 1)) >= SINK) / total
        seen, far = (np.clip(i - back - places.edges[:-1], 0, places.width) / total for back in (0, reach))
        return cls(counts, places, asking, asking.tokens / asking.tokens.sum(), seen, far, near)


def anatomy(
    q: Path,
    k: Path,
    late_q: Moments,
    late_k: Moments,
    rotation: Rotation,
    layout: Layout,
    between_k: Array | float = 0.0,
) -> Anatomy:
    """The parts of H heads of one rotation; `late_q`, `late_k` are the moments of tokens from position 4 on.

    between_k (H, d, d) is the covariance of documents' mean keys.
    """
    q, k = q.filled, k.filled
    at, tokens = layout.places.t, layout.places.tokens
    m_q, m_k = (path.at(rotation, at) for path in (q, k))
    square_q, square_k = (_gram(m, tokens) for m in (m_q, m_k))
    sigma_q, sigma_k = _residual(late_q, square_q), _residual(late_k, square_k) - between_k
    early = at < FIRST_QUERY
    asking = square_q - _gram(m_q[:, early], tokens[early])
    mean_key = layout.seen @ m_k  # (H, I, d)
    scatter = _gram(m_k, layout.asked @ layout.seen) - _gram(mean_key, layout.asked)
    position, mean = _position(q, k, m_k, rotation, layout)
    return Anatomy(
        position=position,
        # Estimated from few groups, the covariance of documents' means may exceed the whole.
        key=np.maximum(_trace(sigma_k, asking) / tokens[~early].sum(), 0.0),
        match=np.maximum(_trace(sigma_q, sigma_k), 0.0),
        query_position=_trace(sigma_q, scatter),
        sink=_first_key(q, k, late_q, rotation, layout.counts) - mean,
    )


def _position(q: Path, k: Path, m_k: Array, rotation: Rotation, layout: Layout) -> tuple[Array, Array]:
    """mean_i of the variance and of the mean of m_q(i).m_k(j) over j. (H,) each"""
    i = layout.queries.t
    m_q = q.at(rotation, i)
    mean, square = np.zeros((2, len(m_q), len(i)))
    for some in np.array_split(np.arange(len(i)), BLOCKS):
        last = np.searchsorted(layout.places.edges, i[some].max(initial=0))
        scores = m_q[:, some] @ m_k[:, :last].transpose(0, 2, 1)  # (H, I, S)
        seen = scores * layout.far[some, :last]
        mean[:, some] = seen.sum(axis=2)
        square[:, some] = np.einsum("his,his->hi", seen, scores)
    if layout.close.shape[1]:
        close = _close_scores(q, k, rotation, i, layout.close.shape[1])
        mean += np.einsum("hic,ic->hi", close, layout.close)
        square += np.einsum("hic,ic->hi", close**2, layout.close)
    return (square - mean**2) @ layout.asked, mean @ layout.asked


def _close_scores(q: Path, k: Path, rotation: Rotation, i: NDArray[np.int64], reach: int) -> Array:
    """m_q(i).m_k(i - D) for D from 1 to `reach`, each pair of bins once: i (I,) -> (H, I, reach)."""
    lags = np.arange(1, reach + 1)
    b, c = np.searchsorted(q.edges, [i[:, None] + 0 * lags, np.maximum(i[:, None] - lags, 0)], "right") - 1
    pairs, which = np.unique(b * len(k.edges) + c, return_inverse=True)
    bins = np.divmod(pairs, len(k.edges))
    scores = terms(rotation, q.mean[:, bins[0]], k.mean[:, bins[1]])
    scores = scores @ waves(rotation, -lags, rotated=2).T
    return np.asarray(scores[:, which.reshape(b.shape), lags - 1])


def _first_key(q: Path, k: Path, late_q: Moments, rotation: Rotation, counts: Array) -> Array:
    """mean_i m_q(i).m_k(0), from the mean of all late queries less the few that have no two keys. (H,)"""
    early = np.arange(SINK, FIRST_QUERY)
    before = counts[early] @ q.at(rotation, early)
    total = late_q.n[:, None] * late_q.mean_x - before
    first = k.at(rotation, np.zeros(1, dtype=np.int64))[:, 0]
    return np.asarray(np.einsum("hd,hd->h", total, first) / counts[FIRST_QUERY:].sum())


def _residual(late: Moments, square: Array) -> Array:
    """Sigma (H, d, d): covariance about the path, whose `square` is the sum over tokens of m m^T."""
    n = np.maximum(late.n, 1)[:, None, None]
    return np.asarray((late.M - square) / n + late.mean_x[:, :, None] * late.mean_x[:, None, :])


def _gram(x: Array, weight: Array) -> Array:
    """sum_s weight_s x_s x_s^T: x (H, S, d), weight (S,) at least 0 -> (H, d, d)."""
    # The product of a matrix with itself takes half the work, and BLAS sees that it is one.
    y = x * np.sqrt(weight)[:, None]
    return np.asarray(y.transpose(0, 2, 1) @ y)


def _trace(a: Array, b: Array) -> Array:
    """tr(a b) of symmetric matrices. (H,)"""
    return np.asarray(np.einsum("hde,hde->h", a, b))
