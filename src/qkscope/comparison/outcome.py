"""The numbers of each side of a comparison, how they differ, and the result as data, as a sentence and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from qkscope.results import Results, aggregate
from qkscope.results.taxonomy import CLASSES, Thresholds
from qkscope.stats.levels import AGREES_WITHIN, CONFIDENCE, ONE_HEAD, ROUNDING
from qkscope.store import for_json, read_json, write_csv
from qkscope.words import bare, capital, count, number, percent

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import RenderableType


# A mean over heads, a class's share of the heads, or a cell of the maps of r_q and r_k by depth.
Kind = Literal["mean", "share", "r_q by depth", "r_k by depth"]
# Kinds with many numbers: one line summarises each.
CELLS: tuple[Kind, Kind] = ("r_q by depth", "r_k by depth")
# Quantities that a sentence names first if they differ.
_FIRST = ("mean r_q", "mean r_k")
_JUDGED = {True: "agrees", False: "differs", None: "cannot tell"}


class Quantity(NamedTuple):
    """A number that is compared at several checkpoints: its name, and of which kind it is."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Row:
    """One number on both sides. `agrees` is None if that cannot be judged, for example because neither has an error."""

    quantity: str
    checkpoint: str
    ours: float
    se: float
    theirs: float
    their_se: float
    difference: float
    agrees: bool | None
    kind: Kind

    @property
    def equal(self) -> bool:
        """The same number on both sides, up to rounding."""
        return abs(self.difference) < ROUNDING

    @property
    def difference_se(self) -> float:
        """Standard error of the difference, from the sides that have one."""
        known = [se for se in (self.se, self.their_se) if math.isfinite(se) and se > 0]
        return math.hypot(*known) if known else math.nan


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: numbers that both sides have, checkpoints that only one side has, and notes."""

    ours: str
    theirs: str
    rows: tuple[Row, ...]
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]
    notes: tuple[str, ...]
    heads: pd.DataFrame | None = None
    """A row per checkpoint and head of two runs: r_q and r_k on both sides, their difference and its error."""
    seeds: tuple[int, int] | None = None
    """Number of runs on each side, if there are several: errors are then over these."""
    clear: tuple[Row, ...] = ()
    """With several runs per side: the numbers over all checkpoints that differ when all are tested together."""

    @property
    def agree(self) -> bool:
        """Whether no number differs by more than its uncertainty; numbers that cannot be judged do not count."""
        return all(row.agrees is not False for row in self.rows)

    @property
    def outcome(self) -> Literal["agree", "differ", "cannot tell"]:
        """The verdict over all numbers except the cells of the depth maps."""
        judged = [row.agrees for row in self.headline_rows]
        return "differ" if False in judged else "cannot tell" if None in judged else "agree"

    @property
    def headline_rows(self) -> list[Row]:
        """All numbers except the many cells of the depth maps."""
        return [row for row in self.rows if row.kind not in CELLS]

    def table(self) -> pd.DataFrame:
        """The rows as a table."""
        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_json(self) -> str:
        """Everything except the heads; unknown numbers are null."""
        names = ("ours", "theirs", "agree", "outcome", "only_ours", "only_theirs", "notes", "seeds")
        whole = {name: getattr(self, name) for name in names}
        whole |= {"sentence": self.sentence(), "rows": [asdict(row) for row in self.rows]}
        return json.dumps(for_json(whole), indent=2, ensure_ascii=False)

    def save(self, path: Path) -> None:
        """Every row as CSV; for two runs also every head, in `<name>_heads.csv` beside it."""
        write_csv(path, self.table())
        if self.heads is not None:
            write_csv(path.with_name(f"{path.stem}_heads.csv"), self.heads)

    def sentence(self) -> str:
        """What differs, in one sentence: how many numbers, and the largest difference."""
        if self.seeds is not None:
            return self._over_seeds(*self.seeds)
        both, named = f"{self.ours} and {self.theirs}", self.headline_rows
        if all(row.equal for row in self.rows):
            return self._same_numbers()
        if differ := [row for row in named if row.agrees is False]:
            most = _most(differ)
            return (
                f"{len(differ)} of {len(named)} numbers differ, most of all {most.quantity} at {most.checkpoint}: "
                f"{self._sides(most)}."
            )
        if unclear := [row for row in named if row.agrees is None]:
            most = _most(unclear)
            return (
                f"Whether {both} differ is unclear: {len(unclear)} of {len(named)} numbers are unequal but lack the "
                f"standard errors to judge by, most of all {most.quantity} at {most.checkpoint}: {self._sides(most)}."
            )
        return f"{both} agree: none of {len(named)} numbers differs by more than chance."

    def verdict(self) -> str:
        """How many numbers agree, in a sentence."""
        agree = sum(row.agrees is True for row in self.rows)
        unknown = sum(row.agrees is None for row in self.rows)
        rule = f"within {count(round(AGREES_WITHIN), 'standard error')} of the difference"
        if self.seeds is not None:
            rule = f"by Welch's t-test at {percent(1 - CONFIDENCE)} over {self.seeds[0]} and {self.seeds[1]} seeds"
        text = f"{agree} of {len(self.rows)} numbers agree {rule}"
        return text + (f"; {unknown} cannot be judged." if unknown else ".")

    def cells(self) -> list[tuple[str, ...]]:
        """The printed table, row by row. Equal numbers and depth maps are summarised by `closing`."""
        return [
            (
                row.quantity,
                row.checkpoint,
                number(row.ours, row.se, digits=2),
                number(row.theirs, row.their_se, digits=2),
                number(row.difference, row.difference_se, signed=True, digits=2),
                _JUDGED[row.agrees],
            )
            for row in self.headline_rows
            if not row.equal
        ]

    def closing(self) -> list[str]:
        """The lines below the table."""
        equal = sum(row.equal for row in self.headline_rows)
        lines = [f"{equal} numbers are exactly equal and not shown."] if equal else []
        lines += [
            _depth_map(cells, kind) for kind in CELLS if (cells := [r for r in self.rows if r.kind == kind])
        ]
        lines.append(self.verdict())
        for name, only in ((self.ours, self.only_ours), (self.theirs, self.only_theirs)):
            lines += [f"Only in {name}: {', '.join(only)}."] if only else []
        return [*lines, *self.notes]

    def to_text(self) -> str:
        """The comparison as plain text."""
        lines = [f"{self.ours} vs. {self.theirs}", ""]
        for row in self.cells():
            lines.append("  ".join((f"{row[0]:<28}", f"{row[1]:<26}", *(f"{cell:>15}" for cell in row[2:]))))
        return "\n".join([*lines, "", capital(self.sentence()), *self.closing()]) + "\n"

    def __str__(self) -> str:
        return self.to_text()

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(f"{self.ours} vs. {self.theirs}"))
        for name in ("quantity", "checkpoint", "ours", "theirs", "difference", "verdict"):
            table.add_column(name, justify="left" if name in ("quantity", "checkpoint") else "right")
        for quantity, rows in groupby(self.cells(), key=lambda row: row[0]):
            for i, (_, *cells) in enumerate(rows):
                style = "bold" if cells[-1] == "differs" else None
                table.add_row(*map(Text, (quantity if i == 0 else "", *cells)), style=style)
            table.add_section()
        words = map(Text, (self.sentence(), *self.closing()))
        return Group(table, *words) if table.row_count else Group(*words)

    def _same_numbers(self) -> str:
        """Means and shares are equal to the last digit; the heads behind them need not be."""
        both = f"{self.ours} and {self.theirs}"
        if self.heads is None:
            return f"{both} have exactly the same means and shares."
        ours, theirs = (self.heads[[f"r_q_{side}", f"r_k_{side}"]].to_numpy() for side in ("ours", "theirs"))
        moved = int((~np.isclose(ours, theirs, rtol=0, atol=ROUNDING, equal_nan=True)).any(axis=1).sum())
        if not moved:
            return f"{both} have exactly the same numbers, head by head."
        return (
            f"{both} have the same means and shares, but {moved:,} of {len(self.heads):,} measurements of single "
            "heads differ."
        )

    def _over_seeds(self, ours: int, theirs: int) -> str:
        mine, others = count(ours, "seed"), count(theirs, "seed")
        over = f"over {mine} per side" if ours == theirs else f"over {mine} and {others}"
        if not self.clear:
            both = f"between {self.ours} and {self.theirs}"
            return f"No number differs {both} by more than it does between seeds, {over}."
        most = _most(self.clear)
        more = f", and {count(len(self.clear) - 1, 'other number')}" if len(self.clear) > 1 else ""
        return (
            f"{capital(most.quantity)} differs by more than it does between seeds{more}: {self._sides(most)}; errors "
            f"are {over}."
        )

    def _sides(self, row: Row) -> str:
        sides = (row.ours, row.se, self.ours), (row.theirs, row.their_se, self.theirs)
        return ", ".join(f"{number(value, se, digits=2)} in {name}" for value, se, name in sides)


def _most(rows: Sequence[Row]) -> Row:
    first = [row for row in rows if row.quantity in _FIRST] or rows
    return max(first, key=lambda row: abs(row.difference))


def _depth_map(cells: Sequence[Row], kind: Kind) -> str:
    """A line about all cells of a depth map."""
    worst = max(cells, key=lambda row: abs(row.difference))
    where = worst.quantity.removeprefix(f"{kind}, ")
    return (
        f"Mean {kind}: {sum(row.agrees is True for row in cells)} of {len(cells)} cells agree; the largest difference "
        f"is {bare(worst.difference, 3, signed=True)} ({where}, {worst.checkpoint})."
    )


Numbers = dict[tuple[Quantity, str], tuple[float, float]]  # (quantity, checkpoint) -> (value, standard error)


def numbers_of(side: Results, rematched: Sequence[str]) -> Numbers:
    """Own-window numbers, and the matched window's under its own name at the checkpoints `rematched`."""
    found = measured(side.own(), side.timeline.models, side.thresholds)
    first = side.matched()
    if first is not None and side.timeline.matched_window is not None:
        matched = measured(first, rematched, side.thresholds)
        for ((name, kind), model), value in matched.items():
            if kind not in CELLS:
                found[Quantity(f"first {side.timeline.matched_window:,}: {name}", kind), model] = value
    return found


def measured(data: xr.Dataset, order: Sequence[str], thresholds: Thresholds) -> Numbers:
    """Means over heads, shares of classes and cells by depth, with their errors over documents."""
    found: Numbers = {}
    for row in aggregate.position_signal(data, order).to_dict("records"):
        for name, key in (("mean r_q", "r_q"), ("mean r_k", "r_k"), ("mean |r_k|", "abs_r_k")):
            found[Quantity(name, "mean"), row["model"]] = row[f"mean_{key}"], row[f"se_{key}"]
    for row in aggregate.explained_variance(data, order).to_dict("records"):
        found[Quantity("mean explained variance", "mean"), row["model"]] = row["mean"], row["se"]
    for row in aggregate.class_shares(data, order, thresholds).to_dict("records"):
        if row["class"] in CLASSES:
            found[Quantity(f"share {row['class']}", "share"), row["model"]] = row["share"], row["se"]
    for kind, value in zip(CELLS, ("r_q", "r_k"), strict=True):
        for row in aggregate.depth_cells(data, order, value).to_dict("records"):
            found[depth_cell(kind, row["depth_bin"]), row["model"]] = row["mean"], row["se"]
    return found


def depth_cell(kind: Kind, depth_bin: int) -> Quantity:
    """`r_q by depth, 0.3 to 0.4`."""
    return Quantity(f"{kind}, {depth_bin / 10:.1f} to {(depth_bin + 1) / 10:.1f}", kind)


def rows_of(ours: Numbers, theirs: Numbers, heads: int) -> tuple[Row, ...]:
    """Every number both sides have, quantity by quantity, of `heads` heads. An empty depth bin is no number."""
    rows = []
    for (quantity, checkpoint), (value, se) in ours.items():
        other, other_se = theirs.get((quantity, checkpoint), (math.nan, math.nan))
        if math.isfinite(value) and math.isfinite(other):
            # Leaving documents out often moves no head between classes: the error of a share is at least half a head.
            unseen = math.sqrt(2 * ONE_HEAD) / max(heads, 1) if quantity.kind == "share" else 0.0
            verdict = agrees(value - other, se, other_se, unseen)
            sides = (value, se, other, other_se)
            rows.append(Row(quantity.name, checkpoint, *sides, value - other, verdict, quantity.kind))
    names = list(dict.fromkeys(quantity.name for quantity, _ in ours))
    return tuple(sorted(rows, key=lambda row: names.index(row.quantity)))


def agrees(difference: float, se: float, other_se: float, unseen: float) -> bool | None:
    """Whether two numbers are the same within AGREES_WITHIN standard errors; None where one cannot tell.

    The error is that of the difference, or of the one side that has one. Without any, only equal numbers agree.
    An error of exactly 0 is none: it says that leaving documents out changed nothing. `unseen` is an error that leaving
    documents out does not show: it is not enough to agree, but numbers differ only beyond it too.
    """
    if abs(difference) < ROUNDING:
        return True
    known = math.hypot(*(each for each in (se, other_se) if math.isfinite(each)))
    if known < ROUNDING:
        return None
    if abs(difference) <= AGREES_WITHIN * known + ROUNDING:
        return True
    return None if abs(difference) <= AGREES_WITHIN * math.hypot(known, unseen) else False


def by_head(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """A row per checkpoint and head of both: r_q and r_k on each side, their difference and its error."""
    values = ["r_q", "r_q_se", "r_k", "r_k_se"]
    sides = [side.set_index(["model", "layer", "head"])[values] for side in (ours, theirs)]
    both = sides[0].add_suffix("_ours").join(sides[1].add_suffix("_theirs"), how="inner")
    for name in ("r_q", "r_k"):
        both[f"{name}_difference"] = both[f"{name}_ours"] - both[f"{name}_theirs"]
        both[f"{name}_difference_se"] = np.hypot(both[f"{name}_se_ours"], both[f"{name}_se_theirs"])
    return both.reset_index()


def threshold_note(ours: Thresholds, theirs: Thresholds) -> list[str]:
    """A note where the two sides use different class thresholds."""
    if ours == theirs:
        return []
    return [f"The runs use different class thresholds: {asdict(ours)} and {asdict(theirs)}."]


def text_notes(ours: Results, theirs: Results) -> list[str]:
    """A note where the two sides were measured on different texts, or where this was not recorded."""
    sides = [_texts(side) for side in (ours, theirs)]
    if None in sides:
        return ["It is not recorded whether both runs were measured on the same texts."]
    if sides[0] == sides[1]:
        return []
    return [
        "The texts, or the parts of them that were read, differ, so differences may come from the texts alone. "
        "Measure both runs with the same corpus and windows to compare the models."
    ]


def _texts(side: Results) -> frozenset[str] | None:
    """Digests of the tokens that a result was measured on; None where they were not recorded."""
    record = side.provenance.get("checkpoints")
    digests = [each.get("corpus") for each in record.values()] if isinstance(record, dict) else []
    scanned = side.folder / "scan.json"
    if not digests and scanned.is_file() and isinstance(facts := read_json(scanned), dict):
        digests = [facts.get("corpus")]
    known = [digest for digest in digests if isinstance(digest, str) and digest]
    return frozenset(known) if known and len(known) == len(digests) else None
