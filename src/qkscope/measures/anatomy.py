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

from qkscope.measures.distance import lagged_scores
from qkscope.measures.grid import Grid, grid
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
    at = layout.places.t
    m_q, m_k = (np.nan_to_num(path.at(rotation, at)) for path in (q, k))
    sigma_q, sigma_k = (
        _residual(late, m, layout.places.tokens) for late, m in ((late_q, m_q), (late_k, m_k))
    )
    sigma_k = sigma_k - between_k
    asking = np.where(at >= FIRST_QUERY, layout.places.tokens, 0.0)
    position, mean = _position(q, k, m_k, rotation, layout)
    return Anatomy(
        position=position,
        # Estimated from few groups, the covariance of documents' means may exceed the whole.
        key=np.maximum(_trace(sigma_k, _gram(m_q, asking / asking.sum())), 0.0),
        match=np.maximum(_trace(sigma_q, sigma_k), 0.0),
        query_position=_trace(sigma_q, _key_scatter(m_k, layout)),
        sink=_first_key(q, k, late_q, rotation, layout.counts) - mean,
    )


def _position(q: Path, k: Path, m_k: Array, rotation: Rotation, layout: Layout) -> tuple[Array, Array]:
    """mean_i of the variance and of the mean of m_q(i).m_k(j) over j. (H,) each"""
    i = layout.queries.t
    m_q = np.nan_to_num(q.at(rotation, i))
    scores = m_q @ m_k.transpose(0, 2, 1)  # (H, I, S)
    mean = np.einsum("his,is->hi", scores, layout.far)
    square = np.einsum("his,his,is->hi", scores, scores, layout.far, optimize=True)
    if layout.close.shape[1]:
        lags = np.arange(1, layout.close.shape[1] + 1)
        bins = np.searchsorted(q.edges, np.maximum(i[:, None] - np.r_[0, lags], 0), side="right") - 1
        table = lagged_scores(q, k, rotation, lags)
        close = table[:, lags - 1, bins[:, :1], bins[:, 1:]]  # (H, I, C)
        mean += np.einsum("hic,ic->hi", close, layout.close)
        square += np.einsum("hic,ic->hi", close**2, layout.close)
    return (square - mean**2) @ layout.asked, mean @ layout.asked


def _first_key(q: Path, k: Path, late_q: Moments, rotation: Rotation, counts: Array) -> Array:
    """mean_i m_q(i).m_k(0), from the mean of all late queries less the few that have no two keys. (H,)"""
    early = np.arange(SINK, FIRST_QUERY)
    before = counts[early] @ np.nan_to_num(q.at(rotation, early))
    total = late_q.n[:, None] * late_q.mean_x - before
    first = np.nan_to_num(k.at(rotation, np.zeros(1, dtype=np.int64)))[:, 0]
    return np.asarray(np.einsum("hd,hd->h", total, first) / counts[FIRST_QUERY:].sum())


def _residual(late: Moments, m: Array, tokens: Array) -> Array:
    """Sigma (H, d, d): covariance about the path, m (H, S, d) at positions with so many tokens."""
    n = np.maximum(late.n, 1)[:, None, None]
    return np.asarray(late.M / n + late.mean_x[:, :, None] * late.mean_x[:, None, :]) - _gram(
        m, tokens / max(tokens.sum(), 1.0)
    )


def _key_scatter(m_k: Array, layout: Layout) -> Array:
    """mean_i Cov_j m_k(j) over the keys of each query. (H, d, d)"""
    mean = layout.seen @ m_k  # (H, I, d)
    return _gram(m_k, layout.asked @ layout.seen) - _gram(mean, layout.asked)


def _gram(x: Array, weight: Array) -> Array:
    """sum_s weight_s x_s x_s^T: x (H, S, d) -> (H, d, d)."""
    return np.asarray(x.transpose(0, 2, 1) @ (x * weight[:, None]))


def _trace(a: Array, b: Array) -> Array:
    """tr(a b) of symmetric matrices. (H,)"""
    return np.asarray(np.einsum("hde,hde->h", a, b))
