"""`qkscope watch`: measure checkpoints as a training run writes them.

A checkpoint counts as complete when its configuration, its index and all of its shards are there, the headers of its
safetensors files agree with their sizes, and no file has changed since the look before. Everything else is a run: what
is finished is not measured again, so a watch that was stopped goes on where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkscope import store
from qkscope.checkpoints.files import FileMarks, file_marks, local_files
from qkscope.errors import QkscopeError, StudyError
from qkscope.measures.registry import optional_names
from qkscope.progress import quiet, say
from qkscope.results import owner
from qkscope.results.lock import claimed
from qkscope.results.scalars import scalars
from qkscope.run.engines import open_engine
from qkscope.run.pipeline import run_claimed
from qkscope.study import Checkpoint, Study, load_study, sources
from qkscope.study.load import read_study

if TYPE_CHECKING:
    from rich.table import Table

    from qkscope.results import Results

POLL_SECONDS = 10.0
# Columns of the terminal table: those of a model's numbers that it has, in this order.
SHOWN = ("loss", "share_positional", "r_q", "max_logit", "sink_rate")


@dataclass
class Watched:
    """What a watch has found so far: numbers by checkpoint, alarms, and what it waits for."""

    folder: Path
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    steps: dict[str, int | None] = field(default_factory=dict)

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        known = [name for each in self.numbers.values() for name in each]
        columns = [name for end in SHOWN for name in dict.fromkeys(known) if name.rpartition("/")[2] == end]
        table = Table(
            title=Text(f"{self.folder}"), caption=Text("\n".join(self.alarms)), caption_justify="left"
        )
        for column in ("checkpoint", *columns, "state"):
            table.add_column(column, justify="left" if column in ("checkpoint", "state") else "right")
        for name, numbers in self.numbers.items():
            shown = (f"{numbers[column]:.3f}" if column in numbers else "" for column in columns)
            table.add_row(Text(name), *shown, "measured")
        for name, why in self.waiting.items():
            table.add_row(Text(name), *("" for _ in columns), Text(why))
        return table


def watch(
    place: Path | str,
    out: Path | str | None = None,
    until: int | None = None,
    poll: float = POLL_SECONDS,
) -> Watched:
    """Measure the checkpoints of a study, or of a folder, as they are written; keeps tables and report current.

    Returns when a checkpoint of step `until` or later is measured; without `until`, it goes on until it is interrupted.
    A folder gets a study file with the settings of `qkscope init`, `watch.yaml` in the results folder.
    """
    place = Path(place)
    folder = Path(out) if out is not None else None
    if place.is_dir():
        folder = folder or Path("results") / place.resolve().name
        study_path = _study_of(place, folder, poll)
    else:
        study_path = place
        folder = folder or Path("results") / _study(place).name
    with store.clear_errors(folder), claimed(folder, study_path.stem) as claim:
        found = Watched(folder)
        marks: dict[str, FileMarks] = {}
        with _shown(found) as show:
            while True:
                study = _study(study_path)
                ready, found.waiting = _complete(study, marks)
                show()
                if ready and set(ready) != set(found.numbers):
                    part = _part(study, ready)
                    engine = open_engine("local", part)
                    try:
                        owner.refuse_other(folder, owner.study_holding(part), named=ready)
                        results = run_claimed(part, folder, engine, claim)
                    finally:
                        engine.close()
                    _note(found, results)
                    show()
                if until is not None and any((step or 0) >= until for step in found.steps.values()):
                    return found
                time.sleep(poll)


def _study_of(checkpoints: Path, folder: Path, poll: float) -> Path:
    """The study of a folder of checkpoints, written once the first one is complete."""
    from qkscope.study.init import init

    path = folder / "watch.yaml"
    while not path.exists():
        try:
            init(str(checkpoints.resolve()), path)
        except QkscopeError as error:
            say(f"waiting for a first checkpoint: {error}")
            time.sleep(poll)
    return path


def _study(path: Path) -> Study:
    """The study as it is now: a folder of checkpoints in it has those that are there."""
    study, mistakes = read_study(path, optional_names())
    if study is None or any("no checkpoints found" not in mistake for mistake in mistakes):
        return load_study(path, optional_names())  # raises with every mistake
    return study


def _complete(study: Study, marks: dict[str, FileMarks]) -> tuple[list[str], dict[str, str]]:
    """The names of complete checkpoints, and why each other one is not; `marks` are the files as last seen."""
    ready, waiting = [], {}
    for each in sources(study):
        try:
            why = _why_incomplete(each, marks)
        except QkscopeError as error:
            why = str(error)
        if why:
            waiting[each.name] = why
        else:
            ready.append(each.name)
    return ready, waiting


def _why_incomplete(checkpoint: Checkpoint, marks: dict[str, FileMarks]) -> str:
    local_files(checkpoint.source, "model")  # raises for a missing or truncated file
    path = checkpoint.source.path
    if path is None:
        return ""  # on the hub, where a commit is complete
    before, now = marks.get(checkpoint.name), file_marks(path, checkpoint.source)
    marks[checkpoint.name] = now
    return "" if before == now else "may still be written"


def _part(study: Study, names: list[str]) -> Study:
    """The study with only these checkpoints."""
    kept = iter(each.name in names for each in sources(study))

    def some(entries: Any) -> list[Any]:
        return [entry for entry in entries if next(kept)]

    if study.phases:
        phases = [phase.model_copy(update={"checkpoints": some(phase.checkpoints)}) for phase in study.phases]
        return study.model_copy(update={"phases": [phase for phase in phases if phase.checkpoints]})
    if study.families:
        raise StudyError("families are models that do not change: use `qkscope run`")
    return study.model_copy(update={"checkpoints": some(study.checkpoints or [])})


def _note(found: Watched, results: Results) -> None:
    own = results.own()
    names = own["checkpoint"].to_numpy().tolist()
    values = scalars(own)
    for i, name in enumerate(names):
        if name not in found.numbers:
            found.numbers[name] = {number: float(each[i, 0]) for number, each in values.items()}
            shown = [f"{n} {x:.3f}" for n, x in found.numbers[name].items() if n.rpartition("/")[2] in SHOWN]
            say(f"{name}: {', '.join(shown)}")
    found.steps = {stop.model: stop.step for stop in results.timeline.stops if stop.model in names}
    new = [alarm for alarm in results.provenance.get("alarms") or () if alarm not in found.alarms]
    for alarm in new:
        say(f"warning: alarm: {alarm}")
    found.alarms += tuple(new)


@contextmanager
def _shown(found: Watched) -> Iterator[Any]:
    """A table that is kept current on a terminal; elsewhere lines are printed as things happen."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.live import Live

    with quiet(), Live(found, console=Console(stderr=True), auto_refresh=False) as live:
        yield lambda: live.update(found, refresh=True)
