"""The dataset as tables, and a qk.csv as a dataset.

qk.csv     a row per checkpoint, head and principal component, over each checkpoint's training context
heads.csv  a row per checkpoint, window and head: every measure with its standard error, and the class

A qk.csv from another script needs only `model, layer, head, pc, r_q, r_k`; the other columns are then
empty. In memory every table is a DataFrame; `rope` is 1.0, 0.0 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import TableError
from qkscope.results.aggregate import error
from qkscope.results.dataset import NAME, CellData, CellInfo, dataset, read_dataset, write_dataset
from qkscope.results.roles import has_roles, role_names
from qkscope.results.taxonomy import Thresholds, classify, periodic, polarity, score_class, transitions
from qkscope.store import in_short, read_csv, write_csv, write_parquet
from qkscope.sums.head_index import depth, depth_bin

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

REQUIRED = ("model", "layer", "head", "pc", "r_q", "r_k")
QK_COLUMNS = (
    *("model", "layer", "head", "kv_head", "pc", "r_q", "r_k", "explained_variance", "n_q", "n_k"),
    *("r_q_se", "r_k_se", "r_q_null", "r_k_null", "rope"),
)
# Beyond this number of rows heads.parquet is written instead of heads.csv.
MOST_CSV_ROWS = 100_000
MAX_COUNT = 1_000_000
_COUNTS = ("layer", "head", "pc")
_NUMBERS = tuple(c for c in QK_COLUMNS if c not in ("model", *_COUNTS))
_OF_COMPONENTS = ("r_q", "r_k", "explained_variance", "r_q_se", "r_k_se", "r_q_null", "r_k_null")
_OF_HEADS = ("kv_head", "n_q", "n_k", "rope")
_NOTHING = ("", "nan", "na", "none", "null")

WEIGHTS, ROTATION, WINDOW = FACTORS = ("weights", "rotation", "window")
EFFECTS = (
    *("total", *FACTORS, "weights_first", "rotation_first"),
    *("weights_other_order", "rotation_other_order", "weights_same_axis", "rotation_same_axis"),
    *("interaction", "weights_and_rotation"),
)
CAUSES_COLUMNS = (
    *("from_model", "to_model", "number", "population", "total", *FACTORS),
    *(f"{name}_se" for name in ("total", *FACTORS)),
    *(column for name in EFFECTS[4:] for column in (name, f"{name}_se")),
    *("window_tokens", "same_text", "heads", "groups"),
)
ABLATION = "ablation.csv"
ABLATION_COLUMNS = (
    *("checkpoint", "part", "heads", "population", "n_heads", "delta", "delta_se", "random", "random_se"),
    *("above_random", "above_random_se", "random_heads", "draws", "loss", "documents", "tokens", "window"),
    "weights",
)


def write_tables(
    folder: Path, cells: Sequence[CellData], order: Sequence[str], limits: Thresholds
) -> pd.DataFrame:
    """Write measures.safetensors, qk.csv, heads.csv and transitions.csv; returns heads.csv over training contexts."""
    write_dataset(folder / NAME, cells)
    data = read_dataset(folder / NAME)
    write_csv(folder / "qk.csv", qk_table(select(data, "own")))
    names = data["checkpoint"].to_numpy()
    of = [data[name].to_numpy() for name in ("weights_of", "rotation_of")]
    real = np.all([(each == names) | (each == "") for each in of], axis=0)  # not counterfactual
    heads = head_table(data.isel(cell=real), limits)
    if len(heads) > MOST_CSV_ROWS:
        write_parquet(folder / "heads.parquet", heads)
    else:
        write_csv(folder / "heads.csv", heads)
    own: pd.DataFrame = heads[heads["own"] == 1]
    write_csv(folder / "transitions.csv", transitions(own, order))
    return own


def select(data: xr.Dataset, which: str) -> xr.Dataset:
    """The cells of the training contexts (`own`) or of the common window (`matched`), by checkpoint."""
    return data.isel(cell=np.flatnonzero(data[which].to_numpy())).swap_dims(cell="checkpoint")


def head_table(data: xr.Dataset, limits: Thresholds) -> pd.DataFrame:
    """A row per cell (or checkpoint) and head: which it is, its classes, and every scalar measure with its error.

    `class` is the published one, `class_balanced` the same by balanced r; classes whose measures are missing are left
    out. `periodic` is 1 if queries or keys are. `roles` are the roles of a head, joined by "; ", or "no role".
    """
    import pandas as pd

    cell, head = np.nonzero(data["depth"].notnull().to_numpy())

    def scalar(name: str) -> NDArray[Any]:
        found = data[name].isel(sample=0) if "sample" in data[name].dims else data[name]
        return np.asarray(found.to_numpy()[cell, head])

    columns: dict[str, Any] = {"model": data["checkpoint"].to_numpy()[cell]}
    columns |= {name: data[name].to_numpy()[cell].astype(np.int64) for name in ("window", "own", "matched")}
    columns |= {"layer": data["layer"].to_numpy()[head], "head": data["number"].to_numpy()[head]}
    columns |= {name: scalar(name) for name in ("kv_head", "rope", "depth")}
    columns["depth_bin"] = depth_bin(columns["depth"])
    r_q, r_k = scalar("r_q"), scalar("r_k")
    columns["class"] = classify(r_q, r_k, limits)
    if "share_positional" in data:
        columns["score_class"] = score_class(scalar("share_positional"))
    if "r_q_balanced" in data:
        columns["class_balanced"] = classify(scalar("r_q_balanced"), scalar("r_k_balanced"), limits)
    columns["polarity"] = polarity(r_k, limits.low)
    if "eta_q" in data:
        found = periodic(scalar("eta_q"), r_q) | periodic(scalar("eta_k"), r_k)
        columns["periodic"] = found.astype(np.int64)
    if has_roles(data):
        columns["roles"] = role_names(data)[cell, head]
    for name in map(str, data.data_vars):
        if name not in columns and data[name].dims[1:] in (("head",), ("sample", "head")):
            columns[name] = scalar(name)
            if "sample" in data[name].dims:
                # A copy does not keep what is read for it: all samples of all measures would fill the memory.
                columns[f"{name}_se"] = error(data.copy(), name).to_numpy()[cell, head]
    for name in ("r_q", "r_k"):
        columns[f"{name}_null"] = data[f"pc_{name}_null"].isel(pc=0).to_numpy()[cell, head]
    return _whole(pd.DataFrame(columns))


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Counts as integers, where they are known."""
    counts = [name for name in ("kv_head", "n_q", "n_k") if name in table and table[name].notna().all()]
    return table.astype(dict.fromkeys(counts, np.int64))


def qk_table(data: xr.Dataset) -> pd.DataFrame:
    """A row per checkpoint, head and principal component, in that order."""
    import pandas as pd

    heads = np.nonzero(data["depth"].notnull().to_numpy())
    components = data.sizes["pc"]
    checkpoint, head = (np.repeat(rows, components) for rows in heads)
    pc = np.tile(np.arange(components), len(heads[0]))
    columns: dict[str, Any] = {"model": data["checkpoint"].to_numpy()[checkpoint]}
    columns |= {"layer": data["layer"].to_numpy()[head], "head": data["number"].to_numpy()[head], "pc": pc}
    columns |= {name: data[name].to_numpy()[checkpoint, head] for name in _OF_HEADS}
    for name in _OF_COMPONENTS:
        columns[name] = data[f"pc_{name}"].copy(deep=False).to_numpy()[checkpoint, head, pc]
    table = _whole(pd.DataFrame(columns)[list(QK_COLUMNS)])
    # A model with fewer components than another, or a table of which each head has its own, leaves gaps.
    gap = table[["r_q", "r_k", "explained_variance"]].isna().all(axis=1) & (table["pc"] > 0)
    return table[~gap].reset_index(drop=True) if gap.any() else table


def from_qk(
    qk: pd.DataFrame,
    num_layers: Mapping[str, int] | None = None,
    windows: Mapping[str, int] | None = None,
) -> xr.Dataset:
    """A qk.csv as a dataset: one cell per model, with one sample.

    `num_layers` is the number of layers of each model (default: the deepest layer in the table is the last one),
    `windows` how many tokens it was measured over (default: 0, not known).
    """
    _check_dense(qk)
    cells = []
    for model, rows in qk.groupby("model", sort=False, observed=True):
        first = rows[rows["pc"] == 0]
        heads = list(zip(first["layer"].tolist(), first["head"].tolist(), strict=True))
        at = {head: i for i, head in enumerate(heads)}
        keys = zip(rows["layer"].tolist(), rows["head"].tolist(), strict=True)
        row = np.array([at.get(key, -1) for key in keys], dtype=np.int64)
        pc = rows["pc"].to_numpy()
        arrays: dict[str, NDArray[np.float64]] = {}
        for name in _OF_COMPONENTS:
            found = np.full((len(heads), int(pc.max()) + 1), np.nan)
            found[row[row >= 0], pc[row >= 0]] = rows[name].to_numpy(np.float64)[row >= 0]
            arrays[f"pc_{name}"] = found
            if name in ("r_q", "r_k", "explained_variance"):
                arrays[name] = found[None, :, 0]
        arrays |= {name: first[name].to_numpy(np.float64) for name in _OF_HEADS}
        layers = (num_layers or {}).get(str(model)) or int(first["layer"].max()) + 1
        arrays["depth"] = depth(first["layer"].to_numpy(), layers)
        cells.append(CellData(CellInfo(str(model), (windows or {}).get(str(model), 0)), heads, arrays))
    return dataset(cells)


def _check_dense(qk: pd.DataFrame) -> None:
    """Refuse a table whose rows are a tiny part of models x heads x components, which would fill the memory."""
    counts = qk["model"].nunique(), len(qk[["layer", "head"]].drop_duplicates()), int(qk["pc"].max()) + 1
    if np.prod(counts, dtype=np.float64) > max(20 * len(qk), 1_000_000):
        models, heads, components = counts
        raise TableError(
            f"the table has {len(qk):,} rows for {models:,} models x {heads:,} heads x {components:,} components; "
            "models must share most of their heads: split it into tables of models with the same heads"
        )


def read_qk(path: Path) -> pd.DataFrame:
    """Read and check a qk.csv; the result has all QK_COLUMNS. A TableError names the file and line."""
    import pandas as pd

    # Columns of numbers alone are parsed at once; those with words stay words, to be named with their line.
    empty = {name: [""] for name in _NUMBERS}
    remedy = f"expected {', '.join(REQUIRED)}"
    raw = _read_table(path, ["model"], REQUIRED, remedy, empty, skip_blank_lines=False, low_memory=False)
    if raw.empty:
        raise TableError(f"{path}: the table has a header but no rows; expected at least one head")
    frame = pd.DataFrame({"model": raw["model"]})
    for name in (*_COUNTS, *_NUMBERS):
        frame[name] = _numbers(path, raw, name) if name in raw.columns else np.nan
    return _checked(path, frame[list(QK_COLUMNS)])


def _numbers(path: Path, raw: pd.DataFrame, name: str) -> pd.Series:
    """One column as numbers; empty, `nan` and `NA` are NaN, words are an error with their line."""
    import pandas as pd

    column = raw[name].astype(str) if raw[name].dtype == bool and name != "rope" else raw[name]
    try:
        values = pd.to_numeric(column, errors="coerce").astype(np.float64)
    except OverflowError:  # a whole number of hundreds of digits
        text = column.astype(str)
        values = pd.to_numeric(text.where(text.str.len() < 300, "inf"), errors="coerce").astype(np.float64)
    if values.isna().any() and not pd.api.types.is_numeric_dtype(column):
        text = column.where(values.isna(), "").fillna("").str.strip().str.lower()
        if name == "rope":
            values = values.mask(text == "true", 1.0).mask(text == "false", 0.0)
        _refuse(path, raw[name], values.isna() & ~text.isin(_NOTHING), name, "a number")
    if name in _COUNTS:
        wrong = values.isna() | (values < 0) | (values % 1 != 0) | (values > MAX_COUNT)
        _refuse(path, raw[name], wrong, name, f"a whole number from 0 to {MAX_COUNT:,}")
        return values.astype(np.int64)
    return values


def _checked(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """The same table if it makes sense: models named, correlations within [-1, 1], each row once."""
    unnamed = frame["model"].map({name: not is_name(name) for name in frame["model"].unique()})
    _refuse(path, frame["model"], unnamed, "model", "a checkpoint name in printable characters")
    for name in ("r_q", "r_k"):
        wrong = frame[name].abs() > 1 + 1e-6
        _refuse(path, frame[name], wrong | np.isinf(frame[name]), name, "a correlation from -1 to 1")
        frame[name] = frame[name].clip(-1, 1)
    twice = frame.duplicated(["model", "layer", "head", "pc"])
    if twice.any():
        row = int(np.flatnonzero(twice)[0])
        which = ", ".join(f"{k} {frame.iloc[row][k]}" for k in ("model", "layer", "head", "pc"))
        raise TableError(
            f"{path}, line {row + 2}: duplicate row for {which} ({int(twice.sum())} duplicate rows); "
            "each head and component may appear once per checkpoint: check whether two checkpoints have the same name"
        )
    if not (frame["pc"] == 0).any():
        raise TableError(
            f"{path}: no row with pc 0; expected the first principal component, which the figures show"
        )
    return frame


def is_name(text: str) -> bool:
    """Whether a text can name a checkpoint in tables, terminals and pages: printable, and no spreadsheet's formula."""
    return bool(text.strip()) and text.isprintable() and not text.startswith(("=", "+", "-", "@"))


def _refuse(path: Path, found: pd.Series, wrong: Any, name: str, expected: str) -> None:
    """Raise for the first row marked wrong, with its line in the file (the header is line 1)."""
    rows = np.flatnonzero(np.asarray(wrong))
    if len(rows):
        more = f" and {len(rows) - 1} more rows" if len(rows) > 1 else ""
        raise TableError(
            f"{path}, line {rows[0] + 2}{more}: {name} is {str(found.iloc[rows[0]])!r}, expected {expected}"
        )


def read_causes(path: Path) -> pd.DataFrame | None:
    """A causes.csv, if there is one. A damaged file is an error, never 'not known'; effects that it lacks are NaN."""
    if not path.is_file():
        return None
    texts = ("from_model", "to_model", "number", "population")
    frame = _read_table(path, texts, CAUSES_COLUMNS[:5], "run the study again to rewrite it")
    frame = frame.reindex(columns=list(CAUSES_COLUMNS))
    _check_numbers(path, frame, texts, "run the study again to rewrite it")
    return frame


def read_ablation(path: Path, weights: Mapping[str, str]) -> pd.DataFrame | None:
    """An ablation.csv, if there is one: its rows of checkpoints with these weights. A damaged file is an error."""
    if not path.is_file():
        return None
    texts = ("checkpoint", "part", "heads", "population", "weights")
    frame = _read_table(path, texts, ABLATION_COLUMNS, "run `qkscope ablate` again")
    _check_numbers(path, frame[list(ABLATION_COLUMNS)], texts, "run `qkscope ablate` again")
    same = [weights.get(name) == of for name, of in zip(frame["checkpoint"], frame["weights"], strict=True)]
    found = frame.loc[same, list(ABLATION_COLUMNS)].reset_index(drop=True)
    return None if found.empty else found


def _check_numbers(path: Path, frame: pd.DataFrame, texts: Sequence[str], remedy: str) -> None:
    """Raises if a column that is not among `texts` has words."""
    wrong = [name for name in frame if name not in texts and frame[name].dtype.kind not in "if"]
    if wrong and not frame.empty:  # pandas calls columns without rows objects
        raise TableError(f"{path}: {wrong[0]} has words, expected numbers; {remedy}")


def _read_table(
    path: Path,
    texts: Sequence[str],
    required: Sequence[str],
    remedy: str,
    empty: Any = ("",),
    **settings: Any,
) -> pd.DataFrame:
    """A CSV file whose columns `texts` are text, with at least the `required` columns; `empty` is read as NaN."""
    words = dict.fromkeys(texts, str)
    try:
        frame = read_csv(path, dtype=words, keep_default_na=False, na_values=empty, **settings)
    except FileNotFoundError as error:
        raise TableError(
            f"{path}: no such file; give a results folder written by `qkscope run`, or a qk.csv"
        ) from error
    except (ValueError, OSError) as error:
        raise TableError(f"{path}: not a readable CSV file ({in_short(error)})") from error
    if missing := [name for name in required if name not in frame.columns]:
        columns = ", ".join(map(str, frame.columns))
        raise TableError(f"{path}: column missing: {', '.join(missing)}; found {columns}; {remedy}")
    return frame
