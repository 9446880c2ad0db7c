"""Results -> the page's data: columns, not rows.

The page draws from a grid of rows. Over training every checkpoint measures the same heads, so row = checkpoint *
heads + head, with missing values where a checkpoint lacks a head. In a study of different models a head belongs
to one model only, so row = head and `owner` names its model. Principal components beyond the first are the bulk of
the file; past a size they are left out, and the page says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope import aggregate
from qkscope.report import palette
from qkscope.report.encode import (
    ENCODING,
    NO_CODE,
    counted,
    listed,
    pack,
    pack_column,
    pack_numbers,
    pack_thousandths,
)
from qkscope.taxonomy import CLASSES, POLARITIES, UNMEASURED, Thresholds, classify

if TYPE_CHECKING:
    from qkscope.results import Results

VALUES = ("r_q", "r_k", "explained_variance")
ERRORS = ("r_q_se", "r_k_se", "r_q_null", "r_k_null")
CELLS = {"r_q": "r_q", "r_k": "r_k", "abs_r_k": "abs_r_k", "explained_variance": "ev"}
NAMED_CLASSES = (*CLASSES, UNMEASURED)
NAMED_POLARITIES = (*POLARITIES, UNMEASURED)

# Numbers of the heads table that say which head it is or how much was read, not how it behaves.
_NO_MEASURES = {"layer", "head", "kv_head", "pc", "rope", "depth_bin", "n_q", "n_k", "overlap_pc"}
_ABOUT_A_MEASURE = ("_se", "_null")
SHARE = "share_"  # measures that add up to 1: what a head's scores are made of
_WORDS = {
    "explained_variance": "explained variance",
    "eta_q": "η²_q",
    "eta_k": "η²_k",
    "r_q_const": "r_q, constant part",
    "r_k_const": "r_k, constant part",
    "R_q": "R²_q",
    "R_k": "R²_k",
    "share_position": "share: position",
    "share_key": "share: key",
    "share_match": "share: match",
    "share_query_position": "share: query × position",
    "score_sd": "sd of scores",
}

# base64 characters of the components beyond the first: with errors and nulls up to the first limit (a report of
# 10 x 576 heads stays below 2 MB), the bare values up to the second, none above it.
ERRORS_LIMIT = 1_000_000
VALUES_LIMIT = 6_000_000


@dataclass(frozen=True)
class Grid:
    """Where each (checkpoint, head) of the tables stands in the page's arrays.

    `index` is sorted and unique with the levels (owner, layer, head); owner is 0 for all heads over training.
    """

    models: list[str]
    index: pd.MultiIndex
    training: bool

    @classmethod
    def of(cls, heads: pd.DataFrame, models: list[str], *, training: bool) -> Grid:
        place = {model: number for number, model in enumerate(models)}
        here = heads[heads["model"].isin(models)]
        owner = np.zeros(len(here), dtype=int) if training else here["model"].map(place).to_numpy(int)
        arrays = [owner, here["layer"].to_numpy(int), here["head"].to_numpy(int)]
        index = pd.MultiIndex.from_arrays(arrays, names=["owner", "layer", "head"]).unique().sort_values()
        return cls(models, index, training)

    @property
    def rows(self) -> int:
        return len(self.index) * (len(self.models) if self.training else 1)

    def place(self, table: pd.DataFrame) -> Placed:
        """Find the rows of the page for a table's rows."""
        order = {model: number for number, model in enumerate(self.models)}
        number = table["model"].map(order).fillna(-1).to_numpy(np.int64)
        owner = np.zeros_like(number) if self.training else number
        keys = pd.MultiIndex.from_arrays([owner, table["layer"].to_numpy(int), table["head"].to_numpy(int)])
        head = self.index.get_indexer(keys).astype(np.int64)
        on_page = (number >= 0) & (head >= 0)
        row = number * len(self.index) + head if self.training else head
        return Placed(table[on_page], row[on_page], head[on_page], self.rows)


@dataclass(frozen=True)
class Placed:
    """The rows of a table that are on the page: `row` among the page's `rows`, `head` among its heads."""

    table: pd.DataFrame
    row: NDArray[np.int64]
    head: NDArray[np.int64]
    rows: int

    def column(self, name: str) -> NDArray[np.float64]:
        """A numeric column of a table with one row per (checkpoint, head), (rows,), NaN where there is none."""
        found = np.full(self.rows, np.nan)
        found[self.row] = numbers(self.table, name)
        return found

    def codes(self, name: str, names: tuple[str, ...]) -> NDArray[np.uint8]:
        """A column of names as positions in `names`, (rows,) uint8; NO_CODE where the head is not in the table."""
        found = np.full(self.rows, NO_CODE, dtype=np.uint8)
        code = self.table[name].map({value: number for number, value in enumerate(names)})
        found[self.row] = code.fillna(NO_CODE).to_numpy(np.uint8)
        return found


def numbers(table: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as float64, (rows,); NaN where absent."""
    if name not in table:
        return np.full(len(table), np.nan)
    return np.asarray(pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64, na_value=np.nan))


def payload(results: Results) -> dict[str, Any]:
    """Everything the page's script reads, ready for JSON."""
    timeline = results.timeline
    models = list(timeline.models)
    grid = Grid.of(results.heads, models, training=timeline.kind == "training")
    more, omitted = components(results, grid)
    return {
        "name": timeline.name,
        "title": timeline.title,
        "kind": timeline.kind,
        "thresholds": {"high": results.thresholds.high, "low": results.thresholds.low},
        "classes": list(NAMED_CLASSES),
        "polarities": list(NAMED_POLARITIES),
        "unmeasured": UNMEASURED,
        "regions": regions(results.thresholds),
        "ramps": palette.RAMPS,
        "encoding": ENCODING,
        "bins": aggregate.DEPTH_BINS,
        "measures": [{"name": name, "label": label(name)} for name in measures(results)],
        "matchedWindow": timeline.matched_window,
        "stops": stops(results),
        "phases": [list(phase) for phase in timeline.phases],
        "windowChanges": list(timeline.window_changes),
        "heads": head_columns(results.heads, grid),
        "own": first_component(results.heads, grid, measures(results)),
        "matched": None
        if results.matched is None
        else first_component(results.matched, grid, measures(results)),
        "more": more,
        "omitted": omitted,
        "aggregates": {
            "own": aggregates(results.heads, results.loo, results),
            "matched": None
            if results.matched is None
            else aggregates(results.matched, results.loo_matched, results),
        },
        "causes": None,
        "shares": [name for name in measures(results) if name.startswith(SHARE)],
        "curves": [],
    }


def stops(results: Results) -> dict[str, list[Any]]:
    """The measured checkpoints, in order."""
    found = [results.timeline.stop(model) for model in results.timeline.models]
    return {
        "model": [stop.model for stop in found],
        "label": [stop.label for stop in found],
        "phase": [stop.phase for stop in found],
        "window": [stop.window for stop in found],
        "step": [stop.step for stop in found],
    }


def head_columns(heads: pd.DataFrame, grid: Grid) -> dict[str, Any]:
    """What never changes about a head: (heads,) columns; kv and rope are None when the table has none."""
    placed = grid.place(heads)
    frame = pd.DataFrame({name: numbers(placed.table, name) for name in ("kv_head", "rope", "depth_bin")})
    # One value per head: the first checkpoint that has one.
    known = frame.groupby(placed.head).first().reindex(range(len(grid.index)))
    kv, rope = known["kv_head"].to_numpy(), known["rope"].to_numpy()
    return {
        "layer": grid.index.get_level_values("layer").tolist(),
        "head": grid.index.get_level_values("head").tolist(),
        "owner": None if grid.training else grid.index.get_level_values("owner").tolist(),
        "kv": counted(kv) if np.isfinite(kv).any() else None,
        "rope": counted(rope) if np.isfinite(rope).any() else None,
        "bin": counted(known["depth_bin"].to_numpy()),
    }


def measures(results: Results) -> list[str]:
    """The numeric columns of the heads table that a head can be placed or coloured by, in the table's order."""
    return [
        str(name)
        for name, kind in results.heads.dtypes.items()
        if kind.kind in "fiu"
        and name not in _NO_MEASURES
        and not str(name).endswith(_ABOUT_A_MEASURE)
        and np.isfinite(results.heads[name]).any()
    ]


def label(name: str) -> str:
    """A measure as an axis names it."""
    return _WORDS.get(name, name if name in VALUES else name.replace("_", " "))


def regions(limit: Thresholds) -> list[dict[str, Any]]:
    """Where each class lies in the plane of r_q and r_k: the middle of its fields, beside the class."""
    sure, none, between = (1 + limit.high) / 2, limit.low / 2, (limit.low + limit.high) / 2
    fields = [(q, k) for q in (none, sure) for k in (sure, none, -sure)] + [(between, -between)]
    names = classify([q for q, _ in fields], [k for _, k in fields], limit)
    return [{"name": str(name), "r_q": q, "r_k": k} for name, (q, k) in zip(names, fields, strict=True)]


def first_component(heads: pd.DataFrame, grid: Grid, names: list[str]) -> dict[str, Any]:
    """PC0 of every row: packed columns (those that a table has), class and polarity codes, since when."""
    placed = grid.place(heads)
    also = [f"{name}{end}" for name in names for end in _ABOUT_A_MEASURE]
    columns = {name: pack_column(placed.column(name)) for name in (*names, *also)}
    classes = placed.codes("class", NAMED_CLASSES)
    return {
        "columns": {name: column for name, column in columns.items() if column is not None},
        "class": pack(classes),
        "polarity": pack(placed.codes("polarity", NAMED_POLARITIES)),
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


def aggregates(heads: pd.DataFrame, loo: pd.DataFrame | None, results: Results) -> dict[str, Any]:
    """Means and shares of each checkpoint with their document-level standard errors, columns in order."""
    order = list(results.timeline.models)
    signal = aggregate.position_signal(heads, loo, order).set_index("model").reindex(order)
    variance = aggregate.explained_variance(heads, loo, order).set_index("model").reindex(order)
    above = aggregate.above_null(heads, order).set_index("model").reindex(order)
    return {
        "heads": counted(signal["heads"].tolist()),
        "signal": {name: listed(signal[name]) for name in signal.columns if name != "heads"},
        "variance": {name: listed(variance[name]) for name in ("mean", "sd", "se")},
        "above": {name: listed(above[name]) for name in ("share_q", "share_k")},
        "class": share_columns(aggregate.class_shares(heads, loo, order, results.thresholds), "class", order),
        "polarity": share_columns(
            aggregate.polarity_shares(heads, loo, order, results.thresholds), "polarity", order
        ),
        "bins": cells(heads, loo, order, by="depth_bin"),
        "layers": cells(heads, loo, order, by="layer"),
    }


def share_columns(table: pd.DataFrame, name: str, order: list[str]) -> dict[str, Any]:
    """Counts, standard errors of the shares and borderline heads, each kind -> a list over checkpoints."""
    found: dict[str, Any] = {"se": {}, "borderline": {}}
    for kind, rows in table.groupby(name, sort=False):
        by_model = rows.set_index("model").reindex(order)
        found["se"][kind] = listed(by_model["se"])
        if "borderline" in by_model and by_model["borderline"].notna().any():
            found["borderline"][kind] = counted(by_model["borderline"].tolist())
    return found


def cells(
    heads: pd.DataFrame, loo: pd.DataFrame | None, order: list[str], by: Literal["depth_bin", "layer"]
) -> dict[str, Any]:
    """Means over the heads of each depth bin or layer, flat lists over (checkpoint, row), with standard errors."""
    found: dict[str, Any] = {}
    for name, column in CELLS.items():
        table = aggregate.depth_cells(heads, loo, order, value=column, by=by)
        places = sorted(table[by].unique().tolist())
        table = table.set_index(["model", by]).reindex(pd.MultiIndex.from_product([order, places]))
        found |= {"places": places, name: {"mean": listed(table["mean"]), "se": listed(table["se"])}}
    return found
