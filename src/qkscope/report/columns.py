"""Tables of heads -> packed columns: every measure of PC0, class, since when; the components beyond the first.

Principal components beyond the first are the bulk of the file; past a size they are left out, and the page says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.report.encode import NO_CODE, pack, pack_column, pack_numbers, pack_thousandths
from qkscope.report.grid import Grid, numbers
from qkscope.taxonomy import CLASSES, UNMEASURED, Thresholds, classify

if TYPE_CHECKING:
    from qkscope.results import Results

VALUES = ("r_q", "r_k", "explained_variance")
ERRORS = ("r_q_se", "r_k_se", "r_q_null", "r_k_null")
NAMED_CLASSES = (*CLASSES, UNMEASURED)

# Numbers of the tables that say which head it is or how much was read, not how it behaves.
_NO_MEASURES = {"layer", "head", "kv_head", "pc", "rope", "depth_bin", "n_q", "n_k"}
_NO_MEASURES |= {"overlap_pc", "same_axis", "axis_lost"}
_ABOUT_A_MEASURE = ("_se", "_null")
_WITHOUT_SINK = "_from4"  # the same measures without the first four tokens: in anatomy.csv, not on the page
# Those that the table of heads has columns for; the portrait has a few more, a head's page all.
_IN_TABLE = ("share_positional", "r_q", "r_k")
_IN_PORTRAIT = (*_IN_TABLE, "explained_variance", "eta_q", "eta_k", "sink", "plasticity")
# What determines where a head looks: four parts of the variance of its scores over keys, which add up to 1.
PARTS = {
    "share_position": "key position",
    "share_query_position": "query-dependent position",
    "share_key": "key content",
    "share_match": "content match",
}
_WORDS = {
    "share_positional": "position share",
    "explained_variance": "explained variance",
    "depth": "depth in the network",
    "r_q_const": "r_q from rotating a constant vector",
    "r_k_const": "r_k from rotating a constant vector",
    **{name: f"share of {words}" for name, words in PARTS.items()},
    "score_sd": "standard deviation of scores",
    "sink": "sink, logits",
    "overlap": "PC0 overlap with the checkpoint before",
    "gap": "gap between PC0 and PC1",
    "rotation_slope_q": "drift of queries over the window",
    "rotation_slope_k": "drift of keys over the window",
    "rotation_bias_logits": "bias to near keys, logits",
    "rotation_separation": "separation of queries and keys",
    "rotation_pc0_overlap": "overlap of drift axis and PC0",
    "per_kind_linear_q": "queries: share linear in position",
    "per_kind_linear_k": "keys: share linear in position",
    "per_kind_separability": "share between queries and keys",
    "plasticity_drop": "plasticity, first minus last fifth",
}

# base64 characters of the components beyond the first: with errors and nulls up to the first limit (a report of
# 10 x 576 heads stays below 2 MB), the bare values up to the second, none above it.
ERRORS_LIMIT = 1_000_000
VALUES_LIMIT = 6_000_000
MOST_ROWS_WITH_ERRORS = 50_000


def measures(heads: pd.DataFrame) -> list[str]:
    """The numeric columns of a table of heads that a head can be placed or coloured by, in the table's order."""
    return [
        str(name)
        for name, kind in heads.dtypes.items()
        if kind.kind in "fiu"
        and name not in _NO_MEASURES
        and not str(name).endswith((*_ABOUT_A_MEASURE, _WITHOUT_SINK))
        and np.isfinite(heads[name]).any()
    ]


def described(names: list[str]) -> list[dict[str, Any]]:
    """Measures as the page names them, and where it shows them."""
    words = {name: name for name in (*VALUES, "eta_q", "eta_k", "R_q", "R_k")} | _WORDS
    return [
        {
            "name": name,
            "label": words.get(name, name.replace("_", " ")),
            "inTable": name in _IN_TABLE,
            "inPortrait": name in _IN_PORTRAIT,
        }
        for name in names
    ]


def regions(limit: Thresholds) -> list[dict[str, Any]]:
    """Where each class lies in the plane of r_q and r_k: the middle of its fields, beside the class."""
    sure, none, between = (1 + limit.high) / 2, limit.low / 2, (limit.low + limit.high) / 2
    fields = [(q, k) for q in (none, sure) for k in (sure, none, -sure)] + [(between, -between)]
    names = classify([q for q, _ in fields], [k for _, k in fields], limit)
    return [{"name": str(name), "r_q": q, "r_k": k} for name, (q, k) in zip(names, fields, strict=True)]


def first_component(heads: pd.DataFrame, grid: Grid, names: list[str]) -> dict[str, Any]:
    """PC0 of every row: packed columns (those that a table has), class codes, since when."""
    placed = grid.place(heads)
    # In a large study only the correlations keep their errors.
    sure = names if grid.rows <= MOST_ROWS_WITH_ERRORS else [name for name in names if name in VALUES]
    also = [f"{name}{end}" for name in sure for end in _ABOUT_A_MEASURE]
    columns = {name: pack_column(placed.column(name)) for name in (*names, *also, "same_axis")}
    classes = placed.codes("class", NAMED_CLASSES)
    return {
        "columns": {name: column for name, column in columns.items() if column is not None},
        "class": pack(classes),
        "since": since(classes.reshape(-1, len(grid.index))) if grid.training else None,
    }


def since(codes: NDArray[np.uint8]) -> list[int | None]:
    """The checkpoint from which a head keeps the class it ends with, (checkpoints, heads) -> one number a head.

    None for a head that the last checkpoint lacks.
    """
    other = codes != codes[-1]
    first = np.where(other.any(axis=0), len(codes) - np.argmax(other[::-1], axis=0), 0)
    known = codes[-1] != NO_CODE
    return [int(stop) if here else None for stop, here in zip(first, known, strict=True)]


def components(results: Results, grid: Grid) -> tuple[dict[str, Any] | None, str | None]:
    """The components beyond the first over the own windows, (rows, count) each, and what was left out and why."""
    later = results.qk[results.qk["pc"] > 0]
    count = int(later["pc"].max()) if len(later) else 0
    if count == 0:
        return None, "The table holds the first principal component only."
    column_size = grid.rows * count * 2 * 4 / 3
    if column_size * len(VALUES) > VALUES_LIMIT:
        return None, (
            f"Components 1 to {count} are left out of this page to keep it small "
            f"({grid.rows:,} measurements of a head); they are in qk.csv."
        )
    whole = column_size * (len(VALUES) + len(ERRORS)) <= ERRORS_LIMIT
    names = (*VALUES, *ERRORS) if whole else VALUES
    more: dict[str, Any] = {"count": count, "thousandths": []}
    placed = grid.place(later)
    where = (placed.row, placed.table["pc"].to_numpy(int) - 1)
    for name in names:
        found = np.full((grid.rows, count), np.nan)
        found[where] = numbers(placed.table, name)
        small = pack_thousandths(found) if name.endswith("_se") else None
        more[name] = small or pack_numbers(found)
        if small:
            more["thousandths"].append(name)
    omitted = f"Errors and null levels of components 1 to {count} are in qk.csv, not on this page."
    return more, None if whole else omitted
