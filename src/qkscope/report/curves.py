"""Curves of every head: the mean score by distance, and which rotary pairs carry the position signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qkscope.report.encode import pack_column
from qkscope.report.grid import Grid

if TYPE_CHECKING:
    from qkscope.results import Results

LIMIT = 3_000_000  # base64 characters of one curve; a larger one stays in its parquet file


def curves(results: Results, grid: Grid) -> list[dict[str, Any]]:
    """What the results hold of these, over own windows; each with the places of its axis and packed (rows, places)."""
    title = "Mean score by distance, in logits"
    found = [_curve(results.distance, grid, "distance", "score", "distance", title, "tokens back")]
    spectrum = results.spectrum
    for kind in ("q", "k"):
        # what does not rotate has no pair and no place on this axis
        part = None if spectrum is None else spectrum[(spectrum["kind"] == kind) & (spectrum["pair"] >= 0)]
        title = f"Part of r_{kind} that each rotary pair makes"
        found.append(
            _curve(part, grid, f"signal_{kind}", "signal", "pair", title, "rotary pair, fast to slow")
        )
    return [curve for curve in found if curve is not None]


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
