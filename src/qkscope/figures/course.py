"""How a number changes over the checkpoints, judged against noise: what the sentences are made of.

Differences are paired: both checkpoints read the same documents, so each is compared without the same group of them,
and what they share cancels. A table without document groups is judged by leaving out groups of heads instead, which
tells how much a change rests on a few heads; with too few heads for that, nothing is called clear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.aggregate import Sample, mean_over_heads
from qkscope.figures.view import View
from qkscope.inference.levels import FEWEST_HEADS, HEAD_GROUPS, STUDY_LEVEL
from qkscope.inference.series import Change, Series, change, judged, whole
from qkscope.inference.significance import two_sided_p
from qkscope.taxonomy import classify, polarity

DOCUMENTS, HEADS, NOTHING = "documents", "heads", "nothing"

Array = NDArray[np.float64]
Statistic = Callable[[Sample], Array]
"""A checkpoint's heads -> (1 + G,): the number, and the number without each document group."""


def mean_of(name: str, rows: Callable[[Sample], Any] | None = None) -> Statistic:
    """Mean of r_q, r_k, abs_r_k or ev over the measured heads, or over some of them."""

    def statistic(sample: Sample) -> Array:
        values = sample.value(name)
        kept = np.ones(values.shape[1], dtype=bool) if name == "ev" else sample.measured
        if rows is not None:
            kept = kept & np.asarray(rows(sample), dtype=bool)
        return mean_over_heads(values[:, kept])

    return statistic


def spread_of(name: str) -> Statistic:
    """Standard deviation across the measured heads."""

    def statistic(sample: Sample) -> Array:
        values = sample.value(name)[:, np.isfinite(sample.r_q + sample.r_k).all(axis=0)]
        return np.asarray(values.std(axis=1)) if values.shape[1] else np.full(len(values), np.nan)

    return statistic


def share_of(label: Callable[[Sample], Any], kind: str) -> Statistic:
    """Share of the measured heads that `label`, (1 + G, H) names, calls `kind`."""

    def statistic(sample: Sample) -> Array:
        here = sample.measured
        if not here.any():
            return np.full(1 + sample.groups, np.nan)
        named = np.asarray(label(sample) == kind)
        # As for means: the heads missing from one leave-one-out sample only are left out of all of them.
        whole = np.isfinite(sample.r_q + sample.r_k).all(axis=0)
        left = named[1:, whole].mean(axis=1) if whole.any() else np.full(sample.groups, np.nan)
        return np.asarray(np.r_[named[0, here].mean(), left])

    return statistic


def class_share(view: View, kind: str) -> Statistic:
    return share_of(lambda s: classify(s.r_q, s.r_k, view.results.thresholds), kind)


def polarity_share(view: View, kind: str) -> Statistic:
    return share_of(lambda s: polarity(s.r_k, view.results.thresholds.low), kind)


@dataclass(frozen=True)
class Course:
    """A series with the names of its checkpoints; `percent` if it is a share."""

    name: str
    models: tuple[str, ...]
    labels: tuple[str, ...]
    series: Series
    basis: str
    percent: bool = False

    def __len__(self) -> int:
        return len(self.models)

    @cached_property
    def values(self) -> Array:
        return np.array([self.series.at(i) for i in range(len(self))])

    @cached_property
    def _changes(self) -> list[Change]:
        found = judged([self.series]) if len(self) > 1 else []
        return [replace(c, clear=c.clear and bool(np.isfinite(c.se))) for c in found]

    @property
    def steps(self) -> list[Change]:
        return [c for c in self._changes if c.kind == "step"]

    @property
    def whole(self) -> Change:
        """From the first checkpoint to the last."""
        return whole(self._changes)

    @property
    def largest(self) -> Change:
        return max(self.steps, key=lambda c: abs(c.delta))

    @property
    def judged(self) -> bool:
        """Whether noise is known at all."""
        return self.basis != NOTHING and bool(np.isfinite(self.whole.se))

    @property
    def direction(self) -> int:
        """1, -1, or 0 where the change from first to last is not clear."""
        return int(np.sign(self.whole.delta)) if self.whole.clear else 0

    def swing(self, sign: int) -> Change:
        """The deepest fall (-1) or highest rise (+1) between any two checkpoints, earlier to later.

        Of n checkpoints n(n-1)/2 pairs were looked at, so the chance of a false alarm is shared among them.
        """
        pairs = [(i, j) for i in range(len(self)) for j in range(i + 1, len(self))]
        start, stop = max(pairs, key=lambda p: sign * (self.values[p[1]] - self.values[p[0]]))
        found = change(self.series, start, stop)
        if sign * found.delta <= 0 or not np.isfinite(found.se):
            return found
        p = two_sided_p(found.delta / found.se, found.df) if found.se > 0 else 0.0
        return replace(found, clear=p < STUDY_LEVEL / len(pairs) and self.series.large(found.delta))

    def between(self, before: str, after: str) -> Change | None:
        """The change between two named checkpoints, judged on its own."""
        if before not in self.models or after not in self.models:
            return None
        found = change(self.series, self.models.index(before), self.models.index(after))
        if not np.isfinite(found.se):
            return found
        p = two_sided_p(found.delta / found.se, found.df) if found.se > 0 else float(found.delta == 0)
        return replace(found, clear=p < STUDY_LEVEL and self.series.large(found.delta))


def follow(
    view: View, name: str, statistic: Statistic, *, matched: bool = False, percent: bool = False
) -> Course | None:
    """The number over own windows, or over the matched window; None where that was not measured."""
    found = view.matched_samples if matched else view.own_samples
    basis = _basis(found)
    values = [_values(sample, statistic, basis) for sample in found]
    kept = [i for i, each in enumerate(values) if np.isfinite(each[0])]
    if not kept:
        return None
    heads = max(len(found[0].heads), 1) if percent else None
    series = Series(name, tuple(values[i] for i in kept), heads)
    models = tuple(found[i].model for i in kept)
    return Course(name, models, tuple(view.labels[m] for m in models), series, basis, percent)


def _basis(found: Sequence[Sample]) -> str:
    """What noise is judged by: documents if every checkpoint has groups of them, else heads if there are enough."""
    if found and all(sample.groups >= 2 for sample in found):
        return DOCUMENTS
    enough = found and all(int(sample.measured.sum()) >= FEWEST_HEADS for sample in found)
    return HEADS if enough else NOTHING


def _values(sample: Sample, statistic: Statistic, basis: str) -> Array:
    """(1 + groups,): the number, and the number without each group of documents or heads."""
    if basis != HEADS:
        return statistic(sample) if basis == DOCUMENTS else statistic(sample)[:1]
    ranks = np.lexsort((sample.heads["head"].to_numpy(), sample.heads["layer"].to_numpy()))
    group = np.empty(len(ranks), dtype=np.int64)
    group[ranks] = np.arange(len(ranks)) % HEAD_GROUPS
    left = [statistic(sample.select(group != g))[0] for g in range(HEAD_GROUPS)]
    return np.asarray([statistic(sample)[0], *left], dtype=np.float64)
