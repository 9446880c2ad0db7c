"""anatomy.csv, its leave-one-out values, spectrum.parquet and distance.parquet: their columns and how they are made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import TableError
from qkscope.heads import HeadIndex
from qkscope.lags import distances
from qkscope.measures.anatomy import SHARES
from qkscope.measures.axes import overlaps, same_axis
from qkscope.measures.cell import CellNumbers
from qkscope.measures.jackknife import jackknife
from qkscope.store import in_short, read_csv
from qkscope.table import left_out_table

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

_ALONG_AXIS = ("eta_q", "eta_k", "r_q_const", "r_k_const")
MEASURES = (*_ALONG_AXIS, "R_q", "R_k", *SHARES, "score_sd", "sink")
# The same without the first four tokens of each document, and Pearson's r itself.
LATE = tuple(f"{name}_from4" for name in ("r_q", "r_k", *_ALONG_AXIS, "R_q", "R_k"))
_HEAD = ("model", "layer", "head", "kv_head", "rope")
_JUDGED = (*MEASURES, "overlap", "gap")
ANATOMY_COLUMNS = (
    *(*_HEAD, *MEASURES, "overlap", "overlap_pc", "gap"),
    *(f"{name}_se" for name in _JUDGED),
    # Beyond the contract: without the first four tokens; whether PC0 is the axis it was; samples that lost it.
    *(*LATE, *(f"{name}_se" for name in LATE), "same_axis", "axis_lost"),
)
LOO_ANATOMY_COLUMNS = ("model", "layer", "head", "group", *MEASURES, "gap")
SPECTRUM_COLUMNS = (
    *("model", "window", "layer", "head", "kind", "pair", "wavelength"),
    *("energy", "energy_se", "signal", "signal_se", "share"),
)
DISTANCE_COLUMNS = ("model", "window", "layer", "head", "distance", "score", "score_se", "measured")


def anatomy_table(model: str, numbers: CellNumbers, before: CellNumbers | None = None) -> pd.DataFrame:
    """One row per head. `before` is the checkpoint before, over the same kind of window."""
    import pandas as pd

    columns: dict[str, Any] = _of_heads(model, numbers.heads) | {"kv_head": numbers.heads.kv_head}
    columns["rope"] = np.where(numbers.heads.rope < 0, np.nan, numbers.heads.rope)
    for name in (*MEASURES, *LATE, "gap"):
        columns |= {name: numbers.value(name), f"{name}_se": numbers.error(name)}
    columns |= _continuity(numbers, before) | {"axis_lost": numbers.value("axis_lost").astype(np.int64)}
    return pd.DataFrame(columns)[list(ANATOMY_COLUMNS)]


def with_continuity(table: pd.DataFrame, numbers: CellNumbers, before: CellNumbers | None) -> pd.DataFrame:
    """The table of `numbers`, with how each first axis relates to those of the checkpoint `before`."""
    return table.assign(**_continuity(numbers, before))


def loo_anatomy_table(model: str, numbers: CellNumbers) -> pd.DataFrame:
    """The same measures without each group of documents in turn."""
    return left_out_table(model, numbers, (*MEASURES, "gap"))[list(LOO_ANATOMY_COLUMNS)]


def spectrum_table(model: str, numbers: CellNumbers) -> pd.DataFrame:
    """One row per head, kind and rotary pair. Pair -1, of infinite wavelength, is all that does not rotate.

    energy: share of E|x|^2. signal: part of r along PC0, summing to it; share: the same as a share of r.
    """
    import pandas as pd

    heads, parts = numbers.heads, []
    wavelength = numbers.arrays["wavelength"]
    for kind in "qk":
        energy, signal = numbers.arrays[f"energy_{kind}"], numbers.arrays[f"signal_{kind}"]
        row, entry = np.nonzero(np.isfinite(energy))
        whole = np.nansum(signal, axis=1)
        columns = {"layer": heads.layer[row], "head": heads.head[row], "kind": kind, "pair": entry - 1}
        columns |= {"wavelength": wavelength[row, entry]}
        for name, values in (("energy", energy), ("signal", signal)):
            columns |= {
                name: values[row, entry],
                f"{name}_se": numbers.arrays[f"{name}_{kind}_se"][row, entry],
            }
        with np.errstate(invalid="ignore", divide="ignore"):
            columns["share"] = signal[row, entry] / np.where(whole, whole, np.nan)[row]
        parts.append(pd.DataFrame(columns))
    found = pd.concat(parts, ignore_index=True).sort_values(
        ["layer", "kind", "head"], ascending=[True, False, True], kind="stable"
    )
    return found.assign(model=model, window=numbers.window)[list(SPECTRUM_COLUMNS)].reset_index(drop=True)


def distance_table(model: str, numbers: CellNumbers) -> pd.DataFrame:
    """One row per head and distance: `score` is the predicted position bias b(D) in logits, with its error.

    `measured` is the mean score of a few queries at exactly that distance, not relative to their other keys.
    """
    import pandas as pd

    heads, lags = numbers.heads, distances(numbers.window)
    columns = {
        "model": model,
        "window": numbers.window,
        "layer": np.repeat(heads.layer, len(lags)),
        "head": np.repeat(heads.head, len(lags)),
        "distance": np.tile(lags, len(heads)),
        "score": numbers.arrays["distance_score"].reshape(-1),
        "score_se": numbers.arrays["distance_score_se"].reshape(-1),
        "measured": numbers.arrays["distance_score_measured"].reshape(-1),
    }
    return pd.DataFrame(columns)[list(DISTANCE_COLUMNS)]


def read_anatomy(path: Path) -> pd.DataFrame | None:
    """An anatomy.csv, if there is one. A damaged file is an error, never 'not known'."""
    if not path.is_file():
        return None
    numbers = {
        name: "float64" for name in ANATOMY_COLUMNS if name not in ("model", "layer", "head", "kv_head")
    }
    kinds = {"model": str, "layer": "int64", "head": "int64", "kv_head": "int64", **numbers}
    try:
        frame = read_csv(path, dtype=kinds, keep_default_na=False, na_values=["", "nan"])
    except (ValueError, OSError, OverflowError) as error:
        raise TableError(f"{path}: not a readable CSV file ({in_short(error)})") from error
    missing = [name for name in ANATOMY_COLUMNS if name not in frame.columns]
    if missing:
        raise TableError(
            f"{path}: no column {', '.join(missing[:5])}; run the study again to have it rewritten"
        )
    if frame.duplicated(["model", "layer", "head"]).any():
        raise TableError(f"{path}: a head stands in it twice; run the study again to have it rewritten")
    return frame


def _of_heads(model: str, heads: HeadIndex) -> dict[str, Any]:
    return {"model": model, "layer": heads.layer, "head": heads.head}


def _continuity(numbers: CellNumbers, before: CellNumbers | None) -> dict[str, Array]:
    """How PC0 relates to the axes of the checkpoint before; NaN where there is none to compare with."""
    heads = len(numbers.v)
    if before is None or before.v.shape != numbers.v.shape:
        return dict.fromkeys(("overlap", "overlap_pc", "overlap_se", "same_axis"), np.full(heads, np.nan))
    overlap = overlaps(before.v, numbers.v)
    known = np.isfinite(overlap).all(axis=(1, 2))
    left = np.empty((0, heads))
    if before.groups == numbers.groups:
        left = np.abs(np.einsum("ghd,ghd->gh", before.loo_v, numbers.loo_v))
    nearest = np.argmax(np.nan_to_num(overlap[:, :, 0]), axis=1)
    return {
        "overlap": overlap[:, 0, 0],
        "overlap_pc": np.where(known, nearest, np.nan),
        "overlap_se": jackknife(left),
        "same_axis": np.where(known, same_axis(overlap), np.nan),
    }
