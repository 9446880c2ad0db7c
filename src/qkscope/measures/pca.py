"""Moments -> shared axes of each head's queries and keys, and how each axis follows position.

For query head h and its key head, pooled about their common mean:

    S = M_q + M_k + n_q n_k / (n_q + n_k) d d^T,   d = mean_q - mean_k

Its eigenvectors v_0, v_1, ... by falling eigenvalue are the axes; explained_variance is an eigenvalue over the trace.
Along an axis, Pearson's r between projection and position is r_q = v.C_q / sqrt(v.M_q.v * T_q), and r_k likewise.

How large |r| gets by chance in a head that does not follow position is a t-test over groups of documents. Tokens of one
document depend on each other, so the test is over documents. Along a fixed axis v let c_g be group g's
part of the covariance with position, so that v.C = sum of c_g. In a head that does not follow position the c_g are
independent with mean zero, whatever goes on within documents, and |sum of c_g| stays below t sqrt(G) sd(c_g) in 95%
of cases, t from Student's distribution with G - 1 degrees of freedom. In units of r:

    r_null = t_{0.975, G-1} sqrt(G) sd(c_g) / sqrt(v.M.v T)

The axis may come from the same documents: it is a function of the M_g alone, which do not change when the vectors of a
group are mirrored about their mean, while c_g changes its sign. Groups of unequal size or spread keep the test below
its level, never above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import by_key, per_query
from qkscope.measures.continuity import SAME, gap
from qkscope.measures.eigen import leading, solve_close
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.measures.samples import jackknife
from qkscope.sums.moments import Moments, merge_all

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

# Below this |r_q|, its sign is noise and the sign of r_k orients the axis instead.
FAINT = 0.05
# Standard errors and differences of eigenvalues (as a share of the largest) below these are rounding.
NO_SPREAD, TIE = 1e-12, 1e-10
# Left-out axes are sought near this many axes of the whole.
RITZ = 24
# A head passes when |r| > r_null: of heads that do not follow position, this share passes.
LEVEL = 0.05
# With fewer groups the spread between them is hardly known, and the threshold is NaN.
FEWEST_GROUPS = 3


@dataclass(frozen=True)
class Axes:
    """Results of H heads on their first `components` principal axes; NaN where a number is undefined.

    r_q, r_k, explained_variance, r_q_se, r_k_se, r_q_null, r_k_null   (H, components)
    n_q, n_k, bad_q, bad_k                                             (H,)
    loo_r_q, loo_r_k, loo_ev, loo_gap                                  (G, H), PC0 without group g
    v                                                                  (H, d, components), the axes
    loo_v                                                              (G, H, d), PC0 without group g, sign as in v
    lost                                                               (H,), leave-one-out samples with a different PC0
    """

    r_q: Array
    r_k: Array
    explained_variance: Array
    r_q_se: Array
    r_k_se: Array
    r_q_null: Array
    r_k_null: Array
    n_q: NDArray[np.int64]
    n_k: NDArray[np.int64]
    bad_q: NDArray[np.int64]
    bad_k: NDArray[np.int64]
    loo_r_q: Array
    loo_r_k: Array
    loo_ev: Array
    loo_gap: Array
    v: Array
    loo_v: Array
    lost: NDArray[np.int64]


def correlate(q: Moments, k: Moments, v: Array) -> tuple[Array, Array]:
    """Pearson's r of each axis with position: v (H, d, m) -> r_q, r_k (H, m)."""
    return pearson(q, v), pearson(k, v)


def pooled(q: Moments, k: Moments) -> Array:
    """S = M_q + M_k + n_q n_k / (n_q + n_k) d d^T. (H, d, d)"""
    difference = q.mean_x - per_query(k.mean_x, len(q.n))
    S = (weight_between(q, k)[:, None] * difference)[:, :, None] * difference[:, None, :]
    S += q.M
    of_key = by_key(S, len(k.n))
    of_key += k.M[:, None]
    # A head that met a non-finite value is reported as unmeasured; zeros keep the batch's arithmetic clean.
    S[met_bad(q, k)] = 0.0
    return np.asarray(S)


def weight_between(q: Moments, k: Moments) -> Array:
    """n_q n_k / (n_q + n_k): how much the squared difference of the two means adds to pooled scatter. (H,)"""
    n_k = per_query(k.n, len(q.n))
    return np.asarray(q.n * n_k / np.maximum(q.n + n_k, 1))


def shares_of_trace(S: Array, values: Array) -> Array:
    """Eigenvalues (H, m) over the trace; NaN where nothing varies."""
    trace = np.trace(S, axis1=1, axis2=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        explained = np.where(trace[:, None] > 0, values / trace[:, None], np.nan)
    return np.maximum(explained, 0.0)


def orient(v: Array, r_q: Array, r_k: Array) -> tuple[Array, Array]:
    """`v` flipped so that r_q >= 0, or r_k >= 0 where |r_q| < 0.05, and the signs (H, m) applied.

    After it the sign of r_k means something: positive is concordant with the queries, negative discordant.
    """
    leading = np.where(np.abs(r_q) < FAINT, r_k, r_q)
    leading = np.where(np.isnan(leading), np.where(np.isnan(r_q), r_k, r_q), leading)
    sign = np.where(leading < 0, -1.0, 1.0)
    return v * sign[:, None, :], sign


def measure_batch(
    groups: Sequence[tuple[Moments, Moments]],
    components: int,
    samples: Sequence[tuple[Moments, Moments]] | None = None,
) -> Axes:
    """Axes of a block of heads from (q, k) moments per document group, on the thread that calls.

    With fewer rows of k than of q, each is read by as many of the next rows of q. `samples` are the moments of all
    groups and without each, where they are known.
    """
    (q, k), *left_out = samples or with_left_out(groups)
    S = pooled(q, k)
    inside = max(RITZ, 2 * components)
    near = Near.of(S, inside) if components > 1 and 2 * inside <= S.shape[1] else None
    if near:
        values, v = near.values[:, :components], near.vectors[:, :, :components]
    else:
        values, v = leading(S, components)
    explained = shares_of_trace(S, values)
    r_q, r_k = correlate(q, k, v)
    v, sign = orient(v, r_q, r_k)
    left_r_q, left_r_k, left_explained, same, first = _leave_one_out(left_out, v, near)
    result = {
        "r_q": sign * r_q,
        "r_k": sign * r_k,
        "explained_variance": explained,
        "r_q_se": np.where(same.all(axis=0), jackknife(left_r_q), np.nan),
        "r_k_se": np.where(same.all(axis=0), jackknife(left_r_k), np.nan),
        "r_q_null": null_level([g[0] for g in groups], q, v, _spread(q, v)),
        "r_k_null": null_level([g[1] for g in groups], k, v, _spread(k, v)),
        "v": v,
    }
    loo = {
        "loo_r_q": left_r_q[:, :, 0],
        "loo_r_k": left_r_k[:, :, 0],
        "loo_ev": left_explained[:, :, 0],
        "loo_gap": np.array([gap(each) for each in left_explained]).reshape(len(left_out), len(v)),
        "loo_v": first,
    }
    for name in ("r_q_se", "r_k_se"):
        # Groups of the same documents agree in every digit: that is no certainty.
        result[name][result[name] < NO_SPREAD] = np.nan
    for name in ("r_q", "r_k", "r_q_se", "r_k_se", "r_q_null", "r_k_null"):
        result[name][tied(explained)] = np.nan
    bad = met_bad(q, k)
    for array in result.values():
        array[bad] = np.nan
    for array in loo.values():
        array[:, bad] = np.nan
    lost = (~same[:, :, 0]).sum(axis=0)
    n_k, bad_k = (per_query(of_keys, len(v)) for of_keys in (k.n, k.bad))
    return Axes(**result, n_q=q.n, n_k=n_k, bad_q=q.bad, bad_k=bad_k, **loo, lost=lost)


def null_level(groups: Sequence[Moments], whole: Moments, v: Array, spread: Array) -> Array:
    """|r| that chance reaches: moments of each group and of all, axes v (H, d, m), sqrt(v.M.v T) (H, m) -> (H, m).

    A group's part of the covariance is taken about the means of all, so that the parts sum to v.C exactly.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < FEWEST_GROUPS:
        return np.full(spread.shape, np.nan)
    covariances = [
        group.C + (group.n * (group.mean_t - whole.mean_t))[:, None] * (group.mean_x - whole.mean_x)
        for group in groups
    ]
    parts = np.stack([np.einsum("hdm,hd->hm", v, per_query(c, len(v))) for c in covariances])
    reach = stdtrit(count - 1, 1 - LEVEL / 2) * np.sqrt(count) * parts.std(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        level = reach / spread
    return np.asarray(np.minimum(level, 1.0))


def met_bad(q: Moments, k: Moments) -> NDArray[np.bool_]:
    """Heads with a query or key that is not finite. (H,)"""
    return (q.bad > 0) | (per_query(k.bad, len(q.bad)) > 0)


def tied(explained: Array) -> NDArray[np.bool_]:
    """Axes (H, m) whose eigenvalue is their neighbour's up to rounding: any turn of the two would be as good."""
    close = np.abs(np.diff(explained, axis=1)) <= TIE * explained[:, :1]
    none = np.zeros((len(explained), 1), dtype=bool)
    return np.asarray(np.concatenate([none, close], axis=1) | np.concatenate([close, none], axis=1))


def _leave_one_out(
    samples: Sequence[tuple[Moments, Moments]], v: Array, near: Near | None
) -> tuple[Array, Array, Array, NDArray[np.bool_], Array]:
    """r_q, r_k, explained, same (G, H, m) and PC0 (G, H, d) without each group in turn, on axes oriented like `v`.

    `same` says whether an axis is still the one of the whole: it overlaps it by at least SAME.
    """
    heads, dim, components = v.shape
    count = len(samples)
    r_q, r_k, explained = (np.full((count, heads, components), np.nan) for _ in range(3))
    same, first = np.ones(r_q.shape, dtype=bool), np.full((count, heads, dim), np.nan)
    for g, (q, k) in enumerate(samples):
        S = pooled(q, k)
        values, u = near.leading(S, components) if near else leading(S, components)
        explained[g] = shares_of_trace(S, values)
        overlap = np.einsum("hdm,hdm->hm", u, v)
        u = u * np.where(overlap < 0, -1.0, 1.0)[:, None, :]
        r_q[g], r_k[g] = correlate(q, k, u)
        same[g], first[g] = np.abs(overlap) >= SAME, u[:, :, 0]
    return r_q, r_k, explained, same, first


@dataclass(frozen=True)
class Near:
    """Eigenvectors of scatter matrices of the whole: values (H, d), falling, and vectors (H, d, d).

    Leaving one group out hardly turns the leading axes, so they are found near those of the whole: within the first
    `inside` of them by a small eigenproblem (Rayleigh-Ritz), beyond them to first order of the change.
    """

    values: Array
    vectors: Array
    inside: int

    @classmethod
    def of(cls, S: Array, inside: int) -> Near:
        values, vectors = np.linalg.eigh(S)
        return cls(values[:, ::-1], np.ascontiguousarray(vectors[:, :, ::-1]), inside)

    def leading(self, S: Array, count: int) -> tuple[Array, Array]:
        """`leading` of matrices S (H, d, d) that are nearly those of the whole, up to a factor; see `solve_close`."""
        m = self.inside
        turned = self.vectors.transpose(0, 2, 1) @ (S @ self.vectors[:, :, :m])  # (H, d, m)
        values, inner = np.linalg.eigh(turned[:, :m])
        values, inner = values[:, ::-1][:, :count].copy(), inner[:, :, ::-1][:, :, :count]
        total = self.values.sum(axis=1)
        scale = np.trace(S, axis1=1, axis2=2) / np.where(total > 0, total, 1.0)
        apart = values[:, None, :] - (scale[:, None] * self.values[:, m:])[:, :, None]
        coupling = turned[:, m:] @ inner
        beyond = coupling / np.where(apart > 0, apart, np.inf)
        values += (coupling * beyond).sum(axis=1)
        found = self.vectors @ np.concatenate([inner, beyond], axis=1)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        solve_close(S, values, found)
        return values, found


def with_left_out(groups: Sequence[tuple[Moments, Moments]]) -> list[tuple[Moments, Moments]]:
    """(q, k) of all groups together, then without each in turn if there are several."""
    q, k = (whole_and_without([group[i] for group in groups]) for i in (0, 1))
    return list(zip(q, k, strict=True))


def whole_and_without(groups: Sequence[Moments]) -> list[Moments]:
    """The moments of all groups together, then without each in turn if there are several."""
    whole = merge_all(groups)
    return [whole, *(whole.without(group) for group in groups if len(groups) > 1)]


def pearson(moments: Moments, v: Array) -> Array:
    """v (H, d, m) -> r (H, m); NaN where the projection or the position does not vary."""
    covariance = np.einsum("hdm,hd->hm", v, per_query(moments.C, len(v)))
    return np.asarray(np.clip(covariance / _spread(moments, v), -1.0, 1.0))


def _spread(moments: Moments, v: Array) -> Array:
    """sqrt(v.M.v T) of axes v (H, d, m) -> (H, m); NaN where the projection or the position does not vary."""
    along = by_key(v, len(moments.n))
    variance = np.einsum("krdm,krdm->krm", along, moments.M[:, None] @ along)
    # What is left of a constant projection or position after rounding is not a variance.
    least = 1e-13 * np.maximum(moments.trace, (moments.mean_x**2).sum(axis=1) * 1e-3)
    still = moments.T / np.maximum(moments.n, 1) <= 1e-24 * moments.mean_t**2
    varies = (variance > least[:, None, None]) & ~still[:, None, None]
    spread = np.sqrt(np.where(varies, variance * moments.T[:, None, None], np.nan))
    return spread.reshape(len(v), -1)


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """The first axis in every sample; all components with errors and nulls over all documents."""
    axes = block.axes

    def samples(whole: Array, left_out: Array) -> Array:
        return np.concatenate([whole[None], left_out])

    return {
        "r_q": samples(axes.r_q[:, 0], axes.loo_r_q),
        "r_k": samples(axes.r_k[:, 0], axes.loo_r_k),
        "explained_variance": samples(axes.explained_variance[:, 0], axes.loo_ev),
        "gap": samples(gap(axes.explained_variance), axes.loo_gap),
        "axis_lost": axes.lost.astype(np.float64),
        "n_q": axes.n_q.astype(np.float64),
        "n_k": axes.n_k.astype(np.float64),
        "bad_q": axes.bad_q.astype(np.float64),
        "bad_k": axes.bad_k.astype(np.float64),
        "pc_r_q": axes.r_q,
        "pc_r_q_se": axes.r_q_se,
        "pc_r_k": axes.r_k,
        "pc_r_k_se": axes.r_k_se,
        "pc_explained_variance": axes.explained_variance,
        "pc_r_q_null": axes.r_q_null,
        "pc_r_k_null": axes.r_k_null,
    }


_NULL = "|r| that a head unrelated to position stays below in 95% of cases (t-test over groups of documents)"
GROUP = MeasureGroup(
    name="pca",
    needs=("moments",),
    compute=compute,
    variables=(
        Variable("r_q", "r_q", "", "correlation of queries with position along PC0", along_axis=True),
        Variable("r_k", "r_k", "", "correlation of keys with position along PC0", along_axis=True),
        Variable("explained_variance", "explained variance", "share", "share of the pooled variance along PC0"),
        Variable("gap", "gap between PC0 and PC1", "", "1 - lambda_1 / lambda_0: how clearly PC0 comes first"),
        Variable("axis_lost", "axis lost", "samples", "samples whose PC0 is another axis", sampled=False, detail=True),
        Variable("n_q", "query vectors", "tokens", "number of queries", sampled=False, detail=True),
        Variable("n_k", "key vectors", "tokens", "number of keys", sampled=False, detail=True),
        Variable("bad_q", "bad queries", "tokens", "queries that are NaN or infinite", sampled=False, detail=True),
        Variable("bad_k", "bad keys", "tokens", "keys that are NaN or infinite", sampled=False, detail=True),
        Variable("pc_r_q", "r_q by component", "", "r_q along each principal axis", ("pc",)),
        Variable("pc_r_k", "r_k by component", "", "r_k along each principal axis", ("pc",)),
        Variable("pc_explained_variance", "explained variance by component", "share",
                 "share of the pooled variance along each axis", ("pc",), sampled=False),
        Variable("pc_r_q_null", "null of r_q", "", _NULL, ("pc",), sampled=False),
        Variable("pc_r_k_null", "null of r_k", "", _NULL, ("pc",), sampled=False),
    ),
)  # fmt: skip
