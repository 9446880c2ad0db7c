"""Work on the units of one checkpoint after another: here, or in processes where that pays.

The units of one checkpoint are in memory at a time, or of one in each process. Whoever does it, the same comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkscope.capture.memory import available_bytes
from qkscope.progress import progress
from qkscope.run.units import Job, read_unit
from qkscope.study import Study
from qkscope.unit import Unit
from qkscope.workers import in_processes, worth

Result = TypeVar("Result")

# Bytes in memory for one of a unit's file (triangles become squares), and of a process beside its units.
UNPACKED, BESIDE = 3, 400_000_000
# Of a unit's file, what a core puts together in a second: heads of 128 dimensions, 8 groups, three windows.
BYTES_A_SECOND = 12_000_000


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
        return [read_unit(job.path(self.results), job.keys) for job in self.jobs]

    @property
    def bytes(self) -> int:
        """Of its units' files."""
        return sum(path.stat().st_size for job in self.jobs for path in job.files(self.results))


def by_checkpoint(work: Callable[[Task], Result], tasks: Sequence[Task], what: str) -> Iterator[Result]:
    """`work` of every task, in order. `what` it comes to is said of each checkpoint as it is done."""
    with progress(what, len(tasks), "checkpoints") as bar:
        processes = _processes(tasks)
        found = map(work, tasks) if processes < 2 else in_processes(work, tasks, processes)
        for count, (task, each) in enumerate(zip(tasks, found, strict=True), 1):
            bar.advance()
            bar.done(f"{what}: {task.name} ({count} of {len(tasks)})")
            yield each


def _processes(tasks: Sequence[Task]) -> int:
    """How many are worth starting, and have room."""
    largest, room = max((task.bytes for task in tasks), default=0), available_bytes()
    count = worth(len(tasks), largest / BYTES_A_SECOND)
    return count if count < 2 or room is None else min(count, room // (BESIDE + UNPACKED * largest))
