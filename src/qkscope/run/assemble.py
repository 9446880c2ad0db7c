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
from qkscope.axes_file import CheckpointAxes, dump_axes
from qkscope.capture.consumers import unknown_rotation_warning
from qkscope.inference.causes import Heads
from qkscope.measures.cell import Cell, CellNumbers, measure_cell
from qkscope.measures.registry import chosen, optional_names
from qkscope.run.by_checkpoint import Task, by_checkpoint
from qkscope.run.causes import HeadsAndAxes, for_causes
from qkscope.run.plan import Planned
from qkscope.study import Study, dump_study

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tables:
    """What a study comes to, by file: frames over each checkpoint's own window and over the matched one.

    by_window   per window the qk table of the checkpoints that reach it
    frames      the name of a file without its ending -> its rows
    unmeasured  per checkpoint, heads that met a value that is not finite
    warnings    what to know of some checkpoints: `a, b: ...`
    measured    per checkpoint and window, what the causes of changes are found from
    """

    by_window: Mapping[int, pd.DataFrame]
    frames: Mapping[str, pd.DataFrame]
    axes: Mapping[str, CheckpointAxes]
    unmeasured: Mapping[str, int]
    warnings: Sequence[str]
    measured: Mapping[tuple[str, int], HeadsAndAxes]

    @property
    def qk(self) -> pd.DataFrame:
        return self.frames["qk"]


@dataclass(frozen=True)
class _Found:
    """What the units of one checkpoint come to.

    by_window  the qk table over each window     frames  by kind of window and file, the rows of every other table
    numbers    over own and matched windows      causes  likewise, what the causes of changes are found from
    warning    about its rotation, if any
    """

    by_window: Mapping[int, pd.DataFrame]
    frames: Mapping[str, Mapping[str, pd.DataFrame]]
    numbers: Mapping[int, CellNumbers]
    causes: Mapping[int, Heads]
    drawn: CheckpointAxes
    warning: str | None


def tables(study: Study, planned: Sequence[Planned], results: Path) -> Tables:
    """All tables, checkpoint by checkpoint."""
    import pandas as pd

    from qkscope.anatomy_table import with_continuity
    from qkscope.measure_table import with_matched_slopes

    parts: dict[str, list[pd.DataFrame]] = {}
    by_window: dict[int, list[pd.DataFrame]] = {window: [] for window in study.windows}
    unmeasured: dict[str, int] = {}
    measured: dict[tuple[str, int], HeadsAndAxes] = {}
    drawn: dict[str, CheckpointAxes] = {}
    unknown: dict[str, list[str]] = {}
    before: dict[str, CellNumbers | None] = {"own": None, "matched": None}
    tasks = [_task(study, each, results) for each in planned]
    for task, found in zip(tasks, by_checkpoint(_measure, tasks, "tables"), strict=True):
        name = task.name
        if found.warning:
            unknown.setdefault(found.warning, []).append(name)
        for window, frame in found.by_window.items():
            by_window[window].append(frame)
        for kind, window in (("own", task.own), ("matched", study.matched_window)):
            numbers = found.numbers[window]
            measured[name, window] = found.causes[window], numbers.v
            for file, frame in found.frames[kind].items():
                whole = with_continuity(frame, numbers, before[kind]) if file == "anatomy" else frame
                parts.setdefault(_file(file, kind), []).append(whole)
            # Heads of different models are not one head at two times.
            before[kind] = numbers if study.kind == "training" else None
        unmeasured[name] = int(found.numbers[task.own].bad.any(axis=1).sum())
        drawn[name] = found.drawn
    return Tables(
        by_window={w: pd.concat(found, ignore_index=True) for w, found in by_window.items() if found},
        frames=with_matched_slopes(
            {file: pd.concat(found, ignore_index=True) for file, found in parts.items()}
        ),
        axes=drawn,
        unmeasured={name: count for name, count in unmeasured.items() if count},
        warnings=[f"{', '.join(names)}: {warning}" for warning, names in unknown.items()],
        measured=measured,
    )


def _task(study: Study, each: Planned, results: Path) -> Task:
    own, windows = each.checkpoint.window, tuple(each.checkpoint.rings(study.windows))
    return Task(study, each.checkpoint.name, own, windows, each.jobs, results)


def _measure(task: Task) -> _Found:
    """One checkpoint over its own window, the common one and the others, from its units."""
    from qkscope.table import qk_table

    units, study = task.units(), task.study
    kinds = {"own": task.own, "matched": study.matched_window}
    by_window, causes, numbers = {}, {}, {}
    frames: dict[str, dict[str, pd.DataFrame]] = {}
    for window in task.windows:
        whole = window in kinds.values()
        groups = chosen(study.measures) if whole else [group for group in chosen(()) if group.name == "pca"]
        found = measure_cell(Cell.of(units, window, study.components), groups)
        by_window[window] = qk_table(task.name, found)
        if whole:
            numbers[window], causes[window] = found, for_causes(found)
            made = {"qk": by_window[window]} | _frames(task.name, found, study.measures)
            frames |= {kind: made for kind, width in kinds.items() if width == window}
    drawn = CheckpointAxes.of(units, task.own, numbers[task.own].v)
    return _Found(by_window, frames, numbers, causes, drawn, unknown_rotation_warning(units))


def _frames(model: str, numbers: CellNumbers, asked: Sequence[str]) -> dict[str, pd.DataFrame]:
    """One checkpoint's rows of every other table over one window, as if there were no checkpoint before it."""
    from qkscope.anatomy_table import anatomy_table, distance_table, loo_anatomy_table, spectrum_table
    from qkscope.measure_table import measure_frames
    from qkscope.table import loo_table

    found = {
        "loo": loo_table(model, numbers),
        "anatomy": anatomy_table(model, numbers),
        "loo_anatomy": loo_anatomy_table(model, numbers),
        "spectrum": spectrum_table(model, numbers),
        "distance": distance_table(model, numbers),
    }
    for name in asked:
        found |= measure_frames(name, model, numbers)
    return found


def _file(name: str, kind: str) -> str:
    return name if kind == "own" else f"{name}_matched"


def write_tables(study: Study, planned: Sequence[Planned], made: Tables, folder: Path) -> None:
    """All tables of a study, over own windows, over the matched one and over the others, into an empty folder."""
    from qkscope.results import with_same_axis
    from qkscope.table import heads_table
    from qkscope.taxonomy import Thresholds, transitions

    layers = {each.checkpoint.name: each.architecture.num_layers for each in planned}
    limits = Thresholds(study.thresholds.high, study.thresholds.low)
    for window, frame in made.by_window.items():
        if window != study.matched_window:
            store.write_csv(folder / f"qk_{window}.csv", frame)
    for name, frame in made.frames.items():
        if name.removesuffix("_matched") in ("qk", "anatomy", *optional_names()):
            store.write_csv(folder / f"{name}.csv", frame)
        else:
            store.write_parquet(folder / f"{name}.parquet", frame)
    heads = heads_table(made.qk, layers, limits)
    store.write_csv(folder / "heads.csv", heads)
    store.write_csv(folder / "heads_matched.csv", heads_table(made.frames["qk_matched"], layers, limits))
    order = [each.checkpoint.name for each in planned]
    store.write_csv(
        folder / "transitions.csv", transitions(with_same_axis(heads, made.frames["anatomy"]), order)
    )
    store.write_tensors(folder / "axes.safetensors", *dump_axes(made.axes))


def made_from(study: Study, planned: Sequence[Planned], results: Path, said: object) -> str:
    """A digest of everything that decides the tables, figures and report: study, units, warnings and the program."""
    package = Path(__file__).parent.parent
    program = sorted(path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    parts = {
        "study": dump_study(study, {}),
        "commits": [each.commit for each in planned],
        "units": [
            store.read_digest(path) for each in planned for job in each.jobs for path in job.files(results)
        ],
        "said": json.loads(json.dumps(said, default=str)),
        "program": [[str(path.relative_to(package)), store.file_digest(path)] for path in program],
    }
    return store.short_digest(parts)
