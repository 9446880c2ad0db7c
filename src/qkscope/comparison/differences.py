"""The numbers of each side, and how they differ: means, shares and depth cells, each with its error; every head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from qkscope import aggregate
from qkscope.comparison.outcome import Row
from qkscope.comparison.words import CELLS
from qkscope.head_numbers import KEY
from qkscope.inference.levels import AGREES_WITHIN
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, Thresholds

Numbers = dict[tuple[str, str], tuple[float, float]]  # (quantity, checkpoint) -> (value, standard error)


def numbers_of(side: Results, rematched: Sequence[str]) -> Numbers:
    """Own-window numbers, and the matched window's under its own name at the checkpoints `rematched`."""
    found = measured(side.heads, side.loo, side.timeline.models, side.thresholds)
    if side.matched is not None and side.timeline.matched_window is not None:
        matched = measured(side.matched, side.loo_matched, rematched, side.thresholds)
        prefix = f"first {side.timeline.matched_window:,}: "
        found |= {
            (prefix + name, model): value for (name, model), value in matched.items() if "depth" not in name
        }
    return found


def measured(
    heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str], thresholds: Thresholds
) -> Numbers:
    """Means over heads, shares of classes and cells by depth, with their errors over documents."""
    found: Numbers = {}
    for row in aggregate.position_signal(heads, loo, order).to_dict("records"):
        for name, key in (("mean r_q", "r_q"), ("mean r_k", "r_k"), ("mean |r_k|", "abs_r_k")):
            found[name, row["model"]] = row[f"mean_{key}"], row[f"se_{key}"]
    for row in aggregate.explained_variance(heads, loo, order).to_dict("records"):
        found["mean explained variance", row["model"]] = row["mean"], row["se"]
    for row in aggregate.class_shares(heads, loo, order, thresholds).to_dict("records"):
        if row["class"] in CLASSES:
            found[f"share {row['class']}", row["model"]] = row["share"], row["se"]
    for name, value in zip(CELLS, ("r_q", "r_k"), strict=True):
        for row in aggregate.depth_cells(heads, loo, order, value).to_dict("records"):
            found[cell_name(name, row["depth_bin"]), row["model"]] = row["mean"], row["se"]
    return found


def cell_name(name: str, depth_bin: int) -> str:
    """`r_q by depth, 0.3 to 0.4`."""
    return f"{name}, {depth_bin / 10:.1f} to {(depth_bin + 1) / 10:.1f}"


def rows_of(ours: Numbers, theirs: Numbers) -> tuple[Row, ...]:
    """Every number both sides have, quantity by quantity. An empty depth bin is no number."""
    rows = []
    for key, (value, se) in ours.items():
        other, other_se = theirs.get(key, (math.nan, math.nan))
        if math.isfinite(value) and math.isfinite(other):
            rows.append(
                Row(*key, value, se, other, other_se, value - other, agrees(value - other, se, other_se))
            )
    place = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in ours))}
    return tuple(sorted(rows, key=lambda row: place[row.quantity]))


def agrees(difference: float, se: float, other_se: float) -> bool | None:
    """Within two standard errors of the difference; the same number agrees whatever its error."""
    if abs(difference) < 1e-12:
        return True
    known = [each for each in (se, other_se) if math.isfinite(each)]
    if not known:
        return None
    # A tolerance of exactly two published read-off errors must not fail by a rounding error of the subtraction.
    return abs(difference) <= AGREES_WITHIN * math.hypot(*known) + 1e-12


def by_head(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """A row per checkpoint and head of both: r_q and r_k on each side, their difference and its error."""
    values = ["r_q", "r_q_se", "r_k", "r_k_se"]
    sides = [side.set_index(KEY)[values] for side in (ours, theirs)]
    both = sides[0].add_suffix("_ours").join(sides[1].add_suffix("_theirs"), how="inner")
    for name in ("r_q", "r_k"):
        both[f"{name}_difference"] = both[f"{name}_ours"] - both[f"{name}_theirs"]
        both[f"{name}_difference_se"] = np.hypot(both[f"{name}_se_ours"], both[f"{name}_se_theirs"])
    return both.reset_index()


def threshold_note(ours: Thresholds, theirs: Thresholds) -> list[str]:
    """That the classes of the two sides are not the same, where they are not."""
    if ours == theirs:
        return []
    return [f"The classes have different thresholds: {asdict(ours)} and {asdict(theirs)}."]
