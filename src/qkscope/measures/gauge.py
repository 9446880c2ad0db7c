"""How far the published r_q depends on coordinates: its range where queries are scaled by c and keys by 1 / c.

Scores are the same for every c, but the pooled axes are those of

    S = c^2 M_q + M_k / c^2 + n_q n_k / (n_q + n_k) d d^T,   d = c mean_q - mean_k / c

so the first axis, and r_q along it, are not. The range is taken over nine values of c from 1/2 to 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import per_query
from qkscope.measures.eigen import first_axes, leading
from qkscope.measures.pca import correlate, orient, pooled, shares_of_trace, tied, weight_between
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.moments import Moments

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

FACTORS = 2.0 ** np.linspace(-1, 1, 9)


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """The smallest and the largest r_q over all documents. NaN where no c gives an axis."""
    q, k = block.moments[0]
    factors, keys = FACTORS[FACTORS != 1][:, None], len(k.n)
    mean_k, between = per_query(k.mean_x, len(block)), weight_between(q, k)[:, None, None]
    delta = factors * q.mean_x[:, None] - mean_k[:, None] / factors  # (H, factors, d)

    def multiply(x: Array) -> Array:
        """S x for every c: x (H, factors, d)."""
        found = factors**2 * (x @ q.M) + between * (x * delta).sum(axis=2, keepdims=True) * delta
        found += (x.reshape(keys, -1, x.shape[2]) @ k.M).reshape(x.shape) / factors**2
        found[block.unmeasured] = 0.0
        return np.asarray(found)

    v, known = first_axes(multiply, delta.shape)
    r_q, r_k = correlate(q, k, v.swapaxes(1, 2))
    r_q *= orient(v.swapaxes(1, 2), r_q, r_k)[1]
    for i, c in enumerate(factors[:, 0]):
        if len(rows := np.flatnonzero(~known[:, i])):
            r_q[rows, i] = _first_r_q(q.select(rows), k.select(rows * keys // len(block)), c)
    r_q = np.concatenate([block.axes.r_q[:, :1], r_q], axis=1)
    r_q[block.unmeasured] = np.nan
    # A c at which two eigenvalues tie has no first axis, and does not count.
    return {"gauge_low": np.fmin.reduce(r_q, axis=1), "gauge_high": np.fmax.reduce(r_q, axis=1)}


def _first_r_q(q: Moments, k: Moments, c: float) -> Array:
    """The published r_q (H,) of c q and k / c. NaN where two eigenvalues tie."""
    scaled = [replace(x, mean_x=by * x.mean_x, M=by**2 * x.M, C=by * x.C) for x, by in ((q, c), (k, 1 / c))]
    S = pooled(*scaled)
    values, v = leading(S, 2)
    r_q, r_k = correlate(q, k, v[:, :, :1])
    sign = orient(v[:, :, :1], r_q, r_k)[1]
    return np.where(tied(shares_of_trace(S, values))[:, 0], np.nan, (sign * r_q)[:, 0])


GROUP = MeasureGroup(
    name="gauge",
    needs=("moments",),
    compute=compute,
    variables=(
        Variable("gauge_low", "smallest r_q under rescaling", "",
                 "smallest published r_q if queries are scaled by c and keys by 1/c, c from 1/2 to 2: attention is the "
                 "same for every c", sampled=False, detail=True),
        Variable("gauge_high", "largest r_q under rescaling", "",
                 "largest published r_q if queries are scaled by c and keys by 1/c, c from 1/2 to 2: attention is the "
                 "same for every c", sampled=False, detail=True),
    ),
)  # fmt: skip
