"""Which worker does which unit next, and how often a lost one is tried again. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Sequence

from qkscope.run.units import Job, smaller


class UnitQueue:
    """Units waiting, in the study's order, dealt so that a worker changes its model as seldom as possible."""

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
        """The next unit: of the checkpoint the worker holds; else of one nobody holds; else of the fullest.

        When nothing else is left or under way, one of those that are done alone.
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
        """A unit that raised: the other units of its checkpoint would meet the same and are not tried."""
        self.failures.setdefault(job.name, why)
        alone = [each for each in self._alone if each.name == job.name]
        self._alone = [each for each in self._alone if each.name != job.name]
        self.unfinished -= 1 + len(self._waiting.pop(job.name, [])) + len(alone)

    def lose(self, job: Job, where: str, short_of_memory: bool = False) -> str | None:
        """A unit whose worker died: None if it is tried again, else why not. The rest of its checkpoint goes on.

        Where memory ran short it is tried again alone and in smaller passes; in smaller ones, too, for the last time:
        few deaths tell their cause.
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
