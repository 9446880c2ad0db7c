"""Means over the RoPE and the NoPE heads of each checkpoint with document-level standard errors, as lists.

A study whose layers all have the same kind of position embedding has one population, called "all".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope import aggregate
from qkscope.head_numbers import KEY
from qkscope.measures.jackknife import jackknife
from qkscope.report.encode import counted, listed
from qkscope.report.grid import numbers

if TYPE_CHECKING:
    from qkscope.report.window import Window
    from qkscope.taxonomy import Thresholds

ALL = "all"
NAMES = {"RoPE": 1.0, "NoPE": 0.0}
# Measures that have a map of layers and checkpoints.
BY_LAYER = ("share_positional", "r_q", "abs_r_k", "eta_q", "eta_k", "plasticity")


def populations(heads: pd.DataFrame) -> list[str]:
    """RoPE and NoPE where the study has both, else one population."""
    rope = set(numbers(heads, "rope"))
    return list(NAMES) if rope >= set(NAMES.values()) else [ALL]


def members(heads: pd.DataFrame, kind: str) -> NDArray[np.bool_]:
    """(rows,): which heads are of a population."""
    if kind == ALL:
        return np.ones(len(heads), dtype=bool)
    return np.asarray(numbers(heads, "rope") == NAMES[kind])


def averages(
    window: Window, order: Sequence[str], measures: Sequence[str], limits: Thresholds
) -> dict[str, Any]:
    """Means of every measure by population and checkpoint, means by layer, and errors of the shares of classes."""
    names = [*measures, *(["abs_r_k"] if "r_k" in measures else [])]
    tables = dict(iter(window.heads.groupby("model", sort=False, observed=True)))
    left = {} if window.loo is None else dict(iter(window.loo.groupby("model", sort=False, observed=True)))
    kinds = populations(window.heads)
    layers = sorted(window.heads["layer"].unique().tolist())
    means = {kind: {name: _Series() for name in names} for kind in kinds}
    cells = {name: _Series() for name in BY_LAYER if name in names}
    counts: dict[str, list[int]] = {kind: [] for kind in kinds}
    for model in order:
        heads = tables.get(model, window.heads.iloc[:0])
        values = samples(heads, left.get(model), names)
        layer = numbers(heads, "layer")
        for kind in kinds:
            here = np.flatnonzero(members(heads, kind))
            counts[kind].append(len(here))
            for i, name in enumerate(names):
                means[kind][name].add(values[:, here, i])
        for i, name in enumerate(names):
            for place in layers if name in cells else ():
                cells[name].add(values[:, layer == place, i])
    return {
        "heads": counts,
        "means": {kind: {name: one.lists() for name, one in found.items()} for kind, found in means.items()},
        "layers": {"places": layers} | {name: one.lists() for name, one in cells.items()},
        "classes": {kind: class_errors(window, kind, list(order), limits) for kind in kinds},
    }


class _Series:
    """Mean, spread over heads and standard error, one after the other."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []

    def add(self, values: NDArray[np.float64]) -> None:
        """Values of some heads, (1 + groups, heads): all documents in row 0, then without each group."""
        means = aggregate.mean_over_heads(values)
        known = values[0, np.isfinite(values[0])]
        self.rows.append(
            (means[0], float(np.std(known)) if len(known) else np.nan, float(jackknife(means[1:])))
        )

    def lists(self) -> dict[str, list[float | None]]:
        columns = np.asarray(self.rows, dtype=np.float64).reshape(-1, 3)
        return {name: listed(columns[:, i]) for i, name in enumerate(("mean", "sd", "se"))}


def samples(heads: pd.DataFrame, loo: pd.DataFrame | None, names: Sequence[str]) -> NDArray[np.float64]:
    """Measures of one checkpoint's heads, (1 + groups, heads, measures); NaN where a head has none.

    A head without both correlations is unmeasured: its r_q and r_k count in no mean.
    """
    whole = _columns(heads, names)[None]
    if loo is None or loo.empty or heads.empty:
        return whole
    row = pd.MultiIndex.from_frame(heads[KEY]).get_indexer(pd.MultiIndex.from_frame(loo[KEY]))
    groups, group = np.unique(loo["group"].to_numpy(), return_inverse=True)
    left = np.full((len(groups), len(heads), len(names)), np.nan)
    left[group[row >= 0], row[row >= 0]] = _columns(loo, names)[row >= 0]
    return np.concatenate([whole, left])


def _columns(table: pd.DataFrame, names: Sequence[str]) -> NDArray[np.float64]:
    """(rows, measures)"""
    r_q, r_k = numbers(table, "r_q"), numbers(table, "r_k")
    lost = np.isnan(r_q + r_k)
    known = {"r_q": np.where(lost, np.nan, r_q), "r_k": np.where(lost, np.nan, r_k)}
    known["abs_r_k"] = np.abs(known["r_k"])
    found = [known[name] if name in known else numbers(table, name) for name in names]
    return np.stack(found, axis=-1) if found else np.empty((len(table), 0))


def class_errors(window: Window, kind: str, order: list[str], limits: Thresholds) -> dict[str, Any]:
    """Class -> standard errors of its share of the population, and heads near its border, over checkpoints."""
    heads = window.heads[members(window.heads, kind)]
    table = aggregate.class_shares(heads, window.loo, order, limits)
    found = {}
    for name, rows in table.groupby("class", sort=False):
        by_model = rows.set_index("model").reindex(order)
        near = by_model["borderline"].tolist()
        found[str(name)] = {"se": listed(by_model["se"]), "borderline": counted(near)}
    return found
