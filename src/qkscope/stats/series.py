"""A number over the checkpoints -> which of its changes are more than noise.

Checkpoints are measured on the same documents, so a difference is taken within each leave-one-out sample and its
standard error is that of the paired differences: what all checkpoints share cancels. With G groups of documents
the ratio of a difference to its error follows Student's t, not the normal curve.

`what_changed` tells a change of attention from one of coordinates. Scaling queries up and keys down, or adding one
vector to all keys, changes published r but no attention weight, and neither balanced r nor the shares of score
variance: where these stay, attention did not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.jackknife import jackknife
from qkscope.measures.null import FEWEST_GROUPS
from qkscope.stats import levels
from qkscope.stats.levels import (
    CONFIDENCE,
    CONTRAST_LEVEL,
    SMALLEST,
    STEPS_TO_POOL,
    STUDY_LEVEL,
    holm,
    t_quantile,
    two_sided_p,
)

Array = NDArray[np.float64]
Kind = Literal["step", "overall", "swing"]


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

    def se(self, i: int) -> float:
        """Standard error of the number at checkpoint i, with what the jackknife cannot see."""
        return math.sqrt(float(jackknife(self.values[i][1:])) ** 2 + self.hidden(i))

    def hidden(self, i: int) -> float:
        return self.unseen[i] if self.unseen else 0.0

    def large(self, delta: float) -> bool:
        """Whether a difference is worth a word; shares are compared in whole heads, where ties are exact."""
        if self.heads is None:
            return abs(delta) >= SMALLEST
        return abs(round(delta * self.heads)) >= levels.smallest_heads(self.heads)

    @property
    def smallest(self) -> float:
        """The smallest change worth a word."""
        return SMALLEST if self.heads is None else levels.smallest_heads(self.heads) / self.heads


@dataclass(frozen=True)
class Change:
    """A difference between two checkpoints of a series, by index.

    `se` is the error that a reader sees; `steady` is the one that judges, never smaller. `clear` if it is more than
    noise and not tiny, `excluded` if a change worth a word is. `kind` says how it was found: between neighbours, from
    first to last, or as the deepest fall or highest rise of all.
    """

    series: str
    start: int
    stop: int
    delta: float
    se: float
    df: int
    kind: Kind = "step"
    p: float = math.nan
    clear: bool = False
    excluded: bool = False
    steady: float = math.nan

    @property
    def verdict(self) -> str:
        """`rises`, `falls`, `flat` (one worth a word is excluded) or `unclear`."""
        if self.clear:
            return "rises" if self.delta > 0 else "falls"
        return "flat" if self.excluded else "unclear"

    @property
    def margin(self) -> float:
        """Half the confidence interval; infinite without an error."""
        known = self.df > 0 and math.isfinite(self.steady)
        return t_quantile((1 + CONFIDENCE) / 2, self.df) * self.steady if known else math.inf


def change(series: Series, start: int, stop: int, kind: Kind = "step") -> Change:
    """The change from checkpoint `start` to `stop`, paired over groups where both have the same."""
    before, after = series.values[start], series.values[stop]
    delta = float(after[0] - before[0])
    df = min(len(before), len(after)) - 2
    if df < 1:
        return Change(series.name, start, stop, delta, math.nan, 0, kind)
    if len(before) == len(after):
        paired = float(jackknife(after[1:] - before[1:]))
        se = math.sqrt(paired**2 + series.hidden(start) + series.hidden(stop))
    else:
        se = math.hypot(series.se(start), series.se(stop))
    return Change(series.name, start, stop, delta, se, df, kind)


def judged(many: Sequence[Series]) -> list[Change]:
    """Every step of every series, its change from first to last and its swings, judged together (Holm).

    A single step's error comes from G values only and may be small by luck. Where a series has several steps, it is
    averaged with the mean over the steps unless the step's own is larger, and the degrees of freedom double.
    """
    found = [c for series in many for c in _measured(series)]
    passed = holm([c.p for c in found], STUDY_LEVEL)
    by_name = {series.name: series for series in many}
    return [_with_verdict(c, by_name[c.series], ok) for c, ok in zip(found, passed, strict=True)]


def judge(changes: Sequence[Change], level: float = STUDY_LEVEL) -> list[Change]:
    """Single changes of means that answer one question, each with its own error, judged together (Holm)."""
    tested = [replace(c, steady=c.se, p=_p(c.delta, c.se, c.df)) for c in changes]
    passed = holm([c.p for c in tested], level)
    return [_with_verdict(c, Series(c.series, ()), ok) for c, ok in zip(tested, passed, strict=True)]


def whole(changes: Sequence[Change]) -> Change:
    """The change from first to last among those of one series; of two checkpoints it is their step."""
    return max(changes, key=lambda c: c.stop - c.start)


def _with_verdict(c: Change, series: Series, passed: bool) -> Change:
    if c.df < FEWEST_GROUPS - 1 or not math.isfinite(c.steady):
        return c
    excluded = abs(c.delta) + c.margin < series.smallest
    return replace(c, clear=passed and series.large(c.delta), excluded=excluded and not series.large(c.delta))


def _measured(series: Series) -> list[Change]:
    count = len(series)
    steps = [change(series, i - 1, i) for i in range(1, count)]
    overall = [change(series, 0, count - 1, "overall")] if count > 2 else []
    usual = float(np.mean([c.se**2 for c in steps])) if steps else math.nan
    pooled = len(steps) >= STEPS_TO_POOL and math.isfinite(usual)
    result = []
    for c in (*steps, *overall, *_swings(series)):
        variance = max(c.se**2, (c.se**2 + usual) / 2) if pooled else c.se**2
        # A swing was chosen out of all pairs of checkpoints: its p is multiplied by their number.
        looks = math.comb(count, 2) if c.kind == "swing" else 1
        df = 2 * c.df if pooled else c.df
        steady = math.sqrt(variance)
        result.append(replace(c, steady=steady, df=df, p=min(1.0, looks * _p(c.delta, steady, df))))
    return result


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
            found.append(change(series, start, stop, "swing"))
    return found


def _p(delta: float, se: float, df: int) -> float:
    if math.isnan(se) or df < 1:
        return math.nan
    if se == 0.0:
        return 1.0 if delta == 0.0 else 0.0
    return two_sided_p(delta / se, df)


# Measures of the attention function alone.
INVARIANT = ("r_q_balanced", "abs_r_k_balanced", "share_positional", "share_key", "share_match")
Changed = Literal["attention", "coordinates", "unclear", "unknown"]


def what_changed(invariant: Sequence[Change]) -> Changed:
    """`attention` if one of the INVARIANT means changed clearly, `coordinates` if a change worth a word is excluded in
    all of them, else `unclear`; `unknown` where some were not measured and the others do not tell."""
    verdicts = {c.verdict for c in judge(invariant, CONTRAST_LEVEL)}
    if verdicts & {"rises", "falls"}:
        return "attention"
    if len(invariant) < len(INVARIANT):
        return "unknown"
    return "coordinates" if verdicts == {"flat"} else "unclear"
