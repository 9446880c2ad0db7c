"""Numbers over heads with document-level errors: the only place that averages over the dimension `head`.

Everything here takes `data` with the dimensions `checkpoint, sample, head`: `results.own()` or `results.matched()`.
The heads are the same in every checkpoint, so their spread (`sd_` columns) is a description, not an uncertainty;
standard errors are over documents. A head whose correlations are not both finite is unmeasured: it counts in no mean
or share of r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.samples import jackknife as over_groups
from qkscope.results.taxonomy import (
    CLASSES,
    POLARITIES,
    SCORE_CLASSES,
    UNMEASURED,
    Thresholds,
    classify,
    polarity,
    score_class,
)
from qkscope.sums.head_index import DEPTH_BINS, depth_bin

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Array = NDArray[np.float64]
Population = Literal["all", "RoPE", "NoPE"]
ROPE: Mapping[str, float] = {"RoPE": 1.0, "NoPE": 0.0}
"""The value of the variable `rope` in each population of heads."""
# Means over the heads of a population that `scalars` has, besides all `role_` measures.
SCALARS = (
    *("share_position", "share_key", "share_match", "share_query_position", "share_positional"),
    *("r_q", "abs_r_k", "q_norm", "k_norm"),
)
# A head with a larger mean attention of queries 1 to 63 to the first token is a sink head (Gu et al. 2024).
SINK_HEAD = 0.3
_ABSOLUTE = {f"abs_{name}": name for name in ("r_q", "r_k", "r_q_balanced", "r_k_balanced")}


# --- the three aggregates ---------------------------------------------------------------------------------------------


def over_heads(values: xr.DataArray, where: xr.DataArray | None = None) -> xr.DataArray:
    """The mean over heads (those in `where`), sample by sample.

    Sample 0 averages the heads that are finite there. A head that one left-out sample lacks would shift that sample's
    mean by its own level, so left-out samples average the heads that are finite in all of them, about the mean of
    sample 0.
    """
    values = values.transpose(..., "sample", "head")
    array, there = values.to_numpy(), _there(values)
    if where is not None:
        array = np.where(_chosen(values, where), array, np.nan)
    known = np.isfinite(array)
    complete = (known | ~there[..., None]).all(axis=-2)
    kept = np.where(complete[..., None, :], array, 0.0)
    shift = _divided((kept - kept[..., :1, :]).sum(axis=-1), complete.sum(axis=-1, keepdims=True))
    shift[..., 0] = 0.0
    whole = _divided(np.where(known, array, 0.0)[..., 0, :].sum(axis=-1), known[..., 0, :].sum(axis=-1))
    return _like(values, np.where(there, whole[..., None] + shift, np.nan), "head")


def _chosen(values: xr.DataArray, where: xr.DataArray) -> NDArray[np.bool_]:
    """`where` in the shape of `values`, with 1 for dimensions that it lacks. Labels must be equal, not only as many."""
    if wrong := [dim for dim in where.dims if not where.get_index(dim).equals(values.get_index(dim))]:
        raise ValueError(f"values and where have different labels along {wrong[0]}")
    shape = [values.sizes[dim] if dim in where.dims else 1 for dim in values.dims]
    return where.transpose(*(dim for dim in values.dims if dim in where.dims)).to_numpy().reshape(shape)


def _there(values: xr.DataArray) -> NDArray[np.bool_]:
    """Which samples a checkpoint has: as many as it has groups. (..., sample)"""
    groups, outer = values.coords["groups"], [dim for dim in values.dims if dim not in ("sample", "head")]
    counts = groups.to_numpy().reshape([values.sizes[dim] if dim in groups.dims else 1 for dim in outer])
    found = np.arange(values.sizes["sample"]) <= counts[..., None]
    return np.broadcast_to(found, (*(values.sizes[dim] for dim in outer), values.sizes["sample"]))


def _like(values: xr.DataArray, array: Array, dropped: str) -> xr.DataArray:
    """An array with the labels of `values` without one dimension."""
    found = values.isel({dropped: 0}, drop=True).copy(deep=False, data=array)
    found.name, found.attrs = None, {}
    return found


def _divided(sums: Array, counts: NDArray[np.int64]) -> Array:
    """A mean; NaN of nothing."""
    return np.asarray(sums / np.where(counts > 0, counts, np.nan))


def difference(values: xr.DataArray, before: str, after: str) -> xr.DataArray:
    """`after` minus `before` within each sample: checkpoints are measured on the same documents, so what they share
    cancels.

    With different numbers of groups nothing can be paired: only sample 0 is left.
    """
    import xarray as xr

    with xr.set_options(arithmetic_join="exact"):  # type: ignore[no-untyped-call]
        sides = [values.sel(checkpoint=name) for name in (before, after)]
        counts = [int(side["groups"]) for side in sides]
        of_checkpoint = [name for name, coord in values.coords.items() if "checkpoint" in coord.dims]
        earlier, later = (side.drop_vars(of_checkpoint) for side in sides)
        groups = counts[0] if counts[0] == counts[1] else 0
        return (later - earlier).assign_coords(groups=groups)


def jackknife(values: xr.DataArray) -> xr.DataArray:
    """Delete-one-group standard error: sqrt((G-1)/G sum_g (a_g - mean a)^2) over the left-out samples.

    NaN with fewer than two groups, and where a left-out value is missing.
    """
    dims = [dim for dim in values.dims if dim != "sample"]
    samples = np.moveaxis(values.to_numpy(), values.dims.index("sample"), -1)[..., 1:]
    there = _there(values)[..., 1:]
    if "head" in dims:
        there = np.expand_dims(there, dims.index("head"))
    there = np.broadcast_to(there, samples.shape)
    left = np.where(there, samples, 0.0)  # NaN stays NaN where there is a sample
    count = there.sum(axis=-1)
    apart = np.where(there, left - _divided(left.sum(axis=-1), count)[..., None], 0.0)
    variance = (apart**2).sum(axis=-1) * (count - 1) / np.where(count > 1, count, np.nan)
    return _like(values, np.sqrt(variance), "sample")


def finite(values: xr.DataArray) -> xr.DataArray:
    """Where values are neither NaN nor infinite."""
    return abs(values) < np.inf


# --- measures, errors and populations of heads ------------------------------------------------------------------------


def values(data: xr.Dataset, name: str) -> xr.DataArray:
    """A measure of every head, (checkpoint, sample, head); NaN where it was not measured.

    r_q and r_k only of heads that have both. Along an axis that some left-out sample lost, the left-out values are
    those of another axis and are NaN.
    """
    import xarray as xr

    if name in _ABSOLUTE:
        return abs(values(data, _ABSOLUTE[name]))
    if name not in data and f"pc_{name}" not in data:
        return xr.full_like(data["r_q"], np.nan)
    found = data[name] if name in data else data[f"pc_{name}"].isel(pc=0, drop=True)
    if "sample" not in found.dims:
        found = found.expand_dims(sample=data["sample"], axis=1)
    array = found.to_numpy()
    if name in ("r_q", "r_k"):
        array = np.where(np.isfinite(data["r_q"].to_numpy() + data["r_k"].to_numpy()), array, np.nan)
    if (lost := found.attrs.get("axis_lost")) and lost in data:
        whole = data["sample"].to_numpy()[:, None] == 0
        array = np.where((data[lost].to_numpy() == 0)[..., None, :] | whole, array, np.nan)
    return found.copy(deep=False, data=array)


def error(data: xr.Dataset, name: str) -> xr.DataArray:
    """The standard error of a measure of every head, (checkpoint, head); NaN where its axis was lost.

    A table without left-out samples may still have errors of r.
    """
    if f"pc_{name}_se" in data:
        return data[f"pc_{name}_se"].isel(pc=0, drop=True)
    found = jackknife(data[name])
    if (lost := data[name].attrs.get("axis_lost")) and lost in data:
        found[:] = np.where(data[lost].to_numpy() == 0, found.to_numpy(), np.nan)
    return found


def present(data: xr.Dataset, population: str = "all") -> xr.DataArray:
    """Whether a checkpoint has a head, of this population. (checkpoint, head)"""
    here = data["depth"].notnull()
    return here if population == "all" else here & (data["rope"] == ROPE[population])


def measured(data: xr.Dataset) -> xr.DataArray:
    """Whether both correlations of a head are finite. (checkpoint, head)"""
    return finite((data["r_q"] + data["r_k"]).isel(sample=0, drop=True))


def populations(data: xr.Dataset) -> tuple[Population, ...]:
    """RoPE and NoPE heads where there are both, else one population."""
    flags = set(np.unique(data["rope"].to_numpy()).tolist())
    return ("RoPE", "NoPE") if {0.0, 1.0} <= flags else ("all",)


def classes(data: xr.Dataset, limits: Thresholds | None = None) -> NDArray[Any]:
    """The class of every head in every sample. (checkpoint, sample, head)"""
    return classify(values(data, "r_q").to_numpy(), values(data, "r_k").to_numpy(), limits)


def ordered(data: xr.Dataset, order: Sequence[str]) -> xr.Dataset:
    """The checkpoints of `order` that `data` has, in that order."""
    there = set(data["checkpoint"].to_numpy().tolist())
    return data.sel(checkpoint=[name for name in order if name in there])


# --- tables for figures -----------------------------------------------------------------------------------------------


def means(
    data: xr.Dataset,
    order: Sequence[str],
    names: Sequence[str],
    by: str = "",
    at: Sequence[Any] = (),
    population: str = "all",
    of: str = "r_q",
) -> pd.DataFrame:
    """Mean, sd and se of measures over the heads that have `of`, for each value in `at` of the coordinate `by`.

    Columns: model, `by` if given, heads, then mean_, sd_ and se_ of each name; NaN where there is no head.
    """
    import pandas as pd

    data = ordered(data, order)
    here = present(data, population) & finite(values(data, of).isel(sample=0, drop=True))
    arrays = {name: values(data, name).load() for name in names}
    models, frames = data["checkpoint"].to_numpy(), []
    if by == "depth_bin":
        data = data.assign(
            depth_bin=data["depth"].copy(data=depth_bin(data["depth"].fillna(-1.0).to_numpy()))
        )
    for value in at if by else [None]:
        some = here & (data[by] == value) if by else here
        columns: dict[str, Any] = {"model": models, by: value, "heads": some.sum("head")}
        for name, array in arrays.items():
            found = over_heads(array, some)
            columns[f"mean_{name}"] = found.isel(sample=0)
            columns[f"sd_{name}"] = array.isel(sample=0).where(some).std("head")
            columns[f"se_{name}"] = jackknife(found)
        frames.append(pd.DataFrame(columns))
    kept = ["model", *([by] if by else []), "heads"]
    kept += [f"{what}_{name}" for name in names for what in ("mean", "sd", "se")]
    table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=kept)
    row = {model: i for i, model in enumerate(models.tolist())}
    return table.sort_values("model", key=lambda m: m.map(row), kind="stable", ignore_index=True)[kept]


def position_signal(data: xr.Dataset, order: Sequence[str], population: str = "all") -> pd.DataFrame:
    """`means` of r_q, r_k and |r_k| over the measured heads, the last without sd."""
    found = means(data, order, ("r_q", "r_k", "abs_r_k"), population=population)
    return found.drop(columns="sd_abs_r_k")


def explained_variance(data: xr.Dataset, order: Sequence[str], population: str = "all") -> pd.DataFrame:
    """Mean explained variance of PC0 over the heads that have one. Columns: model, heads, mean, sd, se."""
    name = "explained_variance"
    found = means(data, order, (name,), population=population, of=name)
    return found.rename(columns=lambda column: column.removesuffix(f"_{name}"))


def _shares(
    data: xr.Dataset,
    name: str,
    kinds: Sequence[str],
    labels: NDArray[Any],
    here: NDArray[np.bool_],
    near: Array,
) -> pd.DataFrame:
    """A row per checkpoint and kind, with a last row of the unmeasured heads if any checkpoint has some.

    Left-out shares are over the heads that are measured in every sample. `borderline` counts the heads for which `near`
    is 1; it is NaN in heads without an error.
    """
    import pandas as pd

    named = labels != UNMEASURED
    known = here & named[:, 0]
    rows = []
    for i, (model, groups) in enumerate(_checkpoints(data)):
        complete = known[i] & named[i, : 1 + groups].all(axis=0)
        left = labels[i, 1 : 1 + groups][:, complete]
        errors = np.isfinite(near[i, here[i]]).any()
        for kind in kinds:
            members = known[i] & (labels[i, 0] == kind)
            share = members.sum() / known[i].sum() if known[i].any() else np.nan
            se = float(over_groups((left == kind).mean(axis=1))) if left.size else np.nan
            borderline = np.nansum(near[i, members]) if errors else np.nan
            rows.append((model, kind, int(members.sum()), share, se, borderline))
        if (here & ~known).any():
            rows.append((model, UNMEASURED, int((here[i] & ~known[i]).sum()), np.nan, np.nan, np.nan))
    return pd.DataFrame(rows, columns=["model", name, "heads", "share", "se", "borderline"])


def _checkpoints(data: xr.Dataset) -> list[tuple[str, int]]:
    names, groups = data["checkpoint"].to_numpy().tolist(), data["groups"].to_numpy().tolist()
    return list(zip(names, groups, strict=True))


def class_shares(
    data: xr.Dataset, order: Sequence[str], limits: Thresholds | None = None, population: str = "all"
) -> pd.DataFrame:
    """How many of the measured heads are of each class. Columns: model, class, heads, share, se, borderline.

    Every class has a row in every checkpoint. If any checkpoint has unmeasured heads, each gets a row with their
    number and no share. `borderline` counts the heads of the class that would be of another one if their r_q, |r_k|
    or both were one standard error off (NaN without standard errors).
    """
    data = ordered(data, order)
    here, labels = present(data, population).to_numpy(), classes(data, limits)
    errors = np.isfinite((error(data, "r_q") + error(data, "r_k")).to_numpy())
    near = np.where(errors, borderline(data, limits), np.nan)
    return _shares(data, "class", CLASSES, labels, here, near)


def score_class_shares(data: xr.Dataset, order: Sequence[str], population: str = "all") -> pd.DataFrame:
    """How many heads are of each class by score shares, with the columns of `class_shares`."""
    data = ordered(data, order)
    here, shares = present(data, population).to_numpy(), values(data, "share_positional").to_numpy()
    labels, se = score_class(shares), error(data, "share_positional").to_numpy()
    whole = shares[:, 0]
    near = (score_class(whole - se) != labels[:, 0]) | (score_class(whole + se) != labels[:, 0])
    return _shares(data, "class", SCORE_CLASSES, labels, here, np.where(np.isfinite(se), near, np.nan))


def borderline(data: xr.Dataset, limits: Thresholds | None = None) -> NDArray[np.bool_]:
    """Whether moving r_q, |r_k| or both by one standard error of the head changes its class. (checkpoint, head)"""
    r_q, r_k = (data[name].isel(sample=0).to_numpy() for name in ("r_q", "r_k"))
    se_q, se_k = (error(data, name).to_numpy() for name in ("r_q", "r_k"))
    own = classify(r_q, r_k, limits)
    moved = np.zeros(own.shape, dtype=bool)
    for up, right in product((-1, 0, 1), repeat=2):
        # |r_k| - se may pass zero: there the head is as content-like as it gets.
        moved |= classify(r_q + up * se_q, np.maximum(np.abs(r_k) + right * se_k, 0.0), limits) != own
    return np.asarray(moved & np.isfinite(se_q) & np.isfinite(se_k) & measured(data).to_numpy())


def polarity_shares(
    data: xr.Dataset, order: Sequence[str], limits: Thresholds | None = None, population: str = "all"
) -> pd.DataFrame:
    """How many measured heads are of each polarity. Columns: model, polarity, heads, share, se."""
    data = ordered(data, order)
    both = (values(data, "r_q") + values(data, "r_k")).notnull().to_numpy()
    signs = polarity(values(data, "r_k").to_numpy(), (limits or Thresholds()).low)
    labels = np.where(both, signs, UNMEASURED)
    here = present(data, population).to_numpy()
    table = _shares(data, "polarity", POLARITIES, labels, here, np.full(here.shape, np.nan))
    return table.drop(columns="borderline")


def depth_cells(
    data: xr.Dataset,
    order: Sequence[str],
    value: str = "r_q",
    by: Literal["depth_bin", "layer"] = "depth_bin",
    population: str = "all",
) -> pd.DataFrame:
    """Mean of a measure by depth: a row for each of the ten bins (or each layer) of every checkpoint.

    Columns: model, depth_bin (or layer), mean (NaN where no head is measured), se, heads.
    """
    at = range(DEPTH_BINS) if by == "depth_bin" else sorted(set(data["layer"].to_numpy().tolist()))
    found = means(data, order, (value,), by, at, population)
    found.columns = found.columns.str.removesuffix(f"_{value}")
    return found[["model", by, "mean", "se", "heads"]]


def above_null(data: xr.Dataset, order: Sequence[str], population: str = "all") -> pd.DataFrame:
    """How many heads follow position more closely than chance reaches: |r| above its null level.

    Columns: model, heads (measured, with a null), above_q, above_k, share_q, share_k.
    """
    import pandas as pd

    data = ordered(data, order)
    known, (above_q, above_k) = (measured(data) & present(data, population)).to_numpy(), _above_null(data)
    known = known & np.isfinite(above_q) & np.isfinite(above_k)
    rows = []
    for i, (model, _) in enumerate(_checkpoints(data)):
        count, above = int(known[i].sum()), [int(each[i, known[i]].sum()) for each in (above_q, above_k)]
        rows.append((model, count, *above, *(n / count if count else np.nan for n in above)))
    return pd.DataFrame(rows, columns=["model", "heads", "above_q", "above_k", "share_q", "share_k"])


def positional_below_null(data: xr.Dataset, limits: Thresholds | None = None) -> NDArray[np.bool_]:
    """Heads of a positional class whose correlation chance reaches as well. (checkpoint, head)

    Their class comes from the size of r alone; they are not to be called positional. Queries count for
    position-dominated and Q-positional heads, keys for position-dominated and K-positional ones.
    """
    kind, (above_q, above_k) = classes(data, limits)[:, 0], _above_null(data)
    queries = np.isin(kind, (CLASSES[0], CLASSES[1])) & (above_q == 0)
    return np.asarray(queries | (np.isin(kind, (CLASSES[0], CLASSES[2])) & (above_k == 0)))


def _above_null(data: xr.Dataset) -> list[Array]:
    """Of queries and keys: 1 where |r| of a head exceeds its null level, else 0; NaN without one. (checkpoint, head)"""
    found = []
    for name in ("r_q", "r_k"):
        r, null = data[name].isel(sample=0).to_numpy(), data[f"pc_{name}_null"].isel(pc=0).to_numpy()
        found.append(np.where(np.isfinite(r + null), np.abs(r) > null, np.nan))
    return found


def carried_by(data: xr.Dataset, kind: str, by: str = "") -> pd.DataFrame:
    """How much of the position signal each wavelength carries: |part of r| over its sum, by heads weighted with |r|.

    The weights keep heads with r near 0, whose parts are noise, from counting as much as others. Columns: model,
    window, `by` (such as layer) if given, wavelength, share. Heads of layers that do not rotate are left out.
    """
    import pandas as pd

    signal = data[f"signal_{kind}"].sel(pair=slice(0, None))
    checkpoint, head, pair = np.nonzero(np.isfinite(signal.to_numpy()))
    size = np.abs(signal.to_numpy())
    whole, weight = np.nansum(size, axis=2), np.abs(np.nansum(signal.to_numpy(), axis=2))
    with np.errstate(invalid="ignore", divide="ignore"):
        part = weight[..., None] * size / np.where(whole > 0, whole, np.nan)[..., None]
    rows = pd.DataFrame(
        {"model": data["checkpoint"].to_numpy()[checkpoint], "window": data["window"].to_numpy()[checkpoint]}
        | ({by: data[by].to_numpy()[head]} if by else {})
        | {"wavelength": data["wavelength"].sel(pair=slice(0, None)).to_numpy()[checkpoint, head, pair]}
        | {"part": part[checkpoint, head, pair], "weight": weight[checkpoint, head]}
    )
    keys = ["model", "window", *([by] if by else []), "wavelength"]
    sums = rows.groupby(keys, sort=False)[["part", "weight"]].sum()
    share = sums["part"] / sums["weight"].where(sums["weight"] > 0)
    return share.rename("share").reset_index()


def score_by_distance(data: xr.Dataset, model: str, where: xr.DataArray) -> pd.DataFrame:
    """The mean position bias of the heads in `where` of one checkpoint by distance: distance, score, se.

    The score of a key is relative to the query's mean over its keys. `se` is the mean of the heads' errors, which the
    error of their mean cannot exceed.
    """
    import pandas as pd

    here = where.sel(checkpoint=model) if "checkpoint" in where.dims else where
    names = ("distance_score", "distance_score_se")
    score, se = (data[name].sel(checkpoint=model).where(here) for name in names)
    table = {"distance": data["distance"].to_numpy(), "score": score.mean("head").to_numpy()}
    found = pd.DataFrame(table | {"se": se.where(score.notnull()).mean("head").to_numpy()})
    return found.dropna(subset=["score"]).reset_index(drop=True)


def scalars(data: xr.Dataset) -> dict[str, Array]:
    """About thirty numbers of each checkpoint for logs, terminal tables and alarms: values of (checkpoint, sample).

    By name: `measure`, or `RoPE/measure` and `NoPE/measure`. `data` is `results.own()` or `results.matched()`. What was
    not measured is left out.
    """
    found = {"max_logit": values(data, "max_logit").max("head")}
    if "loss" in data:
        found["loss"] = data["loss"]
    sinks = values(data, "sink_score")
    sinks = (sinks > SINK_HEAD).astype(np.float64).where(sinks.notnull())
    roles = [str(name) for name in data if str(name).startswith("role_")]
    for population in populations(data):
        start = f"{population}/" if population in ROPE else ""
        here = present(data, population)
        for name in (*SCALARS, *roles):
            found[start + name] = over_heads(values(data, name), here)
        found[f"{start}sink_rate"] = over_heads(sinks, here)
    arrays = {name: each.transpose("checkpoint", "sample").to_numpy() for name, each in found.items()}
    return {
        name: np.asarray(each, np.float64) for name, each in arrays.items() if np.isfinite(each[:, 0]).any()
    }
