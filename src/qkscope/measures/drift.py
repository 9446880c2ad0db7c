"""The rotation model of a head: one axis along which queries and keys drift with position, one that parts them.

Over queries and keys pooled, with w = n_q n_k / (n_q + n_k) and delta = mean_q - mean_k:

    drift axis       a = C / |C|,  C = C_q + C_k + w delta (t_q - t_k)
    separation axis  b = (I - a a') delta, normalised
    top axis         the leading eigenvector of (I - a a') E[d d'] (I - a a'),  d = q - k of independent pairs,
                     E[d d'] = M_q / n_q + M_k / n_k + delta delta'

A slope per token shrinks with the window by construction, so each slope is also given over the whole window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import per_query
from qkscope.measures.eigen import leading
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.moments import Moments

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RotationModel:
    """Numbers of H heads, each (H,). NaN where there is no such number.

    r_q, r_k            Pearson's r of the projection on a with position
    alpha_q, alpha_k    slope of the projection on a, per token
    slope_q, slope_k    the same over the whole window
    mu_q, mu_k          mean projection on a
    bias_strength       mu_q alpha_k: how the mean query's score changes with a key's position, per token
    separation          E[(b.d)^2] / E|d|^2, and for the top axis `separation_top`; `agreement` = |b . top axis|
    share_drift, share_separation, share_plane   of the pooled variance: along a, along b, in their plane
    pc0_overlap         |a . first principal axis|
    """

    r_q: Array
    r_k: Array
    alpha_q: Array
    alpha_k: Array
    slope_q: Array
    slope_k: Array
    mu_q: Array
    mu_k: Array
    bias_strength: Array
    separation: Array
    separation_top: Array
    agreement: Array
    share_drift: Array
    share_separation: Array
    share_plane: Array
    pc0_overlap: Array


NAMES = tuple(field.name for field in fields(RotationModel))


def rotation_model(q: Moments, k: Moments, window: int) -> RotationModel:
    """The rotation model of each head from its queries' and its keys' moments.

    With fewer rows of k than of q, each is read by as many of the next rows of q.
    """
    k = k.select(per_query(np.arange(len(k.n)), len(q.n)))
    broken = (q.bad > 0) | (k.bad > 0)
    delta = q.mean_x - k.mean_x
    weight = q.n * k.n / np.maximum(q.n + k.n, 1)
    apart = weight * (q.mean_t - k.mean_t)
    a = _unit(q.C + k.C + apart[:, None] * delta)
    b = _unit(delta - _dot(a, delta)[:, None] * a)
    spread = _outer_mean(q, k, delta)  # E[d d']
    pooled = q.M + k.M + weight[:, None, None] * delta[:, :, None] * delta[:, None, :]
    for matrix in (spread, pooled):
        matrix[broken] = 0.0
    top, first = _top_axis(spread, a), leading(pooled, 1)[1][:, :, 0]
    alpha_q, alpha_k = _slope(q, a), _slope(k, a)
    mu_q, mu_k = _dot(a, q.mean_x), _dot(a, k.mean_x)
    share_a, share_b = _share(pooled, a), _share(pooled, b)
    values = (
        *(_pearson(q, a), _pearson(k, a), alpha_q, alpha_k, alpha_q * window, alpha_k * window),
        *(mu_q, mu_k, mu_q * alpha_k, _share(spread, b), _share(spread, top), np.abs(_dot(b, top))),
        *(share_a, share_b, share_a + share_b, np.abs(_dot(a, first))),
    )
    return RotationModel(*(np.where(broken, np.nan, value) for value in values))


def _outer_mean(q: Moments, k: Moments, delta: Array) -> Array:
    """E[d d'] of d = q - k with q and k drawn independently. (H, d, d)"""
    own = q.M / np.maximum(q.n, 1)[:, None, None] + k.M / np.maximum(k.n, 1)[:, None, None]
    return np.asarray(own + delta[:, :, None] * delta[:, None, :])


def _top_axis(spread: Array, a: Array) -> Array:
    """The leading eigenvector of `spread` with the direction `a` taken out. (H, d)"""
    along = np.einsum("hde,he->hd", spread, np.nan_to_num(a))
    twice = np.einsum("hd,hd->h", along, np.nan_to_num(a))
    a0 = np.nan_to_num(a)
    cross = along[:, :, None] * a0[:, None, :]
    rest = spread - cross - cross.transpose(0, 2, 1) + twice[:, None, None] * a0[:, :, None] * a0[:, None, :]
    return leading(rest, 1)[1][:, :, 0]


def _slope(moments: Moments, axis: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(moments.T > 0, _dot(axis, moments.C) / moments.T, np.nan))


def _pearson(moments: Moments, axis: Array) -> Array:
    variance = np.einsum("hd,hde,he->h", axis, moments.M, axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = _dot(axis, moments.C) / np.sqrt(variance * moments.T)
    return np.asarray(np.where(np.isfinite(r), np.clip(r, -1.0, 1.0), np.nan))


def _share(matrix: Array, axis: Array) -> Array:
    """axis' matrix axis / trace: (H,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.einsum("hd,hde,he->h", axis, matrix, axis) / np.trace(matrix, axis1=1, axis2=2)
    return np.asarray(found)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("hd,hd->h", a, b))


def _unit(vectors: Array) -> Array:
    """Each row at length one; NaN where it has none."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(length > 0, vectors / length, np.nan))


# r along the drift axis, which is not the published r along PC0.
RENAMED = {"r_q": "drift_r_q", "r_k": "drift_r_k"}


def compute(block: HeadBlock) -> Mapping[str, Array]:
    models = [rotation_model(q, k, block.width) for q, k in block.moments]
    found = {RENAMED.get(name, name): np.stack([getattr(each, name) for each in models]) for name in NAMES}
    return found | {"bias_logits": found["bias_strength"] * block.scale * block.width}


GROUP = MeasureGroup(
    name="rotation",
    needs=("moments",),
    compute=compute,
    optional=True,
    variables=(
        Variable(
            "drift_r_q",
            "r_q along drift",
            "",
            "correlation of queries with position along the drift axis",
            detail=True,
        ),
        Variable(
            "drift_r_k",
            "r_k along drift",
            "",
            "correlation of keys with position along the drift axis",
            detail=True,
        ),
        Variable(
            "alpha_q", "slope of queries", "per token", "slope of queries along the drift axis", detail=True
        ),
        Variable("alpha_k", "slope of keys", "per token", "slope of keys along the drift axis", detail=True),
        Variable(
            "slope_q",
            "drift of queries over the window",
            "",
            "how far mean queries move over the window along the drift axis, in units of the vectors",
        ),
        Variable(
            "slope_k",
            "drift of keys over the window",
            "",
            "how far mean keys move over the window along the drift axis, in units of the vectors",
        ),
        Variable(
            "mu_q", "mean query along drift", "", "mean projection of queries on the drift axis", detail=True
        ),
        Variable(
            "mu_k", "mean key along drift", "", "mean projection of keys on the drift axis", detail=True
        ),
        Variable(
            "bias_strength",
            "bias",
            "per token",
            "change of the mean query's score with key position",
            detail=True,
        ),
        Variable(
            "separation",
            "separation of queries and keys",
            "share",
            "share of E|q - k|^2 that lies between the mean query and the mean key, drift aside",
        ),
        Variable(
            "separation_top",
            "separation, top axis",
            "share",
            "the same along the axis where it is largest",
            detail=True,
        ),
        Variable(
            "agreement", "agreement", "", "overlap of the separation axis with that top axis", detail=True
        ),
        Variable("share_drift", "drift share", "share", "pooled variance along the drift axis", detail=True),
        Variable(
            "share_separation",
            "separation share",
            "share",
            "pooled variance along the separation axis",
            detail=True,
        ),
        Variable(
            "share_plane", "plane share", "share", "pooled variance in the plane of both axes", detail=True
        ),
        Variable(
            "pc0_overlap", "overlap of drift axis and PC0", "", "|cosine| between the drift axis and PC0"
        ),
        Variable(
            "bias_logits",
            "bias to near keys",
            "logits",
            "score that the drift adds to a key at the end of the window over one at its beginning",
        ),
    ),
)
