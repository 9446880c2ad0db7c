"""Means and shares over heads at each checkpoint, with their document-level standard errors, as lists for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from qkscope import aggregate
from qkscope.report.encode import counted, listed

if TYPE_CHECKING:
    from qkscope.results import Results

CELLS = {"r_q": "r_q", "r_k": "r_k", "abs_r_k": "abs_r_k", "explained_variance": "ev"}


def aggregates(heads: pd.DataFrame, loo: pd.DataFrame | None, results: Results) -> dict[str, Any]:
    """Means and shares of each checkpoint with their document-level standard errors, columns in order."""
    order = list(results.timeline.models)
    signal = aggregate.position_signal(heads, loo, order).set_index("model").reindex(order)
    variance = aggregate.explained_variance(heads, loo, order).set_index("model").reindex(order)
    above = aggregate.above_null(heads, order).set_index("model").reindex(order)
    return {
        "heads": counted(signal["heads"].tolist()),
        "signal": {name: listed(signal[name]) for name in signal.columns if name != "heads"},
        "variance": {name: listed(variance[name]) for name in ("mean", "sd", "se")},
        "above": {name: listed(above[name]) for name in ("share_q", "share_k")},
        "class": share_columns(aggregate.class_shares(heads, loo, order, results.thresholds), "class", order),
        "polarity": share_columns(
            aggregate.polarity_shares(heads, loo, order, results.thresholds), "polarity", order
        ),
        "bins": cells(heads, loo, order, by="depth_bin"),
        "layers": cells(heads, loo, order, by="layer"),
    }


def share_columns(table: pd.DataFrame, name: str, order: list[str]) -> dict[str, Any]:
    """Counts, standard errors of the shares and borderline heads, each kind -> a list over checkpoints."""
    found: dict[str, Any] = {"se": {}, "borderline": {}}
    for kind, rows in table.groupby(name, sort=False):
        by_model = rows.set_index("model").reindex(order)
        found["se"][kind] = listed(by_model["se"])
        if "borderline" in by_model and by_model["borderline"].notna().any():
            found["borderline"][kind] = counted(by_model["borderline"].tolist())
    return found


def cells(
    heads: pd.DataFrame, loo: pd.DataFrame | None, order: list[str], by: Literal["depth_bin", "layer"]
) -> dict[str, Any]:
    """Means over the heads of each depth bin or layer, flat lists over (checkpoint, row), with standard errors."""
    places = aggregate.depths(heads, by)
    table = aggregate.means(heads, loo, order, list(CELLS.values()), by, places)
    table = table.set_index(["model", by]).reindex(pd.MultiIndex.from_product([order, places]))
    return {"places": places} | {
        name: {what: listed(table[f"{what}_{value}"]) for what in ("mean", "se")}
        for name, value in CELLS.items()
    }
