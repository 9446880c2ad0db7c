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

from qkscope.measures.eigen import leading
from qkscope.measures.pca import correlate, orient, pooled, shares_of_trace, tied
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.moments import Moments

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

FACTORS = 2.0 ** np.linspace(-1, 1, 9)


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """The smallest and the largest r_q over all documents. NaN where no c gives an axis."""
    q, k = block.moments[0]
    r_q = np.stack([block.axes.r_q[:, 0] if c == 1 else _first_r_q(q, k, c) for c in FACTORS])
    r_q[:, block.unmeasured] = np.nan
    # A c at which two eigenvalues tie has no first axis, and does not count.
    return {"gauge_low": np.fmin.reduce(r_q), "gauge_high": np.fmax.reduce(r_q)}


def _first_r_q(q: Moments, k: Moments, c: float) -> Array:
    """The published r_q (H,) of c q and k / c. NaN where two eigenvalues tie."""
    S = pooled(_scaled(q, c), _scaled(k, 1 / c))
    values, v = leading(S, 2)
    r_q, r_k = correlate(q, k, v[:, :, :1])
    sign = orient(v[:, :, :1], r_q, r_k)[1]
    return np.where(tied(shares_of_trace(S, values))[:, 0], np.nan, (sign * r_q)[:, 0])


def _scaled(moments: Moments, factor: float) -> Moments:
    return replace(moments, mean_x=factor * moments.mean_x, M=factor**2 * moments.M, C=factor * moments.C)


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
