"""Where units are measured: on this machine, or on a Ray cluster (`cluster.py`).

Every engine measures the same units with the same code and writes the same files; they differ in place and order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qkscope import store
from qkscope.checkpoints.weights import Ahead
from qkscope.errors import EngineError, StoreError
from qkscope.progress import Bar
from qkscope.run.apart import MeasurerApart
from qkscope.run.units import Job, Tick, UnitMeasurer, in_words, marked
from qkscope.study import Study
from qkscope.words import duration

if TYPE_CHECKING:
    from qkscope.corpus import Document

Measurer = UnitMeasurer | MeasurerApart
DocumentsOf = Callable[[Job], "list[Document]"]


class Engine(Protocol):
    """Does units and says which checkpoints could not be finished, and why."""

    def run(self, jobs: Sequence[Job], documents: DocumentsOf, results: Path, bar: Bar) -> dict[str, str]: ...

    def close(self) -> None: ...


def open_engine(name: str, study: Study) -> Engine:
    """The engine called `name`, ready to run; an EngineError if its place is missing or does not fit."""
    if name == "local":
        return LocalEngine(study.timeout, study.keep_weights)
    if name == "ray":
        from qkscope.run.cluster import RayEngine

        return RayEngine(study)
    raise EngineError(f"unknown engine {name!r}; use local or ray")


@dataclass
class Tally:
    """Counts finished units, and says so: one line each, with the time that is left."""

    units: int
    tokens: int
    bar: Bar
    started: float = field(default_factory=time.monotonic)
    done_units: int = 0
    done_tokens: int = 0

    def finished(self, job: Job, seconds: float) -> None:
        self.done_units += 1
        self.done_tokens += job.tokens
        rate = self.done_tokens / max(time.monotonic() - self.started, 1e-9)
        left = (self.tokens - self.done_tokens) / max(rate, 1e-9)
        self.bar.done(
            f"[{self.done_units}/{self.units}] {job}: {job.tokens:,} tokens in {seconds:.1f} s"
            + (f", about {duration(left)} left" if self.done_units < self.units else "")
        )

    def failed(self, job: Job, why: str) -> None:
        self.bar.done(f"{job}: failed: {why}")


class LocalEngine:
    """One unit after the other, each model loaded once for all of its units.

    In this process, unless each unit has only `timeout` seconds.
    """

    def __init__(self, timeout: float | None = None, keep_weights: bool = True) -> None:
        self._timeout, self._keep_weights = timeout, keep_weights

    def run(self, jobs: Sequence[Job], documents: DocumentsOf, results: Path, bar: Bar) -> dict[str, str]:
        measurer = UnitMeasurer() if self._timeout is None else MeasurerApart(self._timeout)
        try:
            return self._each(jobs, measurer, documents, results, bar)
        finally:
            measurer.end()

    def _each(
        self, jobs: Sequence[Job], measurer: Measurer, documents: DocumentsOf, results: Path, bar: Bar
    ) -> dict[str, str]:
        failures: dict[str, str] = {}
        tally = Tally(len(jobs), sum(job.tokens for job in jobs), bar)
        ahead = Ahead([job.source.source for job in jobs], self._keep_weights)
        last = {str(job.source.source): number for number, job in enumerate(jobs)}
        try:
            for number, job in enumerate(jobs):
                source = job.source.source
                if job.name not in failures:  # what its other units would meet too
                    ahead.wait_for(source)
                    if why := self._do(measurer, job, documents, results, tally):
                        failures[job.name] = why
                    ahead.fetch_after(source)
                if number == last[str(source)] and not self._keep_weights:
                    measurer.end()
                    ahead.done(source)
        finally:
            ahead.close()
        return failures

    def _do(
        self, measurer: Measurer, job: Job, documents: DocumentsOf, results: Path, tally: Tally
    ) -> str | None:
        """Do one unit; why it failed if it did."""
        started = time.monotonic()
        tally.bar.describe(str(job))
        try:
            do_unit(measurer, job, documents(job), job.path(results), tally.bar.advance)
        except StoreError:
            raise  # a disk that does not take one unit takes none
        except Exception as error:
            tally.failed(job, in_words(error))
            return in_words(error)
        tally.finished(job, time.monotonic() - started)
        return None

    def close(self) -> None:
        """Nothing is held."""


def do_unit(
    measurer: Measurer,
    job: Job,
    documents: Sequence[Document],
    path: Path,
    on_tokens: Tick,
) -> None:
    """Measure one unit and write its file, whole or not at all, with its marks beside it."""
    with marked(path) as mark:

        def tick(tokens: int) -> None:
            mark.beat()
            on_tokens(tokens)

        store.write_bytes(path, measurer.unit_bytes(job, documents, tick))
