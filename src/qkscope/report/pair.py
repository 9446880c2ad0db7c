"""Two runs on one page: the second one's numbers on the first one's grid, and what differs between them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.comparison import compare_matched
from qkscope.report.data import grid_of, payload
from qkscope.results.aggregate import ROPE, populations
from qkscope.stats.levels import AGREES_WITHIN
from qkscope.words import capital

if TYPE_CHECKING:
    import pandas as pd

    from qkscope.comparison import Matched

LETTERS = ("A", "B")
# What a run has of its own; everything else on the page is shared.
OF_A_RUN = (
    *("checkpoints", "own", "matched", "causes", "ablation", "rotary", "examples", "climb"),
    *("more", "omitted"),
)
# Rows of differing numbers that the page lists; `qkscope compare --csv` writes all.
MOST_ROWS = 400


def same_windows(found: Matched) -> Matched:
    """Both runs over the first tokens, where both have the same number of them."""
    sides = (found.ours, found.theirs)
    if all(side.matched() is not None for side in sides) and (
        sides[0].timeline.matched_window == sides[1].timeline.matched_window
    ):
        return found
    # Otherwise neither side has what was measured over the first tokens.
    none = [("cell", np.zeros(side.data.sizes["cell"], dtype=bool)) for side in sides]
    ours, theirs = (
        replace(side, data=side.data.assign_coords(matched=mask))
        for side, mask in zip(sides, none, strict=True)
    )
    return replace(found, ours=ours, theirs=theirs)


def pair_payload(found: Matched) -> dict[str, Any]:
    """The page's data of the first run, and under `other` what the second has of its own, row by row the same."""
    grid = grid_of(found.ours)
    data = payload(found.ours, grid)
    other = payload(found.theirs, replace(grid, models=list(found.theirs.timeline.models)))
    return data | {"runs": list(found.names), "other": {name: other[name] for name in OF_A_RUN}}


def difference(found: Matched) -> dict[str, Any]:
    """How two matched runs differ: head by head, on average, as rows of a table, and lines below it."""
    compared, timeline = compare_matched(found), found.ours.timeline
    labelled = [replace(row, checkpoint=timeline.checkpoint(row.checkpoint).label) for row in compared.rows]
    compared = replace(compared, rows=tuple(labelled))
    rows, lines = compared.cells(), compared.closing()
    if len(rows) > MOST_ROWS:
        lines = [f"{len(rows) - MOST_ROWS} more are listed by `qkscope compare`.", *lines]
    return {
        "heads": heads_differ(found),
        "sentence": compared.sentence(),
        "rows": rows[:MOST_ROWS],
        "lines": lines,
    }


def heads_differ(found: Matched) -> str:
    """One sentence about the heads at the last checkpoint that both runs have, over the window the page starts with."""
    ours, theirs = found.ours, found.theirs
    tables = (ours.heads, theirs.heads)
    if ours.matched_heads is not None and theirs.matched_heads is not None:
        tables = (ours.matched_heads, theirs.matched_heads)
    last, other = ours.timeline.models[-1], theirs.timeline.models[-1]
    label = ours.timeline.checkpoint(last).label
    sides = [t[t["model"] == model] for t, model in zip(tables, (last, other), strict=True)]
    both = sides[0].merge(sides[1], on=["layer", "head"], suffixes=("", "_b"))
    share = all("share_positional" in side for side in sides)
    name, what = ("share_positional", "the position share") if share else ("r_q", "r_q")
    change = (both[name] - both[f"{name}_b"]).abs()
    known = change.notna()
    if not known.any():
        return f"No head has {what if share else 'an r_q'} in both runs at {label}."
    if not change[known].any():
        return f"{capital(what) if share else what} of every head is the same in both runs at {label}."
    typical = f"the median difference is {change[known].median():.3f}"
    error = np.hypot(both[f"{name}_se"], both[f"{name}_se_b"])
    if not np.isfinite(error).any():
        count = f"{int((change > 0).sum())} of {int(known.sum())} heads"
        return f"At {label}, {what} of {count} differs between the runs; {typical}."
    clear = change > AGREES_WITHIN * error
    counts = " and ".join(_counted(clear, both[known], kind) for kind in populations(ours.own()))
    return f"At {label}, {what} of {counts} differs between the runs beyond its error; {typical}."


def _counted(clear: pd.Series[bool], heads: pd.DataFrame, kind: str) -> str:
    """`31 of 36 RoPE heads`."""
    here = heads.index if kind == "all" else heads.index[heads["rope"] == ROPE[kind]]
    return f"{int(clear[here].sum())} of {len(here)} {'' if kind == 'all' else f'{kind} '}heads"
