"""How far a study is, from its files alone: no model, no study file, no process needs to be asked."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkscope import store
from qkscope.errors import StoreError
from qkscope.run.engines import Shard, shard_jobs
from qkscope.run.plan import Plan
from qkscope.run.units import HEARTBEAT_SECONDS, Job, unit_path, why_stale
from qkscope.study import Checkpoint, Study

if TYPE_CHECKING:
    from rich.table import Table

PLAN = "plan.json"
STATES = ("done", "running", "failed", "waiting")


@dataclass(frozen=True)
class UnitStatus:
    """One unit: done, running, failed or waiting, and a word about it."""

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
    """Checkpoints that could not even be looked at, and why."""

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
            cells = [Text(str(states[state]) if states[state] else "·") for state in STATES]
            table.add_row(Text(name), *cells, Text("\n".join(notes)))
        return table


def _notes(units: Sequence[UnitStatus]) -> list[str]:
    """What there is to say about units, each thing once with the groups it is true of."""
    groups: dict[str, list[str]] = {}
    for unit in units:
        if unit.detail:
            groups.setdefault(unit.detail, []).append(str(unit.group))
    return [f"group {', '.join(which)}: {detail}" for detail, which in groups.items()]


def write_plan(results: Path, study: str, jobs: Sequence[Job], missing: Mapping[str, str]) -> None:
    """Say which units there are and what their keys must be, so that `status` need not work it out."""
    rows = [{"checkpoint": j.name, "folder": j.folder, "group": j.group, "key": dict(j.key)} for j in jobs]
    store.write_json(results / "moments" / PLAN, {"study": study, "units": rows, "missing": dict(missing)})


def write_shard_plan(
    results: Path, study: Study, checkpoints: Sequence[Checkpoint], plan: Plan, shard: Shard
) -> None:
    """The same by one shard: it knows the keys of its own units, and that there are others."""
    keys = {(job.name, job.group): dict(job.key) for job in shard_jobs(plan.jobs, checkpoints, shard)}
    rows = [
        {"checkpoint": c.name, "folder": c.folder, "group": group, "key": keys.get((c.name, group))}
        for c in checkpoints
        for group in range(study.groups)
    ]
    path = results / "shards" / f"plan-{shard.number}-of-{shard.count}.json"
    store.write_json(path, {"study": study.name, "units": rows, "missing": plan.missing})


def status(folder: Path | str) -> Status:
    """Which units are done, running, failed or waiting."""
    folder = Path(folder)
    # Shards still to be merged know better than an older plan of the whole.
    paths = sorted(folder.glob("shards/plan-*.json")) or [folder / "moments" / PLAN]
    plans = [_read_plan(path) for path in paths]
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in (row for plan in plans for row in plan["units"]):
        known = rows.setdefault((row["checkpoint"], row["group"]), row)
        known["key"] = known["key"] or row["key"]
    missing = {name: why for plan in plans for name, why in plan["missing"].items()}
    units = tuple(_unit_status(folder, row) for row in rows.values())
    return Status(folder, plans[0]["study"], units, missing)


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(path.read_text())
        return plan
    except OSError as error:
        raise StoreError(
            f"{path}: no such file; give a results folder that `qkscope run` has begun"
        ) from error
    except ValueError as error:
        raise StoreError(f"{path}: damaged ({error}); run the study again to have it rewritten") from error


def _unit_status(results: Path, row: dict[str, Any]) -> UnitStatus:
    path = unit_path(results, row["folder"], row["group"])
    state, detail = _state(path, row["key"])
    return UnitStatus(row["checkpoint"], row["group"], state, detail)


def _state(path: Path, key: dict[str, Any] | None) -> tuple[str, str]:
    running, lost = _running(path.with_suffix(".running"))
    if running:
        return "running", running
    failed = _first_line(path.with_suffix(".failed"))
    if path.exists():
        try:
            stale = why_stale(store.read_meta(path).get("key", {}), key or {})
        except StoreError as error:
            return "waiting", str(error)
        if stale is None:
            return "done", ""
        if not failed:
            return "waiting", f"has to be measured again: {stale}"
    return ("failed", failed) if failed else ("waiting", lost)


def _running(path: Path) -> tuple[str, str]:
    """(who is at work on it, "") or ("", what became of who was)."""
    try:
        who = json.loads(path.read_text())
        quiet = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return "", ""
    text = f"process {who['pid']} on {who['host']}, for {(time.time() - who['since']) / 60:.0f} min"
    here = who["host"] == socket.gethostname()
    if (here and not store.alive(who["pid"])) or (not here and quiet > 10 * HEARTBEAT_SECONDS):
        return "", f"was begun by process {who['pid']} on {who['host']}, which has ended"
    return text, ""


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").split("\n", 1)[0]
    except OSError:
        return ""
