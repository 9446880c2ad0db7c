"""anatomy.csv, its leave-one-out values, spectrum.parquet and distance.parquet: their columns and how they are made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import TableError
from qkscope.heads import HeadIndex
from qkscope.measures.axes import gap, overlaps, same_axis
from qkscope.measures.beyond import Beyond, Spectrum
from qkscope.measures.jackknife import jackknife
from qkscope.measures.layer import LATE, MEASURES
from qkscope.measures.pca import Axes
from qkscope.store import in_short, read_csv

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

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


def anatomy_table(
    model: str, heads: HeadIndex, axes: Axes, beyond: Beyond, before: Axes | None
) -> pd.DataFrame:
    """A row a head. `before` holds the axes of the checkpoint before, over the same kind of window."""
    import pandas as pd

    columns: dict[str, Any] = _of_heads(model, heads) | {"kv_head": heads.kv_head}
    columns["rope"] = np.where(heads.rope < 0, np.nan, heads.rope)
    for name in (*MEASURES, *LATE):
        columns |= {name: beyond.value(name), f"{name}_se": beyond.error(name)}
    columns |= {"gap": gap(axes.explained_variance), "gap_se": jackknife(axes.loo_gap)}
    columns |= _continuity(axes, before) | {"axis_lost": axes.lost}
    return pd.DataFrame(columns)[list(ANATOMY_COLUMNS)]


def with_continuity(table: pd.DataFrame, axes: Axes, before: Axes | None) -> pd.DataFrame:
    """The table, of heads with `axes`, with how each first axis stands to those of the checkpoint `before`."""
    return table.assign(**_continuity(axes, before))


def loo_anatomy_table(model: str, heads: HeadIndex, axes: Axes, beyond: Beyond) -> pd.DataFrame:
    """The same measures without each group of documents in turn."""
    import pandas as pd

    groups = len(axes.loo_gap)
    columns: dict[str, Any] = {"model": model, "group": np.repeat(np.arange(groups), len(heads))}
    columns |= {"layer": np.tile(heads.layer, groups), "head": np.tile(heads.head, groups)}
    columns |= {name: beyond.left_out(name).reshape(-1) for name in MEASURES}
    return pd.DataFrame(columns | {"gap": axes.loo_gap.reshape(-1)})[list(LOO_ANATOMY_COLUMNS)]


def spectrum_table(model: str, window: int, heads: HeadIndex, beyond: Beyond) -> pd.DataFrame:
    """A row per head, kind and rotary pair. Pair -1, of endless wavelength, is all that does not rotate.

    energy: share of E|x|^2. signal: part of r on PC0, summing to it; share: the same as a share of r.
    """
    import pandas as pd

    parts = [
        _spectrum(heads, spectrum, kind, i)
        for spectrum in beyond.spectra
        for kind in "qk"
        for i in range(len(spectrum.rows))
    ]
    if not parts:
        return pd.DataFrame(columns=list(SPECTRUM_COLUMNS))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return pd.DataFrame({"model": model, "window": window} | joined)[list(SPECTRUM_COLUMNS)]


def distance_table(
    model: str, window: int, heads: HeadIndex, beyond: Beyond, measured: Array
) -> pd.DataFrame:
    """A row per head and distance: `score` is the position bias b(D) that the paths predict, in logits, with its error.

    `measured` (H, D) is the mean score of a few queries at exactly that distance, not relative to their other keys.
    """
    import pandas as pd

    count = len(beyond.distance)
    columns = {
        "model": model,
        "window": window,
        "layer": np.repeat(heads.layer, count),
        "head": np.repeat(heads.head, count),
        "distance": np.tile(beyond.distance, len(heads)),
        "score": beyond.curve[0].reshape(-1),
        "score_se": jackknife(beyond.curve[1:]).reshape(-1),
        "measured": measured.reshape(-1),
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
            f"{path}: column missing: {', '.join(missing[:5])}; run the study again to rewrite it"
        )
    if frame.duplicated(["model", "layer", "head"]).any():
        raise TableError(f"{path}: duplicate (model, layer, head) rows; run the study again to rewrite it")
    return frame


def _of_heads(model: str, heads: HeadIndex) -> dict[str, Any]:
    return {"model": model, "layer": heads.layer, "head": heads.head}


def _continuity(axes: Axes, before: Axes | None) -> dict[str, Array]:
    """How PC0 stands to the axes of the checkpoint before; NaN where there is none to compare with."""
    heads = len(axes.v)
    if before is None or before.v.shape != axes.v.shape:
        return dict.fromkeys(("overlap", "overlap_pc", "overlap_se", "same_axis"), np.full(heads, np.nan))
    overlap = overlaps(before.v, axes.v)
    known = np.isfinite(overlap).all(axis=(1, 2))
    left = np.empty((0, heads))
    if len(before.loo_v) == len(axes.loo_v):
        left = np.abs(np.einsum("ghd,ghd->gh", before.loo_v, axes.loo_v))
    nearest = np.argmax(np.nan_to_num(overlap[:, :, 0]), axis=1)
    return {
        "overlap": overlap[:, 0, 0],
        "overlap_pc": np.where(known, nearest, np.nan),
        "overlap_se": jackknife(left),
        "same_axis": np.where(known, same_axis(overlap), np.nan),
    }


def _spectrum(heads: HeadIndex, spectrum: Spectrum, kind: str, i: int) -> dict[str, Array]:
    """The entries of one head and kind that carry anything."""
    row = spectrum.rows[i]
    energy, signal = spectrum.energy[kind][:, i], spectrum.signal[kind][:, i]
    pairs = np.append(np.arange(len(spectrum.wavelength) - 1), -1)
    # Where everything rotates there is no rest to speak of.
    kept = slice(None) if spectrum.still else slice(-1)
    whole = signal[0].sum()
    columns = {
        "layer": np.full(len(pairs), heads.layer[row]),
        "head": np.full(len(pairs), heads.head[row]),
        "kind": np.full(len(pairs), kind),
        "pair": pairs,
        "wavelength": spectrum.wavelength,
        "energy": energy[0],
        "energy_se": jackknife(energy[1:]),
        "signal": signal[0],
        "signal_se": jackknife(signal[1:]),
        "share": signal[0] / whole if whole else np.full(len(pairs), np.nan),
    }
    return {name: values[kept] for name, values in columns.items()}
