"""Two arms of several training runs each: how their means differ, with errors over the seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkscope.stats.levels import CONFIDENCE, SMALLEST, holm, two_sided_p


@dataclass(frozen=True)
class ArmDifference:
    """The means of two arms, one number a run, each with its standard error over runs, and Welch's test of them.

    `se` and `df` are of the difference; `p` is NaN where no run of either arm differs from its arm: that is no
    knowledge of an error.
    """

    ours: float
    our_se: float
    theirs: float
    their_se: float
    se: float
    df: float
    p: float

    @property
    def difference(self) -> float:
        return self.ours - self.theirs

    @property
    def agrees(self) -> bool | None:
        """Whether chance over seeds explains the difference, with CONFIDENCE; None where no error is known."""
        if self.difference == 0:
            return True
        return None if math.isnan(self.p) else self.p >= 1 - CONFIDENCE


def arm_difference(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> ArmDifference:
    """(runs,) against (runs,), two or more each: Welch's unequal variances t-test.

    se^2 = s1^2/n1 + s2^2/n2, df = se^4 / ((s1^2/n1)^2/(n1-1) + (s2^2/n2)^2/(n2-1)).
    """
    parts = [float(arm.var(ddof=1)) / len(arm) for arm in (ours, theirs)]
    means = [float(arm.mean()) for arm in (ours, theirs)]
    square = sum(parts)
    below = sum(part**2 / (len(arm) - 1) for part, arm in zip(parts, (ours, theirs), strict=True))
    # Equal numbers have a spread of rounding errors alone.
    known = square > (1e-9 * max(1.0, *map(abs, means))) ** 2
    df = square**2 / below if known else math.nan
    p = two_sided_p((means[0] - means[1]) / math.sqrt(square), df) if known else math.nan
    first, second = (math.sqrt(part) for part in parts)
    return ArmDifference(means[0], first, means[1], second, math.sqrt(square), df, p)


def clear_differences(found: Sequence[ArmDifference]) -> list[bool]:
    """Which of several differences count when all are looked at together, and are worth a word."""
    passed = holm([each.p for each in found], 1 - CONFIDENCE)
    return [p and abs(each.difference) >= SMALLEST for p, each in zip(passed, found, strict=True)]
