"""Where units run: here, in shards side by side, or on Ray (`cluster.py`).

Every engine does the same units with the same code and leaves the same files; they differ in where and in what order.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from qkscope import store
from qkscope.checkpoints.weights import Ahead
from qkscope.errors import EngineError, StoreError
from qkscope.progress import Bar
from qkscope.run.apart import MeasurerApart
from qkscope.run.units import Job, Tick, UnitMeasurer, in_words, marked, write_sums
from qkscope.study import Checkpoint, Study, sources
from qkscope.words import duration

if TYPE_CHECKING:
    from qkscope.corpus import Document

_STAMP = re.compile(r"[0-9]+-of-[0-9]+\.json")
_PLAN = re.compile(r"plan-[0-9]+-of-[0-9]+\.json")
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
    """Measure one unit and write its files, each whole or not at all, with its marks beside them."""
    with marked(path) as mark:

        def tick(tokens: int) -> None:
            mark.beat()
            on_tokens(tokens)

        write_sums(path, measurer.unit_bytes(job, documents, tick))


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
    """Which of `count` shards (from 1) does a unit.

    A checkpoint stays whole while there are no more shards than checkpoints, so that its model is loaded once; then
    each checkpoint's groups are dealt to its own shards.
    """
    if count <= checkpoints:
        return checkpoint % count + 1
    own = range(checkpoint, count, checkpoints)
    return own[group % len(own)] + 1


def shard_checkpoints(checkpoints: Sequence[Checkpoint], groups: int, shard: Shard) -> list[Checkpoint]:
    """The checkpoints of which a shard does at least one unit."""
    total = len(checkpoints)
    return [
        checkpoint
        for i, checkpoint in enumerate(checkpoints)
        if any(shard_of(i, group, total, shard.count) == shard.number for group in range(groups))
    ]


def shard_jobs(jobs: Sequence[Job], checkpoints: Sequence[Checkpoint], shard: Shard) -> list[Job]:
    index = {checkpoint.name: i for i, checkpoint in enumerate(checkpoints)}
    return [
        job
        for job in jobs
        if shard_of(index[job.name], job.group, len(checkpoints), shard.count) == shard.number
    ]


class Stamps:
    """`shards/<I>-of-<N>.json`: which study the shards of a folder belong to, and which have finished."""

    def __init__(self, results: Path, study: Study, checkpoints: Sequence[Checkpoint]) -> None:
        self._folder = results / "shards"
        self._study = study_digest(study, checkpoints)
        self._name = study.name

    def begin(self, shard: Shard) -> None:
        self._refuse_others(shard.count)
        self._write(shard, finished=False)
        # Once more, for one that began at the same moment: each sees the other's stamp or is seen.
        self._refuse_others(shard.count)

    def finish(self, shard: Shard) -> None:
        self._write(shard, finished=True)

    def unfinished(self) -> tuple[list[int], int]:
        """Numbers of the shards that have not finished, and how many shards there are (0 if it never was sharded)."""
        self._refuse_others(None)
        stamps = self._read()
        count = stamps[0]["count"] if stamps else 0
        finished = {stamp["number"] for stamp in stamps if stamp["finished"]}
        return [number for number in range(1, count + 1) if number not in finished], count

    def clear(self) -> None:
        """After a merge the shards are one result."""
        for path in self._folder.glob("*.json"):
            if _STAMP.fullmatch(path.name) or _PLAN.fullmatch(path.name):
                path.unlink(missing_ok=True)
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _write(self, shard: Shard, finished: bool) -> None:
        stamp = {"study": self._study, "name": self._name, "finished": finished}
        path = self._folder / f"{shard.number}-of-{shard.count}.json"
        store.write_json(path, {**stamp, "number": shard.number, "count": shard.count})

    def _read(self) -> list[dict[str, Any]]:
        return [
            self._stamp(path) for path in sorted(self._folder.glob("*.json")) if _STAMP.fullmatch(path.name)
        ]

    def _stamp(self, path: Path) -> dict[str, Any]:
        types = {"study": str, "name": str, "finished": bool, "number": int, "count": int}
        stamp = store.read_json(path)
        if not isinstance(stamp, dict) or any(type(stamp.get(part)) is not types[part] for part in types):
            raise StoreError(f"{path}: damaged (not a shard file); delete it and run that shard again")
        return stamp

    def _refuse_others(self, count: int | None) -> None:
        for stamp in self._read():
            if stamp["study"] != self._study:
                raise EngineError(
                    f"{self._folder.parent}: contains shards of another study ({stamp['name']!r}, or an earlier "
                    f"version of it); choose another folder with --out, or delete {self._folder} to discard them"
                )
            if count is not None and stamp["count"] != count:
                raise EngineError(
                    f"{self._folder.parent}: was started with {stamp['count']} shards, now {count} are requested; "
                    f"use /{stamp['count']} as before, or delete {self._folder} to split the work again"
                )


def study_digest(study: Study, checkpoints: Sequence[Checkpoint]) -> str:
    """Of what decides the units of a study, the same on machines that keep its files in different places."""

    def last(place: str) -> str:
        return Path(place).name if Path(place).is_absolute() else place

    corpus = study.corpus.model_dump(mode="json") | {
        "source": [last(source) for source in study.corpus.source]
    }
    # As the study names them: shards that find a branch elsewhere are of one study still, and their keys tell.
    revisions = {c.name: c.source.revision for c in sources(study)}
    parts = {
        "checkpoints": [
            [c.name, last(c.source.model), revisions.get(c.name), c.source.dtype, c.window]
            for c in checkpoints
        ],
        "corpus": corpus,
        "heads": study.heads.model_dump(mode="json"),
        "numbers": [study.windows, study.groups, study.batch_tokens],
    }
    return store.short_digest(parts)
