"""Means over the RoPE and the NoPE heads of each checkpoint with document-level standard errors, as lists.

A study whose layers all have the same kind of position embedding has one population, called "all".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.report.columns import PARTS, taxonomies
from qkscope.report.encode import counted, listed
from qkscope.results import aggregate

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from qkscope.results.taxonomy import Thresholds

# Measures whose means are also known by layer.
BY_LAYER = ("share_positional", *PARTS, "r_q", "abs_r_k", "eta_q", "eta_k", "plasticity")
# Every head has a depth: a mean is over all heads that have the measure.
_EVERY = "depth"
# What populations, classes and their errors are made of.
_ALSO = ("r_q", "r_k", "depth", "rope", "axis_lost", "pc_r_q_se", "pc_r_k_se")


def averages(
    data: xr.Dataset, order: Sequence[str], measures: Sequence[str], limits: Thresholds
) -> dict[str, Any]:
    """Means of every measure by population and checkpoint, means by layer, and errors of the shares of classes."""
    names = [*measures, *(["abs_r_k"] if "r_k" in measures else [])]
    # Read once: every mean by population and layer uses them again.
    data = data[[name for name in (*measures, *_ALSO) if name in data]].load()
    kinds = aggregate.populations(data)
    means = {kind: aggregate.means(data, order, names, population=kind, of=_EVERY) for kind in kinds}
    return {
        "heads": {kind: counted(_by_model(table, order)["heads"].fillna(0)) for kind, table in means.items()},
        "means": {
            kind: {name: _lists(_by_model(table, order), name) for name in names}
            for kind, table in means.items()
        },
        "layers": _by_layer(data, order, [name for name in BY_LAYER if name in names]),
        "classes": {
            taxonomy: {kind: class_errors(data, kind, order, limits, taxonomy) for kind in kinds}
            for taxonomy in taxonomies(data)
        },
    }


def _by_model(table: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    return table.set_index("model").reindex(list(order))


def _lists(table: pd.DataFrame, name: str) -> dict[str, list[float | None]]:
    return {what: listed(table[f"{what}_{name}"]) for what in ("mean", "sd", "se")}


def _by_layer(data: xr.Dataset, order: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The layers, and means of each measure over the heads of every layer: checkpoint by checkpoint, layer by layer."""
    import pandas as pd

    of_head = data["layer"].to_numpy()
    layers = np.unique(of_head).tolist()
    heads = [data.isel(head=np.flatnonzero(of_head == layer)) for layer in layers]
    tables = [_by_model(aggregate.means(here, order, names, of=_EVERY), order) for here in heads]
    found = pd.concat([table.assign(at=range(len(table))) for table in tables])
    found = found.sort_values("at", kind="stable")  # checkpoint by checkpoint, in the order of the layers
    return {"places": layers} | {name: _lists(found, name) for name in names}


def class_errors(
    data: xr.Dataset, kind: str, order: Sequence[str], limits: Thresholds, taxonomy: str = "published"
) -> dict[str, Any]:
    """Class -> standard errors of its share of the population, and heads near its border, over checkpoints."""
    if taxonomy == "scores":
        table = aggregate.score_class_shares(data, order, kind)
    else:
        table = aggregate.class_shares(data, order, limits, kind)
    by_class = {str(name): _by_model(rows, order) for name, rows in table.groupby("class", sort=False)}
    return {
        name: {"se": listed(rows["se"]), "borderline": counted(rows["borderline"].tolist())}
        for name, rows in by_class.items()
    }
