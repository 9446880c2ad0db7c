"""Tables of the optional measures: <measure>.csv, a row a head; its values without each group of documents.

rotation.csv  per_kind.csv  plasticity.csv   model,layer,head,kv_head,rope,window, each number and its _se
loo_<measure>.parquet                        model,layer,head,group and each number
<measure>_map.parquet                        model,layer,head,query_bucket,key_bucket,value
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.errors import StoreError, TableError
from qkscope.heads import HeadIndex
from qkscope.measures.cell import CellNumbers
from qkscope.measures.registry import groups, optional_names
from qkscope.store import in_short, read_csv, read_parquet, write_csv, write_parquet
from qkscope.table import left_out_table

if TYPE_CHECKING:
    import pandas as pd

KEY = ("model", "layer", "head")
MAP_COLUMNS = (*KEY, "query_bucket", "key_bucket", "value")
# Slopes per token can only be compared over the same window: they stand beside those of the own one.
SLOPES = ("alpha_q", "alpha_k")
# Rows that a parquet file may have for each row of qk.csv, far more than any study: bounds what is read.
ROW_LIMIT = 1000
_AGAIN = "run the study again to rewrite it"


def measure_frames(name: str, model: str, numbers: CellNumbers) -> dict[str, pd.DataFrame]:
    """One checkpoint's rows of every table of the optional measure `name`, by file."""
    import pandas as pd

    group, heads = groups()[name], numbers.heads
    columns: dict[str, Any] = {"model": model, "layer": heads.layer, "head": heads.head}
    columns |= {"kv_head": heads.kv_head, "rope": np.where(heads.rope < 0, np.nan, heads.rope)}
    columns["window"] = numbers.window
    sampled = [variable.name for variable in group.variables if variable.sampled and not variable.dims]
    for variable in group.variables:
        if not variable.dims:
            columns[variable.name] = numbers.value(variable.name)
            if variable.sampled:
                columns[f"{variable.name}_se"] = numbers.error(variable.name)
    frames = {name: pd.DataFrame(columns), f"loo_{name}": left_out_table(model, numbers, sampled)}
    for variable in group.variables:
        if len(variable.dims) == 2:
            frames[f"{name}_map"] = _map(model, heads, numbers.arrays[variable.name])
    return frames


def write_measures(folder: Path, frames: Mapping[str, pd.DataFrame]) -> None:
    """Every table to its file."""
    for name, frame in frames.items():
        if name in optional_names():
            write_csv(folder / f"{name}.csv", frame)
        else:
            write_parquet(folder / f"{name}.parquet", frame)


def with_matched_slopes(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """rotation.csv with each slope per token over the matched window beside that over the own one."""
    if not {"rotation", "rotation_matched"} <= set(frames):
        return dict(frames)
    matched = frames["rotation_matched"]
    named = {name: f"{name}_matched" for slope in SLOPES for name in (slope, f"{slope}_se")}
    beside = matched[[*KEY, *named]].rename(columns=named)
    joined = frames["rotation"].merge(beside, on=list(KEY), how="left", validate="one_to_one")
    return {**frames, "rotation": joined}


def read_measures(folder: Path, names: Iterable[str], rows: int) -> dict[str, pd.DataFrame]:
    """The tables of optional measures that a folder has, by file; a damaged one is an error, never 'not known'.

    `rows` are those of qk.csv: no table can have many times as many.
    """
    found: dict[str, pd.DataFrame | None] = {}
    for name in (f"{name}{end}" for name in names for end in ("", "_matched")):
        plain, matched = name.removesuffix("_matched"), "_matched" if name.endswith("_matched") else ""
        found[name] = _read(folder / f"{name}.csv")
        for file in (f"loo_{name}", f"{plain}_map{matched}"):
            found[file] = _read_parquet(folder / f"{file}.parquet", ROW_LIMIT * rows)
    return {name: frame for name, frame in found.items() if frame is not None}


def _read(path: Path) -> pd.DataFrame | None:
    """A table of one measure, if there is one."""
    if not path.is_file():
        return None
    try:
        frame = read_csv(path, dtype={"model": str}, keep_default_na=False, na_values=["", "nan"])
        return _typed(frame, [*KEY])
    except (ValueError, OSError, OverflowError, KeyError) as error:
        raise TableError(f"{path}: not a readable table of heads ({in_short(error)}); {_AGAIN}") from error


def _read_parquet(path: Path, most: int) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    frame = read_parquet(path, most)
    key = [*KEY, *(name for name in ("group", "query_bucket", "key_bucket") if name in frame)]
    if missing := [name for name in KEY if name not in frame]:
        raise StoreError(f"{path}: damaged (column missing: {', '.join(missing)})", _AGAIN)
    if frame.duplicated(key).any():
        raise StoreError(f"{path}: damaged (duplicate {', '.join(key)})", _AGAIN)
    return frame


def _typed(frame: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """The same table with whole numbers in its key and floats elsewhere, if no row of it stands there twice."""
    kinds = {str(name): "int64" if name in key else "float64" for name in frame.columns}
    typed = frame.astype(kinds | {"model": str})
    if typed.duplicated(key).any():
        raise ValueError("duplicate (model, layer, head)")
    return typed


def _map(model: str, heads: HeadIndex, cells: np.ndarray[Any, Any]) -> pd.DataFrame:
    """The cells that have a value."""
    import pandas as pd

    row, query, key = np.nonzero(np.isfinite(cells))
    columns = {"model": model, "layer": heads.layer[row], "head": heads.head[row]}
    columns |= {"query_bucket": query, "key_bucket": key, "value": cells[row, query, key]}
    return pd.DataFrame(columns)[list(MAP_COLUMNS)]
