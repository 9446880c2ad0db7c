"""Means of anatomy's measures over heads, with document-level errors: for pictures and claims alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.aggregate import mean_over_heads
from qkscope.measures.jackknife import jackknife
from qkscope.results import Results

Array = NDArray[np.float64]

# What decides where a head looks, in the words of pictures and claims -> its column.
PARTS = {
    "position": "share_position",
    "key": "share_key",
    "match": "share_match",
    "query × position": "share_query_position",
}
_KEY = ["layer", "head"]


@dataclass(frozen=True)
class Measured:
    """One checkpoint's heads: rows of its anatomy joined with its class, and every measure without each group."""

    model: str
    heads: pd.DataFrame
    left_out: pd.DataFrame | None

    def of(self, where: Any) -> Measured:
        """The same checkpoint with only the heads at `where`."""
        return Measured(self.model, self.heads[where].reset_index(drop=True), self.left_out)

    def value(self, name: str, where: Any = slice(None)) -> Array:
        """A measure of the heads at `where`, whole in row 0, then without each group. (1 + G, heads)"""
        rows = self.heads[where]
        whole = np.asarray(rows[name].to_numpy(np.float64)[None])
        if self.left_out is None:
            return whole
        table = self.left_out.pivot(index="group", columns=_KEY, values=name)
        left = table.reindex(columns=pd.MultiIndex.from_frame(rows[_KEY])).to_numpy(np.float64)
        return np.asarray(np.concatenate([whole, left]))

    def mean(self, name: str, where: Any = slice(None)) -> Array:
        """The mean over the heads at `where`. (1 + G,)"""
        return mean_over_heads(self.value(name, where))


def measured(results: Results, order: Sequence[str], matched: bool = False) -> list[Measured]:
    """The checkpoints of `order` over their own windows or the matched one, with r and class from the heads table."""
    anatomy, loo, heads = (
        (results.anatomy_matched, results.loo_anatomy_matched, results.matched)
        if matched
        else (results.anatomy, results.loo_anatomy, results.heads)
    )
    if anatomy is None or heads is None:
        return []
    joined = anatomy.merge(heads[["model", *_KEY, "r_q", "r_k", "class"]], on=["model", *_KEY], how="left")
    left = {} if loo is None else dict(iter(loo.groupby("model", sort=False)))
    tables = dict(iter(joined.groupby("model", sort=False)))
    return [Measured(m, tables[m].reset_index(drop=True), left.get(m)) for m in order if m in tables]


def asked_for(results: Results, measure: str, order: Sequence[str], matched: bool = False) -> list[Measured]:
    """The same of a measure that the study asked for: `rotation`, `per_kind` or `plasticity`; with class and depth."""
    file = f"{measure}_matched" if matched else measure
    table, heads = results.optional.get(file), results.matched if matched else results.heads
    if table is None or heads is None:
        return []
    joined = table.merge(heads[["model", *_KEY, "class", "depth"]], on=["model", *_KEY], how="left")
    loo = results.optional.get(f"loo_{file}")
    left = {} if loo is None else dict(iter(loo.groupby("model", sort=False)))
    tables = dict(iter(joined.groupby("model", sort=False)))
    return [Measured(m, tables[m].reset_index(drop=True), left.get(m)) for m in order if m in tables]


def head_means(found: Sequence[Measured], names: Sequence[str]) -> pd.DataFrame:
    """The mean of each measure over heads. Columns: model, heads, and mean_, sd_, se_ of each name."""
    rows = []
    for each in found:
        row: dict[str, Any] = {"model": each.model, "heads": len(each.heads)}
        for name in names:
            means = each.mean(name)
            row |= {f"mean_{name}": means[0], f"sd_{name}": each.heads[name].std(ddof=0)}
            row[f"se_{name}"] = float(jackknife(means[1:]))
        rows.append(row)
    columns = [f"{what}_{name}" for name in names for what in ("mean", "sd", "se")]
    return pd.DataFrame(rows, columns=["model", "heads", *columns])


def carried_by(spectrum: pd.DataFrame, kind: str, by: Sequence[str] = ()) -> pd.DataFrame:
    """How much of the position signal each wavelength carries: |part of r| over its sum, by heads weighted with |r|.

    The weights keep heads with r near 0, whose parts are noise, from counting as much as others. Columns: model,
    window, `by`, wavelength, share. Heads of layers that do not rotate are left out.
    """
    rows = spectrum[(spectrum["kind"] == kind) & (spectrum["pair"] >= 0) & spectrum["signal"].notna()]
    head = [rows["model"], rows["layer"], rows["head"]]
    size, weight = rows["signal"].abs(), rows["signal"].groupby(head).transform("sum").abs()
    whole = size.groupby(head).transform("sum")
    rows = rows.assign(part=weight * size / whole.where(whole > 0), weight=weight)
    sums = rows.groupby(["model", "window", *by, "wavelength"], sort=False)[["part", "weight"]].sum()
    share = sums["part"] / sums["weight"].where(sums["weight"] > 0)
    return share.rename("share").reset_index()


def score_by_distance(table: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """The mean position bias of some heads of one checkpoint by distance: distance, score, se.

    The score of a key is relative to the query's mean over its keys. `se` is the mean of the heads' errors, which the
    error of their mean cannot exceed.
    """
    rows = table.merge(heads[_KEY], on=_KEY).dropna(subset=["score"])
    found = rows.groupby("distance")[["score", "score_se"]].mean().rename(columns={"score_se": "se"})
    return found.reset_index()
