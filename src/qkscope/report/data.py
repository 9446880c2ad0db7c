"""Results -> the page's data, ready for JSON: columns, not rows; one dictionary with everything the script reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qkscope import aggregate
from qkscope.report import palette
from qkscope.report.averages import aggregates
from qkscope.report.causes import causes
from qkscope.report.columns import (
    NAMED_CLASSES,
    NAMED_POLARITIES,
    SHARE,
    components,
    described,
    first_component,
    measures,
    regions,
    with_anatomy,
    with_asked,
)
from qkscope.report.curves import curves
from qkscope.report.encode import ENCODING, counted
from qkscope.report.grid import Grid, numbers
from qkscope.taxonomy import UNMEASURED

if TYPE_CHECKING:
    from qkscope.results import Results


def payload(results: Results, grid: Grid | None = None) -> dict[str, Any]:
    """Everything the page's script reads, ready for JSON; on a grid of its own unless one is given."""
    timeline = results.timeline
    grid = grid or grid_of(results)
    own = with_asked(with_anatomy(results.heads, results.anatomy), results.optional)
    matched = None
    if results.matched is not None:
        matched = with_anatomy(results.matched, results.anatomy_matched)
        matched = with_asked(matched, results.optional, matched=True)
    names = measures(own)
    more, omitted = components(results, grid)
    return {
        "name": timeline.name,
        "title": timeline.title,
        "kind": timeline.kind,
        "thresholds": {"high": results.thresholds.high, "low": results.thresholds.low},
        "classes": list(NAMED_CLASSES),
        "polarities": list(NAMED_POLARITIES),
        "unmeasured": UNMEASURED,
        "regions": regions(results.thresholds),
        "ramps": palette.RAMPS,
        "encoding": ENCODING,
        "bins": aggregate.DEPTH_BINS,
        "measures": described(names),
        "matchedWindow": timeline.matched_window,
        "stops": stops(results),
        "phases": [list(phase) for phase in timeline.phases],
        "windowChanges": list(timeline.window_changes),
        "heads": head_columns(results.heads, grid),
        "own": first_component(own, grid, names),
        "matched": None if matched is None else first_component(matched, grid, names),
        "more": more,
        "omitted": omitted,
        "aggregates": {
            "own": aggregates(results.heads, results.loo, results),
            "matched": None
            if results.matched is None
            else aggregates(results.matched, results.loo_matched, results),
        },
        "causesWindow": timeline.matched_window if results.causes_matched is not None else None,
        "causes": causes(
            results.causes if results.causes_matched is None else results.causes_matched,
            results.timeline.models,
        ),
        "shares": [name for name in names if name.startswith(SHARE)],
        "curves": curves(results, grid),
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
        "step": [stop.step for stop in found],
    }


def head_columns(heads: pd.DataFrame, grid: Grid) -> dict[str, Any]:
    """What never changes about a head: (heads,) columns; kv and rope are None when the table has none."""
    placed = grid.place(heads)
    frame = pd.DataFrame({name: numbers(placed.table, name) for name in ("kv_head", "rope", "depth_bin")})
    # One value per head: the first checkpoint that has one.
    known = frame.groupby(placed.head).first().reindex(range(len(grid.index)))
    kv, rope = known["kv_head"].to_numpy(), known["rope"].to_numpy()
    return {
        "layer": grid.index.get_level_values("layer").tolist(),
        "head": grid.index.get_level_values("head").tolist(),
        "owner": None if grid.training else grid.index.get_level_values("owner").tolist(),
        "kv": counted(kv) if np.isfinite(kv).any() else None,
        "rope": counted(rope) if np.isfinite(rope).any() else None,
        "bin": counted(known["depth_bin"].to_numpy()),
    }
