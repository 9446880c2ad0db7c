"""A number over the checkpoints -> which of its changes are more than noise, its direction, and when it rose.

Checkpoints are measured on the same documents, so a difference is taken within each leave-one-out sample and its
standard error is that of the paired differences: what all checkpoints share cancels. With G groups of documents
the ratio of a difference to its error follows Student's t, not the normal curve.

`what_changed` tells a change of attention from one of coordinates. Scaling queries up and keys down, or adding one
vector to all keys, changes published r but no attention weight, and neither balanced r nor the shares of score
variance: where these stay, attention did not change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.pca import FEWEST_GROUPS
from qkscope.measures.samples import jackknife
from qkscope.stats.contrast import error_of_difference, exceeds
from qkscope.stats.levels import (
    CONTRAST_LEVEL,
    ROUNDING,
    SMALLEST,
    STEPS_TO_POOL,
    STUDY_LEVEL,
    holm,
    margin,
    smallest_change,
    two_sided_p,
)

Array = NDArray[np.float64]
Direction = Literal["rises", "falls", "flat", "unclear"]


@dataclass(frozen=True)
class Series:
    """One number per checkpoint: values[i] is (1 + G,), the full measurement and each left-out group's.

    `heads` is the number of heads of a share, None for a mean: shares move in whole heads. `unseen` (checkpoints,)
    is a variance the jackknife cannot see: leaving a group out often moves no head although one sits on the edge of
    a class.
    """

    name: str
    values: tuple[Array, ...]
    heads: int | None = None
    unseen: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def at(self, i: int) -> float:
        return float(self.values[i][0])


@dataclass(frozen=True)
class Change:
    """A difference between two checkpoints of a series, by index.

    `se` is the error that a reader sees. `smallest` is the smallest change that counts: the verdict is `flat` if one of
    that size is excluded.
    """

    series: str
    start: int
    stop: int
    delta: float
    se: float
    df: int
    smallest: float = SMALLEST
    verdict: Direction = "unclear"

    @property
    def clear(self) -> bool:
        """Whether it is more than noise and not tiny."""
        return self.verdict in ("rises", "falls")

    @property
    def large(self) -> bool:
        """Whether it is at least the smallest change that counts."""
        return abs(self.delta) > self.smallest - ROUNDING


def change(series: Series, start: int, stop: int) -> Change:
    """The change from checkpoint `start` to `stop`, paired over groups where both have the same."""
    before, after = series.values[start], series.values[stop]
    se = error_of_difference(before, after, paired=len(before) == len(after))
    if series.unseen:
        se = math.sqrt(se**2 + series.unseen[start] + series.unseen[stop])
    df = max(0, min(len(before), len(after)) - 2)
    smallest = smallest_change(series.heads)
    return Change(series.name, start, stop, float(after[0] - before[0]), se, df, smallest)


def judged(many: Sequence[Series]) -> list[Change]:
    """Every step of every series, its change from first to last and its swings, tested together (Holm).

    A single step's error comes from G values only and may be too small by chance. Where a series has several steps, it
    is averaged with the mean over the steps unless the step's own is larger, and the degrees of freedom double. A swing
    was chosen out of all pairs of checkpoints: its p is multiplied by their number.
    """
    found: list[Change] = []
    tests: list[tuple[float, int, int]] = []
    for series in many:
        count, swings = len(series), _swings(series)
        steps = [change(series, i - 1, i) for i in range(1, count)]
        overall = [change(series, 0, count - 1)] if count > 2 else []
        usual = float(np.mean([c.se**2 for c in steps])) if len(steps) >= STEPS_TO_POOL else math.nan
        for c in (*steps, *overall, *swings):
            pooled = math.isfinite(usual)
            steady = math.sqrt(max(c.se**2, (c.se**2 + usual) / 2)) if pooled else c.se
            found.append(c)
            tests.append((steady, 2 * c.df if pooled else c.df, math.comb(count, 2) if c in swings else 1))
    return judge(found, STUDY_LEVEL, tests)


def whole(changes: Sequence[Change]) -> Change:
    """The change from first to last among those of one series; of two checkpoints it is their step."""
    return max(changes, key=lambda c: c.stop - c.start)


def judge(
    changes: Sequence[Change],
    level: float = STUDY_LEVEL,
    tests: Sequence[tuple[float, int, int]] | None = None,
) -> list[Change]:
    """Changes that answer one question, tested together (Holm), with their verdicts.

    A test is the standard error, its degrees of freedom and the factor by which p is multiplied; by default each change
    has its own error and a factor of 1.
    """
    tests = [(c.se, c.df, 1) for c in changes] if tests is None else tests
    p = [
        min(looks * two_sided_p(c.delta, se, df), 1.0)
        for c, (se, df, looks) in zip(changes, tests, strict=True)
    ]
    found = []
    for c, (se, df, _), passed in zip(changes, tests, holm(p, level), strict=True):
        verdict: Direction = "unclear"
        if df >= FEWEST_GROUPS - 1 and math.isfinite(se):
            if c.large and passed:
                verdict = "rises" if c.delta > 0 else "falls"
            elif not c.large and abs(c.delta) + margin(se, df) < c.smallest:
                verdict = "flat"
        found.append(replace(c, verdict=verdict))
    return found


def _swings(series: Series) -> list[Change]:
    """The deepest fall and the highest rise between any two checkpoints, unless a step or the whole is that."""
    count = len(series)
    values = np.array([series.at(i) for i in range(count)])
    rises = values[None, :] - values[:, None]  # (start, stop)
    later = np.triu(np.isfinite(rises), 1)
    found = []
    for sign in (-1, 1) if count > 2 else ():
        start, stop = divmod(int(np.argmax(np.where(later, sign * rises, -np.inf))), count)
        if 1 < stop - start < count - 1 and sign * rises[start, stop] > 0:
            found.append(change(series, start, stop))
    return found


# Measures of the attention function alone.
INVARIANT = ("r_q_balanced", "abs_r_k_balanced", "share_positional", "share_key", "share_match")
Changed = Literal["attention", "coordinates", "unclear", "unknown"]


def what_changed(invariant: Sequence[Change]) -> Changed:
    """Whether attention changed, from the changes of the INVARIANT means.

    `attention` if one of them changed clearly, `coordinates` if a change that counts is excluded in all of them, else
    `unclear`; `unknown` where some were not measured and the others do not decide it.
    """
    verdicts = {c.verdict for c in judge(invariant, CONTRAST_LEVEL)}
    if verdicts & {"rises", "falls"}:
        return "attention"
    if len(invariant) < len(INVARIANT):
        return "unknown"
    return "coordinates" if verdicts == {"flat"} else "unclear"


def direction(changes: Sequence[Change]) -> str:
    """The verdict on a whole series, given all its judged changes.

    `rises` needs a clear rise from first to last and no clear fall anywhere; where only parts of it move clearly,
    and all one way, the whole is unclear.
    """
    overall = whole(changes)
    seen = {c.verdict for c in changes} & {"rises", "falls"}
    if seen == {"rises", "falls"}:
        return "rises and falls"
    if overall.clear or not seen:
        return overall.verdict
    return "unclear"


def differ(a: float, b: float, se_a: float, se_b: float) -> bool:
    """Whether two numbers differ by at least SMALLEST and twice the error of the difference. An unknown error is 0."""
    return abs(a - b) >= max(SMALLEST, 2 * math.hypot(*np.nan_to_num([se_a, se_b])))


def turns(values: Sequence[float], errors: Sequence[float]) -> list[int]:
    """The checkpoints at which a series turns: highs and lows between the first and the last, in order.

    A turn counts if the series moves away from it, on both sides, by at least SMALLEST and twice the error of the
    difference. One that a later checkpoint exceeds before the next turn moves there.
    """

    def apart(i: int, j: int) -> bool:
        return differ(values[i], values[j], errors[i], errors[j])

    found: list[int] = []
    low = high = way = 0  # the lowest and highest checkpoint since the last turn; 1 rising, -1 falling
    for i, value in enumerate(values):
        low, high = i if value < values[low] else low, i if value > values[high] else high
        turn = None
        if way >= 0 and high < i and apart(i, high) and value < values[high]:
            turn, onward = high, -1
        elif way <= 0 and low < i and apart(i, low) and value > values[low]:
            turn, onward = low, 1
        if turn is not None:
            # Where the first checkpoint is as low or high within its error, the series begins here and does not turn.
            if way or apart(0, turn):
                found.append(turn)
            way, low, high = onward, i, i
        elif found and way * (values[found[-1]] - value) > 0:
            found[-1] = low = high = i  # beyond the last turn, although errors hide the way back from it
    return found


@dataclass(frozen=True)
class Emergence:
    """Which of several series (layers) rose, and when each had half of its rise.

    checkpoint     the one by which the first had half of it
    first          the series that had half of their rise by then
    perhaps        further series that by their errors may have had
    by_checkpoint  every series that rose, by the checkpoint at which it had half of its rise
    lost           series that rose and are clearly below half of their rise at the last checkpoint
    verdict        where none rose: `flat`, or `unclear`
    """

    checkpoint: int
    first: tuple[int, ...]
    perhaps: tuple[int, ...]
    by_checkpoint: Mapping[int, tuple[int, ...]]
    lost: tuple[int, ...] = ()
    verdict: str = "rises"

    @property
    def risen(self) -> set[int]:
        return {each for names in self.by_checkpoint.values() for each in names}


def emergence_of(many: Mapping[int, Series]) -> Emergence:
    """When each of several series rose. They are tested together: only clear rises count."""
    changes = judged(list(many.values()))
    risen, lost = {}, []
    for name, series in many.items():
        if rises := [c for c in changes if c.series == series.name and c.verdict == "rises"]:
            rise = max(rises, key=lambda c: c.delta)
            risen[name] = half_way(series, rise)
            if _clearly_below_half(series, rise, len(series) - 1):
                lost.append(name)
    if not risen:
        flat = {c.verdict for c in changes} == {"flat"}
        return Emergence(0, (), (), {}, verdict="flat" if flat else "unclear")
    checkpoint = min(sure for sure, _ in risen.values())
    by_checkpoint = {
        at: tuple(name for name, (sure, _) in risen.items() if sure == at)
        for at in sorted({sure for sure, _ in risen.values()})
    }
    near = tuple(name for name, (sure, perhaps) in risen.items() if perhaps <= checkpoint < sure)
    return Emergence(checkpoint, by_checkpoint[checkpoint], near, by_checkpoint, tuple(lost))


def half_way(series: Series, rise: Change) -> tuple[int, int]:
    """The first checkpoint at which a series has half of a rise, and the first at which by its errors it may have."""
    later = range(rise.start + 1, len(series))
    sure = next(i for i in later if series.at(i) >= _half(series, rise)[0])
    return sure, next(i for i in later if i == sure or not _clearly_below_half(series, rise, i))


def _half(series: Series, rise: Change) -> Array:
    """The value half-way up a rise. (1 + G,)"""
    return (series.values[rise.start] + series.values[rise.stop]) / 2


def _clearly_below_half(series: Series, rise: Change, i: int) -> bool:
    short = _half(series, rise) - series.values[i]  # (1 + G,)
    return exceeds(float(short[0]), float(jackknife(short[1:])), 0.0, len(short) - 2)
