"""What the questions are asked of: one study's heads over one kind of window, ready for comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.aggregate import Sample, column, complete, samples, shares
from qkscope.checkpoints.revisions import LONG_CONTEXT, parse_revision
from qkscope.findings.changes import SMALLEST, Change, Series, is_step, study_changes
from qkscope.findings.conversions import Pair, class_probabilities, pair
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, Thresholds, classify
from qkscope.timeline import Stop, Timeline

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot tell"

MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K = "mean r_q", "mean r_k", "mean |r_k|"
MEAN_EV = "mean explained variance"
DOMINATED = "share of position-dominated heads"
CONTENT = "share of content-focused heads"


@dataclass(frozen=True)
class Reading:
    """One question's answer over one kind of window: a verdict, a sentence, the numbers in it.

    `brief` is the sentence cut down to its numbers, to stand beside another window's that says the same.
    """

    verdict: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    brief: str = ""


@dataclass(frozen=True)
class Evidence:
    """The measured checkpoints with their heads; `window` is None where each has its own.

    In a study of training, only heads measured in every checkpoint (and every leave-one-out sample) are kept:
    a change must not come from a change of heads. `dropped` counts the others.
    """

    timeline: Timeline
    stops: tuple[Stop, ...]
    samples: tuple[Sample, ...]
    thresholds: Thresholds
    window: int | None = None
    dropped: int = 0

    def label(self, i: int) -> str:
        return spoken(self.stops[i])

    @property
    def heads(self) -> int:
        """The number of heads compared."""
        return len(self.samples[0].heads) if self.samples else 0

    @property
    def groups(self) -> int:
        """The fewest document groups of any checkpoint; below two there are no standard errors."""
        return min((sample.groups for sample in self.samples), default=0)

    @cached_property
    def series(self) -> dict[str, Series]:
        """The numbers whose course over training is judged, by name."""
        means = {
            MEAN_R_Q: self.of(MEAN_R_Q, lambda s: s.r_q.mean(axis=1)),
            MEAN_R_K: self.of(MEAN_R_K, lambda s: s.r_k.mean(axis=1)),
            MEAN_ABS_R_K: self.of(MEAN_ABS_R_K, lambda s: s.abs_r_k.mean(axis=1)),
            MEAN_EV: self.of(MEAN_EV, lambda s: s.ev.mean(axis=1)),
        }
        found = {name: s for name, s in means.items() if all(np.isfinite(v[0]) for v in s.values)}
        for name, kind in ((DOMINATED, "position-dominated"), (CONTENT, "content-focused")):
            found[name] = self._share(name, kind)
        return found

    def of(self, name: str, statistic: Callable[[Sample], NDArray[Any]]) -> Series:
        """A series from a statistic of each checkpoint, (1 + G,)."""
        return Series(name, tuple(np.asarray(statistic(s), dtype=np.float64) for s in self.samples))

    def _share(self, name: str, kind: str) -> Series:
        values, unseen = [], []
        index = CLASSES.index(kind)
        for s in self.samples:
            values.append(shares(classify(s.r_q, s.r_k, self.thresholds), [kind])[:, 0])
            # An unknown error adds no variance.
            se_q, se_k = (np.nan_to_num(column(s.heads, name)) for name in ("r_q_se", "r_k_se"))
            chance = class_probabilities(s.r_q[0], s.r_k[0], se_q, se_k, self.thresholds)[index]
            unseen.append(float(np.nansum(chance * (1.0 - chance))) / max(self.heads, 1) ** 2)
        smallest = max(SMALLEST, 2 / max(self.heads, 1))
        return Series(name, tuple(values), smallest, tuple(unseen))

    @cached_property
    def changes(self) -> list[Change]:
        return study_changes(list(self.series.values()))

    def steps(self, name: str) -> list[Change]:
        """The changes of a series between neighbouring checkpoints."""
        return [c for c in self.changes if c.series == name and is_step(c)]

    def overall(self, name: str) -> Change:
        """The change of a series from the first checkpoint to the last."""
        return [c for c in self.changes if c.series == name][-1]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Neighbouring checkpoints, head by head."""
        return [pair(a, b) for a, b in pairwise(self.samples)]

    @cached_property
    def widened(self) -> list[int]:
        """Indices of checkpoints whose own window differs from that of the one before."""
        windows = [stop.window for stop in self.stops]
        found = enumerate(pairwise(windows), start=1)
        return [i for i, (a, b) in found if a is not None and b is not None and a != b]

    @cached_property
    def onset(self) -> int | None:
        """The first checkpoint of long-context training: of a longer window, or named so."""
        longer = [i for i in self.widened if (self.stops[i].window or 0) > (self.stops[i - 1].window or 0)]
        if longer:
            return longer[0]
        named = [parse_revision(stop.model) for stop in self.stops]
        long = [r is not None and r.phase_key[0] == LONG_CONTEXT for r in named]
        return next((i for i in range(1, len(long)) if long[i] and not long[i - 1]), None)


def spoken(stop: Stop) -> str:
    """A checkpoint's short label as a sentence needs it: a bare number is a step."""
    return f"step {stop.label}" if stop.label[:1].isdigit() else stop.label


def own_evidence(results: Results) -> Evidence:
    """Each checkpoint over its own window."""
    return _evidence(results, results.heads, results.loo, None)


def matched_evidence(results: Results) -> Evidence | None:
    """Every checkpoint over the same window, if that was measured and is not each one's own anyway."""
    timeline = results.timeline
    own = {stop.window for stop in timeline.measured}
    if results.matched is None or own == {timeline.matched_window}:
        return None
    return _evidence(results, results.matched, results.loo_matched, timeline.matched_window)


def _evidence(
    results: Results, heads: pd.DataFrame, loo: pd.DataFrame | None, window: int | None
) -> Evidence:
    timeline = results.timeline
    found = samples(heads, loo, timeline.models)
    dropped = 0
    if timeline.kind == "training":
        found, dropped = _common(found)
    else:
        found = [complete(sample) for sample in found]
    kept = [sample for sample in found if len(sample.heads)]
    stops = tuple(timeline.stop(sample.model) for sample in kept)
    return Evidence(timeline, stops, tuple(kept), results.thresholds, window, dropped)


def _common(found: Sequence[Sample]) -> tuple[list[Sample], int]:
    """The heads complete in every checkpoint, in one order, and how many others there are."""
    if not found:
        return [], 0
    whole = [complete(sample) for sample in found]
    keys = [_keys(sample) for sample in whole]
    shared = set(keys[0]).intersection(*keys[1:])
    order = [key for key in keys[0] if key in shared]
    aligned = []
    for sample, own in zip(whole, keys, strict=True):
        row = {key: i for i, key in enumerate(own)}
        aligned.append(sample.select(np.array([row[key] for key in order], dtype=np.int64)))
    every = set().union(*(_keys(sample) for sample in found))
    return aligned, len(every) - len(order)


def _keys(sample: Sample) -> list[tuple[int, int]]:
    """(layer, head) of each row."""
    return list(zip(sample.heads["layer"].tolist(), sample.heads["head"].tolist(), strict=True))


def plain(value: Any) -> Any:
    """Numbers as JSON has them: NaN is None, numpy scalars are Python's."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
