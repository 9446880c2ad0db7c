"""What the pictures of one study have in common: the stops on their axis, and the two windows of every number.

Checks the tables once, so that no figure has to: what cannot be drawn truthfully is refused here with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import pandas as pd

from qkscope.errors import TableError
from qkscope.figures.tools.style import drawable
from qkscope.results import Results
from qkscope.timeline import Stop
from qkscope.words import listing, some, tokens

NEEDED = ("model", "layer", "head", "r_q", "r_k", "class", "polarity", "depth_bin")
OWN, MATCHED = "own", "matched"

Aggregate = Callable[[pd.DataFrame, pd.DataFrame | None, Sequence[str]], pd.DataFrame]


@dataclass(frozen=True)
class View:
    """A study as its pictures see it. `stops` are all that stand on the axis, measured or not."""

    results: Results
    stops: tuple[Stop, ...]

    @property
    def training(self) -> bool:
        """Whether the axis is training: several checkpoints of one model."""
        return self.results.timeline.kind == "training" and len(self.order) > 1

    @property
    def of_models(self) -> bool:
        return self.results.timeline.kind == "models"

    @property
    def over_training(self) -> str:
        """What a title says of the axis."""
        return " over training" if self.training else ""

    def heading(self, model: str) -> str:
        """A checkpoint over a panel of its own: its label, and its window where windows differ."""
        window = self.stops[self.place[model]].window
        return self.labels[model] + (f" · {tokens(window)}" if self.rematched and window else "")

    @property
    def matched_heading(self) -> str:
        """Over panels of the matched window."""
        return f"the same over the {self.matched_text}"

    @property
    def matched_sentence(self) -> str:
        """How a line over the matched window is drawn, where there is one."""
        again = f" Dotted lines with hollow marks are the same over the {self.matched_text}."
        return again if self.rematched else ""

    @property
    def why_no_course(self) -> str | None:
        """Why pictures of a course over training are not drawn, if so."""
        several = self.of_models and len(self.order) > 1
        return "it follows training, and this is a study of several models" if several else None

    @property
    def noun(self) -> str:
        return "model" if self.of_models else "checkpoint"

    @cached_property
    def order(self) -> list[str]:
        """Names of the measured checkpoints, in order."""
        return [stop.model for stop in self.stops if stop.missing is None]

    @cached_property
    def place(self) -> dict[str, int]:
        """Where each checkpoint stands on the axis."""
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
        """(name, first, last place) of each run of stops of one phase."""
        grouped = groupby(enumerate(self.stops), lambda at: at[1].phase)
        runs = ((phase, [i for i, _ in run]) for phase, run in grouped)
        return [(phase, places[0], places[-1]) for phase, places in runs]

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

    def both_windows(self, aggregate: Aggregate) -> pd.DataFrame:
        """An aggregate over own windows and, for `rematched`, over the matched one; says which in `window`."""
        results, matched = self.results, None
        if self.rematched and results.matched is not None:
            matched = aggregate(results.matched, results.loo_matched, self.rematched)
        return self.windows(aggregate(results.heads, results.loo, self.order), matched)

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

    @property
    def heads_text(self) -> str:
        """How many heads a checkpoint has, in words."""
        counts = self.results.heads.groupby("model", sort=False).size().reindex(self.order)
        low, high = int(counts.min()), int(counts.max())
        amount = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"{amount} query head{'s' if high != 1 else ''}"

    @property
    def subtitle(self) -> str:
        """The line under every title: which study, how many heads, on what windows."""
        windows = list(dict.fromkeys(stop.window for stop in self.stops if stop.window and not stop.missing))
        parts = [self.results.timeline.title, f"{self.heads_text} per {self.noun}"]
        if windows:
            *shorter, longest = windows
            parts.append(f"window {listing([*(f'{w:,}' for w in shorter), tokens(longest)])}")
        return "  ·  ".join(part for part in parts if part)


def look(results: Results) -> View:
    """Check the tables and put the checkpoints on the axis."""
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
    return View(results, stops)


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
