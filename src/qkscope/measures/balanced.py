"""r in balanced coordinates: it changes only where attention does.

Attention weights do not change under q -> D q, k -> k / D with one factor per rotary pair (any invertible map where
nothing rotates), nor if one vector is added to all keys. The published r changes under both. Both freedoms are removed
before the PCA: with A = E[q q'] about zero and B = Cov(k), queries become W q and keys W^-T k.

    rotary pair p   W = (tr B_p / tr A_p)^(1/4)
    the rest        W = T with T A T' = T^-T B T^-1 = diag(sigma), the balanced realisation

The rest is the dimensions that do not rotate and the pairs that hardly turn within the window. The axes are those of

    S = W M_q W' / n_q + W^-T M_k W^-1 / n_k

which is about each kind's own mean. Every query head has its own W, recomputed in every left-out sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import by_key, per_query
from qkscope.measures.continuity import SAME, gap
from qkscope.measures.eigen import NEAR_FROM, WITHIN, leading, leading_within, refined
from qkscope.measures.pca import orient, pearson, tied
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.measures.spectrum import by_pair
from qkscope.sums.moments import Moments
from qkscope.sums.rotation import Dims, Rotation, as_slice

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

# A pair that turns by less than this angle (radians) within the window counts as one that does not rotate.
SLOW = 1e-3
# A pair below this share of the head's score energy is dropped, and so are directions of the realisation below this
# share of its largest: they are rounding.
FAINT_PAIR, RANK = 1e-6, 1e-8
# `eigen.NEAR_FROM` and `eigen.WITHIN` where some dimensions do not turn: a realisation near that of the whole is less
# exact.
NEAR_FROM_REST, WITHIN_REST = 96, 32


@dataclass(frozen=True)
class Realisation:
    """Queries x -> T x and keys x -> P x with T A T' = P B P' = diag(sigma) and T P' = 1; T, P (H, r, m).

    Directions that were cut are zero.
    """

    T: Array
    P: Array

    @classmethod
    def of(cls, A: Array, B: Array) -> Realisation:
        """The balanced realisation of A, B (H, m, m) from the singular values of L_B' L_A, with A = L_A L_A'."""
        left, right = _factor(B).transpose(0, 2, 1), _factor(A)
        u, sigma, v = np.linalg.svd(left @ right)
        kept = sigma > RANK * sigma[:, :1]
        root = np.sqrt(np.where(kept, sigma, 1.0))[:, :, None]
        T = np.where(kept[:, :, None], u.transpose(0, 2, 1) @ left / root, 0.0)
        P = np.where(kept[:, :, None], v @ right.transpose(0, 2, 1) / root, 0.0)
        return cls(T, P)

    @cached_property
    def grams(self) -> tuple[Array, Array]:
        """T'T and P'P. (H, m, m)"""
        return self.T.transpose(0, 2, 1) @ self.T, self.P.transpose(0, 2, 1) @ self.P

    def traces(self, A: Array, B: Array) -> tuple[Array, Array]:
        """tr T A T' and tr P B P' of any A and B. (H,)"""
        pairs = zip(self.grams, (A, B), strict=True)
        of_q, of_k = (G.reshape(len(G), 1, -1) @ X.reshape(len(X), -1, 1) for G, X in pairs)
        return of_q[:, 0, 0], of_k[:, 0, 0]

    def along(self, basis: Array) -> Realisation:
        """The part along the orthonormal columns of `basis` (H, r, c)."""
        turned = basis.transpose(0, 2, 1)
        return Realisation(turned @ self.T, turned @ self.P)

    def across(self, basis: Array) -> Realisation:
        """The part that `along` leaves."""
        along = self.along(basis)
        return Realisation(self.T - basis @ along.T, self.P - basis @ along.P)

    def near(self, A: Array, B: Array) -> Realisation:
        """The realisation of slightly different A and B, within the directions of this one."""
        inner = Realisation.of(*(X @ Y @ X.transpose(0, 2, 1) for X, Y in ((self.T, A), (self.P, B))))
        return Realisation(inner.T @ self.T, inner.P @ self.P)


def _factor(A: Array) -> Array:
    """L with L L' = A (H, m, m), positive semidefinite."""
    try:
        return np.asarray(np.linalg.cholesky(A), dtype=np.float64)
    except np.linalg.LinAlgError:  # some A is singular
        values, vectors = np.linalg.eigh(A)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])


@dataclass(frozen=True)
class Split:
    """Dimensions of a head: `turning` (F,), those of pairs that turn within the window, and the `rest`.

    pair (F,) is the pair of each turning dimension; `slow` says whether the rest has pairs.
    """

    rotation: Rotation
    turning: Dims
    pair: NDArray[np.int64]
    rest: Dims
    slow: bool

    @classmethod
    def of(cls, rotation: Rotation, width: int) -> Split:
        pair = np.full(rotation.dim, -1)
        fast = np.flatnonzero(rotation.frequency * width >= SLOW)
        pair[rotation.pairs[fast]] = fast[:, None]
        turning, rest = np.flatnonzero(pair >= 0), np.flatnonzero(pair < 0)
        slow = len(fast) < len(rotation.pairs)
        return cls(rotation, as_slice(turning), pair[turning], as_slice(rest), slow)


@dataclass(frozen=True)
class Coordinates:
    """Balanced coordinates of H heads in one sample: the turning dimensions, then the directions of the realisation.

    D_q, D_k (H, F) factors of queries and keys, zero in pairs that are dropped · rest: the realisation of the rest
    still: that of the dimensions that do not rotate · energy (H, P + 1): sqrt(tr A_p tr B_p) by pair, then of these
    """

    split: Split
    D_q: Array
    D_k: Array
    rest: Realisation
    still: Realisation
    energy: Array

    @classmethod
    def of(cls, q: Moments, k: Moments, split: Split, near: Near | None = None) -> Coordinates:
        """From the moments of a sample: exact, or near the coordinates of the whole."""
        rotation, heads = split.rotation, len(q.n)
        rest = still = _NOTHING
        second = _second_moments(q, k, split.rest)
        if second[0].size:
            still = rest = near.rest.near(*second) if near else Realisation.of(*second)
        # Diagonals of A and B: E q_i^2 (H, d) and Var k_i (K, d).
        var_q, var_k = (
            np.maximum(np.einsum("hdd->hd", x.M) / np.maximum(x.n, 1)[:, None], 0.0) for x in (q, k)
        )
        traces = [by_pair(squares, rotation) for squares in (var_q + q.mean_x**2, var_k)]
        energy = np.sqrt(traces[0] * per_query(traces[1], heads))
        if len(rotation.still):
            if split.slow:
                second = _second_moments(q, k, rotation.still)
                still = Realisation.of(*second) if near is None else still
            still = near.still if near else still
            of_q, of_k = still.traces(*second)
            energy[:, -1] = np.sqrt(np.maximum(of_q, 0.0) * np.maximum(of_k, 0.0))
        kept = (energy > FAINT_PAIR * energy.sum(axis=1, keepdims=True))[:, split.pair]
        of_q, of_k = traces[0], per_query(traces[1], heads)
        ratio = np.where(kept, of_k[:, split.pair], 1.0) / np.where(kept, of_q[:, split.pair], 1.0)
        D = ratio**0.25
        return cls(split, np.where(kept, D, 0.0), np.where(kept, 1 / D, 0.0), rest, still, energy)

    def scatter(self, q: Moments, k: Moments) -> Array:
        """S (H, n, n)."""
        n_q, n_k = np.maximum(q.n, 1), per_query(np.maximum(k.n, 1), len(q.n))
        S = self._moved(q.M, self.D_q, self.rest.T, n_q)
        S += self._moved(k.M, self.D_k, self.rest.P, n_k)
        return S

    def _moved(self, M: Array, D: Array, T: Array, n: NDArray[np.int64]) -> Array:
        """M / n of the keys or queries in these coordinates: (K, d, d) -> (H, n, n)."""
        turning, rest, F = self.split.turning, self.split.rest, D.shape[1]
        each = np.sqrt(n)[:, None]
        D = by_key(D / each, len(M))
        if not T.size:
            S = M[:, None] * D[:, :, :, None]
            S *= D[:, :, None, :]
            return S.reshape(-1, F, F)
        T = by_key(T / each[:, :, None], len(M))
        S = np.empty((*D.shape[:2], F + T.shape[2], F + T.shape[2]))
        S[:, :, :F, :F] = D[:, :, :, None] * M[:, None, turning][..., turning] * D[:, :, None, :]
        rows = T @ M[:, None, rest]
        S[:, :, F:, :F] = rows[..., turning] * D[:, :, None, :]
        S[:, :, :F, F:] = S[:, :, F:, :F].swapaxes(2, 3)
        S[:, :, F:, F:] = rows[..., rest] @ T.swapaxes(2, 3)
        return S.reshape(-1, *S.shape[2:])

    def functionals(self, v: Array) -> tuple[Array, Array]:
        """Axes v (H, n) as vectors f_q, f_k (H, d) of the model's coordinates: v.q' = f_q.q and v.k' = f_k.k."""
        F, found = self.D_q.shape[1], []
        for D, T in ((self.D_q, self.rest.T), (self.D_k, self.rest.P)):
            f = np.empty((len(v), self.split.rotation.dim))
            f[:, self.split.turning] = D * v[:, :F]
            if T.size:
                f[:, self.split.rest] = np.einsum("hr,hrm->hm", v[:, F:], T)
            found.append(f)
        return found[0], found[1]


@dataclass(frozen=True)
class Near:
    """The leading axes of the whole, within which left-out samples of large heads are solved.

    rest: the whole's realisation along them, `across`: what is left of it · still: as in `Coordinates`
    within (H, n, c): the space of their first axes, in coordinates of `rest`
    """

    rest: Realisation
    across: Realisation
    still: Realisation
    within: Array

    @classmethod
    def of(cls, whole: Coordinates, axes: Array) -> Near:
        """From the leading axes (H, n, c) of the whole."""
        turning = whole.D_q.shape[1]
        first, second = np.linalg.qr(axes[:, :turning])[0], np.linalg.qr(axes[:, turning:])[0]
        heads, size, inner = len(axes), first.shape[2], second.shape[2]
        within = np.zeros((heads, turning + inner, size + inner))
        within[:, :turning, :size], within[:, turning:, size:] = first, np.eye(inner)
        if not inner:
            return cls(whole.rest, whole.rest, whole.still, within)
        return cls(whole.rest.along(second), whole.rest.across(second), whole.still, within)

    def trace(self, q: Moments, k: Moments, dims: Dims) -> Array:
        """The trace of S across the axes. (H,)"""
        if not self.across.T.size:
            return np.zeros(len(q.n))
        return np.add(*self.across.traces(*_covariances(q, k, dims)))


def _covariances(q: Moments, k: Moments, dims: Dims) -> tuple[Array, Array]:
    """Covariances of queries and of keys in some dimensions, each about its own mean. (H, m, m)"""
    of_q, of_k = (x.M[:, dims][:, :, dims] / np.maximum(x.n, 1)[:, None, None] for x in (q, k))
    return of_q, per_query(of_k, len(q.n))


def _second_moments(q: Moments, k: Moments, dims: Dims) -> tuple[Array, Array]:
    """A = E[q q'] and B = Cov(k) of some dimensions. (H, m, m)"""
    of_q, of_k = _covariances(q, k, dims)
    mean = q.mean_x[:, dims]
    of_q += mean[:, :, None] * mean[:, None, :]
    return of_q, of_k


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """The first balanced axis, in every sample. NaN where the rotation is not known."""
    table, shape = block.tables[0], (block.samples, len(block))
    rotation = table.rotation
    names = ("r_q_balanced", "r_k_balanced", "explained_variance_balanced", "gap_balanced")
    found: dict[str, Array] = {name: np.full(shape, np.nan) for name in names}
    found["score_energy"] = np.full((*shape, len(rotation.pairs) + 1), np.nan)
    found["axis_lost_balanced"] = lost = np.zeros(len(block))
    if not table.known:
        return found
    split = Split.of(rotation, block.width)
    near: Near | None = None
    for i, (q, k) in enumerate(block.moments):
        here = Coordinates.of(q, k, split, near)
        S = here.scatter(q, k)
        S[block.unmeasured] = 0.0
        wanted = WITHIN_REST if here.rest.T.size else WITHIN
        values, v = leading_within(S, 2, near.within) if near else leading(S, wanted)
        if near:
            values[:, 0], v[:, :, 0] = refined(S, v[:, :, 0])
        trace = np.trace(S, axis1=1, axis2=2) + (near.trace(q, k, split.rest) if near else 0.0)
        explained = values[:, :2] / np.where(trace > 0, trace, np.nan)[:, None]
        f_q, f_k = here.functionals(v[:, :, 0])
        r_q, r_k = _correlation(q, f_q), _correlation(k, f_k)
        if i == 0:
            sign = orient(v[:, :, :1], r_q[:, None], r_k[:, None])[1][:, 0]
            first = f_q * sign[:, None], f_k * sign[:, None]
            undecided = tied(explained)[:, 0]
            r_q[undecided] = r_k[undecided] = np.nan
            if rotation.dim >= (NEAR_FROM_REST if here.rest.T.size else NEAR_FROM):
                near = Near.of(here, v)
        else:
            # In the coordinates of the whole, a functional f_q of queries is W_0^-T f_q, one of keys is W_0 f_k.
            overlap = (np.einsum("hd,hd->h", first[0], f_k) + np.einsum("hd,hd->h", first[1], f_q)) / 2
            sign = np.where(overlap < 0, -1.0, 1.0)
            lost += np.abs(overlap) < SAME
        found["r_q_balanced"][i], found["r_k_balanced"][i] = sign * r_q, sign * r_k
        found["explained_variance_balanced"][i], found["gap_balanced"][i] = explained[:, 0], gap(explained)
        total = here.energy.sum(axis=1, keepdims=True)
        found["score_energy"][i] = np.roll(here.energy / np.where(total > 0, total, np.nan), 1, axis=1)
    if not len(rotation.still):
        found["score_energy"][:, :, 0] = np.nan
    return found


def _correlation(moments: Moments, f: Array) -> Array:
    """Pearson's r of f.x with position. (H,)"""
    length = np.linalg.norm(f, axis=1, keepdims=True)
    return pearson(moments, (f / np.where(length > 0, length, 1.0))[:, :, None])[:, 0]


_NOTHING = Realisation(np.empty((0, 0, 0)), np.empty((0, 0, 0)))
_LOST = "axis_lost_balanced"
GROUP = MeasureGroup(
    name="balanced",
    needs=("moments", "path"),
    compute=compute,
    version=2,
    variables=(
        Variable("r_q_balanced", "balanced r_q", "",
                 "correlation of queries with position along the first balanced axis; the same for any two models "
                 "with the same attention", along_axis=True, axis_lost=_LOST),
        Variable("r_k_balanced", "balanced r_k", "",
                 "correlation of keys with position along the first balanced axis; the same for any two models "
                 "with the same attention", along_axis=True, axis_lost=_LOST),
        Variable("explained_variance_balanced", "balanced explained variance", "share",
                 "share of the variance in balanced coordinates along the first balanced axis"),
        Variable("gap_balanced", "balanced eigenvalue gap", "",
                 "1 - lambda_1 / lambda_0 in balanced coordinates: how clearly the first balanced axis comes first",
                 detail=True),
        Variable(_LOST, "balanced axis lost", "samples",
                 "left-out samples whose first balanced axis is another axis", sampled=False, detail=True),
        Variable("score_energy", "score energy", "share",
                 "share of sqrt(E|q|^2 Var k) by rotary pair, which no rescaling of queries and keys changes",
                 ("pair",)),
    ),
)  # fmt: skip
