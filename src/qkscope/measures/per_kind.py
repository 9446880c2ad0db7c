"""Queries alone and keys alone: each kind's own first axis, what is linear in position, how far the two lie apart.

The share of a kind's variance that is linear in position is the sum over its axes of explained variance times r^2.
With ev_i = lambda_i / tr M and r_i = v_i.C / sqrt(lambda_i T) that is, over all axes,

    sum_i ev_i r_i^2 = |C|^2 / (T tr M)

so it needs no axes. Separability is the share of the pooled variance that lies between the two centres,
w |delta|^2 / tr S with delta = mean_q - mean_k and w = n_q n_k / (n_q + n_k); d' is their distance along delta in
standard deviations, the mean of both variances counting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import forms, per_query
from qkscope.measures.eigen import FirstAxes
from qkscope.measures.pca import met_bad, weight_between
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.moments import Moments

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

NAMES = (
    *("explained_q", "explained_k", "r_q_own_axis", "r_k_own_axis", "linear_q", "linear_k"),
    *("separability", "d_prime"),
)


def per_kind(q: Moments, k: Moments, axes: Sequence[FirstAxes] | None = None) -> Array:
    """NAMES of each head from its queries' and its keys' moments: (len(NAMES), H). NaN where undefined.

    With fewer rows of k than of q, each is read by as many of the next rows of q.
    `r_q_own_axis` is |r| with position along the queries' own first axis, whose sign means nothing; `explained_q` is
    that axis's share of variance. `axes` find the first axes of queries and of keys of one sample after another.
    """
    axes_q, axes_k = axes or (FirstAxes(), FirstAxes())
    heads = len(q.n)
    explained_q, r_q, linear_q = _alone(q, axes_q)
    explained_k, r_k, linear_k = (per_query(of_keys, heads) for of_keys in _alone(k, axes_k))
    n_k = per_query(k.n, heads)
    delta = q.mean_x - per_query(k.mean_x, heads)
    apart = (delta**2).sum(axis=1)
    weight = weight_between(q, k)
    spread = q.trace + per_query(k.trace, heads) + weight * apart
    along = [forms(M, delta[:, None])[:, 0] / np.maximum(n, 1) for M, n in ((q.M, q.n), (k.M, n_k))]
    with np.errstate(invalid="ignore", divide="ignore"):
        separability = weight * apart / spread
        d_prime = apart / np.sqrt((along[0] + along[1]) / 2)
    found = np.stack([explained_q, explained_k, r_q, r_k, linear_q, linear_k, separability, d_prime])
    return np.where(np.isfinite(found) & ~met_bad(q, k), found, np.nan)


def _alone(x: Moments, axes: FirstAxes) -> tuple[Array, Array, Array]:
    """(share of variance, |r| with position) of the leading eigenvector of M, and the share linear in position."""
    top, v = axes.of(np.where((x.bad > 0)[:, None, None], 0.0, x.M))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.abs(np.einsum("hd,hd->h", v, x.C)) / np.sqrt(top * x.T)
        linear = (x.C**2).sum(axis=1) / (x.T * x.trace)
        return np.asarray(top / x.trace), np.asarray(np.minimum(r, 1.0)), np.asarray(linear)


def compute(block: HeadBlock) -> Mapping[str, Array]:
    axes = FirstAxes(), FirstAxes()
    found = np.stack([per_kind(q, k, axes) for q, k in block.moments])  # (1 + G, names, H)
    return {name: found[:, i] for i, name in enumerate(NAMES)}


GROUP = MeasureGroup(
    name="per_kind",
    needs=("moments",),
    compute=compute,
    optional=True,
    variables=(
        Variable("explained_q", "first axis of queries", "share", "variance share of the queries' own first axis",
                 detail=True),
        Variable("explained_k", "first axis of keys", "share", "variance share of the keys' own first axis",
                 detail=True),
        Variable("r_q_own_axis", "|r| of queries alone", "", "|r| with position along the queries' own first axis",
                 detail=True),
        Variable("r_k_own_axis", "|r| of keys alone", "", "|r| with position along the keys' own first axis",
                 detail=True),
        Variable("linear_q", "queries: share linear in position", "share",
                 "share of the variance of queries alone that is linear in position"),
        Variable("linear_k", "keys: share linear in position", "share",
                 "share of the variance of keys alone that is linear in position"),
        Variable("separability", "share between queries and keys", "share",
                 "share of the variance of queries and keys together that lies between their means"),
        Variable("d_prime", "d'", "sd", "distance of mean query and mean key in standard deviations", detail=True),
    ),
)  # fmt: skip
