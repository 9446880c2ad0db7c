"""A comparison as people read it: what differs in one sentence, a table of what is not equal, what to know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkscope.stats.levels import ROUNDING, rule_of_agreement, rule_of_seeds
from qkscope.words import bare, capital, count, number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from qkscope.comparison.outcome import Comparison, Kind, Row

# Kinds of which there are many numbers: a line summarises each.
CELLS: tuple[Kind, Kind] = ("r_q by depth", "r_k by depth")
# What a sentence is about first, where it differs.
_FIRST = ("mean r_q", "mean r_k")
_JUDGED = {True: "agrees", False: "differs", None: "cannot tell"}


def headline_rows(rows: Sequence[Row]) -> list[Row]:
    """All numbers but the many cells of the depth maps."""
    return [row for row in rows if row.kind not in CELLS]


def difference(found: Comparison) -> str:
    """What differs, in one sentence: how many numbers, and the largest difference."""
    if found.seeds is not None:
        return _over_seeds(found, found.seeds)
    both = f"{found.ours} and {found.theirs}"
    named = headline_rows(found.rows)
    differ = [row for row in named if row.agrees is False]
    open_ = [row for row in named if row.agrees is None]
    if all(row.equal for row in found.rows):
        return _same_numbers(found)
    if differ:
        most = _most(differ)
        told = (
            f"{len(differ)} of {len(named)} numbers differ, most of all {most.quantity} at {most.checkpoint}"
        )
        return f"{told}: {_sides(found, most)}."
    if open_:
        most = _most(open_)
        return (
            f"Whether {both} differ is unclear: {len(open_)} of {len(named)} numbers are unequal but lack the "
            f"standard errors to judge by, most of all {most.quantity} at {most.checkpoint}: {_sides(found, most)}."
        )
    return f"{both} agree: none of {len(named)} numbers differs by more than chance."


def _same_numbers(found: Comparison) -> str:
    """Means and shares are equal to the last digit; the heads behind them need not be."""
    both = f"{found.ours} and {found.theirs}"
    if found.heads is None:
        return f"{both} have exactly the same means and shares."
    ours, theirs = (found.heads[[f"r_q_{side}", f"r_k_{side}"]].to_numpy() for side in ("ours", "theirs"))
    moved = int((~np.isclose(ours, theirs, rtol=0, atol=ROUNDING, equal_nan=True)).any(axis=1).sum())
    if not moved:
        return f"{both} have exactly the same numbers, head by head."
    return (
        f"{both} have the same means and shares, but {moved:,} of {len(found.heads):,} measurements of single heads "
        "differ."
    )


def _over_seeds(found: Comparison, seeds: tuple[int, int]) -> str:
    ours, theirs = (count(each, "seed") for each in seeds)
    over = f"over {ours} per side" if ours == theirs else f"over {ours} and {theirs}"
    if not found.clear:
        return f"No number differs between {found.ours} and {found.theirs} by more than it does between seeds, {over}."
    most = _most(found.clear)
    others = f", and {count(len(found.clear) - 1, 'other number')}" if len(found.clear) > 1 else ""
    sides = _sides(found, most)
    return f"{capital(most.quantity)} differs by more than it does between seeds{others}: {sides}; errors are {over}."


def _most(rows: Sequence[Row]) -> Row:
    first = [row for row in rows if row.quantity in _FIRST] or rows
    return max(first, key=lambda row: abs(row.difference))


def _sides(found: Comparison, row: Row) -> str:
    sides = (row.ours, row.se, found.ours), (row.theirs, row.their_se, found.theirs)
    return ", ".join(f"{number(value, se, digits=2)} in {name}" for value, se, name in sides)


def _error(row: Row) -> float:
    """Of a difference, as far as it is known."""
    known = [se for se in (row.se, row.their_se) if math.isfinite(se) and se > 0]
    return math.hypot(*known) if known else math.nan


def verdict(found: Comparison) -> str:
    """How many numbers agree, in a sentence."""
    agree = sum(row.agrees is True for row in found.rows)
    unknown = sum(row.agrees is None for row in found.rows)
    rule = rule_of_agreement() if found.seeds is None else rule_of_seeds(*found.seeds)
    text = f"{agree} of {len(found.rows)} numbers agree {rule}"
    return text + (f"; {unknown} cannot be judged." if unknown else ".")


def printed(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Cells of the table. What is exactly equal and the many cells of the depth maps are told in lines below it."""
    return [
        (
            row.quantity,
            row.checkpoint,
            number(row.ours, row.se, digits=2),
            number(row.theirs, row.their_se, digits=2),
            number(row.difference, _error(row), signed=True, digits=2),
            _JUDGED[row.agrees],
        )
        for row in headline_rows(rows)
        if not row.equal
    ]


def closing(found: Comparison) -> list[str]:
    """What stands below the table, a line each."""
    equal = sum(row.equal for row in headline_rows(found.rows))
    lines = [f"{equal} numbers are exactly equal and not shown." if equal else ""]
    lines += [_cells(found.rows, kind) for kind in CELLS]
    lines += [verdict(found)]
    if found.only_ours:
        lines.append(f"Only in {found.ours}: {', '.join(found.only_ours)}.")
    if found.only_theirs:
        lines.append(f"Only in {found.theirs}: {', '.join(found.only_theirs)}.")
    return [line for line in (*lines, *found.notes) if line]


def plain(found: Comparison) -> str:
    """The comparison as plain text."""
    lines = [f"{found.ours} vs. {found.theirs}", ""]
    for row in printed(found.rows):
        lines.append("  ".join((f"{row[0]:<28}", f"{row[1]:<26}", *(f"{cell:>15}" for cell in row[2:]))))
    return "\n".join([*lines, "", capital(difference(found)), *closing(found)]) + "\n"


def rich(found: Comparison) -> RenderableType:
    """The comparison as a table for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{found.ours} vs. {found.theirs}"))
    for name in ("quantity", "checkpoint", "ours", "theirs", "difference", "verdict"):
        table.add_column(name, justify="left" if name in ("quantity", "checkpoint") else "right")
    above = ""
    for quantity, *cells in printed(found.rows):
        if above and quantity != above:
            table.add_section()
        named = "" if quantity == above else quantity
        table.add_row(
            *(Text(cell) for cell in (named, *cells)), style="bold" if cells[-1] == "differs" else None
        )
        above = quantity
    return Group(table, *(Text(line) for line in (difference(found), *closing(found))))


def _cells(rows: Sequence[Row], kind: Kind) -> str:
    cells = [row for row in rows if row.kind == kind]
    if not cells:
        return ""
    worst = max(cells, key=lambda row: abs(row.difference))
    agree = sum(row.agrees is True for row in cells)
    largest = bare(worst.difference, 3, signed=True)
    return (
        f"Mean {kind}: {agree} of {len(cells)} cells agree; the largest difference is {largest} "
        f"({worst.quantity.removeprefix(kind).strip(' ,')}, {worst.checkpoint})."
    )
