"""The progress of a study, read from the files of its results folder, and its division into shards.

`--shard I/N` measures the I-th of N parts, for machines without a common scheduler. Which units belong to a shard
follows from the study and N alone, and whether a unit is done from its file alone. So a shard needs no record of its
own: started again it measures what is missing, and a run without `--shard` measures what no shard has finished.
`shards/plan-I-of-N.json` lists the units for `qkscope status`, until a run without `--shard` writes the plan of the
whole study.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from qkscope import store
from qkscope.errors import EngineError, StoreError
from qkscope.results import manifest
from qkscope.results.lock import at_work
from qkscope.results.provenance import read_provenance
from qkscope.run.units import (
    HEARTBEAT_SECONDS,
    UNITS,
    Job,
    missing_sums,
    sum_keys,
    sum_path,
    unit_path,
    why_measured_again,
)
from qkscope.study import Checkpoint, load_study
from qkscope.study.schema import folder_name
from qkscope.sums import FactSum

if TYPE_CHECKING:
    from rich.table import Table


PLAN = "plan.json"
STATES = ("done", "running", "failed", "waiting")


@dataclass(frozen=True)
class UnitStatus:
    """One unit: done, running, failed or waiting, with a note."""

    checkpoint: str
    group: int
    state: str
    detail: str = ""


@dataclass(frozen=True)
class Status:
    """All units of a results folder, in the study's order."""

    folder: Path
    study: str
    units: tuple[UnitStatus, ...]
    missing: dict[str, str]
    """Checkpoints that could not be planned, and why."""
    damage: tuple[str, ...] = ()
    """Files that differ from what was written; empty unless verified."""
    unmeasured: Mapping[str, int] = field(default_factory=dict)
    """Heads without numbers in the tables, by checkpoint."""
    failures: tuple[str, ...] = ()
    """What failed: checkpoints, units, the run as a whole."""
    unfinished: tuple[str, ...] = ()
    """What is waiting or running."""

    @property
    def state(self) -> str:
        """`failed`, `unfinished` or `finished`: the whole study was measured, and its tables, figures and report are
        there."""
        return "failed" if self.failures else "unfinished" if self.unfinished else "finished"

    def count(self, state: str) -> int:
        return sum(unit.state == state for unit in self.units)

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        numbers = ", ".join(f"{self.count(state)} {state}" for state in STATES)
        table = Table(title=Text(f"{self.study} in {self.folder}: {numbers} of {len(self.units)} units"))
        for column in ("checkpoint", *STATES):
            table.add_column(column, justify="left" if column == "checkpoint" else "right")
        table.add_column("notes", overflow="fold")
        for name in dict.fromkeys([unit.checkpoint for unit in self.units] + list(self.missing)):
            units = [unit for unit in self.units if unit.checkpoint == name]
            states = Counter(unit.state for unit in units)
            notes = _notes(units) + ([self.missing[name]] if name in self.missing else [])
            if name in self.unmeasured:
                lost = self.unmeasured[name]
                be = (
                    "head has NaN or infinite values and is"
                    if lost == 1
                    else "heads have NaN or infinite values and are"
                )
                notes.append(f"{lost} {be} unmeasured")
            cells = [Text(str(states[state]) if states[state] else "·") for state in STATES]
            table.add_row(Text(name), *cells, Text("\n".join(notes)))
        state = self.state if self.state == "finished" else f"{self.state}:"
        table.caption = Text("\n".join([state, *self.failures, *self.unfinished]))
        table.caption_justify = "left"
        return table


def _notes(units: Sequence[UnitStatus]) -> list[str]:
    """Notes on units, each once with its groups."""
    groups: dict[str, list[str]] = {}
    for unit in units:
        if unit.detail:
            groups.setdefault(unit.detail, []).append(str(unit.group))
    return [f"group {', '.join(which)}: {detail}" for detail, which in groups.items()]


def write_plan(
    results: Path,
    study: str,
    jobs: Iterable[Job],
    missing: Mapping[str, str],
    shard: Shard | None = None,
    every: Iterable[tuple[str, str, int]] = (),
) -> None:
    """Record the units and their expected keys, for `status`.

    The plan of a shard lists `every` unit (checkpoint, folder, group), also those of other shards, whose keys it does
    not know. Plans of another number of shards, and all with the plan of a whole run, are superseded.
    """
    units: dict[tuple[str, str, int], Job | None] = dict.fromkeys(every)
    units.update({(job.name, job.folder, job.group): job for job in jobs})
    rows = [
        {
            "checkpoint": checkpoint,
            "folder": folder,
            "group": group,
            "key": dict(job.key) if job else None,
            "sums": dict(job.sums) if job else None,
        }
        for (checkpoint, folder, group), job in units.items()
    ]
    shards = results / "shards"
    path = shards / f"plan-{shard.number}-of-{shard.count}.json" if shard else results / UNITS / PLAN
    store.write_json(path, {"study": study, "units": rows, "missing": dict(missing)})
    for other, count in shard_plans(results).items():
        if shard is None or count != shard.count:
            other.unlink(missing_ok=True)
    if shard is None and shards.is_dir() and not any(shards.iterdir()):
        shards.rmdir()


def status(folder: Path | str, verify: bool = False) -> Status:
    """Which units are done, running, failed or waiting. With `verify`, every byte of units and results is checked."""
    folder = Path(folder)
    # Plans of shards are newer than the plan of the whole study.
    paths = [*shard_plans(folder)] or [folder / UNITS / PLAN]
    plans = [_read_plan(path) for path in paths]
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in (row for plan in plans for row in plan["units"]):
        known = rows.setdefault((row["checkpoint"], row["group"]), row)
        known |= {part: known[part] or row[part] for part in ("key", "sums")}
    missing = {name: why for plan in plans for name, why in plan["missing"].items()}
    units = tuple(
        UnitStatus(name, group, *_state(unit_path(folder, row["folder"], group), row, verify))
        for (name, group), row in rows.items()
    )
    damage = tuple(_damage(folder)) if verify else ()
    path = folder / "study.yaml"
    unmeasured = read_provenance(load_study(path).provenance, path).unmeasured if path.is_file() else {}
    failures, unfinished = _outcome(folder, units, missing)
    return Status(folder, plans[0]["study"], units, missing, damage, unmeasured, failures, unfinished)


def _outcome(
    folder: Path, units: Sequence[UnitStatus], missing: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What failed, and what is still to be done."""
    failures = [f"{name}: cannot be measured: {why}" for name, why in missing.items()]
    states = Counter(unit.state for unit in units)
    names = dict.fromkeys(unit.checkpoint for unit in units if unit.state == "failed")
    failures += [f"{name}: units failed" for name in names if name not in missing]
    unfinished = [
        f"{states[state]} unit{'s are' if states[state] > 1 else ' is'} {state}"
        for state in ("running", "waiting")
        if states[state]
    ]
    found = manifest.readable_manifest(folder)
    if found is not None and found.failed and not missing:
        failures.append(found.failed)
    if not (found.tables if found is not None else (folder / "qk.csv").is_file()):
        unfinished.append("tables, figures and report are not written yet")
    elif found is not None and not found.finished and not found.failed:
        unfinished.append("figures and report are not drawn from these tables yet")
    if who := at_work(folder):
        unfinished.append(f"{who} is running in this folder")
    return tuple(failures), tuple(unfinished)


def _damage(folder: Path) -> Iterator[str]:
    """Which files of the results are not those that were written."""
    try:
        found = manifest.read_manifest(folder)
    except StoreError as error:
        yield str(error)
        return
    if found is None:
        yield f"{folder / manifest.NAME}: missing, so tables cannot be checked; run the study again to write it"
    else:
        yield from manifest.all_problems(folder, found)


def _valid_name(name: str) -> str:
    if folder_name(name) != name or len(name.encode()) > store.LONGEST_NAME:
        raise ValueError(f"{name[:40]!r} is not a valid folder name")
    return name


_Name = Annotated[str, AfterValidator(_valid_name)]


class _PlannedUnit(BaseModel, strict=True):
    checkpoint: str
    folder: _Name
    group: int
    key: dict[str, Any] | None
    sums: dict[_Name, dict[str, Any]] | None


class _PlanFile(BaseModel, strict=True):
    """What `write_plan` writes."""

    study: str
    missing: dict[str, str]
    units: list[_PlannedUnit]


def _read_plan(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise StoreError(f"{path}: no such file; give a results folder of `qkscope run` (of this version)")
    try:
        return _PlanFile.model_validate(store.read_json(path)).model_dump()
    except ValidationError as error:
        why = store.in_short(error)
        raise StoreError(f"{path}: damaged ({why}); run the study again to rewrite it") from error


def _state(path: Path, row: Mapping[str, Any], verify: bool) -> tuple[str, str]:
    """State and a note. Where the sums of a unit are not known, it is done if it has facts, which come last."""
    failed, sums = "", row["sums"]
    with suppress(OSError), path.with_suffix(".failed").open(encoding="utf-8", errors="replace") as file:
        failed = file.readline(1000).rstrip("\n")
    if sums is None:
        missing = {} if sum_path(path, FactSum.name).exists() else {FactSum.name: ""}
    else:
        missing = missing_sums(path, sum_keys(row["key"] or {}, sums), verify)
    # A mark may outlive its unit: a process can be killed between writing one and removing the other.
    if not missing:
        return "done", ""
    running, lost = _running(path.with_suffix(".running"))
    if running:
        return "running", running
    if failed:
        return "failed", failed
    again = why_measured_again(missing, sums or missing)
    return "waiting", f"must be measured again: {again}" if again else lost


def _running(path: Path) -> tuple[str, str]:
    """(the process that measures it, "") or ("", why that process is gone)."""
    if not path.exists():
        return "", ""
    try:
        who = store.read_json(path)
        pid, host = int(who["pid"]), str(who["host"])
        # A clock may have been set back since.
        minutes = max(0.0, time.time() - float(who["since"])) / 60
        quiet = time.time() - path.stat().st_mtime
    except (StoreError, OSError, ValueError, KeyError, TypeError, OverflowError):
        return "", f"{path} cannot be read; the next run removes it"
    here = host == socket.gethostname()
    if here and not store.alive(pid):
        return "", f"was started by process {pid} on {host}, which has ended"
    if not here and quiet > 10 * HEARTBEAT_SECONDS:
        since = f"for {quiet / 60:.0f} min by this machine's clock"
        return "", f"was started by process {pid} on {host}, which has not reported {since}"
    return f"process {pid} on {host}, for {minutes:.0f} min", ""


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `count` parts of the work, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    match = re.fullmatch(r"\s*([0-9]{1,6})\s*/\s*([0-9]{1,6})\s*", text)
    shard = Shard(int(match[1]), int(match[2])) if match else None
    if shard is None or not 1 <= shard.number <= shard.count:
        raise EngineError(f"--shard {text}: expected I/N with I from 1 to N, such as 1/8 to 8/8")
    return shard


def shard_of(checkpoint: int, group: int, checkpoints: int, count: int) -> int:
    """Which of `count` shards (from 1) measures a unit.

    With at most as many shards as checkpoints, all units of a checkpoint are in one shard, so that its model is loaded
    once. With more, each checkpoint has shards of its own, to which its groups are dealt.
    """
    if count <= checkpoints:
        return checkpoint % count + 1
    own = range(checkpoint, count, checkpoints)
    return own[group % len(own)] + 1


def split(checkpoints: Sequence[Checkpoint], groups: int, count: int) -> dict[tuple[str, int], int]:
    """The number of the shard that measures each unit (checkpoint, group)."""
    return {
        (checkpoint.name, group): shard_of(i, group, len(checkpoints), count)
        for i, checkpoint in enumerate(checkpoints)
        for group in range(groups)
    }


def shard_plans(results: Path) -> dict[Path, int]:
    """The plans of the shards that were started since the last run of the whole study: number of shards by path."""
    paths = sorted((results / "shards").glob("plan-*.json"))
    found = {path: re.fullmatch(r"plan-[0-9]{1,6}-of-([0-9]{1,6})\.json", path.name) for path in paths}
    return {path: int(match[1]) for path, match in found.items() if match}
