"""Results -> the page's data, ready for JSON: columns, not rows; one dictionary with everything the script reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qkscope.report import palette
from qkscope.report.averages import averages, populations
from qkscope.report.causes import causes
from qkscope.report.columns import (
    NAMED_CLASSES,
    PARTS,
    components,
    described,
    first_component,
    measures,
    regions,
)
from qkscope.report.curves import curves, distances, wavelengths
from qkscope.report.encode import ENCODING, counted
from qkscope.report.grid import Grid, numbers
from qkscope.report.window import Window, first_tokens, training_context, with_positional_errors
from qkscope.taxonomy import UNMEASURED

if TYPE_CHECKING:
    from qkscope.results import Results


def payload(results: Results, grid: Grid | None = None) -> dict[str, Any]:
    """Everything the page's script reads, ready for JSON; on a grid of its own unless one is given."""
    timeline = results.timeline
    grid = grid or grid_of(results)
    own = with_positional_errors(training_context(results))
    matched = first_tokens(results)
    names = measures(own.heads)
    more, omitted = components(results, grid)
    return {
        "name": timeline.name,
        "title": timeline.title,
        "kind": timeline.kind,
        "thresholds": {"high": results.thresholds.high, "low": results.thresholds.low},
        "classes": list(NAMED_CLASSES),
        "unmeasured": UNMEASURED,
        "regions": regions(results.thresholds),
        "ramps": palette.RAMPS,
        "encoding": ENCODING,
        "measures": described(names),
        "parts": [{"name": name, "label": label} for name, label in PARTS.items() if name in names],
        "populations": populations(results.heads),
        "matchedWindow": timeline.matched_window,
        "stops": stops(results),
        "phases": [list(phase) for phase in timeline.phases],
        "windowChanges": list(timeline.window_changes),
        "heads": head_columns(results.heads, grid),
        "own": of_window(own, results, grid, names),
        "matched": None
        if matched is None
        else of_window(with_positional_errors(matched), results, grid, names),
        "more": more,
        "omitted": omitted,
    }


def of_window(window: Window, results: Results, grid: Grid, names: list[str]) -> dict[str, Any]:
    """Everything that depends on the window."""
    order = list(results.timeline.models)
    return first_component(window.heads, grid, names) | {
        "averages": averages(window, order, names, results.thresholds),
        "wavelengths": wavelengths(window, order),
        "distances": distances(window, order),
        "curves": curves(window, grid, order),
        "causes": causes(window.causes, order),
    }


def grid_of(results: Results) -> Grid:
    """Where every checkpoint's heads stand on the page."""
    timeline = results.timeline
    return Grid.of(results.heads, list(timeline.models), training=timeline.kind == "training")


def stops(results: Results) -> dict[str, list[Any]]:
    """The measured checkpoints, in order."""
    found = [results.timeline.stop(model) for model in results.timeline.models]
    return {
        "model": [stop.model for stop in found],
        "label": [stop.label for stop in found],
        "phase": [stop.phase for stop in found],
        "window": [stop.window for stop in found],
    }


def head_columns(heads: pd.DataFrame, grid: Grid) -> dict[str, Any]:
    """What never changes about a head: (heads,) columns; kv and rope are None when the table has none."""
    placed = grid.place(heads)
    frame = pd.DataFrame({name: numbers(placed.table, name) for name in ("kv_head", "rope")})
    # One value per head: the first checkpoint that has one.
    known = frame.groupby(placed.head).first().reindex(range(len(grid.index)))
    kv, rope = known["kv_head"].to_numpy(), known["rope"].to_numpy()
    return {
        "layer": grid.index.get_level_values("layer").tolist(),
        "head": grid.index.get_level_values("head").tolist(),
        "owner": None if grid.training else grid.index.get_level_values("owner").tolist(),
        "kv": counted(kv) if np.isfinite(kv).any() else None,
        "rope": counted(rope) if np.isfinite(rope).any() else None,
    }
