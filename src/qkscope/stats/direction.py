"""The shape of a series over training: its direction, and when it rose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qkscope.measures.samples import jackknife
from qkscope.stats.contrast import exceeds
from qkscope.stats.levels import SMALLEST
from qkscope.stats.series import Change, Series, judged, whole


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


def turns(values: Sequence[float], errors: Sequence[float]) -> list[int]:
    """The checkpoints at which a series turns: highs and lows between the first and the last, in order.

    A turn counts if the series moves away from it, on both sides, by at least SMALLEST and twice the error of the
    difference. One that a later checkpoint exceeds before the next turn moves there.
    """
    known = np.nan_to_num(np.asarray(errors, dtype=np.float64))

    def apart(i: int, j: int) -> bool:
        return abs(values[i] - values[j]) >= max(SMALLEST, 2 * float(np.hypot(known[i], known[j])))

    found: list[int] = []
    low = high = way = 0  # the lowest and highest checkpoint since the last turn; 1 rising, -1 falling
    for i, value in enumerate(values):
        low, high = i if value < values[low] else low, i if value > values[high] else high
        if way >= 0 and high < i and apart(i, high) and value < values[high]:
            found.append(high)
            way, low, high = -1, i, i
        elif way <= 0 and low < i and apart(i, low) and value > values[low]:
            found.append(low)
            way, low, high = 1, i, i
        elif found and found[-1] > 0 and way * (values[found[-1]] - value) > 0:
            found[-1] = low = high = i  # beyond the last turn, although errors hide the way back from it
    return [i for i in found if i > 0]


@dataclass(frozen=True)
class Emergence:
    """Which of several series (layers) rose, and when each had half of its rise.

    checkpoint     the one by which the first had half of it
    first          the series that had half of their rise by then
    perhaps        further series that by their errors may have had
    by_checkpoint  every series that rose, by the checkpoint at which it had half of its rise
    verdict        where none rose: `flat`, or `unclear`
    """

    checkpoint: int
    first: tuple[int, ...]
    perhaps: tuple[int, ...]
    by_checkpoint: Mapping[int, tuple[int, ...]]
    verdict: str = "rises"

    @property
    def risen(self) -> set[int]:
        return {each for names in self.by_checkpoint.values() for each in names}


def emergence_of(many: Mapping[int, Series]) -> Emergence:
    """When each of several series rose. They are judged together: only clear rises count."""
    changes = judged(list(many.values()))
    risen = {}
    for name, series in many.items():
        rises = [c for c in changes if c.series == series.name and c.verdict == "rises"]
        if rises:
            risen[name] = half_way(series, max(rises, key=lambda c: c.delta))
    if not risen:
        flat = {c.verdict for c in changes} == {"flat"}
        return Emergence(0, (), (), {}, "flat" if flat else "unclear")
    checkpoint = min(sure for sure, _ in risen.values())
    by_checkpoint = {
        at: tuple(name for name, (sure, _) in risen.items() if sure == at)
        for at in sorted({sure for sure, _ in risen.values()})
    }
    near = tuple(name for name, (sure, perhaps) in risen.items() if perhaps <= checkpoint < sure)
    return Emergence(checkpoint, by_checkpoint[checkpoint], near, by_checkpoint)


def half_way(series: Series, rise: Change) -> tuple[int, int]:
    """The first checkpoint at which a series has half of a rise, and the first at which by its errors it may have."""
    half = (series.values[rise.start] + series.values[rise.stop]) / 2

    def clearly_below(i: int) -> bool:
        short = half - series.values[i]  # (1 + G,)
        return exceeds(float(short[0]), float(jackknife(short[1:])), 0.0, len(short) - 2)

    later = range(rise.start + 1, len(series))
    sure = next(i for i in later if series.at(i) >= half[0])
    return sure, next(i for i in later if i == sure or not clearly_below(i))
