"""The numbers published for SmolLM3-3B, and results beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from qkscope.comparison.matching import nothing_in_common, only_heads, run_name
from qkscope.comparison.outcome import (
    CELLS,
    Comparison,
    Numbers,
    Quantity,
    depth_cell,
    measured,
    rows_of,
    threshold_note,
)
from qkscope.errors import TableError
from qkscope.results import Results, aggregate
from qkscope.results.taxonomy import Thresholds
from qkscope.sums.head_index import sample_heads
from qkscope.words import tokens

if TYPE_CHECKING:
    import xarray as xr

# How far a mean read off a published plot may be from the one plotted.
READ_OFF = 0.002
# How far a number printed with two decimals may be from the one meant.
PRINTED = 0.005
# Half a unit of the last of three printed decimals.
PRINTED_3 = 0.0005
# Its column in our table, and its name among the published numbers.
PLASTICITY = {
    "mean plasticity": ("plasticity", "plasticity"),
    "mean plasticity, first less last": ("plasticity_drop", "plasticity_drop"),
}


def published() -> dict[str, Any]:
    """The published SmolLM3-3B numbers, with where they come from."""
    text = (files("qkscope") / "published" / "smollm3.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def with_published(ours: Results) -> Comparison:
    """Results beside the published numbers: the same checkpoints by name, the same 300 heads."""
    data, own = published(), ours.timeline.models
    order = [model for model in own if model in data["checkpoints"]]
    if not order:
        raise nothing_in_common(own, data["checkpoints"], run_name(ours), "published")
    sample = set(sample_heads(range(36), 16, 300, seed=0))
    shared = only_heads(aggregate.ordered(ours.own(), order), sample)
    if (aggregate.present(shared).sum("head") != len(sample)).any():
        raise TableError(
            f"{ours.folder}: the published numbers cover 300 heads, sampled with seed 0 from 36 layers of 16, but "
            f"these results do not have all of them; measure with `heads: {{sample: 300, seed: 0}}` or all heads"
        )
    mine = measured(shared, order, ours.thresholds) | _plasticity(shared, order)
    rows = rows_of(mine, _published_numbers(data), len(sample))
    notes = (
        f"Published: {data['source']}",
        "The published numbers have no standard errors over documents; the errors shown for them come from "
        "rounding and reading off plots.",
        *_slope_note(ours, data),
        *threshold_note(ours.thresholds, Thresholds()),
    )
    only_ours, only_theirs = (
        tuple(model for model in side if model not in order) for side in (own, data["checkpoints"])
    )
    return Comparison(run_name(ours), "published", rows, only_ours, only_theirs, notes)


def _plasticity(data: xr.Dataset, order: Sequence[str]) -> Numbers:
    """Mean plasticity and its drop along the window, where the study measured it."""
    found: Numbers = {}
    for name, (column, _) in PLASTICITY.items():
        if column in data:
            for row in aggregate.means(data, order, (column,), of=column).to_dict("records"):
                found[Quantity(name, "mean"), row["model"]] = row[f"mean_{column}"], row[f"se_{column}"]
    return found


def _slope_note(ours: Results, data: dict[str, Any]) -> list[str]:
    """Slopes are not compared number by number: the published ones are quoted, over the window too."""
    if not {"slope_k", "plasticity"} & set(map(str, ours.data)):
        return []
    slopes = data["rotation_and_plasticity"]["alpha_k_by_window"].items()
    quoted = [
        f"{slope:g} per token over {tokens(int(w))} ({slope * int(w):.1f} per window)" for w, slope in slopes
    ]
    return [
        f"Published slope of keys along the drift axis: {'; '.join(quoted)}. Windows differ between checkpoints, and a "
        "slope per token shrinks with the window: compare slope_k, over the window."
    ]


def _published_numbers(data: dict[str, Any]) -> Numbers:
    found: Numbers = {}
    for i, model in enumerate(data["checkpoints"]):
        for name in ("r_q", "r_k", "explained_variance"):
            quantity = Quantity(f"mean {name.replace('explained_', 'explained ')}", "mean")
            found[quantity, model] = data[f"mean_{name}"][i], READ_OFF
        counts = {name: column[i] for name, column in data["taxonomy_head_counts"].items()}
        for name, heads in counts.items():
            found[Quantity(f"share {name}", "share"), model] = heads / sum(counts.values()), 0.0
        for name, (_, key) in PLASTICITY.items():
            found[Quantity(name, "mean"), model] = data["rotation_and_plasticity"][key][i], PRINTED_3
        for kind, key in zip(CELLS, ("depth_heatmap_r_q", "depth_heatmap_r_k"), strict=True):
            for depth_bin, value in enumerate(data[key][i]):
                found[depth_cell(kind, depth_bin), model] = value, PRINTED
    return found
