"""The shape of a series over training: its direction, its jumps, the places where it rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from qkscope.inference.levels import PLACED_IN_PART, PLACED_WITHIN, PLATEAU, SMALLEST, STANDS_OUT
from qkscope.inference.series import Change, Series, change, whole
from qkscope.timeline import Stop


def direction(changes: Sequence[Change]) -> str:
    """The verdict on a whole series, given all its judged changes.

    `rises` needs a clear rise from first to last and no clear fall anywhere; where only parts of it move clearly,
    and all one way, the whole cannot be told.
    """
    overall = whole(changes)
    seen = {c.verdict for c in changes} & {"rises", "falls"}
    if seen == {"rises", "falls"}:
        return "rises and falls"
    if overall.clear or not seen:
        return overall.verdict
    return "cannot tell"


@dataclass(frozen=True)
class Jump:
    """A step that stands out from the others of its series; `placed` if training is short enough to say where."""

    change: Change
    placed: bool


def intervals(stops: Sequence[Stop]) -> list[int | None]:
    """Training steps between neighbouring stops; None where not known.

    Where a phase counts its steps anew, those since its start are taken: what ended the phase before is not known.
    """
    found: list[int | None] = []
    for before, after in pairwise(stops):
        if before.step is None or after.step is None:
            found.append(None)
        else:
            found.append(after.step - before.step if after.step > before.step else after.step or None)
    return found


def jumps(steps: Sequence[Change], stops: Sequence[Stop]) -> list[Jump]:
    """The clear steps of one series that stand out per interval and, where known, per training step."""
    spans = intervals(stops)
    sizes = [abs(c.delta) for c in steps]
    rates = [size / span for size, span in zip(sizes, spans, strict=True) if span]
    found = []
    for i, c in enumerate(steps):
        span = spans[i]
        if not c.clear or not _stands_out(sizes[i], sizes):
            continue
        if span and len(rates) == len(spans) and not _stands_out(sizes[i] / span, rates):
            continue
        found.append(Jump(c, placed(spans, i)))
    return found


def placed(spans: Sequence[int | None], at: int) -> bool:
    """Whether an interval is short enough, beside all of them, to say where in training its step lies."""
    span, known = spans[at], [span for span in spans if span]
    short = max(PLACED_WITHIN * median(known), PLACED_IN_PART * sum(known)) if known else 0
    return span is None or span <= short


def _stands_out(size: float, all_sizes: Sequence[float]) -> bool:
    """At least STANDS_OUT times the median of the others; alone, it does."""
    others = list(all_sizes)
    others.remove(size)
    return not others or size >= STANDS_OUT * median(others)


def plateaus(series: Series) -> list[tuple[int, int]]:
    """Runs of PLATEAU or more checkpoints over which the series stays within SMALLEST: (first, last) indices.

    Only where no step's error is above half of that: else such a change could hide in the noise. Runs do not
    overlap; the longest come first to the choice, then the earliest.
    """
    count = len(series)
    sure = [change(series, i - 1, i).se <= SMALLEST / 2 for i in range(1, count)]
    values = [series.at(i) for i in range(count)]
    runs = []
    for first in range(count - PLATEAU + 1):
        low = high = values[first]
        for last in range(first + 1, count):
            low, high = min(low, values[last]), max(high, values[last])
            if not sure[last - 1] or not high - low < SMALLEST:
                break  # and so is every longer run from here
            if last - first + 1 >= PLATEAU:
                runs.append((first, last))
    chosen: list[tuple[int, int]] = []
    for first, last in sorted(runs, key=lambda run: (run[0] - run[1], run[0])):
        if all(last < a or first > b for a, b in chosen):
            chosen.append((first, last))
    return sorted(chosen)
