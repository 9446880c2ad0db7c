"""What the questions are asked of: one study's heads over one kind of window, and every series judged together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.aggregate import Sample, column, complete, samples
from qkscope.checkpoints.revisions import LONG_CONTEXT, parse_revision
from qkscope.inference.course import direction
from qkscope.inference.levels import FEWEST_HEADS, HEAD_GROUPS, ONE_HEAD
from qkscope.inference.series import Change, Series, judged, whole
from qkscope.inference.transitions import Pair, class_probabilities, pair, polarity_probabilities
from qkscope.measures.null import FEWEST_GROUPS
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, POLARITIES, UNMEASURED, Thresholds, classify, polarity
from qkscope.timeline import Stop, Timeline

MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K = "mean r_q", "mean r_k", "mean |r_k|"
MEAN_EV = "mean explained variance"
SPREAD_R_Q, SPREAD_R_K = "spread of r_q across heads", "spread of r_k across heads"
LEAD_R_Q, LEAD_ABS_R_K = "lead of RoPE layers in mean r_q", "lead of RoPE layers in mean |r_k|"

Array = NDArray[np.float64]
Basis = Literal["documents", "heads", "too few groups", "nothing"]


def share_of(kind: str) -> str:
    """The name of the series of a class's or polarity's share."""
    return f"share of {kind} heads"


@dataclass(frozen=True)
class Evidence:
    """The measured checkpoints with their heads; `window` is None where each has its own.

    In a study of training, only heads measured in every checkpoint (and every leave-one-out sample) are kept:
    a change must not come from a change of heads. `dropped` counts the others. `basis` says what is left out to
    judge noise by; where it is heads, the rows of a sample lack groups of heads instead of documents.
    """

    timeline: Timeline
    stops: tuple[Stop, ...]
    samples: tuple[Sample, ...]
    thresholds: Thresholds
    basis: Basis
    window: int | None = None
    dropped: int = 0

    def label(self, i: int) -> str:
        return spoken(self.stops[i])

    @property
    def name(self) -> Literal["own", "matched"]:
        return "own" if self.window is None else "matched"

    @property
    def heads(self) -> int:
        """The number of heads compared."""
        return len(self.samples[0].heads) if self.samples else 0

    @property
    def groups(self) -> int:
        """The fewest groups left out at any checkpoint."""
        return min((sample.groups for sample in self.samples), default=0)

    @property
    def sure(self) -> bool:
        """Whether anything can be judged against noise."""
        return self.basis in ("documents", "heads")

    @cached_property
    def series(self) -> dict[str, Series]:
        """The numbers whose course is judged, by name; only those known at every checkpoint."""
        found = {name: self.of(name, statistic) for name, statistic in _STATISTICS.items()}
        found = {name: s for name, s in found.items() if all(np.isfinite(v[0]) for v in s.values)}
        for kind in CLASSES:
            found[share_of(kind)] = self._share(kind, self._classes, self._class_chances)
        for kind in POLARITIES:
            found[share_of(kind)] = self._share(kind, self._polarities, self._polarity_chances)
        return found

    def of(self, name: str, statistic: Callable[[Sample], Array]) -> Series:
        """A series from a statistic of each checkpoint, (1 + G,)."""
        return Series(name, tuple(np.asarray(statistic(s), dtype=np.float64) for s in self.samples))

    def _classes(self, s: Sample) -> NDArray[Any]:
        return classify(s.r_q, s.r_k, self.thresholds)

    def _polarities(self, s: Sample) -> NDArray[Any]:
        return polarity(s.r_k, self.thresholds.low)

    def _class_chances(self, s: Sample, kind: str) -> Array:
        chances = class_probabilities(s.r_q[0], s.r_k[0], *_errors(s), self.thresholds)
        return np.asarray(chances[CLASSES.index(kind)])

    def _polarity_chances(self, s: Sample, kind: str) -> Array:
        chances = polarity_probabilities(s.r_k[0], _errors(s)[1], self.thresholds.low)
        return np.asarray(chances[POLARITIES.index(kind)])

    def _share(
        self, kind: str, label: Callable[[Sample], NDArray[Any]], chances: Callable[[Sample, str], Array]
    ) -> Series:
        values, unseen = [], []
        for s in self.samples:
            names = label(s)
            values.append((names == kind).sum(axis=1) / np.maximum((names != UNMEASURED).sum(axis=1), 1))
            chance = chances(s, kind)
            heads = max(len(s.heads), 1)
            unseen.append(max(ONE_HEAD, float(np.nansum(chance * (1.0 - chance)))) / heads**2)
        return Series(share_of(kind), tuple(values), max(self.heads, 1), tuple(unseen))

    @cached_property
    def changes(self) -> list[Change]:
        """Every change of every series, judged together."""
        found = judged(list(self.series.values())) if len(self.samples) > 1 else []
        return found if self.sure else [replace(c, clear=False, excluded=False) for c in found]

    def changes_of(self, name: str) -> list[Change]:
        return [c for c in self.changes if c.series == name]

    def steps(self, name: str) -> list[Change]:
        """The changes of a series between neighbouring checkpoints."""
        return [c for c in self.changes_of(name) if c.kind == "step"]

    def overall(self, name: str) -> Change:
        """The change of a series from the first checkpoint to the last."""
        return whole(self.changes_of(name))

    def direction(self, name: str) -> str:
        """The verdict on a series as a whole."""
        return direction(self.changes_of(name))

    @cached_property
    def pairs(self) -> list[Pair]:
        """Neighbouring checkpoints, head by head."""
        return [pair(a, b, self.thresholds.low) for a, b in pairwise(self.samples)]

    @cached_property
    def widened(self) -> list[int]:
        """Indices of checkpoints whose own window differs from that of the one before."""
        found = enumerate(pairwise(stop.window for stop in self.stops), start=1)
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


def average(values: Array) -> Array:
    """(1 + G, H) -> (1 + G,): mean over the heads that a row has."""
    here = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(here, values, 0.0).sum(axis=1) / here.sum(axis=1))


def rope_of(sample: Sample) -> NDArray[Any]:
    """(H,) 1 where the layer rotates, 0 where it does not, NaN where the table does not say."""
    return column(sample.heads, "rope")


def _spread(values: Array) -> Array:
    middle = average(values)[:, None]
    return np.asarray(np.sqrt(average((values - middle) ** 2)))


def _lead(name: str) -> Callable[[Sample], Array]:
    def statistic(sample: Sample) -> Array:
        values, rope = sample.value(name), rope_of(sample)
        return average(values[:, rope == 1]) - average(values[:, rope == 0])

    return statistic


_STATISTICS: dict[str, Callable[[Sample], Array]] = {
    MEAN_R_Q: lambda s: average(s.r_q),
    MEAN_R_K: lambda s: average(s.r_k),
    MEAN_ABS_R_K: lambda s: average(s.abs_r_k),
    MEAN_EV: lambda s: average(s.ev),
    SPREAD_R_Q: lambda s: _spread(s.r_q),
    SPREAD_R_K: lambda s: _spread(s.r_k),
    LEAD_R_Q: _lead("r_q"),
    LEAD_ABS_R_K: _lead("abs_r_k"),
}


def _errors(s: Sample) -> tuple[Array, Array]:
    """Standard errors of r_q and r_k, (H,); an unknown error adds no variance."""
    return np.nan_to_num(column(s.heads, "r_q_se")), np.nan_to_num(column(s.heads, "r_k_se"))


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
    if results.matched is None or timeline.matched_window is None or own == {timeline.matched_window}:
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
    basis = _basis(kept)
    if basis == "heads":
        kept = [without_heads(sample) for sample in kept]
    return Evidence(timeline, stops, tuple(kept), results.thresholds, basis, window, dropped)


def _basis(found: Sequence[Sample]) -> Basis:
    """What noise is judged by: documents if every checkpoint has groups of them, else heads if there are enough."""
    groups = min((sample.groups for sample in found), default=0)
    if groups >= FEWEST_GROUPS:
        return "documents"
    if groups == FEWEST_GROUPS - 1:
        return "too few groups"
    return "heads" if found and all(len(sample.heads) >= FEWEST_HEADS for sample in found) else "nothing"


def without_heads(sample: Sample) -> Sample:
    """The full measurement, then the same without each of HEAD_GROUPS groups of heads, spread over the layers."""
    ranks = np.lexsort((sample.heads["head"].to_numpy(), sample.heads["layer"].to_numpy()))
    group = np.empty(len(ranks), dtype=np.int64)
    group[ranks] = np.arange(len(ranks)) % HEAD_GROUPS
    left = group == np.arange(HEAD_GROUPS)[:, None]  # (HEAD_GROUPS, H)

    def rows(values: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([values[:1], np.where(left, np.nan, values[:1])])

    return replace(sample, r_q=rows(sample.r_q), r_k=rows(sample.r_k), ev=rows(sample.ev))


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
