"""Where units are measured: on this machine, or on a Ray cluster (`cluster.py`).

Every engine measures the same units with the same code and writes the same files; they differ in place and order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Protocol

from qkscope.checkpoints import Source, hub
from qkscope.checkpoints.files import WEIGHTS
from qkscope.corpus import Document
from qkscope.errors import EngineError, MemoryShortError, QkscopeError, StoreError, printable
from qkscope.progress import Bar, say
from qkscope.run.units import (
    Job,
    SumFiles,
    Tick,
    UnitMeasurer,
    error_line,
    import_libraries,
    mark_failed,
    mark_running,
    smaller,
    touch_mark,
    unmark,
    write_sums,
)
from qkscope.study import Study
from qkscope.words import duration
from qkscope.workers import WorkerDiedError, WorkerProcess, report

DocumentsOf = Callable[[Job], list[Document]]
# Importing torch from a cold network disk takes longest.
START_SECONDS = 300.0


class SubprocessMeasurer(UnitMeasurer):
    """Measures units as `UnitMeasurer` does, but in another process and each within `seconds`.

    A pass that hangs inside a library responds to no exception and to no signal that Python handles: it can only be
    ended with its process. The time includes loading the model, but not starting the process.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._worker: WorkerProcess | None = None

    def end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _in_passes_of(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> SumFiles:
        worker = self._worker = self._worker or self._start()
        try:
            return worker.call(
                _unit_bytes, (job, documents), self._seconds, lambda tokens: on_tokens(tokens or 0)
            )
        except TimeoutError as error:
            self.end()
            raise EngineError(too_long(job, self._seconds)) from error
        except WorkerDiedError as error:
            self.end()
            if error.code == -signal.SIGKILL:
                killed = "its process was killed, probably because the machine ran out of memory"
                raise MemoryShortError(killed) from error
            ended = f"the process measuring group {job.group} ended with exit code {error.code}"
            raise EngineError(f"{ended}, possibly a crash in a library") from error

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess()
        torch = sys.modules.get("torch")
        try:
            # As many threads as here: sums by another number of threads are rounded differently.
            worker.call(_prepare, int(torch.get_num_threads()) if torch else 0, START_SECONDS)
        except TimeoutError as error:
            raise EngineError(
                f"the measuring subprocess did not start within {START_SECONDS:.0f} s"
            ) from error
        return worker


def too_long(job: Job, seconds: float) -> str:
    return f"group {job.group} took longer than the study's timeout of {seconds:g} s and was stopped"


def _prepare(threads: int) -> None:
    """In the subprocess: import what units need and set the number of torch's threads (0: torch's own)."""
    import_libraries()
    if threads:
        sys.modules["torch"].set_num_threads(threads)


@cache
def _measurer() -> UnitMeasurer:
    """In the subprocess: the measurer that keeps the model from unit to unit."""
    return UnitMeasurer()


def _unit_bytes(unit: tuple[Job, Sequence[Document]]) -> SumFiles:
    """In the subprocess: measure a unit. Smaller passes were tried here, so no error asks the caller for them."""
    try:
        return _measurer().unit_bytes(*unit, report)
    except Exception as error:
        raise EngineError(error_line(error)) from error


class Tally:
    """Counts finished units and reports each in one line, with an estimate of the time left.

    on_checkpoint   called with the name of a checkpoint when its last unit is written
    """

    def __init__(
        self, jobs: Sequence[Job], bar: Bar, on_checkpoint: Callable[[str], None] = lambda name: None
    ) -> None:
        self.bar = bar
        self._on_checkpoint = on_checkpoint
        self._units, self._tokens = len(jobs), sum(job.tokens for job in jobs)
        self._waiting = Counter(job.name for job in jobs)
        self._started = time.monotonic()
        self._done_units = self._done_tokens = 0

    def finished(self, job: Job, seconds: float) -> None:
        self._done_units += 1
        self._done_tokens += job.tokens
        rate = self._done_tokens / max(time.monotonic() - self._started, 1e-9)
        left = (self._tokens - self._done_tokens) / max(rate, 1e-9)
        later = f", about {duration(left)} left" if self._done_units < self._units else ""
        count = f"[{self._done_units}/{self._units}]"
        self.bar.done(f"{count} {job}: {job.tokens:,} tokens in {seconds:.1f} s{later}")
        self._waiting[job.name] -= 1
        if not self._waiting[job.name]:
            self._on_checkpoint(job.name)

    def failed(self, job: Job, why: str) -> None:
        self.bar.done(f"{job}: failed: {why}")


class Engine(Protocol):
    """Measures units; `run` returns the checkpoints that could not be finished, with the reason."""

    def run(
        self, jobs: Sequence[Job], documents: DocumentsOf, results: Path, tally: Tally
    ) -> dict[str, str]: ...

    def close(self) -> None: ...


def open_engine(name: str, study: Study) -> Engine:
    """The engine called `name`, ready to run; an EngineError if it is not installed or cannot be reached."""
    if name == "local":
        return LocalEngine(study.timeout, study.keep_weights)
    if name == "ray":
        from qkscope.run.cluster import RayEngine

        return RayEngine(study)
    raise EngineError(f"unknown engine {name!r}; use local or ray")


class LocalEngine:
    """One unit after the other, each model loaded once for all of its units.

    In this process, or with `timeout` in a subprocess.
    """

    def __init__(self, timeout: float | None = None, keep_weights: bool = True) -> None:
        self._timeout, self._keep_weights = timeout, keep_weights

    def run(self, jobs: Sequence[Job], documents: DocumentsOf, results: Path, tally: Tally) -> dict[str, str]:
        measurer = UnitMeasurer() if self._timeout is None else SubprocessMeasurer(self._timeout)
        failures: dict[str, str] = {}
        prefetcher = WeightPrefetcher([job.source.source for job in jobs], self._keep_weights)
        last = {str(job.source.source): job for job in jobs}
        try:
            for job in jobs:
                source = job.source.source
                if job.name not in failures:  # its other units would fail in the same way
                    prefetcher.wait_for(source)
                    started = time.monotonic()
                    tally.bar.describe(str(job))
                    try:
                        do_unit(measurer, job, documents(job), results, tally.bar.advance)
                    except StoreError:
                        raise  # no other unit could be written either
                    except Exception as error:
                        failures[job.name] = error_line(error)
                        tally.failed(job, error_line(error))
                    else:
                        tally.finished(job, time.monotonic() - started)
                    prefetcher.fetch_after(source)
                if job is last[str(source)] and not self._keep_weights:
                    measurer.end()
                    prefetcher.done(source)
        finally:
            prefetcher.close()
            measurer.end()
        return failures

    def close(self) -> None:
        """Nothing to close."""


class WeightPrefetcher:
    """Downloads the weights of `sources` in the order in which they are measured, one ahead.

    The download runs in a subprocess, so that it does not slow the passes down. Its errors are ignored: loading the
    model meets them again and reports them. With `keep` false, weights that were not in the hub cache before are
    deleted from it when their checkpoint is done.
    """

    def __init__(self, sources: Sequence[Source], keep: bool = True) -> None:
        # By model and revision: counterfactual checkpoints share the weights of others.
        self._sources = {str(source): source for source in sources if source.path is None}
        self._keep = keep
        self._there = {name for name, source in self._sources.items() if _in_cache(source)}
        self._begun: dict[str, subprocess.Popen[bytes]] = {}

    def wait_for(self, source: Source) -> None:
        """Wait until the download of these weights has ended, if one was started."""
        if str(source) in self._begun:
            self._begun[str(source)].wait()

    def fetch_after(self, source: Source) -> None:
        """Start to download the weights of the next source, unless that was done already."""
        names = list(self._sources)
        if str(source) not in names[:-1]:
            return
        name = names[names.index(str(source)) + 1]
        if name not in self._begun and not _in_cache(self._sources[name]):
            self._begun[name] = subprocess.Popen(
                [sys.executable, "-c", FETCH, json.dumps(asdict(self._sources[name]))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                start_new_session=True,
            )

    def done(self, source: Source) -> None:
        """Delete the weights of a source if `keep` is false and they were downloaded by this run."""
        if self._keep or str(source) not in self._sources or str(source) in self._there:
            return
        try:
            if freed := hub.forget(source.model, source.revision) / 1e9:
                say(f"{source}: {freed:.1f} GB of weights deleted from the hub cache (keep_weights: false)")
        except (OSError, QkscopeError) as error:
            why = printable(str(error))
            say(f"{source}: its weights could not be deleted ({why}) and remain in the hub cache")

    def close(self) -> None:
        """Stop all downloads; the next run resumes them."""
        for process in self._begun.values():
            process.kill()
            process.wait()


def _in_cache(source: Source) -> bool:
    listing = hub.cached(source.model, source.revision)
    return listing is not None and any(name.endswith(WEIGHTS) for name in listing.files)


# The program of the subprocess that downloads weights.
FETCH = """
import json, sys
from qkscope.checkpoints.files import Source, local_files
local_files(Source(**json.loads(sys.argv[1])), "model")
"""


def do_unit(
    measurer: UnitMeasurer, job: Job, documents: Sequence[Document], results: Path, on_tokens: Tick
) -> None:
    """Measure one unit and write its files, each atomically, with a mark beside them while it runs."""
    path = job.path(results)

    def tick(tokens: int) -> None:
        touch_mark(path)
        on_tokens(tokens)

    try:
        # Inside, because Ctrl-C may come at any line.
        mark_running(path)
        write_sums(path, measurer.unit_bytes(job, documents, tick))
    except Exception as error:
        mark_failed(path, f"{error_line(error)}\n\n{traceback.format_exc()}")
        raise
    finally:
        unmark(path)


class UnitQueue:
    """Waiting units in the study's order, assigned so that workers change models as rarely as possible."""

    def __init__(self, jobs: Sequence[Job], retries: int) -> None:
        self._waiting: dict[str, list[Job]] = {}
        for job in jobs:
            self._waiting.setdefault(job.name, []).append(job)
        self._alone: list[Job] = []
        self._running = 0
        self._retries = retries
        self._losses: Counter[tuple[str, int]] = Counter()
        self._holding: dict[int, str] = {}
        self.failures: dict[str, str] = {}

    @property
    def unfinished(self) -> int:
        return self._running + len(self._alone) + sum(map(len, self._waiting.values()))

    def take(self, worker: int) -> Job | None:
        """The next unit: of the worker's checkpoint, else of one that no worker has, else of the one with most units.

        Units that ran out of memory come last, one at a time, when no other unit is waiting or running.
        """
        names = [name for name, jobs in self._waiting.items() if jobs]
        if not names and (self._running or not self._alone):
            return None
        self._running += 1
        if not names:
            return self._alone.pop(0)
        held = self._holding.get(worker)
        if held not in names:
            others = {name for number, name in self._holding.items() if number != worker}
            free = [name for name in names if name not in others]
            held = free[0] if free else max(names, key=lambda name: len(self._waiting[name]))
        self._holding[worker] = held
        return self._waiting[held].pop(0)

    def finish(self) -> None:
        self._running -= 1

    def fail(self, job: Job, why: str) -> None:
        """A unit raised an error: the other units of its checkpoint would too, so they are dropped."""
        self._running -= 1
        self.failures.setdefault(job.name, why)
        self._waiting.pop(job.name, None)
        self._alone = [each for each in self._alone if each.name != job.name]

    def lose(self, job: Job, where: str, short_of_memory: bool = False) -> str | None:
        """A unit's worker died. Returns None if the unit is repeated, else why not. Other units continue.

        If memory ran out, it is repeated alone and in smaller passes. The last attempt is in smaller passes in any
        case, because the cause of a death is often unknown.
        """
        self._running -= 1
        if job.name not in self._waiting:  # another of its units raised an error
            return self.failures[job.name]
        self._losses[job.name, job.group] += 1
        losses = self._losses[job.name, job.group]
        if losses > self._retries:
            why = f"{job}: its worker was lost {losses} times, last {where}: out of memory, or a crash in a library"
            self.failures.setdefault(job.name, why)
            return why
        if short_of_memory:
            self._alone.append(smaller(job))
        else:
            self._waiting[job.name].insert(0, smaller(job) if losses == self._retries else job)
        return None
