"""A series of numbers over training -> which of its steps are more than noise, which are jumps, where it rests.

Checkpoints are measured on the same documents, so a difference is taken within each leave-one-out sample and its
standard error is that of the paired differences: what all checkpoints share cancels. With G groups of documents
the ratio of a difference to its error follows Student's t, not the normal curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from qkscope.findings.significance import holm, two_sided_p
from qkscope.measures.jackknife import jackknife

Array = NDArray[np.float64]

# The chance of one false alarm among all series and steps of a study.
LEVEL = 0.02
# Smaller changes of a mean correlation or of a share are not worth a word, however certain.
SMALLEST = 0.02
# A jump stands out: it is at least so many times the median of the other steps of its series.
STANDS_OUT = 2.0
# With so many steps, their errors are steadied by the average over the steps.
STEPS_TO_POOL = 3


@dataclass(frozen=True)
class Series:
    """One number per checkpoint: values[i] is (1 + G,), the full measurement and each left-out group's.

    `unseen` (checkpoints,) is a variance the jackknife cannot see: counts of heads move in whole heads, so leaving
    a group out often moves none although a head sits on the edge of a class.
    """

    name: str
    values: tuple[Array, ...]
    smallest: float = SMALLEST
    unseen: tuple[float, ...] = ()

    def at(self, i: int) -> float:
        return float(self.values[i][0])

    def se(self, i: int) -> float:
        """Standard error of the number at checkpoint i, as figures and tables have it."""
        return float(jackknife(self.values[i][1:]))

    def error(self, i: int) -> float:
        """The same with what the jackknife cannot see."""
        return math.sqrt(self.se(i) ** 2 + self.hidden(i))

    def hidden(self, i: int) -> float:
        return self.unseen[i] if self.unseen else 0.0


@dataclass(frozen=True)
class Change:
    """A difference between two checkpoints of a series (by index); `clear` if it is more than noise and not tiny."""

    series: str
    start: int
    stop: int
    delta: float
    se: float
    df: int
    p: float = math.nan
    clear: bool = False
    jump: bool = False


def change(series: Series, start: int, stop: int) -> Change:
    """The change from checkpoint `start` to `stop`, paired over document groups where both have the same."""
    before, after = series.values[start], series.values[stop]
    delta = float(after[0] - before[0])
    df = min(len(before), len(after)) - 2
    if df < 1:
        return Change(series.name, start, stop, delta, math.nan, 0)
    if len(before) == len(after):
        paired = float(jackknife(after[1:] - before[1:]))
        se = math.sqrt(paired**2 + series.hidden(start) + series.hidden(stop))
    else:
        se = math.hypot(series.error(start), series.error(stop))
    return Change(series.name, start, stop, delta, se, df)


def study_changes(many: Sequence[Series]) -> list[Change]:
    """Every step of every series, then its change from first to last, judged together (Holm at LEVEL).

    A single step's error comes from G values only and may be small by luck. Where a series has several steps, it is
    averaged with the mean over the steps unless the step's own is larger, and the degrees of freedom double.
    Where there are no errors at all, size alone decides; whoever speaks of such a change must say so.
    """
    found: list[Change] = []
    for series in many:
        count = len(series.values)
        steps = [change(series, i - 1, i) for i in range(1, count)]
        overall = [change(series, 0, count - 1)] if count > 2 else []
        found += _steadied(steps, overall)
    passed = holm([c.p for c in found], LEVEL)
    floor = {series.name: series.smallest for series in many}
    judged = [
        replace(c, clear=(ok or math.isnan(c.p)) and abs(c.delta) >= floor[c.series])
        for c, ok in zip(found, passed, strict=True)
    ]
    return _with_jumps(judged)


def _steadied(steps: list[Change], overall: list[Change]) -> list[Change]:
    usual = float(np.mean([c.se**2 for c in steps])) if steps else math.nan
    pooled = len(steps) >= STEPS_TO_POOL and math.isfinite(usual)
    result = []
    for c in steps + overall:
        variance = max(c.se**2, (c.se**2 + usual) / 2) if pooled else c.se**2
        df = 2 * c.df if pooled else c.df
        result.append(replace(c, se=math.sqrt(variance), df=df, p=_p(c.delta, math.sqrt(variance), df)))
    return result


def _p(delta: float, se: float, df: int) -> float:
    if math.isnan(se):
        return math.nan
    if se == 0.0:
        return 1.0 if delta == 0.0 else 0.0
    return two_sided_p(delta / se, df)


def _with_jumps(changes: list[Change]) -> list[Change]:
    """Mark the clear steps that stand out among the steps of their series: in a steady climb, none does."""
    result = []
    for c in changes:
        rest = [abs(o.delta) for o in changes if o.series == c.series and is_step(o) and o.start != c.start]
        stands_out = not rest or abs(c.delta) >= STANDS_OUT * median(rest)
        result.append(replace(c, jump=c.clear and is_step(c) and stands_out))
    return result


def is_step(c: Change) -> bool:
    """Whether the change is between neighbours (not from first to last)."""
    return c.stop - c.start == 1


def plateaus(series: Series, width: float = SMALLEST) -> list[tuple[int, int]]:
    """Runs of three or more checkpoints over which the series stays within `width`: (first, last) indices.

    Only where no step's error is above half of `width`: else a change of that size could hide in the noise. Runs
    do not overlap; the longest come first to the choice, then the earliest.
    """
    count = len(series.values)
    sure = [not change(series, i - 1, i).se > width / 2 for i in range(1, count)]
    runs = []
    for first in range(count - 2):
        for last in range(first + 2, count):
            inside = [series.at(i) for i in range(first, last + 1)]
            if all(sure[first:last]) and max(inside) - min(inside) < width:
                runs.append((first, last))
    chosen: list[tuple[int, int]] = []
    for first, last in sorted(runs, key=lambda run: (run[0] - run[1], run[0])):
        if all(last < a or first > b for a, b in chosen):
            chosen.append((first, last))
    return sorted(chosen)
