"""What the figures of one study have in common: its checkpoints in order, its two windows, its populations of heads.

Checks the tables once, so that no figure has to: what cannot be drawn truthfully is refused here with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np
import pandas as pd

from qkscope.errors import TableError
from qkscope.figures.tools.style import FAMILY_COLOURS, drawable
from qkscope.results import Results
from qkscope.timeline import Stop
from qkscope.words import listing, some, tokens

NEEDED = ("model", "layer", "head", "r_q", "r_k", "class", "polarity", "depth_bin")
OWN, MATCHED = "own", "matched"
ALL = "all"
ROPE = {"RoPE": 1.0, "NoPE": 0.0}  # populations, as the column `rope` has them
SIX, MOST_MODELS = 6, 12  # checkpoints shown where not all can be; models of a study of models

Aggregate = Callable[[pd.DataFrame, pd.DataFrame | None, Sequence[str]], pd.DataFrame]
Spacing = Literal["order", "steps"]


@dataclass(frozen=True)
class View:
    """A study as its figures see it. `stops` are all checkpoints, measured or not, in order.

    `spacing` is how line plots space them: evenly, or by training steps.
    """

    results: Results
    stops: tuple[Stop, ...]
    spacing: Spacing = "order"

    @property
    def training(self) -> bool:
        """Whether this follows training: several checkpoints of one model."""
        return self.results.timeline.kind == "training" and len(self.order) > 1

    @property
    def of_models(self) -> bool:
        return self.results.timeline.kind == "models"

    @property
    def over_training(self) -> str:
        """The end of a title."""
        return " over training" if self.training else ""

    @property
    def noun(self) -> str:
        return "model" if self.of_models else "checkpoint"

    def heading(self, model: str, matched: bool = False) -> str:
        """A checkpoint over a panel of its own: its label, and its window where windows differ."""
        own = self.stops[self.place[model]].window
        window = self.results.timeline.matched_window if matched else own
        return self.labels[model] + (f" · {tokens(window)}" if self.rematched and window else "")

    @property
    def why_no_course(self) -> str | None:
        """Why figures that follow training are not drawn, if so."""
        several = self.of_models and len(self.order) > 1
        return "it follows training, and this is a study of several models" if several else None

    @cached_property
    def order(self) -> list[str]:
        """Names of the measured checkpoints, in order."""
        return [stop.model for stop in self.stops if stop.missing is None]

    @cached_property
    def place(self) -> dict[str, int]:
        """The number of each checkpoint among `stops`."""
        return {stop.model: i for i, stop in enumerate(self.stops)}

    @cached_property
    def labels(self) -> dict[str, str]:
        """Short names for axes; the full name where two short ones are the same."""
        shown = [drawable(stop.label) or drawable(stop.model) for stop in self.stops]
        count = Counter(shown)
        pairs = zip(self.stops, shown, strict=True)
        return {stop.model: label if count[label] == 1 else drawable(stop.model) for stop, label in pairs}

    @cached_property
    def phases(self) -> list[tuple[str, int, int]]:
        """(name, first, last number) of each run of checkpoints of one phase."""
        grouped = groupby(enumerate(self.stops), lambda at: at[1].phase)
        runs = ((phase, [i for i, _ in run]) for phase, run in grouped)
        return [(phase, places[0], places[-1]) for phase, places in runs]

    @cached_property
    def steps(self) -> list[float] | None:
        """Training steps of all checkpoints, added up over phases that count from 0 again; None if spaced evenly."""
        if self.spacing == "order":
            return None
        found: list[float] = []
        before, offset = 0, 0
        for stop in self.stops:
            if stop.step is None and stop.missing is None:
                raise TableError(
                    f"checkpoint {stop.model!r} has no training step; give it `step:` in the study, or draw without "
                    "spacing by steps"
                )
            step = before if stop.step is None else stop.step
            offset += before if step < before else 0
            found.append(float(step + offset))
            before = step
        return found

    @cached_property
    def rematched(self) -> list[str]:
        """Checkpoints whose own window is not the matched one: their matched value is drawn beside the own."""
        matched = self.results.matched
        if matched is None:
            return []
        there = set(matched["model"])
        window = self.results.timeline.matched_window
        windows = {stop.model: stop.window for stop in self.stops}
        return [m for m in self.order if m in there and (windows[m] is None or windows[m] != window)]

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
    def window_sentence(self) -> str:
        """What dotted lines are, where there are some."""
        return (
            f" Dotted lines repeat them over the {self.matched_text} of every text." if self.rematched else ""
        )

    @cached_property
    def populations(self) -> tuple[str, ...]:
        """`("RoPE", "NoPE")` where heads of both kinds of layer were measured; empty for a single population."""
        rope = self.results.heads["rope"] if "rope" in self.results.heads else pd.Series(dtype=float)
        return tuple(ROPE) if set(ROPE.values()) <= set(rope.dropna()) else ()

    @property
    def nope_layers(self) -> set[int]:
        """Layers without rotary embedding, where they are known and others have it."""
        heads = self.results.heads
        return set(heads.loc[heads["rope"] == 0, "layer"].astype(int)) if self.populations else set()

    def population_text(self, name: str) -> str:
        """`RoPE heads (36), first 256 tokens`: the heading of a panel."""
        heads = self.results.heads
        counts = (heads["rope"] == ROPE[name]).groupby(heads["model"]).sum()
        return f"{name} heads ({int(counts.max()):,}){self.over_matched}"

    def heads_over_same_tokens(self, model: str) -> pd.DataFrame:
        """The heads of a checkpoint, over the matched window where it has one."""
        matched = self.results.matched
        table = self.results.heads if matched is None or model not in self.rematched else matched
        return table[table["model"] == model]

    def both_windows(self, aggregate: Aggregate) -> pd.DataFrame:
        """An aggregate over own windows and, for `rematched`, over the matched one; says which in `window`."""
        results, matched = self.results, None
        if self.rematched and results.matched is not None:
            matched = aggregate(results.matched, results.loo_matched, self.rematched)
        return self.windows(aggregate(results.heads, results.loo, self.order), matched)

    def same_tokens(self, aggregate: Aggregate, population: str = ALL) -> pd.DataFrame:
        """An aggregate over the heads of a population, over the matched window wherever a checkpoint has one."""

        def of(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> pd.DataFrame:
            if population != ALL:
                heads = heads[heads["rope"] == ROPE[population]]
            return aggregate(heads, loo, order)

        found = self.both_windows(of)
        again = (found["window"] == OWN) & found["model"].isin(self.rematched)
        place = found["model"].map(self.place)
        return found[~again].iloc[np.argsort(place[~again].to_numpy(), kind="stable")].reset_index(drop=True)

    def with_populations(self, aggregate: Aggregate) -> pd.DataFrame:
        """All heads over both windows, then each population over the same tokens; says which in `population`."""
        found = {ALL: self.both_windows(aggregate)}
        found |= {name: self.same_tokens(aggregate, name) for name in self.populations}
        for name, table in found.items():
            table.insert(4, "population", name)
        return pd.concat(found.values(), ignore_index=True)

    def windows(self, own: pd.DataFrame, matched: pd.DataFrame | None) -> pd.DataFrame:
        """Two tables with a `model` column as one that says in `window` over which its numbers are."""
        frames = [self._named(own, OWN)] + ([] if matched is None else [self._named(matched, MATCHED)])
        return pd.concat(frames, ignore_index=True)

    def _named(self, table: pd.DataFrame, window: str) -> pd.DataFrame:
        sizes = {stop.model: stop.window for stop in self.stops}
        matched = self.results.timeline.matched_window
        size = table["model"].map(lambda m: sizes[m] if window == OWN else matched)
        named = table.assign(label=table["model"].map(self.labels), window=window)
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
            places = np.unique(
                np.linspace(0, len(order) - 1, min(MOST_MODELS, len(order))).round().astype(int)
            )
            return [order[i] for i in places]
        phases = {stop.model: stop.phase for stop in self.stops}
        ends = [i for i, model in enumerate(order[:-1]) if phases[model] != phases[order[i + 1]]]
        return [
            order[i] for i in _six(sorted({0, min(1, len(order) - 1), *ends, len(order) - 1}), len(order))
        ]

    @property
    def family_colours(self) -> dict[str, str]:
        """A colour per family of models, in the order of the study."""
        families = list(dict.fromkeys(stop.phase for stop in self.stops))
        return {family: FAMILY_COLOURS[i % len(FAMILY_COLOURS)] for i, family in enumerate(families)}

    @property
    def heads_text(self) -> str:
        """How many heads a checkpoint has, in words."""
        counts = self.results.heads.groupby("model", sort=False).size().reindex(self.order)
        low, high = int(counts.min()), int(counts.max())
        amount = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"{amount} query head{'s' if high != 1 else ''}"

    def subtitle(self, matched: bool = False) -> str:
        """The line under every title: which study, how many heads, on what windows.

        `matched` says that all panels are over the matched window where windows differ.
        """
        windows = list(dict.fromkeys(stop.window for stop in self.stops if stop.window and not stop.missing))
        parts = [self.results.timeline.title, f"{self.heads_text} per {self.noun}"]
        if matched and self.rematched:
            parts.append(f"{self.matched_text} of every text")
        elif windows:
            *shorter, longest = windows
            parts.append(f"window {listing([*(f'{w:,}' for w in shorter), tokens(longest)])}")
        return "  ·  ".join(part for part in parts if part)


def _six(chosen: Sequence[int], count: int) -> list[int]:
    """Six places: the most crowded inner ones dropped, or the widest gaps halved."""
    kept = list(chosen)
    while len(kept) > SIX:
        crowd = [kept[i + 1] - kept[i - 1] for i in range(2, len(kept) - 1)]
        del kept[2 + int(np.argmin(crowd))]
    while len(kept) < min(SIX, count):
        gaps = np.diff(kept)
        widest = int(np.argmax(gaps))
        kept.insert(widest + 1, kept[widest] + int(gaps[widest]) // 2)
    return kept


def look(results: Results, spacing: Spacing = "order") -> View:
    """Check the tables and put the checkpoints in order."""
    for name, table in (("heads", results.heads), ("matched heads", results.matched)):
        if table is not None:
            _check(name, table)
    timeline, there = results.timeline, set(results.heads["model"])
    twice = [name for name, count in Counter(stop.model for stop in timeline.stops).items() if count > 1]
    if twice:
        raise TableError(f"the study names checkpoint {twice[0]!r} twice; give each a name of its own")
    stops = tuple(
        stop if stop.missing or stop.model in there else replace(stop, missing="no rows in the table")
        for stop in timeline.stops
    )
    if not (results.heads["r_q"].notna() & results.heads["r_k"].notna()).any():
        raise TableError("no head of the table has both r_q and r_k: nothing was measured")
    if all(stop.missing for stop in stops):
        raise TableError(
            f"none of the study's checkpoints is in the table: the study has {_some(s.model for s in stops)}, "
            f"the table {_some(there)}; draw with the study file that made the table, or without one"
        )
    unknown = there - {stop.model for stop in stops}
    if unknown:
        raise TableError(f"the table has checkpoints the study does not name: {_some(unknown)}; add them")
    return View(results, stops, spacing)


def _some(names: Iterable[str]) -> str:
    return some(sorted(names), 5)


def _check(name: str, table: pd.DataFrame) -> None:
    """Refuse a table that would be drawn wrongly."""
    missing = [column for column in NEEDED if column not in table.columns]
    if missing:
        raise TableError(
            f"the {name} table has no column {', '.join(missing)}; make it with qkscope.table.heads_table"
        )
    if table.empty:
        raise TableError(f"the {name} table has no rows: nothing was measured, so there is nothing to draw")
    for column in ("r_q", "r_k"):
        values = table[column].to_numpy(np.float64)
        wrong = np.flatnonzero((np.abs(values) > 1 + 1e-6) | np.isinf(values))
        if len(wrong):
            row = table.iloc[wrong[0]]
            raise TableError(
                f"the {name} table: {column} is {row[column]} for {row['model']}, layer {row['layer']}, head "
                f"{row['head']} ({len(wrong)} such rows); a correlation is from -1 to 1"
            )
    twice = table.duplicated(["model", "layer", "head"]).to_numpy()
    if twice.any():
        row = table[twice].iloc[0]
        raise TableError(
            f"the {name} table: {row['model']}, layer {row['layer']}, head {row['head']} is there twice "
            f"({int(twice.sum())} such rows); two checkpoints of one name, or rows written twice?"
        )
