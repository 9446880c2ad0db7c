"""The numbers of each side, and how they differ: means, shares and depth cells, each with its error; every head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from qkscope.comparison.outcome import CELLS, Kind, Quantity, Row
from qkscope.results import Results, aggregate
from qkscope.results.taxonomy import CLASSES, Thresholds
from qkscope.stats.levels import AGREES_WITHIN, ONE_HEAD, ROUNDING
from qkscope.store import read_json

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Numbers = dict[tuple[Quantity, str], tuple[float, float]]  # (quantity, checkpoint) -> (value, standard error)


def numbers_of(side: Results, rematched: Sequence[str]) -> Numbers:
    """Own-window numbers, and the matched window's under its own name at the checkpoints `rematched`."""
    found = measured(side.own(), side.timeline.models, side.thresholds)
    first = side.matched()
    if first is not None and side.timeline.matched_window is not None:
        matched = measured(first, rematched, side.thresholds)
        prefix = f"first {side.timeline.matched_window:,}: "
        found |= {
            (Quantity(prefix + name, kind), model): value
            for ((name, kind), model), value in matched.items()
            if kind not in CELLS
        }
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
            # Leaving documents out often moves no head between classes: each share is not surer than half a head.
            unseen = math.sqrt(2 * ONE_HEAD) / max(heads, 1) if quantity.kind == "share" else 0.0
            verdict = agrees(value - other, se, other_se, unseen)
            sides = (value, se, other, other_se)
            rows.append(Row(quantity.name, checkpoint, *sides, value - other, verdict, quantity.kind))
    place = {name: i for i, name in enumerate(dict.fromkeys(quantity.name for quantity, _ in ours))}
    return tuple(sorted(rows, key=lambda row: place[row.quantity]))


def agrees(difference: float, se: float, other_se: float, unseen: float = 0.0) -> bool | None:
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
    """That the classes of the two sides are not the same, where they are not."""
    if ours == theirs:
        return []
    return [f"The runs use different class thresholds: {asdict(ours)} and {asdict(theirs)}."]


def text_notes(ours: Results, theirs: Results) -> list[str]:
    """That the two sides were measured on different texts, or that it is not known, where it is so."""
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
