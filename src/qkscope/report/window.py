"""What was measured over one window: the tables of heads joined, a row per head and checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from qkscope.head_numbers import KEY

if TYPE_CHECKING:
    from qkscope.results import Results

# Of the measures that a study asks for, those that the page shows; their names there are of `_named`.
ASKED = {
    "rotation": ("slope_q", "slope_k", "bias_logits", "separation", "pc0_overlap"),
    "per_kind": ("linear_q", "linear_k", "separability"),
    "plasticity": ("plasticity", "plasticity_drop"),
}
POSITIONAL = ("share_position", "share_query_position")


@dataclass(frozen=True)
class Window:
    """Every measure of every head, the same without each group of documents, and the curves and causes."""

    heads: pd.DataFrame
    loo: pd.DataFrame | None
    spectrum: pd.DataFrame | None
    distance: pd.DataFrame | None
    causes: pd.DataFrame | None


def training_context(results: Results) -> Window:
    """Each checkpoint over the context that it trained with."""
    return _window(results, results.heads, "")


def first_tokens(results: Results) -> Window | None:
    """Every checkpoint over the same first tokens; None where that was not measured."""
    return None if results.matched is None else _window(results, results.matched, "_matched")


def _window(results: Results, heads: pd.DataFrame, end: str) -> Window:
    """The tables whose names have this end."""
    anatomy, loo, loo_anatomy, spectrum, distance, causes = (
        getattr(results, f"{name}{end}")
        for name in ("anatomy", "loo", "loo_anatomy", "spectrum", "distance", "causes")
    )
    joined, left = _joined(results, heads, anatomy, end), _left_out(results, loo, loo_anatomy, end)
    return Window(joined, left, spectrum, distance, causes)


def _joined(results: Results, heads: pd.DataFrame, anatomy: pd.DataFrame | None, end: str) -> pd.DataFrame:
    """The heads table with the columns that only anatomy.csv has, and those of the measures asked for."""
    if anatomy is not None:
        more = [name for name in anatomy.columns if name not in heads.columns]
        heads = heads.merge(anatomy[[*KEY, *more]], on=KEY, how="left", validate="one_to_one")
    for measure, columns in ASKED.items():
        table = results.optional.get(f"{measure}{end}")
        if table is not None:
            names = {name: _named(measure, name) for name in columns}
            names |= {f"{name}_se": f"{new}_se" for name, new in names.items()}
            names = {name: new for name, new in names.items() if name in table}
            chosen = table[[*KEY, *names]].rename(columns=names)
            heads = heads.merge(chosen, on=KEY, how="left", validate="one_to_one")
    return _with_positional(heads)


def _left_out(
    results: Results, loo: pd.DataFrame | None, anatomy: pd.DataFrame | None, end: str
) -> pd.DataFrame | None:
    """The same without each group of documents: a row per head, checkpoint and group."""
    if loo is None:
        return None
    key = [*KEY, "group"]
    if anatomy is not None:
        more = [name for name in anatomy.columns if name not in loo.columns]
        loo = loo.merge(anatomy[[*key, *more]], on=key, how="left")
    for measure, columns in ASKED.items():
        table = results.optional.get(f"loo_{measure}{end}")
        if table is not None:
            names = {name: _named(measure, name) for name in columns if name in table}
            loo = loo.merge(table[[*key, *names]].rename(columns=names), on=key, how="left")
    return _with_positional(loo)


def _named(measure: str, column: str) -> str:
    """`rotation_slope_q`; a column that begins with the measure's name keeps it."""
    return column if column.startswith(measure) else f"{measure}_{column}"


def _with_positional(table: pd.DataFrame) -> pd.DataFrame:
    """With `share_positional`, the share of score variance that position explains, alone or with the query."""
    if "share_positional" in table or not set(POSITIONAL) <= set(table.columns):
        return table
    one, other = (table[name].to_numpy(np.float64) for name in POSITIONAL)
    table = table.copy()
    table.insert(table.columns.get_loc("share_position"), "share_positional", one + other)
    return table


def with_positional_errors(window: Window) -> Window:
    """With the jackknife error of each head's `share_positional`, which no table holds."""
    if window.loo is None or "share_positional" not in window.loo or "share_positional_se" in window.heads:
        return window
    groups = window.loo["group"].nunique()
    spread = window.loo.groupby(KEY)["share_positional"].var(ddof=0)
    errors = np.sqrt((groups - 1) * spread).rename("share_positional_se").reset_index()
    return Window(
        window.heads.merge(errors, on=KEY, how="left", validate="one_to_one"),
        *(window.loo, window.spectrum, window.distance, window.causes),
    )
