"""From sums to results in memory and on disk, as `scan` and `analyze` have them; a study's are in `run/assemble.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkscope import defaults
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import chosen
from qkscope.results import Results
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.owner import Holding, writing
from qkscope.results.results_folder import results_of
from qkscope.results.tables import write_tables
from qkscope.sums.unit import Unit

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True, repr=False)
class MeasuredHeads:
    """Numbers of heads, from which figures, claims and reports can be made: `results`.

    `holds` is the record of what was measured, of which weights and texts.
    """

    results: Results
    cells: Sequence[CellData]
    holds: Holding

    @property
    def data(self) -> xr.Dataset:
        """Every measure over (cell, sample, head), see `qkscope.results.dataset`."""
        return self.results.data

    @property
    def heads(self) -> pd.DataFrame:
        """A row per model and head: every scalar measure with its error, and the class."""
        return self.results.heads

    @property
    def qk(self) -> pd.DataFrame:
        """A row per model, head and principal component."""
        return self.results.qk

    def save(self, out: Path | str, *, replace: bool = False) -> Path:
        """Write measures.safetensors, qk.csv, heads.csv and transitions.csv into a folder.

        A folder that holds other results is refused unless `replace` is true.
        """
        with writing(Path(out), self.holds, self.qk, replace) as folder:
            write_tables(folder, self.cells, self.results.timeline.models, self.results.thresholds)
            self._write_facts(folder)
        return Path(out)

    def _write_facts(self, folder: Path) -> None:
        """What else belongs to the tables."""


def results_in_memory(cells: Sequence[CellData], name: str, folder: Path | None = None) -> Results:
    return results_of(dataset(cells), folder or Path(name), name)


def measured_cell(
    name: str,
    units: Sequence[Unit],
    window: int,
    num_layers: int,
    measures: Sequence[str] = defaults.MEASURES,
    components: int = defaults.COMPONENTS,
    texts: str = "",
) -> CellData:
    """The cell of one model over its first `window` tokens; `texts` is a digest of what was read."""
    numbers = measure_cell(Cell.of(units, window, components, num_layers), chosen(measures))
    info = CellInfo(name, window, groups=numbers.groups, weights_of=name, rotation_of=name, texts=texts)
    return CellData.of(info, numbers)
