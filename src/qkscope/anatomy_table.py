"""anatomy.csv, its leave-one-out values, spectrum.parquet and distance.parquet: their columns and how they are made."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import TableError
from qkscope.heads import HeadIndex
from qkscope.lags import distances
from qkscope.measures.axes import overlaps, same_axis
from qkscope.measures.cell import CellNumbers
from qkscope.measures.jackknife import jackknife
from qkscope.measures.registry import groups
from qkscope.store import in_short, read_csv
from qkscope.table import left_out_table

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

_KEY = ("model", "layer", "head", "kv_head")
# Columns of qk.csv and heads.csv, which a measure of the same name does not repeat.
_ELSEWHERE = ("r_q", "r_k", "explained_variance", "gap")
_LATE = "_from4"
SPECTRUM_COLUMNS = (
    *("model", "window", "layer", "head", "kind", "pair", "wavelength"),
    *("energy", "energy_se", "signal", "signal_se", "share"),
)
DISTANCE_COLUMNS = ("model", "window", "layer", "head", "distance", "score", "score_se", "measured")


@cache
def measures() -> tuple[str, ...]:
    """Every number per head with an error that is not optional, as the measures declare them."""
    every = [v for group in groups().values() if not group.optional for v in group.variables]
    return tuple(v.name for v in every if v.sampled and v.is_column and v.name not in _ELSEWHERE)


@cache
def anatomy_columns() -> tuple[str, ...]:
    """Columns of anatomy.csv; those of all tokens before those without the first four tokens of each document."""
    late = [name for name in measures() if name.endswith(_LATE)]
    names = [name for name in measures() if not name.endswith(_LATE)]
    return (
        *(*_KEY, "rope", *names, "overlap", "overlap_pc", "gap"),
        *(f"{name}_se" for name in (*names, "overlap", "gap")),
        *(*late, *(f"{name}_se" for name in late), "same_axis", "axis_lost"),
    )


def loo_anatomy_columns() -> tuple[str, ...]:
    """Columns of loo_anatomy.parquet."""
    return ("model", "layer", "head", "group", *(n for n in measures() if not n.endswith(_LATE)), "gap")


def anatomy_table(model: str, numbers: CellNumbers, before: CellNumbers | None = None) -> pd.DataFrame:
    """One row per head. `before` is the checkpoint before, over the same kind of window."""
    import pandas as pd

    columns: dict[str, Any] = _of_heads(model, numbers.heads) | {"kv_head": numbers.heads.kv_head}
    columns["rope"] = np.where(numbers.heads.rope < 0, np.nan, numbers.heads.rope)
    for name in (*measures(), "gap"):
        columns |= {name: numbers.value(name), f"{name}_se": numbers.error(name)}
    columns |= _continuity(numbers, before) | {"axis_lost": numbers.value("axis_lost").astype(np.int64)}
    return pd.DataFrame(columns)[list(anatomy_columns())]


def with_continuity(table: pd.DataFrame, numbers: CellNumbers, before: CellNumbers | None) -> pd.DataFrame:
    """The table of `numbers`, with how each first axis relates to those of the checkpoint `before`."""
    return table.assign(**_continuity(numbers, before))


def loo_anatomy_table(model: str, numbers: CellNumbers) -> pd.DataFrame:
    """The same measures without each group of documents in turn."""
    return left_out_table(model, numbers, loo_anatomy_columns()[4:])


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
    """An anatomy.csv, if there is one. A damaged file is an error, never 'not known'.

    Measures that were not declared when it was written are NaN: not measured. Columns it has besides are ignored.
    """
    if not path.is_file():
        return None
    kinds: dict[str, Any] = dict.fromkeys(anatomy_columns(), "float64")
    kinds |= {"model": str, "layer": "int64", "head": "int64", "kv_head": "int64"}
    try:
        frame = read_csv(path, dtype=kinds, keep_default_na=False, na_values=["", "nan"])
    except (ValueError, OSError, OverflowError) as error:
        raise TableError(f"{path}: not a readable CSV file ({in_short(error)})") from error
    missing = [name for name in _KEY if name not in frame.columns]
    if missing:
        raise TableError(
            f"{path}: column missing: {', '.join(missing[:5])}; run the study again to rewrite it"
        )
    if frame.duplicated(["model", "layer", "head"]).any():
        raise TableError(f"{path}: duplicate (model, layer, head) rows; run the study again to rewrite it")
    return frame.reindex(columns=list(anatomy_columns()))


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
