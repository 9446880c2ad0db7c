"""Where each (checkpoint, head) of the tables stands on the page.

Over training every checkpoint measures the same heads, so row = checkpoint * heads + head, with missing values where a
checkpoint lacks a head. In a study of different models a head belongs to one model only, so row = head and `owner`
names its model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.report.encode import NO_CODE


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
