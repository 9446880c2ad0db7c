"""The rotation model of a head: one axis along which queries and keys drift with position, one that
separates them.

Over queries and keys pooled, with w = n_q n_k / (n_q + n_k) and delta = mean_q - mean_k:

    drift axis       a = C / |C|,  C = C_q + C_k + w delta (t_q - t_k)
    separation axis  b = (I - a a') delta, normalised
    top axis         the leading eigenvector of (I - a a') E[d d'] (I - a a'),  d = q - k of independent pairs,
                     E[d d'] = M_q / n_q + M_k / n_k + delta delta'

A slope per token shrinks with the window by construction, so each slope is also given over the whole window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import by_key, forms, per_query
from qkscope.measures.eigen import FirstAxes
from qkscope.measures.pca import met_bad, weight_between
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.moments import Moments

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]


def rotation_model(
    q: Moments, k: Moments, window: int, pc0: Array, tops: FirstAxes | None = None
) -> dict[str, Array]:
    """The rotation model of each head from its queries' and its keys' moments; NaN where there is no such number.

    With fewer rows of k than of q, each is read by as many of the next rows of q. pc0 (H, d) are the first principal
    axes; `tops` finds the top axes of one sample after another.
    """
    n_k = per_query(k.n, len(q.n))
    mean_k, t_k, C_k, T_k, trace_k = (
        per_query(of_keys, len(q.n)) for of_keys in (k.mean_x, k.mean_t, k.C, k.T, k.trace)
    )
    broken = met_bad(q, k)
    delta = q.mean_x - mean_k
    weight = weight_between(q, k)
    a = _unit(q.C + C_k + (weight * (q.mean_t - t_k))[:, None] * delta)
    b = _unit(delta - _dot(a, delta)[:, None] * a)
    per_q, per_k = 1 / np.maximum(q.n, 1), 1 / np.maximum(n_k, 1)
    spread = delta[:, :, None] * delta[:, None, :] + per_q[:, None, None] * q.M  # E[d d'], (H, d, d)
    of_key = by_key(spread, len(k.n))
    of_key += by_key(per_k, len(k.n))[:, :, None, None] * k.M[:, None]
    spread[broken] = 0.0
    top = (tops or FirstAxes()).of(_without(spread, a))[1]
    axes = np.stack([a, b, top], axis=1)  # (H, 3, d)
    of_q, of_k, of_delta = forms(q.M, axes), forms(k.M, axes), np.einsum("hmd,hd->hm", axes, delta) ** 2
    apart = (delta**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (of_q + of_k + weight[:, None] * of_delta) / (q.trace + trace_k + weight * apart)[:, None]
        parting = of_q * per_q[:, None] + of_k * per_k[:, None] + of_delta
        parting /= (q.trace * per_q + trace_k * per_k + apart)[:, None]
    alpha_q, alpha_k = _over(_dot(a, q.C), q.T), _over(_dot(a, C_k), T_k)
    r_q, r_k = (
        np.clip(_over(_dot(a, C), np.sqrt(along[:, 0] * T)), -1.0, 1.0)
        for C, along, T in ((q.C, of_q, q.T), (C_k, of_k, T_k))
    )
    mu_q, mu_k = _dot(a, q.mean_x), _dot(a, mean_k)
    values = {
        "drift_r_q": r_q,
        "drift_r_k": r_k,
        "alpha_q": alpha_q,
        "alpha_k": alpha_k,
        "slope_q": alpha_q * window,
        "slope_k": alpha_k * window,
        "mu_q": mu_q,
        "mu_k": mu_k,
        "bias_strength": mu_q * alpha_k,
        "separation": parting[:, 1],
        "separation_top": parting[:, 2],
        "agreement": np.abs(_dot(b, top)),
        "share_drift": shares[:, 0],
        "share_separation": shares[:, 1],
        "share_plane": shares[:, 0] + shares[:, 1],
        "pc0_overlap": np.abs(_dot(a, pc0)),
    }
    return {name: np.where(broken, np.nan, value) for name, value in values.items()}


def _without(spread: Array, a: Array) -> Array:
    """`spread` with the direction `a` taken out. (H, d, d)"""
    a = np.nan_to_num(a)
    along = (spread @ a[:, :, None])[:, :, 0]
    # s - x a' - a x' + (a.x) a a' with x = s a, as two products.
    half = along - 0.5 * _dot(along, a)[:, None] * a
    cross = half[:, :, None] * a[:, None, :]
    return spread - cross - cross.transpose(0, 2, 1)


def _over(number: Array, by: Array) -> Array:
    """A quotient; NaN where there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = number / by
    return np.where(np.isfinite(found), found, np.nan)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("hd,hd->h", a, b))


def _unit(vectors: Array) -> Array:
    """Each row at length one; NaN where it has none."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(length > 0, vectors / length, np.nan)


def compute(block: HeadBlock) -> Mapping[str, Array]:
    first, tops = np.concatenate([block.axes.v[None, :, :, 0], block.axes.loo_v]), FirstAxes()
    models = [
        rotation_model(q, k, block.width, pc0, tops) for (q, k), pc0 in zip(block.moments, first, strict=True)
    ]
    found = {name: np.stack([each[name] for each in models]) for name in models[0]}
    return found | {"bias_logits": found["bias_strength"] * block.scale * block.width}


GROUP = MeasureGroup(
    name="rotation",
    needs=("moments",),
    compute=compute,
    optional=True,
    variables=(
        Variable("drift_r_q", "r_q along drift", "", "correlation of queries with position along the drift axis",
                 detail=True),
        Variable("drift_r_k", "r_k along drift", "", "correlation of keys with position along the drift axis",
                 detail=True),
        Variable("alpha_q", "slope of queries", "per token", "slope of queries along the drift axis", detail=True),
        Variable("alpha_k", "slope of keys", "per token", "slope of keys along the drift axis", detail=True),
        Variable("slope_q", "drift of queries over the window", "",
                 "how far mean queries move over the window along the drift axis, in units of the vectors"),
        Variable("slope_k", "drift of keys over the window", "",
                 "how far mean keys move over the window along the drift axis, in units of the vectors"),
        Variable("mu_q", "mean query along drift", "", "mean projection of queries on the drift axis", detail=True),
        Variable("mu_k", "mean key along drift", "", "mean projection of keys on the drift axis", detail=True),
        Variable("bias_strength", "bias", "per token", "change of the mean query's score with key position",
                 detail=True),
        Variable("separation", "separation of queries and keys", "share",
                 "share of E|q - k|^2 that lies between the mean query and the mean key, drift aside"),
        Variable("separation_top", "separation, top axis", "share", "the same along the axis where it is largest",
                 detail=True),
        Variable("agreement", "agreement", "", "overlap of the separation axis with that top axis", detail=True),
        Variable("share_drift", "drift share", "share", "pooled variance along the drift axis", detail=True),
        Variable("share_separation", "separation share", "share", "pooled variance along the separation axis",
                 detail=True),
        Variable("share_plane", "plane share", "share", "pooled variance in the plane of both axes", detail=True),
        Variable("pc0_overlap", "overlap of drift axis and PC0", "", "|cosine| between the drift axis and PC0"),
        Variable("bias_logits", "bias to near keys", "logits",
                 "score that the drift adds to a key at the end of the window over one at its beginning"),
    ),
)  # fmt: skip
