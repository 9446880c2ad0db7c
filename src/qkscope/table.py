"""qk.csv and heads.csv: their columns, how they are made, written and read.

A qk.csv made by somebody else's script needs only `model, layer, head, pc, r_q, r_k`; the other columns are then
empty. In memory every table is a DataFrame; `rope` is 1.0, 0.0 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.errors import TableError
from qkscope.heads import depth, depth_bin
from qkscope.measures.cell import CellNumbers
from qkscope.store import in_short, read_csv
from qkscope.taxonomy import Thresholds, classify, polarity

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = ("model", "layer", "head", "pc", "r_q", "r_k")
QK_COLUMNS = (
    *("model", "layer", "head", "kv_head", "pc", "r_q", "r_k", "explained_variance", "n_q", "n_k"),
    *("r_q_se", "r_k_se", "r_q_null", "r_k_null", "rope"),
)
HEADS_COLUMNS = (*QK_COLUMNS, "depth", "depth_bin", "class", "polarity")
LOO_COLUMNS = ("model", "layer", "head", "group", "r_q", "r_k", "explained_variance")
_COUNTS = ("layer", "head", "pc")
MAX_COUNT = 1_000_000
_NOTHING = ("", "nan", "na", "none", "null")
_NUMBERS = tuple(c for c in QK_COLUMNS if c not in ("model", *_COUNTS))


def qk_table(model: str, numbers: CellNumbers) -> pd.DataFrame:
    """One row per head and principal component, in order of layer, head, pc."""
    import pandas as pd

    heads = numbers.heads
    count, components = numbers.arrays["pc_r_q"].shape

    def per_head(values: Any) -> Any:
        return np.repeat(values, components)

    columns: dict[str, Any] = {
        "model": model,
        "layer": per_head(heads.layer),
        "head": per_head(heads.head),
        "kv_head": per_head(heads.kv_head),
        "pc": np.tile(np.arange(components), count),
        "n_q": per_head(numbers.value("n_q").astype(np.int64)),
        "n_k": per_head(numbers.value("n_k").astype(np.int64)),
        "rope": per_head(np.where(heads.rope < 0, np.nan, heads.rope)),
    }
    for name in ("r_q", "r_k", "explained_variance", "r_q_se", "r_k_se", "r_q_null", "r_k_null"):
        columns[name] = numbers.arrays[f"pc_{name}"].reshape(-1)
    return pd.DataFrame(columns)[list(QK_COLUMNS)]


def loo_table(model: str, numbers: CellNumbers) -> pd.DataFrame:
    """PC0 of each head without each group of documents in turn: what document-level errors are computed from."""
    return left_out_table(model, numbers, ("r_q", "r_k", "explained_variance"))


def left_out_table(model: str, numbers: CellNumbers, names: Sequence[str]) -> pd.DataFrame:
    """model, layer, head, group and variables without each group of documents in turn."""
    import pandas as pd

    groups, heads = numbers.groups, numbers.heads
    columns: dict[str, Any] = {
        "model": model,
        "layer": np.tile(heads.layer, groups),
        "head": np.tile(heads.head, groups),
    }
    columns["group"] = np.repeat(np.arange(groups), len(heads))
    return pd.DataFrame(columns | {name: numbers.left_out(name).reshape(-1) for name in names})


def heads_table(
    qk: pd.DataFrame, num_layers: Mapping[str, int] | None = None, thresholds: Thresholds | None = None
) -> pd.DataFrame:
    """PC0 of each head, with depth, class and polarity.

    `num_layers` is the number of layers of each model (default: the deepest layer in the table is the last one).
    """
    limit = thresholds or Thresholds()
    heads = qk[qk["pc"] == 0].reset_index(drop=True)
    seen = heads.groupby("model")["layer"].transform("max") + 1
    known = heads["model"].map(dict(num_layers or {}))
    deep = depth(heads["layer"], known.fillna(seen))
    placed = heads.assign(depth=deep, depth_bin=depth_bin(deep))
    return with_classes(placed, limit)[list(HEADS_COLUMNS)]


def with_classes(heads: pd.DataFrame, thresholds: Thresholds) -> pd.DataFrame:
    """The table with each head's class and polarity under `thresholds`."""
    classes = {"class": classify(heads["r_q"], heads["r_k"], thresholds)}
    return heads.assign(**classes, polarity=polarity(heads["r_k"], thresholds.low))


def read_qk(path: Path) -> pd.DataFrame:
    """Read and check a qk.csv; the result has all QK_COLUMNS. A TableError names the file and line."""
    import pandas as pd

    try:
        # Columns of numbers alone are parsed at once; those with words stay words, to be named with their line.
        raw = read_csv(
            path,
            dtype={"model": str},
            keep_default_na=False,
            na_values={name: [""] for name in _NUMBERS},
            encoding="utf-8",
            skip_blank_lines=False,
            low_memory=False,
        )
    except FileNotFoundError as error:
        raise TableError(f"{path}: no such file; expected a results folder or a qk.csv") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OSError) as error:
        raise TableError(f"{path}: not a readable CSV file ({in_short(error)})") from error
    missing = [name for name in REQUIRED if name not in raw.columns]
    if missing:
        raise TableError(
            f"{path}: column missing: {', '.join(missing)}; expected {', '.join(REQUIRED)}, found "
            f"{', '.join(raw.columns)}"
        )
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
