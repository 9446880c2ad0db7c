"""Results -> the page's data, ready for JSON: columns, not rows; one dictionary with everything the script reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.claims.dependence import PARTS, in_words, latest
from qkscope.measures.registry import variables
from qkscope.report import palette
from qkscope.report.averages import averages
from qkscope.report.climb import climb
from qkscope.report.columns import (
    ENOUGH,
    Grid,
    components,
    described,
    described_taxonomy,
    first_component,
    measures,
    parts,
    regions,
    roles,
    taxonomies,
)
from qkscope.report.encode import ENCODING, counted, listed
from qkscope.report.packed_curves import curves, distances, wavelengths
from qkscope.report.rotary import rotary
from qkscope.report.text_view import examples
from qkscope.results.aggregate import jackknife, ordered, populations
from qkscope.results.taxonomy import UNMEASURED
from qkscope.stats.attribution import interacts
from qkscope.words import capital

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from qkscope.results import Results


# Declared measures that are no column of the page but whose numbers its tooltips give.
CURVES = ("loss", "distance_score", "distance_score_measured", "score_energy", "signal_q")
# What the page works out itself, declared like a measure: name, label, unit, description.
COMPUTED = (
    ("predicted_score", "predicted score", "logits", "score of the mean query and the mean key at a distance: the sum "
     "over rotary pairs; no error is known"),
    ("pair_score", "part of the score", "logits", "what a rotary pair adds to the score of the mean query and the mean "
     "key: its strength |q||k| times cos(w D + φ); no error is known"),
    ("pair_strength", "strength", "logits", "the most that the pair adds at any distance: |q||k|"),
    ("attention", "attention", "share", "share of this query's attention that goes to the token"),
    ("attention_by_distance", "attention by distance alone", "share", "what the softmax of the scores that distance "
     "predicts gives; the first four tokens keep what they have"),
)  # fmt: skip


def payload(results: Results, grid: Grid | None = None) -> dict[str, Any]:
    """Everything the page's script reads, ready for JSON; on a grid of its own unless one is given."""
    timeline = results.timeline
    grid = grid or grid_of(results)
    own, matched = results.own(), results.matched()
    names, kinds = measures(own), populations(own)
    more, omitted = components(own, grid)
    return {
        "name": timeline.name,
        "title": timeline.title,
        "kind": timeline.kind,
        "thresholds": {"high": results.thresholds.high, "low": results.thresholds.low},
        "enough": ENOUGH,
        "taxonomies": {name: described_taxonomy(name, results.thresholds) for name in taxonomies(own)},
        "roles": roles(own),
        "unmeasured": UNMEASURED,
        "regions": regions(results.thresholds),
        "ramps": palette.RAMPS,
        "encoding": ENCODING,
        "measures": described(own, names),
        "curves": [declared(name) for name in CURVES]
        + [dict(zip(("name", "label", "units", "description"), one, strict=True)) for one in COMPUTED],
        "parts": parts(own, names),
        "populations": list(kinds),
        "matchedWindow": timeline.matched_window,
        "checkpoints": checkpoints(results),
        "phases": [list(phase) for phase in timeline.phases],
        "windowChanges": list(timeline.window_changes),
        "heads": head_columns(own, grid),
        "own": of_window(own, results, grid, names),
        "matched": None if matched is None else of_window(matched, results, grid, names),
        "causes": causes(results.causes, timeline.models, kinds[0]),
        "ablation": ablation(results),
        "rotary": rotary(results, grid),
        "examples": examples(results, grid),
        "climb": climb(results, grid),
        "more": more,
        "omitted": omitted,
    }


def declared(name: str) -> dict[str, Any]:
    """A measure as it is declared."""
    one = variables()[name]
    return {
        "name": name,
        "label": one.label,
        "units": one.units,
        "description": one.description,
    }


def of_window(data: xr.Dataset, results: Results, grid: Grid, names: list[str]) -> dict[str, Any]:
    """Everything that depends on the window."""
    order = list(results.timeline.models)
    data = ordered(data, order)
    return first_component(data, grid, names, results.thresholds) | {
        "averages": averages(data, order, names, results.thresholds),
        "loss": loss(data),
        "wavelengths": wavelengths(data, order),
        "distances": distances(data, order),
        "curves": curves(data, grid, order),
    }


def loss(data: xr.Dataset) -> dict[str, Any] | None:
    """The model's loss at each checkpoint with its error over documents, in nats per token; None if not measured."""
    if "loss" not in data:
        return None
    return {"mean": listed(data["loss"].isel(sample=0)), "se": listed(jackknife(data["loss"]))}


def grid_of(results: Results) -> Grid:
    """Where every checkpoint's heads stand on the page."""
    timeline = results.timeline
    return Grid.of(results.own(), list(timeline.models), training=timeline.kind == "training")


def checkpoints(results: Results) -> dict[str, list[Any] | None]:
    """The measured checkpoints, in order; None for steps or tokens that are not known of all."""
    found = [results.timeline.checkpoint(model) for model in results.timeline.models]
    return {
        "model": [checkpoint.model for checkpoint in found],
        "label": [checkpoint.label for checkpoint in found],
        "phase": [checkpoint.phase for checkpoint in found],
        "window": [checkpoint.window for checkpoint in found],
        "step": results.timeline.training_steps(),
        "tokens": results.timeline.training_tokens(),
    }


def head_columns(data: xr.Dataset, grid: Grid) -> dict[str, Any]:
    """What never changes about a head: (heads,) columns; kv and rope are None where nothing is known."""
    owner, layer, head = (list(column) for column in zip(*grid.heads, strict=True))
    found: dict[str, Any] = {"layer": layer, "head": head, "owner": None if grid.training else owner}
    for key, name in (("kv", "kv_head"), ("rope", "rope")):
        rows = grid.arrange(data[name]).reshape(-1, len(grid.heads))
        # One value per head: that of the first checkpoint that has one.
        first = np.argmax(np.isfinite(rows), axis=0)
        values = rows[first, np.arange(len(grid.heads))]
        found[key] = counted(values) if np.isfinite(values).any() else None
    return found


# Numbers of an ablation that the page shows.
_ABLATED = ("delta", "delta_se", "random", "random_se", "above_random", "above_random_se")


def ablation(results: Results) -> dict[str, Any] | None:
    """What the model loses without each part of the scores of each set of heads; None where nothing was ablated."""
    table = latest(results)
    if table is None:
        return None
    sets = []
    for text, rows in table.groupby("heads", sort=False):
        first = rows.iloc[0]
        name = in_words(str(text), int(first["n_heads"]), str(first["population"]))
        found = [
            {"part": row["part"]} | {column: _known(row[column]) for column in _ABLATED}
            for row in rows.to_dict("records")
        ]
        sets.append({"name": capital(name), "heads": int(first["n_heads"]), "rows": found})
    first = table.iloc[0]
    return {
        "checkpoint": results.timeline.models.index(first["checkpoint"]),
        "sets": sets,
        "parts": PARTS | {"sink": "first token", "head": "whole head"},
        "loss": float(first["loss"]),
    } | {name: int(first[name]) for name in ("documents", "tokens", "draws")}


# The page's name of a factor -> its column.
_REAL = {"rotation": "rotation_first", "weights": "weights_first", "window": "window"}
_OTHER = {"weights": "weights_other_order", "rotation": "rotation_other_order"}


def causes(table: pd.DataFrame | None, models: Sequence[str], population: str) -> list[dict[str, Any]]:
    """A dictionary per change between two checkpoints of the page, of the heads of one population.

    A factor whose part is unknown is left out. `same` is the share of a part from heads whose first axis stayed.
    `other` are the parts in the other order, training first, where the two orders differ by more than their error:
    there the factors interact.
    """
    if table is None:
        return []
    number = {model: i for i, model in enumerate(models)}
    here = table["from_model"].isin(number) & table["to_model"].isin(number)
    # A checkpoint with one kind of heads has them all in one row.
    here &= table["population"].isin((population, "all"))
    return [
        {
            "from": number[row["from_model"]],
            "to": number[row["to_model"]],
            "number": row["number"],
            "heads": int(row["heads"]),
            "same_text": row["same_text"] == 1,
            "total": row["total"],
            "total_se": _known(row["total_se"]),
            "parts": [
                part | {"same": _known(row.get(f"{part['name']}_same_axis", math.nan))}
                for part in _parts(row, _REAL)
            ],
            "other": _parts(row, _OTHER) if interacts(row) else [],
        }
        for row in table[here].to_dict("records")
        if math.isfinite(row["total"])
    ]


def _parts(row: Mapping[Any, Any], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": row[column], "se": _known(row[f"{column}_se"])}
        for name, column in columns.items()
        if math.isfinite(row[column])
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
