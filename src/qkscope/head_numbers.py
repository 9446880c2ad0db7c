"""The numbers of one head over training, and the heads that changed most between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import TableError
from qkscope.measures.jackknife import jackknife

if TYPE_CHECKING:
    import pandas as pd

KEY = ["model", "layer", "head"]
JUDGED = ("r_q", "r_k")


def head_course(stops: pd.DataFrame, tables: Iterable[pd.DataFrame], layer: int, head: int) -> pd.DataFrame:
    """A row a checkpoint of `stops` (with its `model`): every column that `tables` have of one head."""
    first, *others = tables
    course = stops.merge(_of_head(first, layer, head), on="model", how="inner", validate="one_to_one")
    for table in others:
        rows = _of_head(table, layer, head)
        new = ["model", *(name for name in rows.columns if name not in course.columns)]
        course = course.merge(rows[new], on="model", how="left", validate="one_to_one")
    return course


def _of_head(table: pd.DataFrame, layer: int, head: int) -> pd.DataFrame:
    rows = table[(table["layer"] == layer) & (table["head"] == head)]
    if rows.empty:
        layers, heads = table["layer"], table["head"]
        raise TableError(
            f"layer {layer}, head {head} was not measured; measured are layers {layers.min()} to {layers.max()} with "
            f"heads {heads.min()} to {heads.max()}"
        )
    return rows


def most_changed(
    heads: pd.DataFrame, loo: pd.DataFrame | None, before: str, after: str, n: int, by: str
) -> pd.DataFrame:
    """The `n` heads of both checkpoints whose `by` (r_q or r_k) changed most.

    `<name>_change_se` is the jackknife error of the change itself: both checkpoints read the same documents, so the
    same group is left out of both. It is NaN where the two have no values without the same groups.
    """
    if by not in JUDGED:
        raise TableError(f"by={by!r}; expected one of {', '.join(JUDGED)}")
    both = (
        _side(heads, before).add_suffix("_before").join(_side(heads, after).add_suffix("_after"), how="inner")
    )
    errors = _paired_errors(loo, before, after, both.index)
    columns: dict[str, Any] = {}
    for name in JUDGED:
        columns |= {f"{name}_{when}": both[f"{name}_{when}"] for when in ("before", "after")}
        columns |= {f"{name}_change": both[f"{name}_after"] - both[f"{name}_before"]}
        columns |= {f"{name}_change_se": errors[name]}
    columns |= {name: both[name] for name in ("class_before", "class_after")}
    table = both[[]].assign(**columns)
    order = table[f"{by}_change"].abs().sort_values(ascending=False, kind="stable").index
    return table.loc[order].head(n).reset_index()


def _side(heads: pd.DataFrame, model: str) -> pd.DataFrame:
    rows = heads[heads["model"] == model]
    if rows.empty:
        there = ", ".join(dict.fromkeys(heads["model"]))
        raise TableError(f"checkpoint {model!r} was not measured; measured are {there}")
    return rows.set_index(["layer", "head"])[[*JUDGED, "class"]]


def _paired_errors(
    loo: pd.DataFrame | None, before: str, after: str, index: pd.MultiIndex
) -> dict[str, NDArray[np.float64]]:
    unknown = {name: np.full(len(index), np.nan) for name in JUDGED}
    if loo is None:
        return unknown
    wide = [
        loo[loo["model"] == model].pivot(index="group", columns=["layer", "head"], values=list(JUDGED))
        for model in (before, after)
    ]
    if not wide[0].index.equals(wide[1].index):
        return unknown
    change = wide[1] - wide[0]
    return {
        name: jackknife(change[name].reindex(columns=index).to_numpy(np.float64))
        if name in change
        else unknown[name]
        for name in JUDGED
    }
