"""Unit files -> the dataset of a results folder.

A pure function of the units and the study: the same files give the same bytes, in any order, on any machine and with
any engine. The numbers of a finished cell are cached in `cells/`, so adding a checkpoint costs that checkpoint.
"""

from __future__ import annotations

import json
import platform
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, reduce
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope import store
from qkscope.capture.memory import available_bytes
from qkscope.checkpoints import load_tokenizer
from qkscope.checkpoints.doctor import Finding
from qkscope.corpus import token_file
from qkscope.errors import StoreError
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.continuity import continuity, overlaps, same_axis
from qkscope.measures.registry import chosen
from qkscope.progress import progress
from qkscope.results.axes import CheckpointAxes, dump_axes
from qkscope.results.dataset import CellData, CellInfo
from qkscope.results.examples import CheckpointExamples, shown, spell, write_examples
from qkscope.results.tables import select
from qkscope.run.plan import Plan, PlannedCheckpoint, without_counterfactual
from qkscope.run.units import Job, read_unit
from qkscope.study import Checkpoint, Study, dump_study
from qkscope.sums import ExampleSum, FactSum
from qkscope.sums.excerpts import shown_heads
from qkscope.sums.unit import unknown_rotation_warning
from qkscope.workers import in_processes, worth

if TYPE_CHECKING:
    import xarray as xr

# Bytes in memory for one of a unit's file (with the blocks of heads at work), and of a process beside its units.
UNPACKED, BESIDE = 2, 400_000_000
# Bytes of unit files that a core measures in a second: heads of 128 dimensions, 8 groups, three windows.
BYTES_A_SECOND = 30_000_000
# Parts of the program that decide the numbers of a cell: where they change, cached cells are measured again.
MEASURING = ("measures", "sums")


@dataclass(frozen=True)
class AssembledCells:
    """The measured cells of a study, in its order, with numbers that are read from their files when used.

    files       the file of each cell, by checkpoint and window
    drawn       files with the axes, means and paths of the checkpoints of the training run
    warnings    notes on some checkpoints, as `a, b: ...`
    """

    cells: tuple[CellData, ...]
    files: Mapping[tuple[str, int], Path]
    drawn: Sequence[Path]
    warnings: tuple[str, ...]

    def same_axis(self, before: CellInfo, after: CellInfo) -> dict[tuple[int, int], bool]:
        """By (layer, head): whether PC0 of the second cell continues that of the first. Empty for other heads."""
        paths = [self.files[cell.checkpoint, cell.window] for cell in (before, after)]
        heads, other = (store.read_meta(path)["heads"] for path in paths)
        v = [_read(path, "v") for path in paths]
        if heads != other or v[0].shape != v[1].shape:
            return {}
        overlap = overlaps(*v)
        known, same = np.isfinite(overlap.sum(axis=(1, 2))), same_axis(overlap)
        return {(layer, head): bool(same[i]) for i, (layer, head) in enumerate(heads) if known[i]}


@dataclass(frozen=True)
class Task:
    """A checkpoint and the windows it is measured over; small enough to travel to another process."""

    study: Study
    checkpoint: Checkpoint
    windows: tuple[int, ...]
    jobs: tuple[Job, ...]
    results: Path
    num_layers: int

    @property
    def bytes(self) -> int:
        """Of its units' files."""
        return sum(path.stat().st_size for job in self.jobs for path in job.files(self.results))

    def cell_path(self, window: int) -> Path:
        return self.results / "cells" / self.checkpoint.folder / f"{window}.safetensors"

    @property
    def axes_path(self) -> Path:
        return self.results / "cells" / self.checkpoint.folder / "axes.safetensors"


def assemble(study: Study, measured: Sequence[PlannedCheckpoint], results: Path) -> AssembledCells:
    """Measure every cell that is needed and not cached."""
    tasks = [
        Task(study, each.checkpoint, windows, each.jobs, results, each.architecture.num_layers)
        for each, windows in zip(measured, wanted_windows(study, measured), strict=True)
    ]
    warnings: dict[str, list[str]] = {}
    for task, warning in zip(tasks, _measure_all(tasks), strict=True):
        if warning and not task.checkpoint.counterfactual:
            warnings.setdefault(warning, []).append(task.checkpoint.name)
    files = {
        (task.checkpoint.name, window): task.cell_path(window) for task in tasks for window in task.windows
    }
    before = _checkpoints_before(study, measured)
    cells = []
    for each, task in zip(measured, tasks, strict=True):
        earlier = before.get(task.checkpoint.name)
        for window in task.windows:
            known = earlier and (files.get((earlier[0], window)) or files[earlier])
            cells.append(_cell(study, each, task.cell_path(window), window, known))
    notes = tuple(f"{', '.join(names)}: {warning}" for warning, names in warnings.items())
    drawn = [task.axes_path for task in tasks if not task.checkpoint.counterfactual]
    return AssembledCells(tuple(cells), files, drawn, notes)


def _measure_all(tasks: Sequence[Task]) -> Iterator[str | None]:
    """`_measure` of every task in order, here or in processes where that pays; reports each finished checkpoint."""
    largest, room = max((task.bytes for task in tasks), default=0), available_bytes()
    processes = worth(len(tasks), largest / BYTES_A_SECOND)
    if processes > 1 and room is not None:
        processes = min(processes, room // (BESIDE + UNPACKED * largest))
    with progress("measures", len(tasks), "checkpoints") as bar:
        found = map(_measure, tasks) if processes < 2 else in_processes(_measure, tasks, processes)
        for count, (task, warning) in enumerate(zip(tasks, found, strict=True), 1):
            bar.advance()
            bar.done(f"measures: {task.checkpoint.name} ({count} of {len(tasks)})")
            yield warning


def wanted_windows(study: Study, measured: Sequence[PlannedCheckpoint]) -> list[tuple[int, ...]]:
    """The windows that each checkpoint is measured over.

    A checkpoint of the training run: its own window, the common one, and the shorter of the windows of each two
    neighbours, at which they are compared. A counterfactual one: the windows of the comparisons it was made for.
    """
    windows = {each.checkpoint.name: {each.checkpoint.window} for each in measured}
    run = [each.checkpoint for each in without_counterfactual(measured)]
    for checkpoint in run:
        windows[checkpoint.name].add(study.matched_window)
    for a, b in pairwise(run) if study.kind == "training" else ():
        common = min(a.window, b.window)
        for each in measured:
            checkpoint = each.checkpoint
            if (checkpoint.weights_of or checkpoint.name) in (a.name, b.name) and common <= checkpoint.window:
                windows[checkpoint.name].add(common)
    return [tuple(sorted(windows[each.checkpoint.name])) for each in measured]


def _checkpoints_before(study: Study, measured: Sequence[PlannedCheckpoint]) -> dict[str, tuple[str, int]]:
    """By checkpoint, the cell (name, own window) that its axes are compared with.

    The one before it in training; of a counterfactual checkpoint, the earlier of the two it is made of. Heads of
    different models are not one head at two times.
    """
    if study.kind != "training":
        return {}
    run = [each.checkpoint for each in without_counterfactual(measured)]
    found = {b.name: (a.name, a.window) for a, b in pairwise(run)}
    for checkpoint in (each.checkpoint for each in measured if each.checkpoint.counterfactual):
        parents = (each for each in run if each.name in (checkpoint.weights_of, checkpoint.rotation_of))
        if first := next(parents, None):
            found[checkpoint.name] = (first.name, first.window)
    return found


def _measure(task: Task) -> str | None:
    """Measure the cells of one checkpoint that are not cached; returns a warning about its rotation, if any."""
    groups = chosen(task.study.optional_measures)
    # Keys are sampled over the training context and the common window only.
    without_keys = [group for group in groups if "keys" not in group.needs]
    key = {
        "units": [store.read_digest(path) for job in task.jobs for path in job.files(task.results)],
        "measures": [[group.name, group.version] for group in groups],
        "components": task.study.components,
        "layers": task.num_layers,
        "program": program_digest(*MEASURING),
    }
    stale = [window for window in task.windows if _meta(task.cell_path(window), key) is None]
    meta = _meta(task.axes_path, key)
    if not stale and meta is not None:
        return meta["warning"] or None
    units = [read_unit(job.path(task.results), job.keys) for job in task.jobs]
    warning = unknown_rotation_warning(units)
    # Axes are drawn from the training context: it is measured again only where they, or its cell, are not there.
    own = task.checkpoint.window
    for window in {*stale, *((own,) if meta is None else ())}:
        sampled = not task.checkpoint.counterfactual and window in (own, task.study.matched_window)
        cell = Cell.of(units, window, task.study.components, task.num_layers)
        found = measure_cell(cell, groups if sampled else without_keys)
        arrays = {**found.arrays, "v": found.v, "loo_v": found.loo_v}
        shapes = {name: array.shape for name, array in arrays.items()}
        about = {"key": key, "heads": found.heads.pairs, "groups": found.groups, "shapes": shapes}
        store.write_tensors(task.cell_path(window), arrays, about)
        if window == own:
            tensors, entries = dump_axes({task.checkpoint.name: CheckpointAxes.of(units, window, found.v)})
            about = {**entries, "key": key, "warning": warning, "arrays": sorted(tensors)}
            store.write_tensors(task.axes_path, tensors, about)
    return warning


def _meta(path: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The description of a cached file that is whole and has this key; None if there is none."""
    if not path.is_file():
        return None
    try:
        meta = store.read_meta(path)
        if meta.get("key") != json.loads(json.dumps(key)):
            return None
        store.read_tensors(path)
    except StoreError:
        return None
    return meta


def _cell(study: Study, each: PlannedCheckpoint, path: Path, window: int, before: Path | None) -> CellData:
    meta, checkpoint = store.read_meta(path), each.checkpoint
    real = not checkpoint.counterfactual
    info = CellInfo(
        checkpoint=checkpoint.name,
        window=window,
        own=real and window == checkpoint.window,
        matched=real and window == study.matched_window,
        groups=int(meta["groups"]),
        weights_of=checkpoint.weights_of or checkpoint.name,
        rotation_of=checkpoint.rotation_of or checkpoint.name,
        settings=each.rotation,
        texts=each.corpus.digest,
    )
    v, loo_v = _read(path, "v"), _read(path, "loo_v")
    earlier = None if before is None else (_read(before, "v"), _read(before, "loo_v"))
    extra = continuity(earlier, (v, loo_v))
    shapes = {name: tuple(shape) for name, shape in meta["shapes"].items() if name not in ("v", "loo_v")}
    heads = [(int(layer), int(head)) for layer, head in meta["heads"]]
    return CellData(info, heads, ChainMap(extra, _Scattered({name: (path, name) for name in shapes})), shapes)


def _read(path: Path, name: str) -> NDArray[Any]:
    """One array of a file."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return np.asarray(file.get_tensor(name))


def write_axes(assembled: AssembledCells, path: Path) -> None:
    """The axes of all checkpoints of the training run as one file, one array in memory at a time."""
    arrays, entries = {}, []
    for number, file in enumerate(assembled.drawn):
        meta = store.read_meta(file)
        entries += meta["checkpoints"]
        for name in meta["arrays"]:
            arrays[f"{number}.{name.removeprefix('0.')}"] = file, name
    store.write_tensors(path, _Scattered(arrays), {"checkpoints": entries})


def write_excerpts(
    study: Study, measured: Sequence[PlannedCheckpoint], data: xr.Dataset, results: Path, path: Path
) -> None:
    """Attention on the study's excerpts, of the heads that the report shows; no file where there are no excerpts."""
    found: list[tuple[PlannedCheckpoint, ExampleSum, list[tuple[int, int]]]] = []
    for each in measured:
        jobs = [job for job in each.jobs if ExampleSum.name in job.sums]
        names = (FactSum.name, ExampleSum.name)
        units = [read_unit(job.path(results), {name: job.keys[name] for name in names}) for job in jobs]
        if units:
            pairs = each.heads.pairs
            heads = [pairs[row] for row in shown_heads(len(pairs))]
            found.append((each, reduce(ExampleSum.merge, [unit.get(ExampleSum) for unit in units]), heads))
    if not found:
        return
    everywhere = set.intersection(*(set(heads) for _, _, heads in found))
    chosen_heads = shown(select(data, "own"), [each.checkpoint.name for each, _, _ in found], everywhere)
    examples: dict[str, CheckpointExamples] = {}
    spelled: dict[tuple[object, ...], tuple[tuple[str, ...], ...]] = {}
    for each, sums, heads in found:
        # A window shorter than an excerpt cuts it.
        if (texts := (each.corpus.digest, *sums.lengths.tolist())) not in spelled:
            tokenizer = None if token_file(study.corpus) else load_tokenizer(each.checkpoint.source)
            ids = [row[:n].tolist() for row, n in zip(sums.tokens, sums.lengths, strict=True)]
            spelled[texts] = tuple(spell(tokenizer, some) for some in ids)
        rows = np.array([heads.index(head) for head in chosen_heads], dtype=np.int64)
        examples[each.checkpoint.name] = CheckpointExamples(
            tuple(chosen_heads), sums.select(rows), spelled[texts]
        )
    write_examples(path, examples)


class _Scattered(dict[str, Any]):
    """Arrays of several files by a name of their own, each read on first use."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return _read(*super().__getitem__(name))


@cache
def program_digest(*parts: str) -> str:
    """Of the package's files, or of those whose path begins with one of `parts`."""
    package = Path(__file__).parent.parent
    every = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    program = sorted(path for path in every if str(path.relative_to(package)).startswith(parts or ""))
    return store.short_digest([[str(path.relative_to(package)), store.file_digest(path)] for path in program])


def made_from(study: Study, planned: Sequence[PlannedCheckpoint], results: Path, notes: object) -> str:
    """A digest of everything that decides the tables, figures and report: study, units, warnings and the program."""
    parts = {
        "study": dump_study(study, {}),
        "commits": [each.commit for each in planned],
        "units": [
            store.read_digest(path) for each in planned for job in each.jobs for path in job.files(results)
        ],
        "notes": json.loads(json.dumps(notes, default=str)),
        "program": program_digest(),
    }
    return store.short_digest(parts)


PACKAGES = ("qkscope", "numpy", "pandas", "safetensors", "torch", "transformers", "huggingface_hub", "ray")


def provenance(
    plan: Plan,
    measured: Sequence[PlannedCheckpoint],
    unmeasured: Mapping[str, int],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """Where the numbers came from: versions, commits, texts, missing checkpoints, warnings."""
    planned = without_counterfactual(measured)
    facts = ("family", "num_layers", "n_q_heads", "n_kv_heads", "head_dim", "rope_theta", "max_positions")
    first = planned[0].corpus
    return {
        "versions": versions(),
        "checkpoints": {
            each.checkpoint.name: {
                "commit": each.commit,
                **{fact: getattr(each.architecture, fact) for fact in facts},
                "rope": json.loads(each.rotation),
                "window": each.checkpoint.window,
                "corpus": each.corpus.digest,
            }
            for each in planned
        },
        "counterfactual": {
            each.checkpoint.name: {
                "commit": each.commit,
                "weights_of": each.checkpoint.weights_of,
                "rotation_of": each.checkpoint.rotation_of,
                "rope_theta": each.architecture.rope_theta,
                "rope": json.loads(each.rotation),
                "window": each.checkpoint.window,
            }
            for each in measured
            if each.checkpoint.counterfactual
        },
        "corpus": {
            "documents": len(first.documents),
            "digest": first.digest,
            "origin": first.origin,
            "tokens": first.tokens(max(plan.study.windows)),
            "available": first.available,
            "start": plan.study.corpus.start,
            "seed": plan.study.corpus.seed,
            "filled": {window: first.filled(window) for window in plan.study.windows},
        },
        "warnings": list(plan.warnings),
        "findings": [asdict(finding) | {"checkpoints": list(finding.checkpoints)} for finding in findings],
        "missing": dict(plan.missing),
        "unmeasured": dict(unmeasured),
    }


def versions() -> dict[str, str]:
    """Of Python and the packages that decide the numbers, without importing them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
