"""Which worker measures which unit next, and how often a lost unit is repeated. Independent of Ray."""

from __future__ import annotations

from collections.abc import Sequence

from qkscope.run.units import Job, smaller


class UnitQueue:
    """Waiting units in the study's order, assigned so that workers change models as rarely as possible."""

    def __init__(self, jobs: Sequence[Job], retries: int) -> None:
        self._waiting: dict[str, list[Job]] = {}
        for job in jobs:
            self._waiting.setdefault(job.name, []).append(job)
        self._alone: list[Job] = []
        self._retries = retries
        self._losses: dict[tuple[str, int], int] = {}
        self._holding: dict[int, str] = {}
        self.unfinished = len(jobs)
        self.failures: dict[str, str] = {}
        self.starts_lost = 0
        self.stalled_since: float | None = None

    def take(self, worker: int) -> Job | None:
        """The next unit: of the worker's checkpoint, else of one that no worker has, else of the one with most units.

        Units that ran out of memory come last, one at a time, when no other unit is waiting or running.
        """
        names = [name for name, jobs in self._waiting.items() if jobs]
        if not names:
            return self._alone.pop(0) if self.unfinished == len(self._alone) > 0 else None
        held = self._holding.get(worker)
        if held not in names:
            others = {name for number, name in self._holding.items() if number != worker}
            free = [name for name in names if name not in others]
            held = free[0] if free else max(names, key=lambda name: len(self._waiting[name]))
        self._holding[worker] = held
        return self._waiting[held].pop(0)

    def finish(self, job: Job) -> None:
        self.unfinished -= 1

    def fail(self, job: Job, why: str) -> None:
        """A unit raised an error: the other units of its checkpoint would too, so they are dropped."""
        self.failures.setdefault(job.name, why)
        alone = [each for each in self._alone if each.name == job.name]
        self._alone = [each for each in self._alone if each.name != job.name]
        self.unfinished -= 1 + len(self._waiting.pop(job.name, [])) + len(alone)

    def lose(self, job: Job, where: str, short_of_memory: bool = False) -> str | None:
        """A unit's worker died. Returns None if the unit is repeated, else why not. Other units continue.

        If memory ran out, it is repeated alone and in smaller passes. The last attempt is in smaller passes in any
        case, because the cause of a death is often unknown.
        """
        losses = self._losses[job.name, job.group] = self._losses.get((job.name, job.group), 0) + 1
        if job.name in self.failures and job.name not in self._waiting:
            self.unfinished -= 1
            return self.failures[job.name]
        if losses <= self._retries:
            if short_of_memory:
                self._alone.append(smaller(job))
            else:
                again = smaller(job) if losses == self._retries else job
                self._waiting.setdefault(job.name, []).insert(0, again)
            return None
        why = (
            f"{job}: its worker was lost {losses} times, last {where}: out of memory, or a crash in a library"
        )
        self.failures.setdefault(job.name, why)
        self.unfinished -= 1
        return why
