"""Unit files -> the tables of a results folder.

A pure function of the units and the study: the same files give the same bytes, in whatever order, on whatever
machine and by whatever engine they were made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkscope import store
from qkscope.measures.pca import measure
from qkscope.run.plan import Planned
from qkscope.run.units import read_unit, short_digest
from qkscope.study import Study, dump_study

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tables:
    """Per window the qk table of the checkpoints that reach it, and both over each checkpoint's own window."""

    qk: pd.DataFrame
    loo: pd.DataFrame
    by_window: Mapping[int, pd.DataFrame]
    loo_matched: pd.DataFrame
    unmeasured: Mapping[str, int]


def tables(study: Study, planned: Sequence[Planned], results: Path) -> Tables:
    """All tables, checkpoint by checkpoint: the units of one are in memory at a time."""
    import pandas as pd

    from qkscope.table import loo_table, qk_table

    own, loo, loo_matched = [], [], []
    by_window: dict[int, list[pd.DataFrame]] = {window: [] for window in study.windows}
    unmeasured: dict[str, int] = {}
    for each in planned:
        name = each.checkpoint.name
        units = [read_unit(job.path(results), job.key) for job in each.jobs]
        for window in each.checkpoint.rings(study.windows):
            axes = measure(units, window, study.components)
            table = qk_table(name, each.heads, axes)
            by_window[window].append(table)
            if window == study.matched_window:
                loo_matched.append(loo_table(name, each.heads, axes))
            if window == each.checkpoint.window:
                own.append(table)
                loo.append(loo_table(name, each.heads, axes))
                unmeasured[name] = int(((axes.bad_q > 0) | (axes.bad_k > 0)).sum())
    joined = {window: pd.concat(parts, ignore_index=True) for window, parts in by_window.items() if parts}
    frames = [pd.concat(parts, ignore_index=True) for parts in (own, loo, loo_matched)]
    return Tables(
        frames[0], frames[1], joined, frames[2], {n: count for n, count in unmeasured.items() if count}
    )


def write_tables(study: Study, planned: Sequence[Planned], made: Tables, folder: Path) -> None:
    """All tables of a study, over own windows, over the matched one and over the others, into an empty folder."""
    from qkscope.table import heads_table
    from qkscope.taxonomy import Thresholds, transitions

    layers = {each.checkpoint.name: each.architecture.num_layers for each in planned}
    limits = Thresholds(study.thresholds.high, study.thresholds.low)
    heads = heads_table(made.qk, layers, limits)
    wanted = {
        f"qk_{window}.csv": frame
        for window, frame in made.by_window.items()
        if window != study.matched_window
    }
    store.write_csv(folder / "qk.csv", made.qk)
    store.write_csv(folder / "qk_matched.csv", made.by_window[study.matched_window])
    for name, frame in wanted.items():
        store.write_csv(folder / name, frame)
    matched = heads_table(
        made.by_window[study.matched_window], layers, Thresholds(study.thresholds.high, study.thresholds.low)
    )
    store.write_csv(folder / "heads.csv", heads)
    store.write_csv(folder / "heads_matched.csv", matched)
    store.write_csv(
        folder / "transitions.csv", transitions(heads, [each.checkpoint.name for each in planned])
    )
    _write_parquet(folder / "loo.parquet", made.loo)
    _write_parquet(folder / "loo_matched.parquet", made.loo_matched)


def made_from(study: Study, planned: Sequence[Planned], results: Path, said: object) -> str:
    """A digest of everything that decides the tables, figures and report: study, units, warnings and the program."""
    package = Path(__file__).parent.parent
    program = sorted(path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    parts = {
        "study": dump_study(study, {}),
        "commits": [each.commit for each in planned],
        "units": [store.read_digest(job.path(results)) for each in planned for job in each.jobs],
        "said": json.loads(json.dumps(said, default=str)),
        "program": [[str(path.relative_to(package)), store.file_digest(path)] for path in program],
    }
    return short_digest(parts)


def _write_parquet(path: Path, frame: pd.DataFrame) -> None:
    with store.replacing(path) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")
