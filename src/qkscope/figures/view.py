"""What the figures of one study have in common: its checkpoints in order, its two windows, its populations of heads.

`look` checks the numbers once for all figures and refuses what cannot be drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from qkscope.errors import TableError
from qkscope.figures.style import ABSENT, INK, drawable, without_shared_beginning
from qkscope.results import Results
from qkscope.results.aggregate import Population, measured, populations, present
from qkscope.study.timeline import TimelineCheckpoint
from qkscope.words import listing, some, tokens

if TYPE_CHECKING:
    import xarray as xr

OWN, MATCHED = "own", "matched"
ALL: Population = "all"
SIX, MOST_MODELS = 6, 12  # checkpoints shown where not all can be; models of a study of models

# (data, order, population=...) -> a table with a row or more per checkpoint, named in its column `model`.
Aggregate = Callable[..., pd.DataFrame]
Spacing = Literal["order", "steps"]


@dataclass(frozen=True)
class View:
    """A study as its figures see it. `checkpoints` are all checkpoints, measured or not, in order.

    `spacing` is how line plots space them: evenly, or by training steps.
    """

    results: Results
    checkpoints: tuple[TimelineCheckpoint, ...]
    spacing: Spacing = "order"

    @property
    def training(self) -> bool:
        """Whether this follows training: several checkpoints of one model."""
        return self.results.timeline.kind == "training" and len(self.order) > 1

    @property
    def of_models(self) -> bool:
        return self.results.timeline.kind == "models"

    @property
    def several_models(self) -> bool:
        return self.of_models and len(self.order) > 1

    @property
    def over_training(self) -> str:
        """The end of a title."""
        return " over training" if self.training else ""

    @property
    def noun(self) -> str:
        return "model" if self.of_models else "checkpoint"

    @property
    def why_not_training(self) -> str | None:
        """Why figures that follow training are not drawn, if so."""
        return "it follows training, and this is a study of several models" if self.several_models else None

    def lacks(self, name: str) -> str | None:
        """Why a variable that every run measures cannot be drawn, if so."""
        if name in self.results.data:
            return None
        return f"the results have no {name}: measure the study again to have it"

    @cached_property
    def order(self) -> list[str]:
        """Names of the measured checkpoints, in order."""
        return [checkpoint.model for checkpoint in self.checkpoints if checkpoint.missing is None]

    @cached_property
    def place(self) -> dict[str, int]:
        """The number of each checkpoint among `checkpoints`."""
        return {checkpoint.model: i for i, checkpoint in enumerate(self.checkpoints)}

    @cached_property
    def labels(self) -> dict[str, str]:
        """Short names for axes; the full name where two short ones are the same."""
        shown = [drawable(checkpoint.label) or drawable(checkpoint.model) for checkpoint in self.checkpoints]
        count = Counter(shown)
        pairs = zip(self.checkpoints, shown, strict=True)
        return {
            checkpoint.model: label if count[label] == 1 else drawable(checkpoint.model)
            for checkpoint, label in pairs
        }

    @cached_property
    def drawn_labels(self) -> dict[str, str]:
        """`labels` as pictures have them."""
        return dict(zip(self.labels, without_shared_beginning(list(self.labels.values())), strict=True))

    def ink(self, i: int) -> str:
        """The colour of a checkpoint's name."""
        return ABSENT if self.checkpoints[i].missing else INK

    @cached_property
    def phases(self) -> list[tuple[str, int, int]]:
        """(name, first, last number) of each run of checkpoints of one phase."""
        found: list[tuple[str, int, int]] = []
        for phase, run in groupby(self.checkpoints, lambda checkpoint: checkpoint.phase):
            first = found[-1][2] + 1 if found else 0
            found.append((phase, first, first + len(list(run)) - 1))
        return found

    @cached_property
    def phase_names(self) -> list[str]:
        """The names of `phases` as pictures have them; a single phase is not named."""
        return [drawable(name) for name, _, _ in self.phases] if len(self.phases) > 1 else [""]

    @cached_property
    def steps(self) -> list[float] | None:
        """Training steps of all checkpoints, added up over phases that count from 0 again; None if spaced evenly."""
        if self.spacing == "order":
            return None
        found: list[float] = []
        before, offset = 0, 0
        for checkpoint in self.checkpoints:
            if checkpoint.step is None and checkpoint.missing is None:
                raise TableError(
                    f"checkpoint {checkpoint.model!r} has no training step; give it `step:` in the "
                    "study, or draw without spacing by steps"
                )
            step = before if checkpoint.step is None else checkpoint.step
            offset += before if step < before else 0
            found.append(float(step + offset))
            before = step
        return found

    @cached_property
    def rematched(self) -> list[str]:
        """Checkpoints whose own window is not the matched one: their matched value is drawn beside the own."""
        matched = self.results.matched()
        if matched is None:
            return []
        there = set(matched["checkpoint"].to_numpy().tolist())
        window = self.results.timeline.matched_window
        windows = {checkpoint.model: checkpoint.window for checkpoint in self.checkpoints}
        return [m for m in self.order if m in there and (windows[m] is None or windows[m] != window)]

    @cached_property
    def same_tokens(self) -> xr.Dataset:
        """Every checkpoint over the same first tokens, or over its own window where there is nothing else.

        Dimensions checkpoint, sample, head; checkpoints in order.
        """
        data = self.results.data
        again = np.isin(data["checkpoint"].to_numpy(), self.rematched)
        chosen = np.where(again, data["matched"].to_numpy(), data["own"].to_numpy())
        found = data.isel(cell=np.flatnonzero(chosen)).swap_dims(cell="checkpoint")
        return found.sel(checkpoint=self.order)

    @property
    def matched_text(self) -> str:
        """The matched window in words."""
        window = self.results.timeline.matched_window
        return "matched window" if window is None else f"first {tokens(window)}"

    @property
    def over_matched(self) -> str:
        """`, first 256 tokens`, where windows differ: the end of a heading."""
        return f", {self.matched_text}" if self.rematched else ""

    @property
    def of_matched(self) -> str:
        """` over the first 256 tokens`, where windows differ: within a sentence."""
        return f" over the {self.matched_text}" if self.rematched else ""

    @property
    def over_own(self) -> str:
        """`, training context`, where windows differ: the end of a heading."""
        return ", training context" if self.rematched else ""

    @property
    def window_sentence(self) -> str:
        """What dotted lines are, where there are some."""
        text = f" Dotted lines are the same means over the {self.matched_text} of every text."
        return text if self.rematched else ""

    @property
    def phases_sentence(self) -> str:
        return " Vertical dashed lines separate training phases." if len(self.phases) > 1 else ""

    @property
    def pooled_sentence(self) -> str:
        """What to read with care where an upper panel has all heads."""
        text = "The upper panel pools RoPE and NoPE heads, as the published figure does."
        return text if self.populations else ""

    @cached_property
    def populations(self) -> tuple[Population, ...]:
        """`("RoPE", "NoPE")` where heads of both kinds of layer were measured; empty for a single population."""
        found = populations(self.results.own())
        return () if found == (ALL,) else found

    @property
    def main(self) -> Population:
        """The population of figures that show only one: RoPE heads where there are both, else all heads."""
        return self.populations[0] if self.populations else ALL

    @cached_property
    def nope_layers(self) -> set[int]:
        """Layers without rotary embedding, where they are known and others have it."""
        if not self.populations:
            return set()
        own = self.results.own()
        return set(own["layer"].to_numpy()[(own["rope"] == 0).any("checkpoint").to_numpy()].tolist())

    def count(self, population: str = ALL) -> int:
        """How many heads of a population a checkpoint has; the most of all checkpoints."""
        return int(present(self.results.own(), population).sum("head").max())

    def count_text(self, name: str) -> str:
        """`36 RoPE heads`, or `48 heads`: the heading of a panel."""
        count = self.count(name)
        return f"{count:,} {'' if name == ALL else f'{name} '}head{'' if count == 1 else 's'}"

    def both_windows(self, aggregate: Aggregate) -> pd.DataFrame:
        """An aggregate over own windows and, for `rematched`, over the matched one; says which in `window`."""
        own = aggregate(self.results.own(), self.order)
        return self.windows(own, aggregate(self.same_tokens, self.rematched) if self.rematched else None)

    def over_same_tokens(self, aggregate: Aggregate, population: str = ALL) -> pd.DataFrame:
        """An aggregate over the heads of a population, over the matched window wherever a checkpoint has one."""
        found = aggregate(self.same_tokens, self.order, population=population)
        return self._named(found, found["model"].isin(self.rematched))

    def with_populations(self, aggregate: Aggregate) -> pd.DataFrame:
        """All heads over both windows, then each population over the same tokens; says which in `population`."""
        whole = self.both_windows(aggregate)
        whole.insert(4, "population", ALL)
        return (
            pd.concat([whole, self.each_population(aggregate)], ignore_index=True)
            if self.populations
            else whole
        )

    def each_population(self, aggregate: Aggregate) -> pd.DataFrame:
        """Each population over the same tokens, or all heads where there is one; says which in `population`."""
        names = self.populations or (ALL,)
        tables = [self.over_same_tokens(aggregate, name) for name in names]
        for name, table in zip(names, tables, strict=True):
            table.insert(4, "population", name)
        return pd.concat(tables, ignore_index=True)

    def windows(self, own: pd.DataFrame, matched: pd.DataFrame | None) -> pd.DataFrame:
        """Two tables with a `model` column as one that says in `window` over which its numbers are."""
        both = own if matched is None else pd.concat([own, matched], ignore_index=True)
        return self._named(both, pd.Series(np.arange(len(both)) >= len(own)))

    def _named(self, table: pd.DataFrame, matched: pd.Series) -> pd.DataFrame:
        """The table with the label of each checkpoint, which window its numbers are over, and its tokens."""
        own = table["model"].map({checkpoint.model: checkpoint.window for checkpoint in self.checkpoints})
        size = own.mask(matched.to_numpy(), self.results.timeline.matched_window)
        named = table.assign(label=table["model"].map(self.labels), window=np.where(matched, MATCHED, OWN))
        named["tokens"] = pd.array(list(size), dtype="Int64")
        return named[["model", "label", "window", "tokens", *(c for c in table.columns if c != "model")]]

    @cached_property
    def shown(self) -> list[str]:
        """The checkpoints with a panel of their own: those the study names; else first, second, ends of phases, last.

        Six at most; of several models twelve.
        """
        order = self.order
        named = [model for model in self.results.timeline.portraits if model in order]
        if named:
            return sorted(named, key=order.index)
        if self.of_models:
            count = min(MOST_MODELS, len(order))
            return [order[i] for i in np.linspace(0, len(order) - 1, count).round().astype(int)]
        phases = [checkpoint.phase for checkpoint in self.checkpoints if checkpoint.missing is None]
        ends = [i for i, (here, after) in enumerate(pairwise(phases)) if here != after]
        last = len(order) - 1
        return [order[i] for i in _six(sorted({0, min(1, last), *ends, last}), len(order))]

    @property
    def heads_text(self) -> str:
        """How many heads a checkpoint has, in words."""
        own = self.results.own()
        counts = present(own).sum("head").sel(checkpoint=self.order).to_numpy()
        low, high = int(counts.min()), int(counts.max())
        amount = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"{amount} query head{'s' if high != 1 else ''}"

    @property
    def each(self) -> str:
        """` per checkpoint`, if there are several."""
        return f" per {self.noun}" if len(self.order) > 1 else ""

    def subtitle(self, matched: bool = False) -> str:
        """The line under every title: which study, how many heads, on what windows.

        `matched` says that all panels are over the matched window where windows differ.
        """
        windows = list(
            dict.fromkeys(
                checkpoint.window
                for checkpoint in self.checkpoints
                if checkpoint.window and not checkpoint.missing
            )
        )
        parts = [self.results.timeline.title, f"{self.heads_text}{self.each}"]
        if matched and self.rematched:
            parts.append(f"{self.matched_text} of every text")
        elif windows:
            *shorter, longest = windows
            parts.append(f"window {listing([*(f'{w:,}' for w in shorter), tokens(longest)])}")
        return "  ·  ".join(part for part in parts if part)


def _six(chosen: Sequence[int], count: int) -> list[int]:
    """Six places: the most crowded inner ones dropped, or the widest gaps halved."""
    places = list(chosen)
    while len(places) > SIX:
        crowd = [places[i + 1] - places[i - 1] for i in range(2, len(places) - 1)]
        del places[2 + int(np.argmin(crowd))]
    while len(places) < min(SIX, count):
        gaps = np.diff(places)
        widest = int(np.argmax(gaps))
        places.insert(widest + 1, places[widest] + int(gaps[widest]) // 2)
    return places


def look(results: Results, spacing: Spacing = "order") -> View:
    """Check the numbers and put the checkpoints in order."""
    for data in (results.own(), results.matched()):
        if data is not None:
            _check_range(data)
    timeline, there = results.timeline, set(results.own()["checkpoint"].to_numpy().tolist())
    names = [checkpoint.model for checkpoint in timeline.checkpoints]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"the study names checkpoint {twice[0]!r} twice; give each a name of its own")
    checkpoints = tuple(
        checkpoint
        if checkpoint.missing or checkpoint.model in there
        else replace(checkpoint, missing="not in the results")
        for checkpoint in timeline.checkpoints
    )
    if not measured(results.own()).any():
        raise TableError(f"{results.folder}: nothing was measured: no head has both r_q and r_k")
    if all(checkpoint.missing for checkpoint in checkpoints):
        raise TableError(
            f"none of the study's checkpoints is in the results: the study has {some(sorted(names), 5)}, the "
            f"results {some(sorted(there), 5)}; draw with the study file that made the results, or without one"
        )
    if unknown := sorted(there - set(names)):
        raise TableError(
            f"the results have checkpoints the study does not name: {some(unknown, 5)}; add them"
        )
    return View(results, checkpoints, spacing)


def _check_range(data: xr.Dataset) -> None:
    """Refuse correlations outside [-1, 1]."""
    for name in ("r_q", "r_k"):
        values = data[name].isel(sample=0).to_numpy()
        wrong = np.argwhere(np.abs(values) > 1 + 1e-6)
        if len(wrong):
            model, head = data["checkpoint"].to_numpy()[wrong[0][0]], data["head"].to_numpy()[wrong[0][1]]
            raise TableError(
                f"{name} is {values[tuple(wrong[0])]} for {model}, head {head} ({len(wrong)} such values); "
                "a correlation is from -1 to 1"
            )
