"""`qkscope watch`: measure checkpoints as a training run writes them.

A checkpoint counts as complete when its configuration, its index and all of its shards are there, the headers of its
safetensors files agree with their sizes, and no file has changed since the look before. Everything else is a run: what
is finished is not measured again, so a watch that was stopped continues where it stopped.

Training runs delete old checkpoints. So each complete one is recorded in `checkpoints/` of the results folder
(configuration, tokenizer and the digest of its weights), and the study of the results consists of these records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkscope import store
from qkscope.checkpoints.files import LIVE, FileMarks, digest, file_marks, local_files, write_live
from qkscope.checkpoints.revisions import order_revisions
from qkscope.errors import CheckpointError, QkscopeError, StoreError, StudyError
from qkscope.measures.registry import optional_names
from qkscope.progress import quiet, say
from qkscope.results import Results, owner
from qkscope.results.aggregate import scalars
from qkscope.results.lock import FolderLock, locked
from qkscope.run.engines import open_engine
from qkscope.run.pipeline import run_locked
from qkscope.study import Checkpoint, Entry, Study, load_study, sources
from qkscope.study.init import CHANGE_ME, init
from qkscope.study.load import read_study

if TYPE_CHECKING:
    from rich.table import Table

POLL_SECONDS = 10.0
# Columns of the terminal table: those of a model's numbers that it has, in this order.
SHOWN = ("loss", "share_positional", "r_q", "max_logit", "sink_rate")
# The folder of records in a results folder.
RECORDS = "checkpoints"


@dataclass
class WatchState:
    """What a watch has found so far.

    numbers    by checkpoint, those of its heads together
    problems   by checkpoint, why it cannot be measured
    waiting    by checkpoint, why it is not complete
    """

    folder: Path
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    steps: dict[str, int | None] = field(default_factory=dict)

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        known = [name for each in self.numbers.values() for name in each]
        columns = [name for end in SHOWN for name in dict.fromkeys(known) if name.rpartition("/")[2] == end]
        alarms = Text("\n".join(self.alarms))
        table = Table(title=Text(str(self.folder)), caption=alarms, caption_justify="left")
        for column in ("checkpoint", *columns, "state"):
            table.add_column(column, justify="left" if column in ("checkpoint", "state") else "right")
        for name, numbers in self.numbers.items():
            shown = (f"{numbers[column]:.3f}" if column in numbers else "" for column in columns)
            table.add_row(Text(name), *shown, "measured")
        for name, why in (*self.problems.items(), *self.waiting.items()):
            table.add_row(Text(name), *("" for _ in columns), Text(why))
        return table


def watch(
    path: Path | str, out: Path | str | None = None, until: int | None = None, poll: float = POLL_SECONDS
) -> WatchState:
    """Measure the checkpoints of a study, or of a folder, as they are written; keeps tables and report current.

    Returns when a checkpoint of step `until` or later was measured or could not be; without `until`, it goes on until
    it is interrupted. A checkpoint that is deleted after it was measured stays in the results. A folder gets a study
    file with the settings of `qkscope init`, `watch.yaml` in the results folder.
    """
    path = Path(path)
    name = path.resolve().name if path.is_dir() else _study(path).name
    folder = Path(out) if out is not None else Path("results") / name
    study_path = _study_of(path, folder, poll) if path.is_dir() else path
    with store.clear_errors(folder), locked(folder, study_path.stem) as lock:
        found = WatchState(folder)
        marks: dict[str, FileMarks] = {}
        failed: dict[str, FileMarks | None] = {}
        with _shown(found) as show:
            while True:
                study = _study(study_path)
                ready, waiting = _complete(study, marks)
                again = [n for n in ready if n not in failed or failed[n] != marks.get(n)]
                part = _part(study, again, marks, folder / RECORDS, waiting)
                checkpoints = {each.name: each for each in sources(part)}
                found.waiting = {n: why for n, why in waiting.items() if n not in checkpoints}
                show()
                if checkpoints.keys() - found.numbers:
                    missing = _measure(part, lock, found)
                    for name in missing & checkpoints.keys():
                        failed[name] = marks.get(name)
                        (folder / RECORDS / checkpoints[name].folder / LIVE).unlink(missing_ok=True)
                    found.steps |= {name: each.step for name, each in checkpoints.items()}
                    show()
                if until is not None and any((step or 0) >= until for step in found.steps.values()):
                    return found
                time.sleep(poll)


def _study_of(checkpoints: Path, folder: Path, poll: float) -> Path:
    """The study of a folder of checkpoints, written once the first one is complete."""
    path = folder / "watch.yaml"
    while not path.exists():
        try:
            init(str(checkpoints.resolve()), path)
        except QkscopeError as error:
            say(f"waiting for a first checkpoint: {error}")
            time.sleep(poll)
    if _study(path).tokenizer == CHANGE_ME:
        raise StudyError(
            f"{path}: no tokenizer was found next to the weights: replace {CHANGE_ME} in this file by its folder or "
            "hub name, and watch again"
        )
    return path


def _study(path: Path) -> Study:
    """The study as it is now: a folder of checkpoints in it has those that are there."""
    study, mistakes = read_study(path, optional_names())
    if study is None or any("no checkpoints found" not in mistake for mistake in mistakes):
        return load_study(path, optional_names())  # raises with every mistake
    if study.families:
        raise StudyError(f"{path}: families are models that do not change: use `qkscope run`")
    return study


def _complete(study: Study, marks: dict[str, FileMarks]) -> tuple[list[str], dict[str, str]]:
    """The names of complete checkpoints, and why each other one is not; `marks` are the files as last seen."""
    ready, waiting = [], {}
    for each in sources(study):
        path = each.source.path
        try:
            local_files(each.source, "model")  # raises for a missing or truncated file
            now = None if path is None else file_marks(path, each.source)
        except QkscopeError as error:
            waiting[each.name] = str(error)
            continue
        if now is None or marks.get(each.name) == now:  # a commit on the hub is always complete
            ready.append(each.name)
        else:
            waiting[each.name] = "may still be written"
            marks[each.name] = now
    return ready, waiting


def _part(
    study: Study,
    ready: Collection[str],
    marks: Mapping[str, FileMarks],
    records: Path,
    waiting: dict[str, str],
) -> Study:
    """The study with the checkpoints that are complete now, or were recorded when they were."""
    lists = [phase.checkpoints for phase in study.phases or ()] or [study.checkpoints or []]
    checkpoints = iter(sources(study))
    found: list[dict[str, Entry]] = [{} for _ in lists]
    for number, entries in enumerate(lists):
        for entry in entries:
            each = next(checkpoints)
            if each.name not in ready:
                continue
            try:
                found[number][each.name] = _recorded(each, entry, number, marks.get(each.name), records)
            except (CheckpointError, OSError) as error:  # deleted at this moment
                waiting[each.name] = str(error)
    for path in sorted(records.glob(f"*/{LIVE}")):
        record = store.read_json(path)
        name, number = record["entry"]["name"], record["phase"]
        if number < len(found) and name not in found[number]:
            found[number][name] = Entry.model_validate(record["entry"])
            ordered = [revision.name for revision in order_revisions(found[number])]
            found[number] = {name: found[number][name] for name in ordered}
    if not study.phases:
        return study.model_copy(update={"checkpoints": list(found[0].values())})
    phases = [
        phase.model_copy(update={"checkpoints": list(entries.values())})
        for phase, entries in zip(study.phases, found, strict=True)
        if entries
    ]
    return study.model_copy(update={"phases": phases})


def _recorded(
    checkpoint: Checkpoint, entry: Entry, phase: int, marks: FileMarks | None, records: Path
) -> Entry:
    """The entry of a complete checkpoint's record, written if it is new; of one that is no folder, its own."""
    path, record = checkpoint.source.path, records / checkpoint.folder
    if path is None or not path.is_dir() or entry.gguf_file:
        return entry
    changes = {"folder": str(record.resolve()), "model": None, "revision": None, "name": checkpoint.name}
    own = entry.model_copy(update=changes)
    files = [list(mark) for mark in marks or ()]
    about = {"phase": phase, "entry": own.model_dump(exclude_none=True), "files": files}
    known = store.read_json(record / LIVE) if (record / LIVE).exists() else None
    if known is None or known["files"] != about["files"]:
        commit = digest(path, checkpoint.source)
        if known is not None and known["commit"] != commit:
            raise StoreError(
                f"{path}: its files changed after it was measured (another training run?)",
                "watch it with another --out",
            )
        write_live(checkpoint.source, record, commit, about)
    return own


def _measure(part: Study, lock: FolderLock, found: WatchState) -> Collection[str]:
    """Run the study; note numbers, alarms and problems. The names of checkpoints that cannot be measured."""
    names = [each.name for each in sources(part)]
    engine = open_engine("local", part)
    try:
        owner.refuse_other(found.folder, owner.study_holding(part), named=names)
        results, problem = run_locked(part, found.folder, engine, lock)
    except StudyError as error:  # none of them can be measured
        missing = dict.fromkeys(names, str(error))
    else:
        missing = dict(results.provenance.get("missing") or {})
        _note(found, results)
        if problem and not missing:
            found.problems[str(found.folder)] = problem
    finally:
        engine.close()
    for name, why in missing.items():
        if found.problems.get(name) != why:
            say(f"warning: {name}: skipped, because it cannot be measured: {why}")
    found.problems |= missing
    return missing.keys()


def _note(found: WatchState, results: Results) -> None:
    own = results.own()
    values = scalars(own)
    for i, name in enumerate(own["checkpoint"].to_numpy().tolist()):
        if name not in found.numbers:
            found.numbers[name] = {number: float(each[i, 0]) for number, each in values.items()}
            found.problems.pop(name, None)
            shown = [f"{n} {x:.3f}" for n, x in found.numbers[name].items() if n.rpartition("/")[2] in SHOWN]
            say(f"{name}: {', '.join(shown)}")
    new = [alarm for alarm in results.provenance.get("alarms") or () if alarm not in found.alarms]
    for alarm in new:
        say(f"warning: alarm: {alarm}")
    found.alarms += tuple(new)


@contextmanager
def _shown(found: WatchState) -> Iterator[Any]:
    """A table that is kept current on a terminal; elsewhere lines are printed as things happen."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.live import Live

    with quiet(), Live(found, console=Console(stderr=True), auto_refresh=False) as live:
        yield lambda: live.update(found, refresh=True)
