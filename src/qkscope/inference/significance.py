"""What chance alone would do: Student's t for few document groups, the normal curve, many tests at once.

Exact for whole degrees of freedom, so that nothing beyond numpy is needed at run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)


def normal_cdf(z: ArrayLike) -> Array:
    """P(Z < z) of the standard normal, of any shape."""
    scaled = np.asarray(z, dtype=np.float64) / math.sqrt(2.0)
    return 0.5 * (1.0 + np.asarray(_erf(scaled), dtype=np.float64))


def two_sided_p(t: float, df: int) -> float:
    """P(|T| >= |t|) of Student's t with `df` whole degrees of freedom.

    With tan a = |t| / sqrt(df), P(|T| < |t|) is a finite series in cos a: for even df
    sin a (1 + 1/2 cos^2 a + (1*3)/(2*4) cos^4 a + ...), for odd df
    2/pi (a + sin a (cos a + 2/3 cos^3 a + (2*4)/(3*5) cos^5 a + ...)), the powers ending at df - 2.
    """
    if math.isnan(t):
        return math.nan
    angle = math.atan2(abs(t), math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = df % 2
    term = cosine if odd else 1.0
    total = 0.0 if df == 1 else term
    for k in range(2 + odd, df - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    inside = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


def t_quantile(p: float, df: int) -> float:
    """The t that a Student variable with `df` degrees of freedom stays below with probability p (0 < p < 1)."""
    if p == 0.5:
        return 0.0
    tail = 2.0 * min(p, 1.0 - p)
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > tail:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if two_sided_p(middle, df) > tail else (low, middle)
    return math.copysign((low + high) / 2.0, p - 0.5)


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
