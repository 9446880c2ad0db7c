"""Several runs as one set of results, to draw and compare their heads together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkscope.errors import TableError
from qkscope.results import Results, as_results
from qkscope.study.timeline import Timeline

if TYPE_CHECKING:
    import xarray as xr


def concat(runs: Sequence[Results | Path | str]) -> Results:
    """Combine several runs into one Results: checkpoint `c` of run `r` becomes `r/c` of family `r`.

    A measure that some runs lack is NaN there. Numbers over a matched window are kept where all runs have the same one.
    All runs need the same class thresholds: use `rethreshold` first.
    """
    import xarray as xr

    loaded = [as_results(run) for run in runs]
    names = [run.timeline.name or run.folder.name for run in loaded]
    _check(loaded, names)
    windows = {run.timeline.matched_window for run in loaded}
    same = len(windows) == 1 and all(run.matched() is not None for run in loaded)
    matched = windows.pop() if same else None
    stops = tuple(
        replace(stop, model=f"{name}/{stop.model}", phase=name)
        for name, run in zip(names, loaded, strict=True)
        for stop in run.timeline.stops
    )
    data = xr.concat(
        [_renamed(run.data, name, matched is not None) for name, run in zip(names, loaded, strict=True)],
        "cell",
        data_vars="all",
        coords="minimal",
        compat="override",
        join="outer",
        combine_attrs="override",
    )
    return Results(
        folder=loaded[0].folder,
        timeline=Timeline("-".join(names), " and ".join(names), stops, kind="models", matched_window=matched),
        data=_in_order(data),
        thresholds=loaded[0].thresholds,
    )


def _renamed(data: xr.Dataset, run: str, matched: bool) -> xr.Dataset:
    """The cells of a run under names that tell it from others; without `matched`, none belongs to a common window."""
    names = {
        each: ("cell", np.array([name and f"{run}/{name}" for name in data[each].to_numpy()], dtype=object))
        for each in ("checkpoint", "weights_of", "rotation_of")
    }
    found = data.assign_coords(names)
    return (
        found if matched else found.assign_coords(matched=("cell", np.zeros(data.sizes["cell"], dtype=bool)))
    )


def _in_order(data: xr.Dataset) -> xr.Dataset:
    """Heads by layer and number, whose coordinates follow from the names that the runs were joined by."""
    heads = np.array([name[1:].split("H") for name in data["head"].to_numpy()], dtype=np.int64).reshape(-1, 2)
    found = data.assign_coords(layer=("head", heads[:, 0]), number=("head", heads[:, 1]))
    return found.isel(head=np.lexsort(heads.T[::-1]))


def _check(runs: Sequence[Results], names: Sequence[str]) -> None:
    if not runs:
        raise TableError("no runs to join; give at least one results folder")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"two runs are named {twice[0]!r}; give one of the studies another name")
    limits = {run.thresholds for run in runs}
    if len(limits) > 1:
        raise TableError(f"the runs have different thresholds ({limits}); make them equal with rethreshold")
