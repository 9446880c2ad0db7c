"""How large |r| gets by chance in a head that does not follow position: a t-test over groups of documents.

Tokens of one document hang together, so they are no sample; documents are. Along a fixed axis v let c_g be group g's
part of the covariance with position, so that v.C = sum of c_g. In a head that does not follow position the c_g are
independent with mean zero, whatever goes on within documents, and |sum of c_g| stays below t sqrt(G) sd(c_g) in 95%
of cases, t from Student's distribution with G - 1 degrees of freedom. In units of r:

    r_null = t_{0.975, G-1} sqrt(G) sd(c_g) / sqrt(v.M.v T)

The axis may come from the same documents: it is a function of the M_g alone, which do not change when the vectors of a
group are mirrored about their mean, while c_g changes its sign. Groups of unequal size or spread keep the test below
its level, never above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import per_query
from qkscope.sums.moments import Moments

Array = NDArray[np.float64]

# A head passes when |r| > r_null: of heads that do not follow position, this share passes.
LEVEL = 0.05
# With fewer groups the spread between them is hardly known, and the threshold is NaN.
FEWEST_GROUPS = 3


def null_level(groups: Sequence[Moments], whole: Moments, v: Array, spread: Array) -> Array:
    """|r| that chance reaches: moments of each group and of all, axes v (H, d, m), sqrt(v.M.v T) (H, m) -> (H, m).

    A group's part of the covariance is taken about the means of all, so that the parts sum to v.C exactly.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < FEWEST_GROUPS:
        return np.full(spread.shape, np.nan)
    parts = np.stack([np.einsum("hdm,hd->hm", v, per_query(_part(group, whole), len(v))) for group in groups])
    reach = stdtrit(count - 1, 1 - LEVEL / 2) * np.sqrt(count) * parts.std(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        level = reach / spread
    return np.asarray(np.minimum(level, 1.0))


def _part(group: Moments, whole: Moments) -> Array:
    """The group's part of C about the means of all tokens. (H, d)"""
    dx, dt = group.mean_x - whole.mean_x, group.mean_t - whole.mean_t
    return np.asarray(group.C + (group.n * dt)[:, None] * dx)
