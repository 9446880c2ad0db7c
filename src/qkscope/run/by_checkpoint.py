"""Work on the units of one checkpoint after another: here, or in processes where that pays.

The units of one checkpoint are in memory at a time, or of one in each process. Whoever does it, the same comes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkscope.capture.memory import available_bytes
from qkscope.moments import Unit
from qkscope.progress import Bar, progress
from qkscope.run.units import Job, read_unit
from qkscope.study import Study
from qkscope.workers import in_processes, worth

Result = TypeVar("Result")

# Bytes in memory for one of a unit's file (triangles become squares), and of a process beside its units.
UNPACKED, BESIDE = 3, 400_000_000


@dataclass(frozen=True)
class Task:
    """A checkpoint's units, and over which windows they are to be measured; small enough to travel."""

    study: Study
    name: str
    own: int
    windows: tuple[int, ...]
    jobs: tuple[Job, ...]
    results: Path

    def units(self) -> list[Unit]:
        return [read_unit(job.path(self.results), job.key) for job in self.jobs]

    @property
    def bytes(self) -> int:
        """About what a process needs for it."""
        files = sum(job.path(self.results).stat().st_size for job in self.jobs)
        return BESIDE + UNPACKED * files


def by_checkpoint(work: Callable[[Task], Result], tasks: Sequence[Task], what: str) -> Iterator[Result]:
    """`work` of every task, in order. `what` it comes to is said of each checkpoint as it is done."""
    with progress(what, len(tasks), "checkpoints") as bar:
        started = time.monotonic()
        for count, task in enumerate(tasks[:1], 1):
            yield work(task)
            _done(bar, task, what, count, len(tasks))
        rest = tasks[1:]
        processes = _processes(rest, time.monotonic() - started)
        found = map(work, rest) if processes < 2 else in_processes(work, rest, processes)
        for count, (task, each) in enumerate(zip(rest, found, strict=True), 2):
            _done(bar, task, what, count, len(tasks))
            yield each


def _processes(tasks: Sequence[Task], seconds: float) -> int:
    """How many are worth starting for tasks of so many seconds each, and have room."""
    count, room = worth(len(tasks), seconds), available_bytes()
    if count < 2 or room is None:
        return count
    return min(count, room // max(task.bytes for task in tasks))


def _done(bar: Bar, task: Task, what: str, count: int, total: int) -> None:
    bar.advance()
    bar.done(f"{what}: {task.name} ({count} of {total})")
