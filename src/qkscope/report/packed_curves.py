"""Curves along an axis of their own: scores by distance, and how much of r each wavelength carries.

For every head as packed columns, as far as they fit the page, and averaged over populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.report.encode import listed, pack_column
from qkscope.results.aggregate import carried_by, ordered, populations, present, score_by_distance

if TYPE_CHECKING:
    import xarray as xr

    from qkscope.report.columns import Grid

STRENGTH = "Share of the scores' strength"
LIMIT = 3_000_000  # base64 characters of one curve; a larger one stays in measures.safetensors


def curves(data: xr.Dataset, grid: Grid, order: Sequence[str]) -> list[dict[str, Any]]:
    """What was measured of every head: where on an axis, `at`, and its numbers there, packed (rows, len(at))."""
    found = []
    if "distance_score" in data:
        title = "Mean score by distance, logits"
        found.append(_curve(data["distance_score"], grid, "distance", title, "tokens back") | {"log": True})
    for name, what in (("signal_q", "Part of r_q"), ("score_energy", STRENGTH)):
        if name not in data:
            continue
        # dimensions that do not rotate have no pair and no place on this axis
        signal = data[name].sel(pair=slice(0, None))
        curve = _curve(signal, grid, name, f"{what} from each rotary pair", "rotary pair, fast to slow")
        waves = _waves(
            data["wavelength"].sel(pair=slice(0, None)).where(np.isfinite(signal)), order, curve["at"]
        )
        if waves is not None:
            curve |= {"waves": waves}
        found.append(curve)
    return [curve for curve in found if curve["column"] is not None]


def _waves(
    found: xr.DataArray, order: Sequence[str], pairs: Sequence[int]
) -> list[list[float | None]] | None:
    """For each checkpoint the wavelength of every pair; None where heads of one checkpoint differ in them."""
    low, high = found.min("head"), found.max("head")
    if not ((low == high) & np.isfinite(high) | low.isnull()).all():
        return None
    return [listed(row) for row in low.reindex(checkpoint=list(order), pair=list(pairs)).to_numpy()]


def _curve(found: xr.DataArray, grid: Grid, name: str, title: str, axis: str) -> dict[str, Any]:
    """Values of every head along the last dimension, where there are some.

    NaN where a checkpoint's window or layer has none there; the column is None where it is too large for the page.
    """
    values, at = grid.arrange(found), found[found.dims[-1]].to_numpy()
    known = np.isfinite(values).any(axis=0)
    fits = grid.rows * known.sum() * 2 * 4 / 3 <= LIMIT
    column = pack_column(values[:, known]) if fits else None
    about = {"name": name, "title": title, "axis": axis, "log": False}
    return about | {"at": at[known].tolist(), "column": column}


def wavelengths(data: xr.Dataset, order: Sequence[str]) -> list[dict[str, Any]] | None:
    """For each checkpoint, the wavelengths of its rotation and the share of r_q that each carries."""
    if "signal_q" not in data:
        return None
    data = ordered(data, order)
    rotating = data["signal_q"].sel(pair=slice(0, None)).notnull().any("pair").sum("head")
    if not rotating.any():
        return None
    counts = rotating.to_series().to_dict()
    shares = carried_by(data, "q").dropna(subset="share")
    found = []
    for model in order:
        here = shares[shares["model"] == model].sort_values("wavelength")
        found.append(
            {
                "at": here["wavelength"].tolist(),
                "share": listed(here["share"]),
                "energy": _energy(data, model, here["wavelength"].to_numpy()),
                "heads": counts.get(model, 0),
                "window": int(here["window"].iloc[0]) if len(here) else None,
            }
        )
    return found


def _energy(data: xr.Dataset, model: str, waves: NDArray[np.float64]) -> list[float | None] | None:
    """The mean over heads of the share of their scores' strength at each of some wavelengths."""
    if "score_energy" not in data:
        return None
    here = data[["score_energy", "wavelength"]].sel(checkpoint=model).sel(pair=slice(0, None))
    at, share = here["wavelength"].to_numpy(), here["score_energy"].to_numpy()
    return listed([np.nanmean(share[at == wave]) if (at == wave).any() else np.nan for wave in waves])


def distances(data: xr.Dataset, order: Sequence[str]) -> dict[str, Any] | None:
    """Population -> its mean curve at each checkpoint, relative to the average key, in logits."""
    if "distance_score" not in data:
        return None
    known = data["distance_score"].notnull().any(("checkpoint", "head")).to_numpy()
    at = data["distance"].to_numpy()[known].tolist()
    if not at:
        return None
    found: dict[str, Any] = {}
    for kind in populations(data):
        here, found[kind] = present(data, kind), []
        for model in order:
            curve = score_by_distance(data, model, here).set_index("distance").reindex(at)
            found[kind].append({"score": listed(curve["score"]), "se": listed(curve["se"])})
    return {"at": at, "curves": found}
