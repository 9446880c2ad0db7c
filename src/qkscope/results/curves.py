"""Curves averaged over heads: how much of r each rotary wavelength carries, and position bias by distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def carried_by(data: xr.Dataset, kind: str, by: str = "", where: xr.DataArray | None = None) -> pd.DataFrame:
    """How much of the position signal each wavelength carries: |part of r| over its sum, by heads weighted with |r|.

    The weights keep heads with r near 0, whose parts are noise, from counting as much as others. Columns: model,
    window, `by` (such as layer) if given, wavelength, share. Heads of layers that do not rotate are left out.
    """
    import pandas as pd

    signal = data[f"signal_{kind}"].sel(pair=slice(0, None))
    signal = signal if where is None else signal.where(where)
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
    sums = rows.groupby(["model", "window", *([by] if by else []), "wavelength"], sort=False)[
        ["part", "weight"]
    ].sum()
    share = sums["part"] / sums["weight"].where(sums["weight"] > 0)
    return share.rename("share").reset_index()


def score_by_distance(data: xr.Dataset, model: str, where: xr.DataArray) -> pd.DataFrame:
    """The mean position bias of the heads in `where` of one checkpoint by distance: distance, score, se.

    The score of a key is relative to the query's mean over its keys. `se` is the mean of the heads' errors, which the
    error of their mean cannot exceed.
    """
    import pandas as pd

    here = where.sel(checkpoint=model) if "checkpoint" in where.dims else where
    score, se = (
        data[name].sel(checkpoint=model).where(here) for name in ("distance_score", "distance_score_se")
    )
    table = {"distance": data["distance"].to_numpy(), "score": score.mean("head").to_numpy()}
    found = pd.DataFrame(table | {"se": se.where(score.notnull()).mean("head").to_numpy()})
    return found.dropna(subset=["score"]).reset_index(drop=True)
