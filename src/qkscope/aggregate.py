"""Numbers about a population of heads: means, shares and heat-map cells, each with its standard error.

One implementation for the figures, the findings and the report. Input is the heads table (PC0 of every head),
the leave-one-out table of the document groups (`model,layer,head,group,r_q,r_k,explained_variance`) and the
order of the checkpoints. Output is a tidy table, a row per drawn mark, in that order.

Standard errors say how far a number would move with other documents: the aggregate is computed anew with each
document group left out, and `se = sqrt((G-1)/G * sum_g (a_g - mean a)^2)`. The heads are the same in every
checkpoint, so their spread (`sd_` columns) is a description, not an uncertainty. A head whose correlations
are not both finite is unmeasured: left out of every mean and share, and counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        return Sample(
            self.model, self.heads.iloc[rows], self.r_q[:, rows], self.r_k[:, rows], self.ev[:, rows]
        )


def samples(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> list[Sample]:
    """The checkpoints of `order` that have heads, each with its leave-one-out values aligned to its heads."""
    tables = dict(iter(heads.groupby("model", sort=False, observed=True)))
    left_out = {} if loo is None else dict(iter(loo.groupby("model", sort=False, observed=True)))
    return [_sample(model, tables[model], left_out.get(model)) for model in order if model in tables]


def _sample(model: str, heads: pd.DataFrame, loo: pd.DataFrame | None) -> Sample:
    heads = heads.reset_index(drop=True)
    # The last axis holds VALUES; a head the leave-one-out table lacks stays NaN there.
    full = np.stack([column(heads, name) for name in VALUES], axis=-1)[None]  # (1, H, 3)
    if loo is None or loo.empty:
        stacked = full
    else:
        width = 1 + int(max(heads["head"].max(), loo["head"].max()))
        keys = heads["layer"].to_numpy(np.int64) * width + heads["head"].to_numpy(np.int64)
        wanted = loo["layer"].to_numpy(np.int64) * width + loo["head"].to_numpy(np.int64)
        by_key = np.argsort(keys, kind="stable")
        slot = np.minimum(np.searchsorted(keys, wanted, sorter=by_key), len(keys) - 1)
        row = by_key[slot]
        known = keys[row] == wanted
        labels, group = np.unique(loo["group"].to_numpy(), return_inverse=True)
        left = np.full((len(labels), len(heads), len(VALUES)), np.nan)
        left[group[known], row[known]] = np.stack([column(loo, name) for name in VALUES], axis=-1)[known]
        stacked = np.concatenate([full, left])
    return Sample(model, heads, stacked[..., 0], stacked[..., 1], stacked[..., 2])


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


def _moments(values: Array, name: str) -> dict[str, float]:
    means = mean_over_heads(values)
    here = values[0, np.isfinite(values[0])]
    sd = float(np.std(here)) if len(here) else np.nan
    return {f"mean_{name}": float(means[0]), f"sd_{name}": sd, f"se_{name}": float(jackknife(means[1:]))}


def position_signal(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> pd.DataFrame:
    """Mean r_q, r_k and |r_k| over the measured heads of each checkpoint.

    Columns: model, heads, mean_r_q, sd_r_q, se_r_q, mean_r_k, sd_r_k, se_r_k, mean_abs_r_k, se_abs_r_k.
    """
    rows = []
    for sample in samples(heads, loo, order):
        part = sample.select(sample.measured)
        row: dict[str, Any] = {"model": sample.model, "heads": len(part.heads)}
        for name in ("r_q", "r_k", "abs_r_k"):
            row |= _moments(part.value(name), name)
        rows.append(row)
    columns = [f"{what}_{name}" for name in ("r_q", "r_k") for what in ("mean", "sd", "se")]
    columns += ["mean_abs_r_k", "se_abs_r_k"]
    return pd.DataFrame(rows, columns=["model", "heads", *columns])


def explained_variance(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> pd.DataFrame:
    """Mean explained variance of PC0 over the heads that have one. Columns: model, heads, mean, sd, se."""
    rows = []
    for sample in samples(heads, loo, order):
        found = _moments(sample.ev, "ev")
        count = int(np.isfinite(sample.ev[0]).sum())
        rows.append((sample.model, count, found["mean_ev"], found["sd_ev"], found["se_ev"]))
    return pd.DataFrame(rows, columns=["model", "heads", "mean", "sd", "se"])


def shares(labels: Array, kinds: Sequence[str]) -> Array:
    """(1 + G, H) names -> (1 + G, len(kinds)): the share of each kind among the labelled heads."""
    return np.stack([np.asarray(labels == kind).mean(axis=-1) for kind in kinds], axis=-1)


def complete(sample: Sample) -> Sample:
    """Only the heads measured in the full data and in every leave-one-out sample."""
    return sample.select(np.isfinite(sample.r_q + sample.r_k).all(axis=0))


def _share_rows(
    found: Sequence[Sample], name: str, kinds: Sequence[str], label: Callable[[Sample], Array]
) -> pd.DataFrame:
    """A row per checkpoint and kind, with a last row of the unmeasured heads if any checkpoint has some."""
    any_unmeasured = any(not sample.measured.all() for sample in found)
    rows = []
    for sample in found:
        part = sample.select(sample.measured)
        labels = label(part)[0]
        count = len(labels)
        whole = complete(part)
        se = jackknife(shares(label(whole)[1:], kinds)) if len(whole.heads) else np.full(len(kinds), np.nan)
        for kind, kind_se in zip(kinds, se, strict=True):
            members = int((labels == kind).sum())
            share = members / count if count else np.nan
            rows.append((sample.model, kind, members, share, float(kind_se)))
        if any_unmeasured:
            rows.append((sample.model, UNMEASURED, int((~sample.measured).sum()), np.nan, np.nan))
    return pd.DataFrame(rows, columns=["model", name, "heads", "share", "se"])


def class_shares(
    heads: pd.DataFrame,
    loo: pd.DataFrame | None,
    order: Sequence[str],
    thresholds: Thresholds | None = None,
) -> pd.DataFrame:
    """How many of the measured heads are of each class. Columns: model, class, heads, share, se, borderline.

    Every class has a row in every checkpoint. If any checkpoint has unmeasured heads, each gets a row with
    their number and no share. `borderline` counts the heads of the class that would be of another one if
    their r_q, |r_k| or both were one standard error off (NaN without standard errors).
    """
    found = samples(heads, loo, order)
    table = _share_rows(found, "class", CLASSES, lambda s: classify(s.r_q, s.r_k, thresholds))
    near = [_borderline(sample, thresholds) for sample in found]
    counts = {
        (s.model, kind): count for s, kinds in zip(found, near, strict=True) for kind, count in kinds.items()
    }
    keys = zip(table["model"], table["class"], strict=True)
    return table.assign(borderline=np.array([counts.get(key, np.nan) for key in keys], dtype=np.float64))


def borderline(sample: Sample, thresholds: Thresholds | None = None) -> Array:
    """(H,) bool: moving r_q, |r_k| or both by one standard error of the head changes its class."""
    r_q, r_k = sample.r_q[0], np.abs(sample.r_k[0])
    se_q, se_k = column(sample.heads, "r_q_se"), column(sample.heads, "r_k_se")
    own = classify(r_q, r_k, thresholds)
    moved = np.zeros(len(own), dtype=bool)
    for up in (-1, 0, 1):
        for right in (-1, 0, 1):
            # |r_k| - se may pass zero: there the head is as content-like as it gets.
            there = classify(r_q + up * se_q, np.maximum(r_k + right * se_k, 0.0), thresholds)
            moved |= there != own
    return np.asarray(moved & np.isfinite(se_q) & np.isfinite(se_k) & sample.measured)


def _borderline(sample: Sample, thresholds: Thresholds | None) -> dict[str, int]:
    known = np.isfinite(column(sample.heads, "r_q_se")) & np.isfinite(column(sample.heads, "r_k_se"))
    if not known.any():
        return {}
    own = classify(sample.r_q[0], sample.r_k[0], thresholds)
    near = borderline(sample, thresholds)
    return {kind: int((near & (own == kind)).sum()) for kind in CLASSES}


def polarity_shares(
    heads: pd.DataFrame,
    loo: pd.DataFrame | None,
    order: Sequence[str],
    thresholds: Thresholds | None = None,
) -> pd.DataFrame:
    """How many measured heads are of each polarity. Columns: model, polarity, heads, share, se."""
    low = (thresholds or Thresholds()).low
    found = samples(heads, loo, order)
    return _share_rows(found, "polarity", POLARITIES, lambda s: polarity(s.r_k, low))


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
    places = range(DEPTH_BINS) if by == "depth_bin" else sorted(heads["layer"].unique().tolist())
    rows = []
    for sample in samples(heads, loo, order):
        part = sample.select(sample.measured)
        where = part.heads[by].to_numpy()
        values = part.value(value)
        for place in places:
            inside = where == place
            means = mean_over_heads(values[:, inside])
            rows.append(
                (sample.model, place, float(means[0]), float(jackknife(means[1:])), int(inside.sum()))
            )
    return pd.DataFrame(rows, columns=["model", by, "mean", "se", "heads"])


def rope_split(heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str]) -> pd.DataFrame:
    """Means over the heads of layers that rotate and of layers that do not; a kind with no head has no row.

    Columns: model, rope, heads, mean_r_q, se_r_q, mean_abs_r_k, se_abs_r_k, mean_r_k, se_r_k.
    """
    names = ("r_q", "abs_r_k", "r_k")
    rows = []
    for sample in samples(heads, loo, order):
        rope = column(sample.heads, "rope")
        for kind, code in (("RoPE", 1.0), ("NoPE", 0.0)):
            part = sample.select(sample.measured & (rope == code))
            if len(part.heads):
                row: dict[str, Any] = {"model": sample.model, "rope": kind, "heads": len(part.heads)}
                for name in names:
                    row |= _moments(part.value(name), name)
                rows.append(row)
    columns = [f"{what}_{name}" for name in names for what in ("mean", "se")]
    return pd.DataFrame(rows, columns=["model", "rope", "heads", *columns])


def above_null(heads: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """How many heads follow position more closely than chance reaches: |r| above its null level.

    Columns: model, heads (measured, with a null), above_q, above_k, share_q, share_k.
    """
    rows = []
    for sample in samples(heads, None, order):
        null_q, null_k = column(sample.heads, "r_q_null"), column(sample.heads, "r_k_null")
        known = sample.measured & np.isfinite(null_q) & np.isfinite(null_k)
        count = int(known.sum())
        above_q = int((np.abs(sample.r_q[0]) > null_q)[known].sum())
        above_k = int((np.abs(sample.r_k[0]) > null_k)[known].sum())
        share_q, share_k = (above_q / count, above_k / count) if count else (np.nan, np.nan)
        rows.append((sample.model, count, above_q, above_k, share_q, share_k))
    return pd.DataFrame(rows, columns=["model", "heads", "above_q", "above_k", "share_q", "share_k"])


def by_component(qk: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Means over the measured heads for every principal component, ordered by checkpoint and component.

    Columns: model, pc, heads, mean_r_q, mean_abs_r_k, mean_explained_variance, sd_ of the same, most_se_r_q,
    most_se_abs_r_k: the mean of the heads' errors, which the error of their mean cannot exceed, because a jackknife
    error is the length of a vector and the length of a mean of vectors is at most the mean of their lengths.
    """
    table = pd.DataFrame({"model": qk["model"].to_numpy(), "pc": qk["pc"].to_numpy()})
    table["r_q"], table["abs_r_k"] = column(qk, "r_q"), np.abs(column(qk, "r_k"))
    table["explained_variance"] = column(qk, "explained_variance")
    errors = {"r_q_se": "most_se_r_q", "r_k_se": "most_se_abs_r_k"}
    for name, bound in errors.items():
        table[bound] = column(qk, name)
    table = table[table["model"].isin(order) & table["r_q"].notna() & table["abs_r_k"].notna()]
    grouped = table.groupby(["model", "pc"], sort=True, observed=True)
    names = ["r_q", "abs_r_k", "explained_variance"]
    means = grouped[names].mean().add_prefix("mean_")
    spread = grouped[names].std(ddof=0).add_prefix("sd_")
    known = grouped[list(errors.values())].count().eq(grouped.size(), axis=0)
    bounds = grouped[list(errors.values())].mean().where(known)
    found = pd.concat([grouped.size().rename("heads"), means, spread, bounds], axis=1).reset_index()
    place = found["model"].map({model: index for index, model in enumerate(order)}).to_numpy()
    return found.iloc[np.lexsort([found["pc"].to_numpy(), place])].reset_index(drop=True)


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
