"""Unit files of the course and of counterfactual checkpoints -> causes.csv.

Each step of the course becomes a table of cells: the heads with weights, rotation settings and window of the one or
the other checkpoint, as far as they were measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkscope.causes_table import ROTATION, WEIGHTS, WINDOW
from qkscope.inference.causes import ANATOMY, DRIFT, Cell, Heads, Step, attribute
from qkscope.measures import cell as cells
from qkscope.measures.axes import overlaps, same_axis
from qkscope.measures.registry import chosen
from qkscope.run.by_checkpoint import Task, by_checkpoint
from qkscope.run.plan import Planned
from qkscope.study import Study
from qkscope.taxonomy import Thresholds

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
# Numbers of the heads, and their axes (H, d, components).
HeadsAndAxes = tuple[Heads, Array]


class _Place(NamedTuple):
    """Where a cell was measured: which checkpoint, over which window."""

    name: str
    window: int


@dataclass(frozen=True)
class _Route:
    """Two neighbours, over their own windows or over the matched one, and where the cells between them are."""

    before: Planned
    after: Planned
    changed: tuple[str, ...]
    places: dict[Cell, _Place]


def causes(
    study: Study, measured: Sequence[Planned], results: Path, known: Mapping[tuple[str, int], HeadsAndAxes]
) -> dict[str, pd.DataFrame]:
    """The tables `causes` (each checkpoint over its own window) and `causes_matched` (all over the smallest).

    `known` are checkpoints and windows that need not be measured again.
    """
    limits = Thresholds(study.thresholds.high, study.thresholds.low)
    routes = {
        "causes": _routes(study, measured, None),
        "causes_matched": _routes(study, measured, study.matched_window),
    }
    wanted = {place for each in chain(*routes.values()) for place in each.places.values()}
    found = {place: known[place] for place in wanted if place in known}
    found |= _measured(study, measured, wanted - found.keys(), results)
    return {name: attribute([_step(each, found) for each in some], limits) for name, some in routes.items()}


def _routes(study: Study, measured: Sequence[Planned], width: int | None) -> list[_Route]:
    """The steps of the course; `width` is the window of all, or None for each checkpoint's own."""
    course = [each for each in measured if not each.checkpoint.counterfactual]
    pairs = pairwise(course) if study.kind == "training" else ()
    return [_route(study, measured, a, b, width) for a, b in pairs]


def _route(study: Study, measured: Sequence[Planned], a: Planned, b: Planned, width: int | None) -> _Route:
    from qkscope.checkpoints import same_rotation

    windows = (width, width) if width else (a.checkpoint.window, b.checkpoint.window)
    differ = {
        WEIGHTS: True,
        ROTATION: not same_rotation(a.rotation, b.rotation),
        WINDOW: windows[0] != windows[1],
    }
    changed = tuple(factor for factor, differs in differ.items() if differs)
    places: dict[Cell, _Place] = {}
    for cell in (frozenset(some) for n in range(4) for some in combinations(changed, n)):
        weights, rotation = (b if factor in cell else a for factor in (WEIGHTS, ROTATION))
        window = windows[WINDOW in cell]
        for each in measured:
            own = each.checkpoint.weights_of or each.checkpoint.name
            reaches = window in each.checkpoint.rings(study.windows)
            if own == weights.checkpoint.name and reaches and same_rotation(each.rotation, rotation.rotation):
                places.setdefault(cell, _Place(each.checkpoint.name, window))
    return _Route(a, b, changed, places)


def _measured(
    study: Study, measured: Sequence[Planned], wanted: set[_Place], results: Path
) -> Iterator[tuple[_Place, HeadsAndAxes]]:
    """What the heads do at each place."""
    tasks = []
    for each in measured:
        name = each.checkpoint.name
        windows = tuple(sorted(place.window for place in wanted if place.name == name))
        if windows:
            tasks.append(Task(study, name, each.checkpoint.window, windows, each.jobs, results))
    for task, found in zip(tasks, by_checkpoint(_measure, tasks, "causes"), strict=True):
        for window, heads in found.items():
            yield _Place(task.name, window), heads


def _measure(task: Task) -> dict[int, HeadsAndAxes]:
    units, found = task.units(), {}
    asked = [name for name in task.study.measures if name == "rotation"]
    for window in task.windows:
        numbers = cells.measure_cell(cells.Cell.of(units, window, task.study.components), chosen(asked))
        found[window] = for_causes(numbers), numbers.v
    return found


def for_causes(numbers: cells.CellNumbers) -> Heads:
    """What the causes of a change are found from: numbers of the heads, over all documents and without each group."""
    return {name: numbers.samples(name) for name in ("r_q", "r_k", *ANATOMY, *DRIFT) if name in numbers}


def _step(route: _Route, found: dict[_Place, HeadsAndAxes]) -> Step:
    ends = [found[route.places[cell]][1] for cell in (frozenset[str](), frozenset(route.changed))]
    overlap = overlaps(*ends)
    stayed = np.where(np.isfinite(overlap).all(axis=(1, 2)), same_axis(overlap), np.nan)
    return Step(
        before=route.before.checkpoint.name,
        after=route.after.checkpoint.name,
        changed=route.changed,
        cells={cell: found[place][0] for cell, place in route.places.items()},
        same_axis=stayed,
        same_text=route.before.corpus.digest == route.after.corpus.digest,
    )
