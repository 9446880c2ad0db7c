"""One study over one kind of window: its heads, RoPE and NoPE heads apart, and which changes are more than noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from qkscope.checkpoints.revisions import LONG_CONTEXT, parse_revision
from qkscope.measures.pca import FEWEST_GROUPS
from qkscope.measures.samples import jackknife
from qkscope.results import Results
from qkscope.results.aggregate import (
    ROPE,
    Population,
    classes,
    finite,
    ordered,
    over_heads,
    present,
    values,
)
from qkscope.results.taxonomy import CLASSES, UNMEASURED, Thresholds
from qkscope.stats.contrast import Contrast, contrast, exceeds
from qkscope.stats.levels import FEWEST_HEADS, HEAD_GROUPS, MOST, ONE_HEAD
from qkscope.stats.series import (
    INVARIANT,
    Change,
    Changed,
    Series,
    change,
    direction,
    judged,
    what_changed,
    whole,
)
from qkscope.stats.transitions import hidden_variance
from qkscope.study.timeline import Timeline, TimelineCheckpoint

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Basis = Literal["documents", "heads", "too few groups", "nothing"]

# Means whose changes over training are judged, beside the share of heads of each class.
FOLLOWED = ("share_positional", "r_q", "abs_r_k", "plasticity")


@dataclass(frozen=True, eq=False)
class Evidence:
    """The measured checkpoints over their own windows (`window` is None) or all over the first `window` tokens.

    data has the dimensions checkpoint, sample, head, with the checkpoints in the order of `checkpoints`.
    """

    timeline: Timeline
    checkpoints: tuple[TimelineCheckpoint, ...]
    data: xr.Dataset
    thresholds: Thresholds
    window: int | None = None
    _known: dict[str, xr.DataArray] = field(default_factory=dict, repr=False)
    _where: dict[tuple[str, int | None], xr.DataArray] = field(default_factory=dict, repr=False)
    _means: dict[tuple[str, str, int | None], Array] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """How many checkpoints there are."""
        return len(self.checkpoints)

    def values(self, measure: str) -> xr.DataArray:
        """A measure of every head, (checkpoint, sample, head)."""
        if measure not in self._known:
            self._known[measure] = values(self.data, measure).load()
        return self._known[measure]

    def value(self, measure: str, i: int) -> Array:
        """A measure of every head at one checkpoint over all documents. (H,)"""
        return np.asarray(self.values(measure).to_numpy()[i, 0])

    @cached_property
    def groups_at(self) -> list[int]:
        """Groups of documents at each checkpoint."""
        return [int(count) for count in self.data["groups"].to_numpy()]

    @property
    def name(self) -> Literal["own", "matched"]:
        return "own" if self.window is None else "matched"

    @property
    def groups(self) -> int:
        return min(self.groups_at, default=0)

    @property
    def basis(self) -> Basis:
        """What errors are taken over: groups of documents; without any, groups of heads where there are enough."""
        if self.groups >= FEWEST_GROUPS:
            return "documents"
        if self.groups == FEWEST_GROUPS - 1:
            return "too few groups"
        heads = present(self.data).sum("head").to_numpy()
        return "heads" if len(heads) and heads.min() >= FEWEST_HEADS else "nothing"

    @cached_property
    def populations(self) -> tuple[Population, ...]:
        """RoPE and NoPE heads where the study has both, else one population.

        Where layers change between the two during training, only the population that every checkpoint has is left.
        """
        flags = [set(row.tolist()) for row in self.data["rope"].to_numpy()]
        if not {0.0, 1.0} <= set().union(*flags):
            return ("all",)
        sides: tuple[Population, ...] = ("RoPE", "NoPE")
        return tuple(name for name in sides if all(ROPE[name] in here for here in flags)) or ("all",)

    def where(self, population: Population, layer: int | None = None) -> xr.DataArray:
        """The heads of a population at every checkpoint, of one layer if given. (checkpoint, head)"""
        key = (population, layer)
        if key not in self._where:
            here = present(self.data, population)
            self._where[key] = here if layer is None else here & (self.data["layer"] == layer)
        return self._where[key]

    def mask(self, i: int, population: Population) -> Mask:
        """The heads of a population at one checkpoint. (H,)"""
        return np.asarray(self.where(population).to_numpy()[i])

    def heads(self, here: Mask) -> list[tuple[int, int]]:
        """(layer, head) of the heads in a mask."""
        layer, number = self.data["layer"].to_numpy()[here], self.data["number"].to_numpy()[here]
        return list(zip(layer.tolist(), number.tolist(), strict=True))

    def known(self, measure: str, population: Population = "all") -> bool:
        """Whether some head of every checkpoint has this measure."""
        found = finite(self.values(measure).isel(sample=0)) & self.where(population)
        return bool(found.any("head").all())

    def mean(self, measure: str, population: Population, i: int, layer: int | None = None) -> Array:
        """(1 + G,): the mean over the heads measured at a checkpoint, as pictures draw it."""
        key = (measure, population, layer)
        if key not in self._means:
            self._means[key] = over_heads(self.values(measure), self.where(population, layer)).to_numpy()
        return self._means[key][i, : 1 + self.groups_at[i]]

    def level(
        self, measure: str, population: Population, i: int, layer: int | None = None
    ) -> tuple[float, float]:
        """The mean over the heads measured at a checkpoint, and its standard error over documents."""
        means = self.mean(measure, population, i, layer)
        return float(means[0]), float(jackknife(means[1:]))

    @cached_property
    def _classes(self) -> NDArray[np.str_]:
        return classes(self.data, self.thresholds)

    def kinds(self, i: int, population: Population) -> NDArray[np.str_]:
        """(heads,): the classes of the measured heads of a population."""
        kinds = self._classes[i, 0, self.mask(i, population)]
        return np.asarray(kinds[kinds != UNMEASURED])

    def count(self, kind: str, population: Population, i: int) -> int:
        """How many measured heads of a population are of a class."""
        return int((self.kinds(i, population) == kind).sum())

    def compare(self, first: str, second: str, population: Population, i: int, looks: int = 1) -> Contrast:
        """Two measures of the same heads at one checkpoint."""
        a, b = (self._left_out(self.values(m), self.where(population))[i] for m in (first, second))
        return contrast(a, b, looks=looks)

    def between(self, measure: str, i: int) -> Contrast:
        """RoPE heads against NoPE heads of one checkpoint."""
        rope, nope = (self._left_out(self.values(measure), self.where(p))[i] for p in self.populations)
        # Groups of documents are the same for both; groups of heads are not.
        return contrast(rope, nope, paired=self.basis != "heads")

    def _left_out(self, found: xr.DataArray, here: xr.DataArray) -> list[Array]:
        """Per checkpoint the mean over the heads `here` and the same without each group of documents. (1 + G,) each

        Where there are no groups of documents, groups of heads are left out instead.
        """
        if self.basis == "heads":
            whole = found.isel(sample=0).where(here).to_numpy()
            return [without_heads(row) for row in whole]
        means = over_heads(found, here).to_numpy()
        return [row[: 1 + groups] for row, groups in zip(means, self.groups_at, strict=True)]

    def series(self, measure: str, population: Population, layer: int | None = None) -> Series | None:
        """A mean over training, over the heads that every checkpoint has; None where it is not known throughout."""
        found, here = self._shared(self.values(measure), population, layer)
        if not here.any():
            return None
        return Series(_name(measure, population, layer), tuple(self._left_out(found, here)))

    def _shared(
        self, found: xr.DataArray, population: Population, layer: int | None = None
    ) -> tuple[xr.DataArray, xr.DataArray]:
        """The heads measured at all checkpoints, and their values.

        Left-out samples are used only of heads that have all of them at every checkpoint, if any has: the same
        heads then show the effect of leaving documents out at every checkpoint.
        """
        there = found["sample"] <= found["groups"]
        here = (self.where(population, layer) & finite(found.isel(sample=0, drop=True))).all("checkpoint")
        steady = here & (finite(found) | ~there).all(("checkpoint", "sample"))
        if steady.any():
            found = found.where(steady | (found["sample"] == 0))
        return found, here

    @cached_property
    def dropped(self) -> int:
        """Heads that are not measured at every checkpoint: changes are judged without them."""
        _, shared = self._shared(self.values("r_q"), "all")
        return self.data.sizes["head"] - int(shared.sum())

    @cached_property
    def _hidden(self) -> dict[str, Array]:
        return hidden_variance(self.data, self.thresholds)

    def _members(self, kind: str) -> xr.DataArray:
        """Whether a measured head is of a class, 0 or 1. (checkpoint, sample, head)"""
        r_q = self.values("r_q")
        return r_q.copy(data=self._classes == kind).where(finite(r_q))

    def class_series(self, kind: str, population: Population) -> Series | None:
        """A class's share over training, of the heads that every checkpoint has."""
        found, here = self._shared(self._members(kind), population)
        heads = int(here.sum())
        if not heads:
            return None
        hidden = self._hidden[kind][:, here.to_numpy()].sum(axis=1)
        unseen = tuple(max(ONE_HEAD, float(each)) / heads**2 for each in hidden)
        return Series(_name(kind, population), tuple(self._left_out(found, here)), heads, unseen)

    def ranked_classes(self, population: Population, i: int) -> tuple[str, list[str]]:
        """The classes of a checkpoint's heads, the largest first, and how sure that one is.

        `majority` if it has clearly more than half of the heads, `largest` if clearly more than the next, `tie` if
        the two are equal, else `unclear`.
        """
        order = sorted(CLASSES, key=lambda kind: -self.count(kind, population, i))
        here, heads = self.where(population), len(self.kinds(i, population))
        first, second = (self._left_out(self._members(kind), here)[i] for kind in order[:2])
        if first[0] == second[0]:
            return "tie", order
        if contrast(first, second, hidden=2 * ONE_HEAD / heads**2).verdict != "higher":
            return "unclear", order
        se = math.hypot(float(jackknife(first[1:])), math.sqrt(ONE_HEAD) / heads)
        return "majority" if exceeds(float(first[0]), se, MOST, len(first) - 2) else "largest", order

    @cached_property
    def changes(self) -> dict[str, list[Change]]:
        """All changes of every followed mean and class, judged together, by the name of the series."""
        if len(self) < 2 or self.timeline.kind != "training":
            return {}
        known = [self.series(m, p) for p in self.populations for m in FOLLOWED]
        known += [self.class_series(kind, p) for p in self.populations for kind in CLASSES]
        many = [series for series in known if series is not None]
        found: dict[str, list[Change]] = {series.name: [] for series in many}
        for each in judged(many):
            found[each.series].append(each)
        return found

    def direction(self, measure: str, population: Population) -> str:
        """The verdict on a mean over the whole training; unclear where no head was measured at every checkpoint."""
        found = self.changes.get(_name(measure, population))
        return direction(found) if found else "unclear"

    def overall(self, measure: str, population: Population) -> Change | None:
        """The change from the first checkpoint to the last; None where it is not followed."""
        found = self.changes.get(_name(measure, population))
        return whole(found) if found else None

    def step(self, measure: str, population: Population, i: int) -> Change | None:
        """The change from checkpoint i - 1 to i; None where it is not followed."""
        found = self.changes.get(_name(measure, population), [])
        return next((c for c in found if (c.start, c.stop) == (i - 1, i)), None)

    def what_changed(self, population: Population, start: int, stop: int) -> Changed:
        """Whether attention changed between two checkpoints, or at most the coordinates of queries and keys."""
        many = [self.series(measure, population) for measure in INVARIANT]
        return what_changed([change(s, start, stop) for s in many if s is not None])

    @cached_property
    def onset(self) -> int | None:
        """The first checkpoint of long-context training: the first with a longer window, or so named."""
        windows = pairwise(checkpoint.window for checkpoint in self.checkpoints)
        longer = [before is not None and after is not None and after > before for before, after in windows]
        named = [parse_revision(checkpoint.model) for checkpoint in self.checkpoints]
        long = [r is not None and r.phase_key[0] == LONG_CONTEXT for r in named]
        begins = longer if any(longer) else [after and not before for before, after in pairwise(long)]
        return begins.index(True) + 1 if True in begins else None


def _name(measure: str, population: Population, layer: int | None = None) -> str:
    return f"{measure} of {population}" + ("" if layer is None else f", layer {layer}")


def without_heads(values: Array) -> Array:
    """(H,) -> (1 + HEAD_GROUPS,): the mean over all heads, then without each of the groups they are dealt into.

    With too few heads there is the mean alone, which has no error.
    """
    known = values[np.isfinite(values)]
    if len(known) < FEWEST_HEADS:
        return np.array([known.mean()]) if len(known) else np.array([np.nan])
    group = np.arange(len(known)) % HEAD_GROUPS
    return np.array([known.mean(), *(known[group != g].mean() for g in range(HEAD_GROUPS))])


def own_evidence(results: Results) -> Evidence:
    """Each checkpoint over its own window."""
    return _evidence(results, results.own(), None)


def matched_evidence(results: Results) -> Evidence | None:
    """Every checkpoint over the same window, if that was measured and is not each one's own anyway."""
    timeline, data = results.timeline, results.matched()
    own = {checkpoint.window for checkpoint in timeline.measured}
    if data is None or timeline.matched_window is None or own == {timeline.matched_window}:
        return None
    found = _evidence(results, data, timeline.matched_window)
    return found if len(found) == len(own_evidence(results)) else None


def _evidence(results: Results, data: xr.Dataset, window: int | None) -> Evidence:
    timeline = results.timeline
    # What says how a cell came to be is not needed here, and every operation would carry it along.
    data = ordered(data, timeline.models).drop_vars(
        ["own", "matched", "weights_of", "rotation_of", "settings", "texts"]
    )
    checkpoints = tuple(timeline.checkpoint(name) for name in data["checkpoint"].to_numpy().tolist())
    return Evidence(timeline, checkpoints, data, results.thresholds, window)
