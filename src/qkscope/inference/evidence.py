"""One study over one kind of window: its heads, RoPE and NoPE heads apart, and which changes are more than noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.aggregate import column, mean_over_heads, stacked
from qkscope.checkpoints.revisions import LONG_CONTEXT, parse_revision
from qkscope.inference.contrast import Contrast, contrast, exceeds
from qkscope.inference.course import direction
from qkscope.inference.levels import FEWEST_HEADS, HEAD_GROUPS, MOST, ONE_HEAD
from qkscope.inference.series import Change, Series, judged, whole
from qkscope.inference.transitions import class_probabilities
from qkscope.measures.jackknife import jackknife
from qkscope.measures.null import FEWEST_GROUPS
from qkscope.measures.registry import optional_names
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, UNMEASURED, Thresholds, classify
from qkscope.timeline import Stop, Timeline

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Basis = Literal["documents", "heads", "too few groups", "nothing"]
Population = Literal["RoPE", "NoPE", "all"]

R = ("r_q", "r_k")
# Measures made of others.
DERIVED: dict[str, Callable[[Callable[[str], Array]], Array]] = {
    "share_positional": lambda value: value("share_position") + value("share_query_position"),
    "abs_r_q": lambda value: np.abs(value("r_q")),
    "abs_r_k": lambda value: np.abs(value("r_k")),
}
# Means whose course over training is judged, beside the share of heads of each class.
FOLLOWED = ("share_positional", "r_q", "abs_r_k", "plasticity")


@dataclass(frozen=True)
class Cell:
    """One checkpoint over one window: its heads, and the tables with a row a head that its measures are read from.

    A table stands beside its leave-one-out table, which may be missing.
    """

    model: str
    heads: pd.DataFrame
    tables: tuple[tuple[pd.DataFrame, pd.DataFrame | None], ...]
    groups: int
    _known: dict[str, Array] = field(default_factory=dict, compare=False, repr=False)

    def value(self, measure: str) -> Array:
        """(1 + G, H): a measure over all documents, then without each group of them; NaN where not measured."""
        if measure not in self._known:
            made = DERIVED[measure](self.value) if measure in DERIVED else self._read(measure)
            if measure in R:  # a head counts as measured if it has both
                made = np.where(np.isfinite(self._read("r_q") + self._read("r_k")), made, np.nan)
            self._known[measure] = made
        return self._known[measure]

    def _read(self, name: str) -> Array:
        found = np.full((1 + self.groups, len(self.heads)), np.nan)
        for table, loo in self.tables:
            if name in table:
                read = stacked(self.heads, table, loo, (name,))[..., 0]
                found[: len(read)] = read
                break
        return found

    @cached_property
    def layer(self) -> NDArray[np.int64]:
        return np.asarray(self.heads["layer"].to_numpy(np.int64))

    @cached_property
    def key(self) -> NDArray[np.int64]:
        """Layer and head in one number."""
        return np.asarray(self.layer * 2**20 + self.heads["head"].to_numpy(np.int64))

    @cached_property
    def rope(self) -> Array:
        """1 where the layer rotates, 0 where not, NaN where the table does not say."""
        return column(self.heads, "rope")


@dataclass(frozen=True)
class Evidence:
    """The measured checkpoints over their own windows (`window` is None) or all over the first `window` tokens."""

    timeline: Timeline
    stops: tuple[Stop, ...]
    cells: tuple[Cell, ...]
    thresholds: Thresholds
    window: int | None = None

    @property
    def name(self) -> Literal["own", "matched"]:
        return "own" if self.window is None else "matched"

    @property
    def groups(self) -> int:
        return min((cell.groups for cell in self.cells), default=0)

    @property
    def basis(self) -> Basis:
        """What errors are taken over: groups of documents; without any, groups of heads where there are enough."""
        if self.groups >= FEWEST_GROUPS:
            return "documents"
        if self.groups == FEWEST_GROUPS - 1:
            return "too few groups"
        fewest = min((len(cell.heads) for cell in self.cells), default=0)
        return "heads" if fewest >= FEWEST_HEADS else "nothing"

    @cached_property
    def populations(self) -> tuple[Population, ...]:
        """RoPE and NoPE heads where the study has both, else one population.

        Where layers change between the two during training, only the population that every checkpoint has is left.
        """
        flags = [set(np.unique(cell.rope).tolist()) for cell in self.cells]
        if not {0.0, 1.0} <= set().union(*flags):
            return ("all",)
        sides: tuple[tuple[Population, float], ...] = (("RoPE", 1.0), ("NoPE", 0.0))
        return tuple(name for name, flag in sides if all(flag in here for here in flags)) or ("all",)

    def mask(self, i: int, population: Population, layer: int | None = None) -> Mask:
        """(H,): the heads of a population at a checkpoint, of one layer if given."""
        cell = self.cells[i]
        flag = {"RoPE": 1.0, "NoPE": 0.0}.get(population)
        here = np.ones(len(cell.heads), dtype=bool) if flag is None else cell.rope == flag
        return np.asarray(here if layer is None else here & (cell.layer == layer))

    def layers(self, population: Population) -> list[int]:
        """The layers that a population has at the last checkpoint."""
        return sorted(set(self.cells[-1].layer[self.mask(-1, population)].tolist()))

    def known(self, measure: str, population: Population = "all") -> bool:
        """Whether some head of every checkpoint has this measure."""
        return all(
            np.isfinite(cell.value(measure)[0, self.mask(i, population)]).any()
            for i, cell in enumerate(self.cells)
        )

    def mean(self, measure: str, population: Population, i: int, layer: int | None = None) -> Array:
        """(1 + G,): the mean over the heads measured at a checkpoint, as pictures draw it."""
        return mean_over_heads(self.cells[i].value(measure)[:, self.mask(i, population, layer)])

    def level(
        self, measure: str, population: Population, i: int, layer: int | None = None
    ) -> tuple[float, float]:
        """That mean and its standard error over documents."""
        means = self.mean(measure, population, i, layer)
        return float(means[0]), float(jackknife(means[1:]))

    def kinds(self, i: int, population: Population) -> NDArray[Any]:
        """(heads,): the classes of the measured heads of a population."""
        cell, here = self.cells[i], self.mask(i, population)
        kinds = classify(cell.value("r_q")[0, here], cell.value("r_k")[0, here], self.thresholds)
        return np.asarray(kinds[kinds != UNMEASURED])

    def count(self, kind: str, population: Population, i: int) -> int:
        """How many measured heads of a population are of a class."""
        return int((self.kinds(i, population) == kind).sum())

    def compare(self, first: str, second: str, population: Population, i: int, looks: int = 1) -> Contrast:
        """Two measures of the same heads at one checkpoint."""
        cell, here = self.cells[i], self.mask(i, population)
        a, b = (self._left_out(cell.value(m)[:, here]) for m in (first, second))
        return contrast(a, b, looks=looks)

    def between(self, measure: str, i: int) -> Contrast:
        """RoPE heads against NoPE heads of one checkpoint."""
        value = self.cells[i].value(measure)
        rope, nope = (self._left_out(value[:, self.mask(i, p)]) for p in self.populations)
        # Groups of documents are the same for both; groups of heads are not.
        return contrast(rope, nope, paired=self.basis != "heads")

    def _left_out(self, values: Array, steady: Mask | None = None) -> Array:
        """The mean over heads (1 + G, H) and the same without each group of documents.

        Where there are no groups of documents, groups of heads are left out instead. `steady` (H,) are the heads
        that leaving out is seen on, if not all that are finite throughout.
        """
        if self.basis == "heads":
            return without_heads(values[0])
        if steady is None or not steady.any():
            return mean_over_heads(values)
        kept = values[:, steady].mean(axis=1)
        return np.asarray(np.nanmean(values[0]) + kept - kept[0])

    def series(self, measure: str, population: Population, layer: int | None = None) -> Series | None:
        """The course of a mean, over the heads that every checkpoint has; None where it is not known throughout."""
        values, steady = self._shared(lambda cell: cell.value(measure), population, layer)
        if not values[0].shape[1]:
            return None
        return Series(_name(measure, population, layer), tuple(self._left_out(v, steady) for v in values))

    def _shared(
        self, read: Callable[[Cell], Array], population: Population, layer: int | None = None
    ) -> tuple[list[Array], Mask]:
        """Values (1 + G, H) at each checkpoint of the heads measured at all of them, in one order.

        With them (H,) which of these heads are finite in every left-out sample too.
        """
        keys, values = [], []
        for i, cell in enumerate(self.cells):
            value = read(cell)
            here = self.mask(i, population, layer) & np.isfinite(value[0])
            keys.append(cell.key[here])
            values.append(value[:, here])
        shared = reduce(np.intersect1d, keys)
        aligned = []
        for key, value in zip(keys, values, strict=True):
            order = np.argsort(key)
            aligned.append(value[:, order[np.searchsorted(key, shared, sorter=order)]])
        return aligned, np.logical_and.reduce([np.isfinite(value).all(axis=0) for value in aligned])

    @cached_property
    def dropped(self) -> int:
        """Heads that are not measured at every checkpoint: changes are judged without them."""
        every: NDArray[np.int64] = reduce(np.union1d, [cell.key for cell in self.cells])
        shared, _ = self._shared(lambda cell: cell.value("r_q"), "all")
        return len(every) - int(shared[0].shape[1])

    def class_series(self, kind: str, population: Population) -> Series | None:
        """The course of a class's share of the heads that every checkpoint has."""

        def is_kind(cell: Cell) -> Array:
            r_q, r_k = cell.value("r_q"), cell.value("r_k")
            found = classify(r_q, r_k, self.thresholds) == kind
            return np.where(np.isfinite(r_q), found, np.nan)

        def chance(cell: Cell) -> Array:
            se_q, se_k = (np.nan_to_num(column(cell.heads, f"{name}_se")) for name in R)
            r_q, r_k = cell.value("r_q")[0], cell.value("r_k")[0]
            chances = class_probabilities(r_q, r_k, se_q, se_k, self.thresholds)
            return np.asarray(chances[CLASSES.index(kind)][None])

        values, steady = self._shared(is_kind, population)
        heads = values[0].shape[1]
        if not heads:
            return None
        chances = self._shared(chance, population)[0]
        unseen = tuple(max(ONE_HEAD, float((c * (1.0 - c)).sum())) / heads**2 for c in chances)
        means = tuple(self._left_out(v, steady) for v in values)
        return Series(_name(kind, population), means, heads, unseen)

    def ranked_classes(self, population: Population, i: int) -> tuple[str, list[str]]:
        """The classes of a checkpoint's heads, the largest first, and how sure that one is.

        `majority` if it has clearly more than half of the heads, `largest` if clearly more than the next, `tie` if
        the two are equal, else `unclear`.
        """
        order = sorted(CLASSES, key=lambda kind: -self.count(kind, population, i))
        cell, here = self.cells[i], self.mask(i, population)
        r_q, r_k = (cell.value(name)[:, here] for name in R)
        kinds, known = classify(r_q, r_k, self.thresholds), np.isfinite(r_q)
        first, second = (self._left_out(np.where(known, kinds == kind, np.nan)) for kind in order[:2])
        heads = int(known[0].sum())
        gap = contrast(first, second, hidden=2 * ONE_HEAD / heads**2)
        if first[0] == second[0]:
            return "tie", order
        if gap.verdict != "higher":
            return "unclear", order
        se = math.hypot(float(jackknife(first[1:])), math.sqrt(ONE_HEAD) / heads)
        most = exceeds(float(first[0]), se, MOST, len(first) - 2) == "yes"
        return "majority" if most else "largest", order

    @cached_property
    def changes(self) -> dict[str, list[Change]]:
        """All changes of every followed mean and class, judged together, by the name of the series."""
        if len(self.cells) < 2 or self.timeline.kind != "training":
            return {}
        made = [self.series(m, p) for p in self.populations for m in FOLLOWED]
        made += [self.class_series(kind, p) for p in self.populations for kind in CLASSES]
        many = [series for series in made if series is not None]
        found: dict[str, list[Change]] = {series.name: [] for series in many}
        for change in judged(many):
            found[change.series].append(change)
        return found

    def direction(self, measure: str, population: Population) -> str:
        """The verdict on the whole course of a mean; unclear where no head was measured at every checkpoint."""
        found = self.changes.get(_name(measure, population))
        return direction(found) if found else "unclear"

    def overall(self, measure: str, population: Population) -> Change | None:
        """From the first checkpoint to the last; None where it is not followed."""
        found = self.changes.get(_name(measure, population))
        return whole(found) if found else None

    def step(self, measure: str, population: Population, stop: int) -> Change | None:
        """The change from the checkpoint before `stop`; None where it is not followed."""
        found = self.changes.get(_name(measure, population), [])
        return next((c for c in found if c.kind == "step" and c.stop == stop), None)

    @cached_property
    def widened(self) -> list[int]:
        """Checkpoints whose own window differs from that of the one before."""
        found = enumerate(pairwise(stop.window for stop in self.stops), start=1)
        return [i for i, (a, b) in found if a is not None and b is not None and a != b]

    @cached_property
    def onset(self) -> int | None:
        """The first checkpoint of long-context training: the first with a longer window, or so named."""
        longer = [i for i in self.widened if (self.stops[i].window or 0) > (self.stops[i - 1].window or 0)]
        if longer:
            return longer[0]
        named = [parse_revision(stop.model) for stop in self.stops]
        long = [r is not None and r.phase_key[0] == LONG_CONTEXT for r in named]
        return next((i for i in range(1, len(long)) if long[i] and not long[i - 1]), None)


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
    return _evidence(results, None)


def matched_evidence(results: Results) -> Evidence | None:
    """Every checkpoint over the same window, if that was measured and is not each one's own anyway."""
    timeline = results.timeline
    own = {stop.window for stop in timeline.measured}
    if results.matched is None or timeline.matched_window is None or own == {timeline.matched_window}:
        return None
    found = _evidence(results, timeline.matched_window)
    return found if len(found.cells) == len(own_evidence(results).cells) else None


def _evidence(results: Results, window: int | None) -> Evidence:
    timeline, cells = results.timeline, _cells(results, matched=window is not None)
    stops = tuple(timeline.stop(cell.model) for cell in cells)
    return Evidence(timeline, stops, tuple(cells), results.thresholds, window)


def _cells(results: Results, matched: bool) -> list[Cell]:
    end = "_matched" if matched else ""
    own = (results.heads, results.loo), (results.anatomy, results.loo_anatomy)
    same = (results.matched, results.loo_matched), (results.anatomy_matched, results.loo_anatomy_matched)
    names = [f"{name}{end}" for name in optional_names()]
    asked = [(results.optional.get(name), results.optional.get(f"loo_{name}")) for name in names]
    tables = [(_by_model(table), _by_model(loo)) for table, loo in (*(same if matched else own), *asked)]
    found = []
    for model in results.timeline.models:
        here = [(table[model], loo.get(model)) for table, loo in tables if model in table]
        if model in tables[0][0]:
            groups = max((loo["group"].nunique() for _, loo in here if loo is not None), default=0)
            found.append(Cell(model, here[0][0].reset_index(drop=True), tuple(here), groups))
    return found


def _by_model(table: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    return {} if table is None else dict(iter(table.groupby("model", sort=False, observed=True)))
