"""Several runs as one set of results, to draw and compare their heads together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qkscope.errors import TableError
from qkscope.results import Results, as_results
from qkscope.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd


def concat(runs: Sequence[Results | Path | str]) -> Results:
    """Combine several runs into one Results: checkpoint `c` of run `r` becomes model `r/c` of family `r`.

    Keeps the tables that every run has. All runs need the same class thresholds: use `rethreshold` first.
    """
    loaded = [as_results(run) for run in runs]
    names = [run.timeline.name or run.folder.name for run in loaded]
    _check(loaded, names)
    windows = {run.timeline.matched_window for run in loaded}
    matched = windows.pop() if len(windows) == 1 else None
    stops = tuple(
        replace(stop, model=f"{name}/{stop.model}", phase=name)
        for name, run in zip(names, loaded, strict=True)
        for stop in run.timeline.stops
    )

    def table(get: Callable[[Results], pd.DataFrame | None]) -> pd.DataFrame | None:
        import pandas as pd

        frames = [frame for run in loaded if (frame := get(run)) is not None]
        if len(frames) < len(loaded):
            return None
        return pd.concat(
            [f.assign(model=n + "/" + f["model"]) for n, f in zip(names, frames, strict=True)],
            ignore_index=True,
        )

    first, qk, heads = loaded[0], table(lambda run: run.qk), table(lambda run: run.heads)
    if qk is None or heads is None:
        raise TableError(f"{', '.join(names)}: a run without a heads table cannot be joined with others")
    same = matched is not None
    return Results(
        folder=first.folder,
        timeline=Timeline("-".join(names), " and ".join(names), stops, kind="models", matched_window=matched),
        qk=qk,
        heads=heads,
        qk_matched=table(lambda run: run.qk_matched) if same else None,
        matched=table(lambda run: run.matched) if same else None,
        loo=table(lambda run: run.loo),
        loo_matched=table(lambda run: run.loo_matched) if same else None,
        anatomy=table(lambda run: run.anatomy),
        anatomy_matched=table(lambda run: run.anatomy_matched) if same else None,
        thresholds=first.thresholds,
    )


def _check(runs: Sequence[Results], names: Sequence[str]) -> None:
    if not runs:
        raise TableError("no runs to join; give at least one results folder")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"two runs are named {twice[0]!r}; give one of the studies another name")
    limits = {run.thresholds for run in runs}
    if len(limits) > 1:
        raise TableError(f"the runs have different thresholds ({limits}); make them equal with rethreshold")
