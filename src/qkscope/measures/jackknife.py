"""Delete-one-group jackknife standard errors: each number is computed again without each group of documents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def jackknife(left_out: Array) -> Array:
    """Delete-one-group standard error: sqrt((G-1)/G * sum_g (a_g - mean a)^2) over axis 0 of (G, ...).

    NaN with fewer than two groups, or where a leave-one-out value is missing.
    """
    count = len(left_out)
    if count < 2:
        return np.full(left_out.shape[1:], np.nan)
    spread = ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
    return np.asarray(np.sqrt((count - 1) / count * spread))
