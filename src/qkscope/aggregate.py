"""Numbers about a population of heads: means, shares and heat-map cells, each with its standard error.

One implementation for the figures, the claims and the report. Input is the heads table (PC0 of every head),
the leave-one-out table of the document groups (`model,layer,head,group,r_q,r_k,explained_variance`) and the
order of the checkpoints. Output is a tidy table, a row per drawn mark, in that order.

Standard errors say how far a number would move with other documents: the aggregate is computed anew with each
document group left out, and `se = sqrt((G-1)/G * sum_g (a_g - mean a)^2)`. The heads are the same in every
checkpoint, so their spread (`sd_` columns) is a description, not an uncertainty. A head whose correlations
are not both finite is unmeasured: left out of every mean and share, and counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd

from qkscope.measures.jackknife import jackknife
from qkscope.taxonomy import CLASSES, POLARITIES, UNMEASURED, Thresholds, classify, polarity

DEPTH_BINS = 10
VALUES = ("r_q", "r_k", "explained_variance")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Sample:
    """One checkpoint's heads: the full measurement in row 0, then one row per left-out document group.

    `heads` is the heads table of this checkpoint (H rows); `r_q`, `r_k` and `ev` are (1 + G, H), with G = 0
    when nothing was left out.
    """

    model: str
    heads: pd.DataFrame
    r_q: Array
    r_k: Array
    ev: Array

    @property
    def groups(self) -> int:
        """The number of document groups, 0 without leave-one-out values."""
        return len(self.r_q) - 1

    @property
    def abs_r_k(self) -> Array:
        """|r_k|, (1 + G, H)."""
        return np.abs(self.r_k)

    def value(self, name: str) -> Array:
        """One of r_q, r_k, abs_r_k, ev, (1 + G, H)."""
        found: Array = getattr(self, name)
        return found

    @property
    def measured(self) -> Array:
        """(H,) bool: both correlations are finite."""
        return np.asarray(np.isfinite(self.r_q[0]) & np.isfinite(self.r_k[0]))

    def select(self, rows: Array) -> "Sample":
        """The same checkpoint with only some heads: `rows` is a mask or an index, (H,)."""
        kept = (values[:, rows] for values in (self.r_q, self.r_k, self.ev))
        return Sample(self.model, self.heads.iloc[rows], *kept)


def samples(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> list[Sample]:
    """The checkpoints of `order` that have heads, each with its leave-one-out values aligned to its heads."""
    tables = dict(iter(heads.groupby("model", sort=False, observed=True)))
    left_out = {} if loo is None else dict(iter(loo.groupby("model", sort=False, observed=True)))
    return [_sample(model, tables[model], left_out.get(model)) for model in order if model in tables]


def _sample(model: str, heads: pd.DataFrame, loo: pd.DataFrame | None) -> Sample:
    heads = heads.reset_index(drop=True)
    found = stacked(heads, heads, loo, VALUES)
    return Sample(model, heads, found[..., 0], found[..., 1], found[..., 2])


def stacked(
    heads: pd.DataFrame, table: pd.DataFrame | None, loo: pd.DataFrame | None, names: Sequence[str]
) -> Array:
    """(1 + G, H, names): columns of one checkpoint's `table` in the order of `heads`, then without each group.

    NaN where a table lacks a head or a column.
    """
    full = np.full((1, len(heads), len(names)), np.nan)
    if table is not None:
        row, known = _rows_of(table, heads)
        full[0, row[known]] = np.stack([column(table, name) for name in names], axis=-1)[known]
    if loo is None or loo.empty:
        return full
    row, known = _rows_of(loo, heads)
    labels, group = np.unique(loo["group"].to_numpy(), return_inverse=True)
    left = np.full((len(labels), len(heads), len(names)), np.nan)
    left[group[known], row[known]] = np.stack([column(loo, name) for name in names], axis=-1)[known]
    return np.concatenate([full, left])


def _rows_of(table: pd.DataFrame, heads: pd.DataFrame) -> tuple[Array, Array]:
    """The row in `heads` of each row of `table`, and whether it has one."""
    width = 1 + int(max(heads["head"].max(), table["head"].max()))
    keys, wanted = (
        each["layer"].to_numpy(np.int64) * width + each["head"].to_numpy(np.int64) for each in (heads, table)
    )
    by_key = np.argsort(keys, kind="stable")
    row = by_key[np.minimum(np.searchsorted(keys, wanted, sorter=by_key), len(keys) - 1)]
    return row, keys[row] == wanted


def column(table: pd.DataFrame, name: str) -> Array:
    """A numeric column, (rows,) float64; NaN where a foreign table does not have it."""
    if name not in table:
        return np.full(len(table), np.nan)
    found = table[name].to_numpy()
    if found.dtype.kind in "fiu":
        return np.asarray(found, dtype=np.float64)
    return np.asarray(pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64, na_value=np.nan))


def mean_over_heads(values: Array) -> Array:
    """(1 + G, H) -> (1 + G,): the mean over the heads finite in row 0.

    A head missing from one leave-one-out sample only would shift that sample's mean by its own level, so the
    leave-one-out rows average the heads finite in all of them, around the same mean as row 0.
    """
    here = np.isfinite(values[0])
    if not here.any():
        return np.full(len(values), np.nan)
    full = values[0, here].mean()
    everywhere = np.isfinite(values).all(axis=0)
    if len(values) == 1 or not everywhere.any():
        return np.asarray(np.r_[full, np.full(len(values) - 1, np.nan)])
    kept = values[:, everywhere].mean(axis=1)
    return np.asarray(np.r_[full, full + (kept[1:] - kept[0])])


def means(
    heads: pd.DataFrame,
    loo: pd.DataFrame | None,
    order: Sequence[str],
    values: Sequence[str],
    by: str = "",
    places: Sequence[Any] = (),
    of: Callable[[Sample], Array] = lambda sample: sample.measured,
) -> pd.DataFrame:
    """Mean, sd and se of `values` of `Sample` over the heads `of` each checkpoint; at each of `places` of column `by`.

    Columns: model, `by` if given, heads, then mean_, sd_ and se_ of each value; NaN where there is no head.
    """
    rows = []
    for sample in samples(heads, loo, order):
        chosen, numbers = of(sample), [sample.value(name) for name in values]
        where = column(sample.heads, by) if by else None
        for place in places if by else [None]:
            here = np.flatnonzero(chosen if where is None else chosen & (where == place))
            row: dict[str, Any] = {"model": sample.model, by: place, "heads": len(here)}
            for name, every in zip(values, numbers, strict=True):
                part = every[:, here]
                found = mean_over_heads(part)
                row |= {f"mean_{name}": found[0], f"se_{name}": float(jackknife(found[1:]))}
                row[f"sd_{name}"] = float(np.std(part[0])) if len(here) else np.nan
            rows.append(row)
    columns = [f"{what}_{name}" for name in values for what in ("mean", "sd", "se")]
    return pd.DataFrame(rows, columns=["model", *([by] if by else []), "heads", *columns])


def position_signal(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> pd.DataFrame:
    """`means` of r_q, r_k and |r_k| over the measured heads, the last without sd."""
    return means(heads, loo, order, ("r_q", "r_k", "abs_r_k")).drop(columns="sd_abs_r_k")


def explained_variance(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> pd.DataFrame:
    """Mean explained variance of PC0 over the heads that have one. Columns: model, heads, mean, sd, se."""
    found = means(heads, loo, order, ("ev",), of=lambda sample: np.isfinite(sample.ev[0]))
    return found.rename(columns=lambda name: name.removesuffix("_ev"))


def complete(sample: Sample) -> Sample:
    """Only the heads measured in the full data and in every leave-one-out sample."""
    return sample.select(np.isfinite(sample.r_q + sample.r_k).all(axis=0))


def _shares(
    found: Sequence[Sample], name: str, kinds: Sequence[str], label: Callable[[Sample], Array]
) -> pd.DataFrame:
    """A row per checkpoint and kind, with a last row of the unmeasured heads if any checkpoint has some."""
    any_unmeasured = any(not sample.measured.all() for sample in found)
    rows = []
    for sample in found:
        labels, left = label(sample)[0][sample.measured], label(complete(sample))[1:]
        for kind in kinds:
            members = int((labels == kind).sum())
            se = float(jackknife((left == kind).mean(axis=1))) if left.size else np.nan
            rows.append((sample.model, kind, members, members / len(labels) if len(labels) else np.nan, se))
        if any_unmeasured:
            rows.append((sample.model, UNMEASURED, int((~sample.measured).sum()), np.nan, np.nan))
    return pd.DataFrame(rows, columns=["model", name, "heads", "share", "se"])


def class_shares(
    heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str], limits: Thresholds | None = None
) -> pd.DataFrame:
    """How many of the measured heads are of each class. Columns: model, class, heads, share, se, borderline.

    Every class has a row in every checkpoint. If any checkpoint has unmeasured heads, each gets a row with
    their number and no share. `borderline` counts the heads of the class that would be of another one if
    their r_q, |r_k| or both were one standard error off (NaN without standard errors).
    """
    found = samples(heads, loo, order)
    table = _shares(found, "class", CLASSES, lambda s: classify(s.r_q, s.r_k, limits))
    near: dict[tuple[str, str], float] = {}
    for s in found:
        if np.isfinite(column(s.heads, "r_q_se") + column(s.heads, "r_k_se")).any():
            on_edge = classify(s.r_q[0], s.r_k[0], limits)[borderline(s, limits)]
            near |= {(s.model, kind): float((on_edge == kind).sum()) for kind in CLASSES}
    keys = zip(table["model"], table["class"], strict=True)
    return table.assign(borderline=[near.get(key, np.nan) for key in keys])


def borderline(sample: Sample, limits: Thresholds | None = None) -> Array:
    """(H,) bool: moving r_q, |r_k| or both by one standard error of the head changes its class."""
    r_q, r_k = sample.r_q[0], np.abs(sample.r_k[0])
    se_q, se_k = column(sample.heads, "r_q_se"), column(sample.heads, "r_k_se")
    own = classify(r_q, r_k, limits)
    moved = np.zeros(len(own), dtype=bool)
    for up, right in product((-1, 0, 1), repeat=2):
        # |r_k| - se may pass zero: there the head is as content-like as it gets.
        moved |= classify(r_q + up * se_q, np.maximum(r_k + right * se_k, 0.0), limits) != own
    return np.asarray(moved & np.isfinite(se_q) & np.isfinite(se_k) & sample.measured)


def polarity_shares(
    heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str], limits: Thresholds | None = None
) -> pd.DataFrame:
    """How many measured heads are of each polarity. Columns: model, polarity, heads, share, se."""
    low = (limits or Thresholds()).low
    return _shares(samples(heads, loo, order), "polarity", POLARITIES, lambda s: polarity(s.r_k, low))


def depth_cells(
    heads: pd.DataFrame,
    loo: pd.DataFrame | None,
    order: Sequence[str],
    value: str = "r_q",
    by: Literal["depth_bin", "layer"] = "depth_bin",
) -> pd.DataFrame:
    """Mean of r_q, r_k or abs_r_k by depth: a row for each of the ten bins (or each layer) of every checkpoint.

    Columns: model, depth_bin (or layer), mean (NaN where no head is measured), se, heads.
    """
    found = means(heads, loo, order, (value,), by, depths(heads, by))
    found.columns = found.columns.str.removesuffix(f"_{value}")
    return found[["model", by, "mean", "se", "heads"]]


def depths(heads: pd.DataFrame, by: Literal["depth_bin", "layer"]) -> list[int]:
    """All ten bins, or every layer that the table has."""
    return list(range(DEPTH_BINS)) if by == "depth_bin" else sorted(heads["layer"].unique().tolist())


def above_null(heads: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """How many heads follow position more closely than chance reaches: |r| above its null level.

    Columns: model, heads (measured, with a null), above_q, above_k, share_q, share_k.
    """
    rows = []
    for sample in samples(heads, None, order):
        null = np.stack([column(sample.heads, "r_q_null"), column(sample.heads, "r_k_null")])
        known = sample.measured & np.isfinite(null).all(axis=0)
        over = np.abs(np.stack([sample.r_q[0], sample.r_k[0]])) > null
        count, above = int(known.sum()), over[:, known].sum(axis=1).tolist()
        rows.append((sample.model, count, *above, *(n / count if count else np.nan for n in above)))
    return pd.DataFrame(rows, columns=["model", "heads", "above_q", "above_k", "share_q", "share_k"])


def positional_below_null(heads: pd.DataFrame, thresholds: Thresholds | None = None) -> Array:
    """(rows,) bool: heads of a positional class whose correlation chance reaches as well.

    Their class comes from the size of r alone; they are not to be called positional. Queries count for
    position-dominated and Q-positional heads, keys for position-dominated and K-positional ones.
    """
    r_q, r_k = column(heads, "r_q"), column(heads, "r_k")
    kind = classify(r_q, r_k, thresholds)
    q_fails = np.abs(r_q) <= column(heads, "r_q_null")
    k_fails = np.abs(r_k) <= column(heads, "r_k_null")
    both = (kind == CLASSES[0]) & (q_fails | k_fails)
    return np.asarray(both | ((kind == CLASSES[1]) & q_fails) | ((kind == CLASSES[2]) & k_fails))
