"""Curves along an axis of their own: scores by distance, and how much of r each wavelength carries.

For every head as packed columns, as far as they fit the page, and averaged over populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qkscope.anatomy_means import carried_by, score_by_distance
from qkscope.head_numbers import KEY
from qkscope.report.averages import members, populations
from qkscope.report.encode import listed, pack_column
from qkscope.report.grid import Grid

if TYPE_CHECKING:
    from qkscope.report.window import Window

LIMIT = 3_000_000  # base64 characters of one curve; a larger one stays in its parquet file


def curves(window: Window, grid: Grid, order: Sequence[str]) -> list[dict[str, Any]]:
    """What the tables hold of every head; each with the places of its axis and packed (rows, places)."""
    title = "Mean score by distance, logits"
    found = [_curve(window.distance, grid, "distance", "score", "distance", title, "tokens back")]
    spectrum = window.spectrum
    for kind in ("q", "k"):
        # dimensions that do not rotate have no pair and no place on this axis
        part = None if spectrum is None else spectrum[(spectrum["kind"] == kind) & (spectrum["pair"] >= 0)]
        title = f"Part of r_{kind} from each rotary pair"
        curve = _curve(part, grid, f"signal_{kind}", "signal", "pair", title, "rotary pair, fast to slow")
        waves = None if part is None or curve is None else _waves(part, order, curve["at"])
        if curve is not None and waves is not None:
            title = f"Part of r_{kind} from each rotary wavelength"
            curve |= {"waves": waves, "title": title, "axis": "wavelength, tokens", "log": True}
        found.append(curve)
    return [curve for curve in found if curve is not None]


def _waves(part: pd.DataFrame, order: Sequence[str], pairs: Sequence[int]) -> list[list[float | None]] | None:
    """For each checkpoint the wavelength of every pair; None where heads of one checkpoint differ in them."""
    by_pair = part.groupby(["model", "pair"])["wavelength"]
    if (by_pair.nunique(dropna=False) > 1).any() or not np.isfinite(part["wavelength"]).all():
        return None
    found = by_pair.first().unstack("pair").reindex(index=list(order), columns=list(pairs))
    return [listed(row) for _, row in found.iterrows()]


def _curve(
    table: pd.DataFrame | None, grid: Grid, name: str, value: str, along: str, title: str, axis: str
) -> dict[str, Any] | None:
    """`value` of every head at the places `along`; NaN where a checkpoint's window or layer has no such place."""
    if table is None or table.empty:
        return None
    placed = grid.place(table)
    places, column = np.unique(placed.table[along].to_numpy(), return_inverse=True)
    if grid.rows * len(places) * 2 * 4 / 3 > LIMIT:
        return None
    values = np.full((grid.rows, len(places)), np.nan)
    values[placed.row, column] = placed.table[value].to_numpy(np.float64)
    packed = pack_column(values)
    if packed is None:
        return None
    # Distances double: a logarithmic axis gives each its room.
    log = along == "distance" and bool(places[0] > 0)
    return {"name": name, "title": title, "axis": axis, "log": log, "at": places.tolist(), "column": packed}


def wavelengths(window: Window, order: Sequence[str]) -> list[dict[str, Any]] | None:
    """For each checkpoint, the wavelengths of its rotation and the share of r_q that each carries."""
    if window.spectrum is None or not (window.spectrum["pair"] >= 0).any():
        return None
    shares = carried_by(window.spectrum, "q").dropna(subset="share")
    rotating = window.spectrum[window.spectrum["pair"] >= 0].drop_duplicates(KEY).groupby("model").size()
    found = []
    for model in order:
        here = shares[shares["model"] == model].sort_values("wavelength")
        found.append(
            {
                "at": here["wavelength"].tolist(),
                "share": listed(here["share"]),
                "heads": int(rotating.get(model, 0)),
                "window": int(here["window"].iloc[0]) if len(here) else None,
            }
        )
    return found


def distances(window: Window, order: Sequence[str]) -> dict[str, Any] | None:
    """Population -> its mean curve at each checkpoint, relative to the average key, in logits."""
    table = window.distance
    if table is None or not table["score"].notna().any():
        return None
    places = sorted(table["distance"].unique().tolist())
    found: dict[str, Any] = {kind: [] for kind in populations(window.heads)}
    for model in order:
        heads, scores = (each[each["model"] == model] for each in (window.heads, table))
        for kind, curves_of in found.items():
            curve = score_by_distance(scores, heads[members(heads, kind)])
            values = curve.set_index("distance")[["score", "se"]].reindex(places)
            curves_of.append({"score": listed(values["score"]), "se": listed(values["se"])})
    return {"at": places, "curves": found}
