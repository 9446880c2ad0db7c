"""Tests of the difference of two numbers: of one checkpoint and the same documents, or of two arms of training runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.pca import FEWEST_GROUPS
from qkscope.measures.samples import jackknife
from qkscope.stats.levels import CONFIDENCE, CONTRAST_LEVEL, SMALLEST, holm, margin, two_sided_p

Array = NDArray[np.float64]
Compared = Literal["higher", "lower", "equal", "unclear"]


@dataclass(frozen=True)
class Contrast:
    """The difference of two numbers; `equal` if a difference that counts is excluded."""

    difference: float
    se: float
    verdict: Compared


def contrast(
    first: Array, second: Array, paired: bool = True, looks: int = 1, hidden: float = 0.0
) -> Contrast:
    """(1 + G,) against (1 + G,): each the number and the same without every group of documents.

    Different models have different heads and tokens: unpaired, the two errors add and nothing cancels. `looks` is
    the number of contrasts this one was chosen from or is read with: they share the level. `hidden` is variance of
    the difference that leaving groups out does not show.
    """
    gap = float(first[0] - second[0])
    se = math.hypot(error_of_difference(first, second, paired), math.sqrt(hidden))
    return Contrast(gap, se, compared(gap, se, min(len(first), len(second)) - 2, looks))


def error_of_difference(first: Array, second: Array, paired: bool) -> float:
    """Standard error of a difference, (1 + G,) each: paired, what both share cancels; else the two errors add."""
    if paired:
        return float(jackknife(first[1:] - second[1:]))
    return math.hypot(float(jackknife(first[1:])), float(jackknife(second[1:])))


def compared(gap: float, se: float, df: float, looks: int = 1) -> Compared:
    """The verdict on a difference whose error has `df` degrees of freedom."""
    if df < FEWEST_GROUPS - 1 or not math.isfinite(se):
        return "unclear"
    if two_sided_p(gap, se, df) < CONTRAST_LEVEL / looks and abs(gap) >= SMALLEST:
        return "higher" if gap > 0 else "lower"
    return "equal" if abs(gap) + margin(se, df) < SMALLEST else "unclear"


def exceeds(value: float, se: float, limit: float, df: int) -> bool:
    """Whether a number is above a limit with CONFIDENCE."""
    return df >= FEWEST_GROUPS - 1 and math.isfinite(se) and value - margin(se, df) > limit


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


def arm_difference(ours: Array, theirs: Array) -> ArmDifference:
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
    p = two_sided_p(means[0] - means[1], math.sqrt(square), df) if known else math.nan
    first, second = (math.sqrt(part) for part in parts)
    return ArmDifference(means[0], first, means[1], second, math.sqrt(square), df, p)


def clear_differences(found: Sequence[ArmDifference]) -> list[bool]:
    """Which of several differences count: at least SMALLEST, and significant when all are tested together."""
    passed = holm([each.p for each in found], 1 - CONFIDENCE)
    return [p and abs(each.difference) >= SMALLEST for p, each in zip(passed, found, strict=True)]
