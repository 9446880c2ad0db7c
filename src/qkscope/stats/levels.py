"""Every significance level, smallest size and threshold, once; each rule as a sentence; and the tests themselves.

Tests allow for chance: Student's t for few document groups, Holm's method for many tests at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtr, stdtrit

from qkscope.measures.pca import FEWEST_GROUPS
from qkscope.results.roles import BEYOND
from qkscope.words import bare, count, percent

# The chance of one false alarm among all series, steps and swings of a study; and of one comparison of heads
# within a checkpoint.
STUDY_LEVEL, CONTRAST_LEVEL = 0.02, 0.01
# A difference is excluded, or a number bounded, with this confidence.
CONFIDENCE = 0.95
# Smaller changes of a mean are called flat. A share must change by as much and by this number of heads.
SMALLEST, SMALLEST_HEADS = 0.02, 2
# Half the variance of one head that changes class: the difference of two shares has at least the error of one head.
ONE_HEAD = 0.5
# Tables without document groups are tested by leaving out groups of heads, if there are enough heads.
HEAD_GROUPS, FEWEST_HEADS = 10, 20
# From this number of steps on, a step's error is averaged with the mean over the steps.
STEPS_TO_POOL = 3
# The value that fits both checkpoints lies within this many errors of the first one's: where a head really moved far,
# a value between the two is no estimate of either.
REACH = 1.5
# Numbers of two studies agree within this many standard errors of their difference.
AGREES_WITHIN = 2.0
# Numbers closer than this are equal: the rounding of a subtraction.
ROUNDING = 1e-12
# A part is most of a whole above this share.
MOST = 0.5
# A straight line misses part of a head's position signal if eta exceeds |r| by more than this.
MISSED = 0.1


def rule_of_error(basis: str, groups: int) -> str:
    """How the ± of a number was computed."""
    return {
        "documents": f"± is one standard error over documents (jackknife over {groups} groups).",
        "heads": f"No document groups: changes are tested by leaving out {HEAD_GROUPS} groups of heads.",
        "too few groups": f"± is one standard error over {groups} groups of documents; a test needs at least "
        f"{FEWEST_GROUPS}.",
        "nothing": f"No standard errors: there are no groups of documents and fewer than {FEWEST_HEADS} heads.",
    }[basis]


def rule_of_change() -> str:
    """When a change between checkpoints counts."""
    return (
        f"A change counts if it is at least {bare(SMALLEST)} (classes: {percent(SMALLEST)} of the heads and at least "
        f"{count(SMALLEST_HEADS, 'head')}) and passes a t-test held at {percent(STUDY_LEVEL)} over the whole study; "
        f"it is flat if a change of that size is excluded with {percent(CONFIDENCE)} confidence."
    )


def rule_of_cause() -> str:
    """When a cause counts, and when two interact."""
    return (
        f"An effect counts if it is at least {bare(SMALLEST)} and passes a t-test held at {percent(STUDY_LEVEL)} over "
        "all effects of the study. Causes interact if training's effects in the two orders differ in a t-test at "
        f"{percent(CONTRAST_LEVEL)}."
    )


def rule_of_contrast() -> str:
    """When a difference between two numbers of one checkpoint counts."""
    return f"A difference counts if it is at least {bare(SMALLEST)} and passes a t-test at {percent(CONTRAST_LEVEL)}."


def rule_of_emergence() -> str:
    """When a layer's signal emerged."""
    return (
        "A layer's signal emerges at the first checkpoint with half of its largest clear rise; layers whose "
        f"{percent(CONFIDENCE)} interval reaches that half at the same checkpoint are named as possible. "
        f"Rises pass a t-test held at {percent(STUDY_LEVEL)} over all layers."
    )


def rule_of_roles() -> str:
    """When a head has a role, and when it acquired it."""
    return (
        f"A head has a role if its score exceeds the role's threshold by more than {bare(BEYOND, 0)} standard errors. "
        "It acquired the role between the last checkpoint at which it clearly lacked it and the first from which it "
        "keeps it."
    )


def rule_of_agreement() -> str:
    """When numbers of two studies differ, and when one cannot tell."""
    return (
        f"Numbers differ if more than {count(round(AGREES_WITHIN), 'standard error')} of the difference apart, and "
        "shares also by more than one head. Without a standard error on either side this cannot be judged."
    )


def rule_of_arms() -> str:
    """When a difference between two arms is reported."""
    return (
        f"A difference over all checkpoints counts if it is at least {bare(SMALLEST)} and passes Welch's t-test over "
        f"seeds held at {percent(1 - CONFIDENCE)} over all numbers together."
    )


def two_sided_p(difference: float, se: float, df: float) -> float:
    """P(|T| >= |difference| / se) of Student's t with `df` degrees of freedom; NaN without an error.

    With an error of 0, any difference is certain.
    """
    if math.isnan(se) or df < 1:
        return math.nan
    if se == 0:
        return float(difference == 0)
    return float(2.0 * stdtr(df, -abs(difference / se)))


def margin(se: float, df: float) -> float:
    """Half the confidence interval of a number with this error."""
    return float(stdtrit(df, (1 + CONFIDENCE) / 2)) * se


def smallest_change(heads: int | None) -> float:
    """The smallest change that counts, of a mean or of a share of `heads`: SMALLEST, in whole heads."""
    if heads is None:
        return SMALLEST
    return max(SMALLEST_HEADS, -(-round(100 * SMALLEST) * heads // 100)) / heads


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
