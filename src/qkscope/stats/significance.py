"""What chance alone would do: Student's t for few document groups, the normal curve, many tests at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtr, stdtrit


def normal_cdf(z: ArrayLike) -> NDArray[np.float64]:
    """P(Z < z) of the standard normal, of any shape."""
    return np.asarray(ndtr(np.asarray(z, dtype=np.float64)))


def two_sided_p(t: float, df: float) -> float:
    """P(|T| >= |t|) of Student's t with `df` degrees of freedom."""
    return float(2.0 * stdtr(df, -abs(t)))


def t_quantile(p: float, df: int) -> float:
    """The t that a Student variable with `df` degrees of freedom stays below with probability p (0 < p < 1)."""
    return float(stdtrit(df, p))


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of many tests pass when the chance of even one false alarm is held at `level` (Holm's method).

    A NaN is a test that could not be made: it neither passes nor counts.
    """
    tested = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    passed = [False] * len(p_values)
    for rank, i in enumerate(sorted(tested, key=lambda i: p_values[i])):
        if p_values[i] > level / (len(tested) - rank):
            break
        passed[i] = True
    return passed
