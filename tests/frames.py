"""Results from tables and back: tests describe heads as rows, the package keeps them as a dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from qkscope.measures.registry import variables
from qkscope.results import Results
from qkscope.results.dataset import NAME, CellData, CellInfo, dataset, write_dataset
from qkscope.results.tables import read_qk
from qkscope.study.timeline import Timeline
from qkscope.sums.head_index import depth

PC = ("r_q", "r_k", "explained_variance", "r_q_se", "r_k_se", "r_q_null", "r_k_null")
KEY = ["layer", "head"]


def cells_of(
    table: pd.DataFrame,
    left_out: pd.DataFrame | None = None,
    *,
    layers: int | Mapping[str, int] | None = None,
    window: int | Mapping[str, int] = 0,
    own: bool = True,
    matched: bool = False,
    curves: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> list[CellData]:
    """A cell per model. `table` is a qk table (rows of each `pc`) or one row a head; every column that a measure
    declares is taken over, with its values without each group from `left_out` (model, layer, head, group, ...).

    `curves` are arrays (head, ...) of variables with further dimensions, one for each model.
    """
    table = table if "pc" in table else table.assign(pc=0)
    known, cells = variables(), []
    for m, (model, rows) in enumerate(table.groupby("model", sort=False, observed=True)):
        first = rows[rows["pc"] == 0].reset_index(drop=True)
        heads = list(zip(first["layer"].tolist(), first["head"].tolist(), strict=True))
        index = pd.MultiIndex.from_frame(first[KEY])
        loo = None if left_out is None else left_out[left_out["model"] == model]
        groups = 0 if loo is None or loo.empty else int(loo["group"].max()) + 1
        arrays: dict[str, np.ndarray] = {}
        for name in PC:
            wide = rows.pivot(index=KEY, columns="pc", values=name) if name in rows else None
            empty = np.full((len(heads), int(rows["pc"].max()) + 1), np.nan)
            arrays[f"pc_{name}"] = empty if wide is None else wide.reindex(index).to_numpy(np.float64)
        for name, variable in known.items():
            if name not in first or variable.dims:
                continue
            values = first[name].to_numpy(np.float64)
            if not variable.sampled:
                arrays[name] = values
                continue
            arrays[name] = values[None]
            if groups:
                left = np.full((groups, len(heads)), np.nan)
                if name in loo:
                    wide = loo.pivot(index="group", columns=KEY, values=name)
                    left[wide.index.to_numpy()] = wide.reindex(columns=index).to_numpy(np.float64)
                arrays[name] = np.concatenate([values[None], left])
        nan = np.full(len(heads), np.nan)
        arrays = {"kv_head": nan, "rope": nan, "n_q": nan, "n_k": nan} | arrays
        deep = layers.get(str(model)) if isinstance(layers, Mapping) else layers
        arrays["depth"] = depth(first["layer"].to_numpy(), deep or int(first["layer"].max()) + 1)
        arrays |= {name: values[m] for name, values in (curves or {}).items()}
        wide = window.get(str(model), 0) if isinstance(window, Mapping) else window
        info = CellInfo(str(model), int(wide or 0), own, matched, groups, str(model), str(model))
        cells.append(CellData(info, heads, arrays))
    return cells


def results_of(
    table: pd.DataFrame,
    timeline: Timeline,
    left_out: pd.DataFrame | None = None,
    *,
    matched: pd.DataFrame | None = None,
    left_out_matched: pd.DataFrame | None = None,
    folder: Path | str = "simulated",
    layers: int | Mapping[str, int] | None = None,
    curves: Mapping[str, Sequence[np.ndarray]] | None = None,
    curves_matched: Mapping[str, Sequence[np.ndarray]] | None = None,
    **fields: Any,
) -> Results:
    """Results as `load_results` gives them, from tables over own windows and over the matched one."""
    own = {checkpoint.model: checkpoint.window or 0 for checkpoint in timeline.checkpoints}
    same = timeline.matched_window
    cells = cells_of(table, left_out, layers=layers, window=own, curves=curves)
    if matched is not None:
        # A window of its own even where it is the training context: the two tables may differ in a test.
        width = {model: (same or 0) + (2**30 if window == same else 0) for model, window in own.items()}
        cells += cells_of(
            matched,
            left_out_matched,
            layers=layers,
            window=width,
            own=False,
            matched=True,
            curves=curves_matched,
        )
    return Results(folder=Path(folder), timeline=timeline, data=dataset(cells), **fields)


def left_out_of(
    data: xr.Dataset, names: Sequence[str] = ("r_q", "r_k", "explained_variance")
) -> pd.DataFrame:
    """model, layer, head, group and measures without each group of documents."""
    parts = []
    for i, model in enumerate(data["checkpoint"].to_numpy()):
        here = np.flatnonzero(data["depth"].notnull().to_numpy()[i])
        for g in range(int(data["groups"].to_numpy()[i])):
            columns = {
                "model": model,
                "layer": data["layer"].to_numpy()[here],
                "head": data["number"].to_numpy()[here],
            }
            columns |= {"group": g} | {name: data[name].to_numpy()[i, g + 1, here] for name in names}
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def with_values(results: Results, which: str = "own", **measures: np.ndarray) -> Results:
    """The same results with other values of some variables of the cells `which` (own or matched), in every sample.

    Arrays are (checkpoint, head) or (checkpoint, sample, head).
    """
    data = results.data.load().copy(deep=True)
    at = np.flatnonzero(data[which].to_numpy())
    for name, values in measures.items():
        found = data[name].to_numpy().copy()
        found[at] = values[:, None, :] if np.ndim(values) == 2 and found.ndim == 3 else values
        data[name] = (data[name].dims, found, data[name].attrs)
        if f"pc_{name}" in data and found.ndim == 3:
            data[f"pc_{name}"].values[..., 0] = found[:, 0]
    return replace(results, data=data)


def with_heads(results: Results, change: Any) -> Results:
    """The same results with only the heads for which `change(layer, number)` is true."""
    kept = [
        bool(change(a, b))
        for a, b in zip(results.data["layer"].values, results.data["number"].values, strict=True)
    ]
    return replace(results, data=results.data.isel(head=np.flatnonzero(kept)))


def without_left_out(results: Results) -> Results:
    """The same results as if documents had not been left out in turn: errors of means are unknown."""
    data = results.data.isel(sample=[0])
    return replace(
        results, data=data.assign_coords(groups=("cell", np.zeros(data.sizes["cell"], dtype=np.int64)))
    )


def write_example(folder: Path, name: str) -> None:
    """A small results folder with a dataset, made from the tables in `old_results`."""
    place, last = Path(__file__).parent / "old_results", "lc-512-to-1k-step-80"
    own, matched = (read_qk(place / table) for table in ("qk.csv", "qk_matched.csv"))
    cells = [
        *cells_of(own[own["model"] != last], layers=12, window=256, matched=True),
        *cells_of(own[own["model"] == last], layers=12, window=1024),
        *cells_of(matched[matched["model"] == last], layers=12, window=256, own=False, matched=True),
    ]
    folder.mkdir(parents=True)
    write_dataset(folder / NAME, cells)
    study = (place / "study.yaml").read_text()
    (folder / "study.yaml").write_text(re.sub(r"^name: .*", f"name: {name}", study, flags=re.MULTILINE))
